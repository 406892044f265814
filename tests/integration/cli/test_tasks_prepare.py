from __future__ import annotations

import argparse
import json
import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cooperbench.cli import dataset as dataset_commands
from cooperbench.cli.arguments import add_selection_arguments, number_list, task_number
from cooperbench.cli.machine import add_prepare_arguments
from cooperbench.errors import UserError
from tests.support.dataset.factory import write_dataset, write_public_shape
from tests.support.dataset.hub_server import DATASET_ID, Hub, files_of, serving

if TYPE_CHECKING:
    from pathlib import Path


def run_tasks(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    dataset_commands.add_tasks_arguments(parser)
    return dataset_commands.tasks(parser.parse_args(arguments))


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    subsets = {
        "lite": {
            "description": "A few",
            "tasks": [{"repo": "beta", "task_id": 12, "pairs": [[1, 3]]}],
        }
    }
    return write_dataset(
        tmp_path / "data",
        {"beta_task": {12: [1, 2, 3, 5], 3: [10, 2]}, "alpha_task": {0: [1]}},
        subsets=subsets,
    )


def test_selection_arguments() -> None:
    parser = argparse.ArgumentParser()
    add_selection_arguments(parser)
    short = parser.parse_args(
        ["-s", "lite", "-r", "alpha", "-t", "0", "-f", "2,1", "--dataset-dir", "demo"]
    )
    long = parser.parse_args(
        ["--subset=lite", "--repo=alpha", "--task=task0", "--features=2,1", "--dataset-dir=demo"]
    )
    assert short == long
    assert vars(short) == {
        "subset": "lite",
        "repo": "alpha",
        "task_id": 0,
        "features": [2, 1],
        "group_sizes": None,
        "groups_per_task": None,
        "seed": 0,
        "coupling": None,
        "dataset_dir": "demo",
    }
    assert set(vars(parser.parse_args([])).values()) == {None, 0}
    groups = parser.parse_args(["--agents", "2,3", "--groups", "5", "--seed", "7"])
    assert (groups.group_sizes, groups.groups_per_task, groups.seed) == ([2, 3], 5, 7)


@pytest.mark.parametrize("text", ["", "1,", "a", "1;2", "1,-2", "1.5,2", "1,²", "9" * 5000])
def test_feature_lists_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not a list of numbers, e\.g\. 1,2"):
        number_list(text)


def test_feature_lists() -> None:
    assert number_list("1,2") == [1, 2]
    assert number_list(" 10 , 2,3") == [10, 2, 3]


@pytest.mark.parametrize("text", ["", "task", "-1", "x", "1.0", "tasktask1"])
def test_task_numbers_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a task's number"):
        task_number(text)


def test_table(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (dataset / "beta_task" / "task3" / "feature4").mkdir()
    assert run_tasks("--dataset-dir", str(dataset)) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        "2 repositories, 3 tasks, 7 features, 7 pairs",
        "",
        "  repository  task    features    pairs",
        "  alpha_task  task0   1           0",
        "  beta_task   task3   2, 10       1",
        "  beta_task   task12  1, 2, 3, 5  6",
        "",
    ]
    assert shown.err.startswith("note: beta_task/task3/feature4 skipped: no feature.md")


def test_filters(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tasks("--dataset-dir", str(dataset), "-s", "lite") == 0
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[3]) == (
        "1 repository, 1 task, 2 features, 1 pair",
        "  beta_task   task12  1, 3      1",
    )
    assert run_tasks("--dataset-dir", str(dataset), "-r", "alpha", "-t", "0") == 0
    assert capsys.readouterr().out.splitlines()[0] == "1 repository, 1 task, 1 feature, 0 pairs"
    with pytest.raises(UserError, match="no repository 'gamma'"):
        run_tasks("--dataset-dir", str(dataset), "-r", "gamma")


def test_json(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tasks("--dataset-dir", str(dataset), "--json", "-f", "3,1,2") == 0
    assert json.loads(capsys.readouterr().out) == {
        "dataset_dir": str(dataset),
        "totals": {"repositories": 1, "tasks": 1, "features": 3, "pairs": 1},
        "tasks": [
            {"repo": "beta_task", "task_id": 12, "features": [1, 2, 3], "pairs": [[1, 2, 3]]}
        ],
        "notes": [],
    }


def test_the_public_shape_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_public_shape(tmp_path)
    assert run_tasks("--dataset-dir", str(tmp_path), "--json") == 0
    totals = json.loads(capsys.readouterr().out)["totals"]
    assert totals == {"repositories": 12, "tasks": 30, "features": 199, "pairs": 652}


def test_the_subsets_are_named(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tasks("--dataset-dir", str(dataset)) == 0
    assert capsys.readouterr().err.endswith("note: subsets (-s): lite\n")


def test_a_terminal_gets_a_table(dataset: Path) -> None:
    master, terminal = pty.openpty()
    try:
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
        arguments = [sys.executable, "-m", "cooperbench", "tasks", "--dataset-dir", str(dataset)]
        subprocess.run(arguments, stdout=terminal, env=environment, check=True)
        shown = os.read(master, 100_000).decode()
    finally:
        os.close(master)
        os.close(terminal)
    assert "beta_task" in shown
    assert "─" in shown


def test_prepare_as_a_command(dataset: Path, tmp_path: Path) -> None:
    """In a process of its own, as the library reads $HF_ENDPOINT when it is imported."""
    code = (
        "import argparse, sys\n"
        "from cooperbench.cli.machine import add_prepare_arguments, prepare\n"
        "parser = argparse.ArgumentParser()\n"
        "add_prepare_arguments(parser)\n"
        "sys.exit(prepare(parser.parse_args(sys.argv[1:])))\n"
    )
    hub = Hub()
    commit = hub.add_commit(files_of(dataset))
    with serving(hub):
        environment = {
            **os.environ,
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": str(tmp_path / "hf"),
            "NO_PROXY": "127.0.0.1",
        }
        environment.pop("COOPERBENCH_DATASET_DIR", None)

        def command(*arguments: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-c", code, "--dataset-id", DATASET_ID, *arguments],
                env=environment,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=True,
            )

        first = command()
        second = command("--json")
    place = tmp_path / "dataset"
    assert first.stdout == f"{place}: 3 tasks, 7 pairs, revision {commit}, downloaded\n"
    assert f"downloading {DATASET_ID} at {commit[:12]}" in first.stderr
    assert json.loads(second.stdout) == {
        "path": str(place),
        "dataset_id": DATASET_ID,
        "revision": commit,
        "tasks": 3,
        "pairs": 7,
        "downloaded": False,
        "kept": None,
    }


def test_prepare_arguments() -> None:
    parser = argparse.ArgumentParser()
    add_prepare_arguments(parser)
    args = parser.parse_args([])
    assert (args.dataset_id, args.revision, args.force) == (
        "CodeConflict/cooperbench-dataset",
        None,
        False,
    )
