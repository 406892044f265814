"""More than two agents: named, merged, judged, reported, exported and played again like pairs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml

from cooperbench import run
from cooperbench.cli import main
from tests.support.dataset.factory import write_dataset
from tests.support.runner.helpers import Left
from tests.support.tiny import REPO, RUNNER, SETUP, TASK_ID, text_patch, write_tiny

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def write_wide(root: Path, features: int) -> Path:
    """A task with many features, a new file each."""

    def content(repo: str, task_id: int, number: int) -> dict[str, str]:
        return {
            "feature.md": f"# Feature {number}\n",
            "feature.patch": text_patch(f"part{number}.txt", None, [f"feature {number}\n"]),
            "tests.patch": text_patch(
                f"tests/f{number}.sh", None, [f'grep -q "feature {number}" part{number}.txt\n']
            ),
        }

    def task(repo: str, task_id: int) -> dict[str, str]:
        return {
            "Dockerfile": "FROM scratch\n",
            "setup.sh": SETUP,
            "runner.sh": RUNNER,
            "run_tests.sh": "exit 0\n",
        }

    return write_dataset(
        root,
        {REPO: {TASK_ID: list(range(1, features + 1))}},
        feature_content=content,
        task_content=task,
    )


def options(tmp_path: Path, data: Path, **more: Any) -> dict[str, Any]:
    shared = {
        "backend": "local",
        "dataset_dir": data,
        "logs_dir": tmp_path / "logs",
        "concurrency": 2,
    }
    return {**shared, "eval_concurrency": 2, "time_limit": 240, **more}


def test_groups_of_a_task_by_size_are_run_and_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_tiny(tmp_path / "data", (1, 2, 3, 4))
    words = [
        "-a",
        "oracle",
        "--backend",
        "local",
        "--dataset-dir",
        str(data),
        "--log-dir",
        str(tmp_path / "logs"),
    ]
    assert main(["run", "-n", "g", "--agents", "3,4", *words]) == 0
    folder = tmp_path / "logs/g/coop" / REPO / str(TASK_ID)
    assert {path.name for path in folder.iterdir()} == {
        "f1_f2_f3", "f1_f2_f4", "f1_f3_f4", "f2_f3_f4", "f1_f2_f3_f4",
    }  # fmt: skip
    # Features 1 and 4 change the same line: the union merge has both.
    merged = Left(folder / "f1_f2_f4").evaluation["merged"]
    assert (merged["merge_status"], merged["strategy"]) == ("conflict", "union")
    assert (merged["clean_order"], merged["all_orders_tried"]) == (None, True)
    assert "clean_order" not in Left(folder / "f1_f2_f3").evaluation["merged"]
    before = {path: path.read_bytes() for path in folder.rglob("*.json")}
    capsys.readouterr()
    assert main(["run", "-n", "g", "--agents", "2,3,4", "--dry-run", *words]) == 0
    assert "11 pairs, 6 to run, 0 to evaluate" in capsys.readouterr().out
    assert main(["eval", "-n", "g", *words[2:]]) == 0
    assert {path: path.read_bytes() for path in folder.rglob("*.json")} == before
    assert main(["run", "-n", "alone", "--setting", "solo", "--agents", "4", *words]) == 0
    solo = Left(tmp_path / "logs/alone/solo" / REPO / str(TASK_ID) / "f1_f2_f3_f4")
    assert solo.result["agents"].keys() == {"solo"}
    assert solo.evaluation["overall_success"] is True


def test_a_conflict_of_the_order_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_tiny(tmp_path / "data", (1, 2, 3))
    work: dict[int, list[Any]] = {
        1: [{"run": "sed -i '6i feature 1' app.txt && git mv app.txt moved.txt"}],
        2: [{"run": r"sed -i '8,40s/line /another line entirely /; 16i feature 2' app.txt"}],
        3: [{"run": "sed -i '3s/$/ !/' app.txt"}],
    }
    script = tmp_path / "script.yaml"
    script.write_text(yaml.safe_dump({"repos": {REPO: {TASK_ID: {"coop": work}}}}))
    run(
        "o",
        features=[1, 2, 3],
        agent="scripted",
        agent_config=str(script),
        **options(tmp_path, data),
    )
    merged = Left(tmp_path / "logs/o/coop" / REPO / str(TASK_ID) / "f1_f2_f3").evaluation["merged"]
    assert merged["merge_status"] == "conflict"
    assert sorted(merged["clean_order"]) == ["agent1", "agent2", "agent3"]
    assert merged["clean_order"] != ["agent1", "agent2", "agent3"]
    capsys.readouterr()
    assert main(["report", "o", "--log-dir", str(tmp_path / "logs")]) == 0
    assert (
        "o:coop: 1 conflict of three or more agents would merge in another order"
        in capsys.readouterr().out
    )


def test_golden_conflicts_by_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_tiny(tmp_path / "data", (1, 2, 3, 4))
    words = [
        "--conflicts-only",
        "--backend",
        "local",
        "--dataset-dir",
        str(data),
        "--agents",
        "2,3,4",
    ]
    assert main(["validate", *words, "--report", str(tmp_path / "report.json")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "6 golden pairs: 1 conflict, 5 merge cleanly",
        "4 golden groups of 3: 2 conflict, 2 merge cleanly",
        "1 golden group of 4: 1 conflict, 0 merge cleanly",
    ]
    assert len(json.loads((tmp_path / "report.json").read_text())["pairs"]) == 11
