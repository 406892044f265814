from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cooperbench import records
from cooperbench.cli import main
from cooperbench.records.imported import RecordedTests, RecordedVerdict
from cooperbench.report.loading import Side, load_run
from cooperbench.report.recorded import RecordedComparison, RecordedPair, compare_with_recorded
from cooperbench.storage import read_json, write_json
from tests.support.report.factory import Kind, write_run

PAIRS = {"repo_task": {1: [(1, 2), (1, 3), (2, 3)]}}


def verdict(passed: bool | None = True, **fields: Any) -> RecordedVerdict:
    values: dict[str, Any] = {
        "rule": "public", "merge_status": "clean", "strategy": "naive", "apply_status": {},
        "tests": {}, "error": None, "evaluated_at": None,
    }  # fmt: skip
    return RecordedVerdict(passed=passed, **(values | fields))


def compare(
    tmp_path: Path, recorded: RecordedVerdict, kind: Kind = "passed", public: bool | None = True
) -> RecordedComparison:
    """The first pair has a recorded verdict and one by the public rule."""
    paths = write_run(tmp_path, "r", PAIRS, kind)
    folder = paths.root / "coop/repo_task/1/f1_f2"
    records.write(folder / "recorded.json", recorded)
    content = read_json(folder / "eval.json")
    if public is not None and content is not None:
        content["merged_public"] = {
            "success": public, "strategy": "plain", "tests_passed": 1, "tests_failed": 0,
            "error": None, "tested_features": [1, 2],
        }  # fmt: skip
        write_json(folder / "eval.json", content)
    return compare_with_recorded(Side(load_run(tmp_path, "r"), "coop"))


def only(comparison: RecordedComparison) -> RecordedPair:
    (pair,) = comparison.pairs
    return pair


def test_equal_verdicts_are_no_difference(tmp_path: Path) -> None:
    comparison = compare(tmp_path, verdict())
    assert (len(comparison.compared), comparison.differences, comparison.without) == (1, (), 2)
    assert only(comparison).dataset_sha256 == "2" * 64


def test_the_rule_explains_a_difference(tmp_path: Path) -> None:
    recorded = verdict(False, merge_status="conflicts", strategy="solo-agent1")
    pair = only(compare(tmp_path, recorded, "union", public=False))
    assert (pair.recorded, pair.overall, pair.public) == (False, True, False)
    assert pair.reason == (
        "the rule: conflict: the union merge passes, the first agent's patch alone does not"
    )


def test_test_runs_that_ended_differently(tmp_path: Path) -> None:
    tests = {
        "feature1": RecordedTests(passed=False, exit_code=1, tests_passed=3, tests_failed=2),
        "feature2": RecordedTests(passed=True, exit_code=0, tests_passed=4, tests_failed=0),
        "feature9": RecordedTests(passed=False, exit_code=1, tests_passed=0, tests_failed=1),
    }
    pair = only(compare(tmp_path, verdict(False, tests=tests)))
    assert pair.reason.startswith("feature1: recorded failed (3 passed, 2 failed), here passed (")
    assert "feature2" not in pair.reason
    assert "feature9" not in pair.reason


@pytest.mark.parametrize(
    ("recorded", "reason"),
    [
        (verdict(False, merge_status="conflicts"), "the merge: recorded conflict, here clean"),
        (verdict(False, error="image \x1b[31mgone"), "recorded error: image"),
        (verdict(False, strategy="union"), "the recorded verdict is of a union merge"),
        (verdict(False), "the recorded file does not say why"),
    ],
)
def test_other_reasons(tmp_path: Path, recorded: RecordedVerdict, reason: str) -> None:
    pair = only(compare(tmp_path, recorded))
    assert pair.reason.startswith(reason)
    assert "\x1b" not in pair.reason


def test_a_pair_without_a_verdict_of_ours(tmp_path: Path) -> None:
    comparison = compare(tmp_path, verdict(), "no_reference", public=None)
    assert only(comparison).reason.startswith("no_reference: ")
    assert comparison.without_ours == comparison.pairs


def test_the_quick_start_has_our_rule(tmp_path: Path) -> None:
    recorded = verdict(True, rule="quick_start", strategy=None)
    assert only(compare(tmp_path, recorded, public=None)).reason == ""


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare(tmp_path, verdict(False))
    logs = ["--log-dir", str(tmp_path)]
    assert main(["compare", "r", "--with-recorded", *logs]) == 0
    output = capsys.readouterr().out
    assert "Recorded verdicts and ours" in output
    assert "the recorded file does not say why" in output
    assert "2 pairs without a recorded verdict" in output
    assert main(["compare", "r:coop", "--with-recorded", "--json", *logs]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["comparisons"][0]["pairs"][0]["recorded"] is False
    assert main(["compare", "r:solo", "--with-recorded", *logs]) == 2
    assert "only runs of `cooperbench import-run` have them" in capsys.readouterr().err
    assert main(["compare", "r", "--with-recorded", "--max-drop", "0", *logs]) == 2
    assert "--max-drop compares two runs" in capsys.readouterr().err
