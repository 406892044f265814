"""Reports and exports of runs that an older version wrote are the same as that version's own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cooperbench.cli import main
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


@pytest.mark.parametrize(
    ("name", "format_name"), [("pairs.csv", "csv"), ("submission.json", "leaderboard")]
)
def test_exports_are_the_same(logs: str, tmp_path: Path, name: str, format_name: str) -> None:
    target = tmp_path / name
    argv = ["export", "demo-coop", "--format", format_name, "-o", str(target)]
    assert main([*argv, "--log-dir", logs]) == 0
    assert target.read_bytes() == (EXPECTED / name).read_bytes()


def test_atif_is_the_same(logs: str, tmp_path: Path) -> None:
    target = tmp_path / "atif"
    assert main(["export", "demo-coop", "-o", str(target), "--log-dir", logs]) == 0
    documents = sorted((EXPECTED / "atif").rglob("*.json"))
    assert [path.name for path in documents] == ["agent1.json", "agent2.json", "pair.json"]
    for path in documents:
        content = json.loads((target / path.relative_to(EXPECTED / "atif")).read_text())
        assert content == json.loads(path.read_text())


def test_a_submission_of_then_is_valid_now(logs: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["export", "--verify", str(EXPECTED / "submission.json"), "--log-dir", logs]
    assert main(argv) == 0
    assert "is valid: 8 pairs" in capsys.readouterr().out
