"""An imported run of the demo, evaluated by our rules on `local`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cooperbench.cli import main
from cooperbench.dataset.discovery import load_tasks, resolve_dataset_dir
from tests.support.importing.public_run import PublicPair, write_config, write_pair

REPO = "stencil_task"


@pytest.fixture
def logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A run of golden patches: features 1 and 2 conflict, a patch that does not apply, and solo."""
    (task,) = load_tasks(resolve_dataset_dir("demo"), REPO)
    golden = {feature.feature_id: feature.patch.read_bytes() for feature in task.features}
    root = tmp_path / "their-run"
    write_config(root)
    conflict = PublicPair(
        REPO, 0, (1, 2), patches=golden, passed=False, merge=("conflicts", "solo-agent1")
    )
    broken = golden[3].replace(b" ", b"  ")
    unapplied = PublicPair(REPO, 0, (1, 3), patches={1: golden[1], 3: broken}, passed=True)
    both = task.combined_patch.read_bytes()
    solo = PublicPair(REPO, 0, (1, 2), setting="solo", patches={0: both}, passed=True)
    for pair in (conflict, unapplied, solo):
        write_pair(root, pair)
    assert main(["import-run", str(root), "--log-dir", str(tmp_path / "logs")]) == 0
    argv = ["eval", "-n", "their-run", "--backend", "local", "--dataset-dir", "demo", "--no-canary"]
    assert main([*argv, "--log-dir", str(tmp_path / "logs")]) == 0
    capsys.readouterr()
    return tmp_path / "logs"


def test_verdicts_of_an_imported_run(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = logs / "their-run/coop" / REPO / "0/f1_f2"
    evaluation = json.loads((folder / "eval.json").read_bytes())
    assert (evaluation["overall_success"], evaluation["merged"]["strategy"]) == (True, "union")
    assert evaluation["merged_public"]["success"] is False
    assert json.loads((folder / "recorded.json").read_bytes())["passed"] is False
    unapplied = json.loads((folder.with_name("f1_f3") / "eval.json").read_bytes())
    assert unapplied["agent2"]["apply_status"] == "failed"
    solo = json.loads((logs / "their-run/solo" / REPO / "0/f1_f2/eval.json").read_bytes())
    assert solo["overall_success"] is True
    assert main(["report", "their-run", "--json", "--log-dir", str(logs)]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [row["judged"] for row in content["rates"]] == [2, 1]
