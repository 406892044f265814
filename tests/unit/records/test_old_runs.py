"""Reports and exports of runs that an older version wrote are the same as that version's own."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cooperbench.cli import main
from cooperbench.export.verification import verify_submission
from tests.unit.records.test_files import assert_includes

RUNS = Path(__file__).parent / "runs"
EXPECTED = RUNS / "expected"
_WORDING = ("note", "method", "time", "version")
"""Keys whose values are sentences, or change with every call."""


@pytest.fixture
def logs(tmp_path: Path) -> str:
    shutil.copytree(RUNS / "logs", tmp_path / "logs", symlinks=True)
    return str(tmp_path / "logs")


def without_wording(content: Any) -> Any:
    if isinstance(content, dict):
        kept = {key: value for key, value in content.items() if key not in _WORDING}
        return {key: without_wording(value) for key, value in kept.items()}
    if isinstance(content, list):
        return [without_wording(item) for item in content]
    return content


@pytest.mark.parametrize(
    ("name", "argv"),
    [
        ("report.json", ["report", "demo-coop", "demo-solo", "--json", "--coordination"]),
        ("compare.json", ["compare", "demo-solo", "demo-coop", "--json"]),
    ],
)
def test_reports_are_the_same(
    logs: str, name: str, argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*argv, "--log-dir", logs]) == 0
    content = json.loads(capsys.readouterr().out)
    expected = json.loads((EXPECTED / name).read_text())
    assert_includes(content, without_wording(expected))


def test_rows_are_the_same(logs: str, tmp_path: Path) -> None:
    """Later versions have more columns."""
    rows = read_rows(export(logs, tmp_path / "pairs.csv", "csv"))
    assert_includes(rows, read_rows(EXPECTED / "pairs.csv"))


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_submissions_are_the_same_without_their_options(logs: str, tmp_path: Path) -> None:
    content = json.loads(export(logs, tmp_path / "submission.json", "leaderboard").read_text())
    expected = json.loads((EXPECTED / "submission.json").read_text())
    assert_includes(content, expected | {"checksum": content["checksum"]})
    assert verify_submission(tmp_path / "submission.json", Path(logs)).mismatches == []


def export(logs: str, target: Path, format_name: str) -> Path:
    argv = ["export", "demo-coop", "--format", format_name, "-o", str(target)]
    assert main([*argv, "--log-dir", logs]) == 0
    return target


def test_an_old_run_has_no_mismatch(logs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "demo-coop", "demo-solo", "--log-dir", logs]) == 0
    out = capsys.readouterr().out
    assert "Mismatches" not in out
    assert "†" not in out
    lines = out.partition("Not checked\n")[2].partition("\n\n")[0].splitlines()
    assert "demo-coop: cannot be checked: replaced or removed results" in out
    assert len(lines) == len(set(lines)) <= 14


def test_atif_is_the_same(logs: str, tmp_path: Path) -> None:
    target = tmp_path / "atif"
    assert main(["export", "demo-coop", "-o", str(target), "--log-dir", logs]) == 0
    documents = sorted((EXPECTED / "atif").rglob("*.json"))
    assert [path.name for path in documents] == ["agent1.json", "agent2.json", "pair.json"]
    for path in documents:
        content = json.loads((target / path.relative_to(EXPECTED / "atif")).read_text())
        assert_includes(content, json.loads(path.read_text()))


def test_a_submission_of_then_is_valid_now(logs: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["export", "--verify", str(EXPECTED / "submission.json"), "--log-dir", logs]
    assert main(argv) == 0
    assert "is valid: 8 pairs" in capsys.readouterr().out
