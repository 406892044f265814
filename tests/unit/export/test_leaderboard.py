"""The page of a leaderboard: verified submissions in order, and why others are not listed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cooperbench.cli import main
from cooperbench.export.leaderboard import leaderboard_bytes, read_leaderboard
from cooperbench.export.submission import canonical
from tests.support.report.factory import Kind, Style, layout, write_run

PAIRS = layout(1, 2, 6)


def submit(
    tmp_path: Path, name: str, kind: Kind, style: Style | None = None, **options: str
) -> Path:
    logs = tmp_path / options.get("logs", "logs")
    write_run(logs, name, PAIRS, kind, style=style)
    target = tmp_path / "board" / f"{name}.json"
    argv = ["export", name, "--format", "leaderboard", "-o", str(target), "--log-dir", str(logs)]
    assert main(argv) == 0
    return target


def test_entries_are_ordered_and_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(tmp_path, "worse", "capability")
    submit(tmp_path, "better", "passed", Style(models=("gpt-5", "gpt-5")), logs="elsewhere")
    capsys.readouterr()
    argv = ["report", "--leaderboard", str(tmp_path / "board"), "--log-dir", str(tmp_path / "logs")]
    assert main([*argv, "--json"]) == 0
    output, error = capsys.readouterr()
    assert error == f"written: {tmp_path}/board/index.html\n"
    (board,) = json.loads(output)["boards"]
    entries = [(entry["run"], entry["basis"], entry["model"]) for entry in board["entries"]]
    assert entries == [("better", "itself", "gpt-5"), ("worse", "logs", "gpt-4o")]
    page = (tmp_path / "board/index.html").read_text()
    assert "coop: 6 pairs of 2 tasks" in page
    assert re.search(r"100\s% \[\d+–100\]", page)
    assert "$0.50" in page
    assert "the logs are not here: only the submission itself was checked" in page
    assert "<script" not in page
    assert "http://" not in page.replace("http-equiv", "")


def test_a_changed_submission_is_not_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = submit(tmp_path, "r", "capability")
    content = json.loads(path.read_bytes())
    content["pairs"][0]["state"] = "passed"
    path.write_bytes(canonical(content) + b"\n")
    (tmp_path / "board/other.json").write_text("{}")
    (tmp_path / "board/cut.json").write_text('{"sch')
    argv = ["report", "--leaderboard", str(tmp_path / "board"), "--log-dir", str(tmp_path / "logs")]
    assert main(argv) == 1
    error = capsys.readouterr().err
    assert "r.json is not listed: its checksum is" in error
    assert "other.json is not listed: not a JSON object with the schema" in error
    assert "cut.json is not listed: not complete JSON" in error
    assert "Not listed" in (tmp_path / "board/index.html").read_text()


def test_other_files_of_the_dataset_are_another_table(tmp_path: Path) -> None:
    submit(tmp_path, "a", "passed")
    submit(tmp_path, "copy", "passed", Style(dataset="mirror", dataset_revision=None))
    submit(tmp_path, "b", "passed", Style(content_sha256="3" * 64))
    leaderboard = read_leaderboard(tmp_path / "board", tmp_path / "logs")
    entries = [[entry.run for entry in board.entries] for board in leaderboard.boards]
    assert sorted(entries) == [["a", "copy"], ["b"]]


def test_the_same_submission_twice_and_one_without_verdicts(tmp_path: Path) -> None:
    path = submit(tmp_path, "a", "passed")
    path.with_name("b.json").write_bytes(path.read_bytes())
    submit(tmp_path, "c", "unevaluated")
    leaderboard = read_leaderboard(tmp_path / "board", tmp_path / "logs")
    reasons = {entry.file: entry.reasons for entry in leaderboard.rejected}
    assert reasons["b.json"] == ("it is the same submission as a.json",)
    assert reasons["c.json"] == ("it has no verdicts",)


def test_text_of_submissions_is_escaped(tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    submit(tmp_path, "r", "passed", Style(models=(hostile, hostile)))
    page = leaderboard_bytes(read_leaderboard(tmp_path / "board", tmp_path / "logs")).decode()
    assert hostile not in page
    assert "&lt;img" in page


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("r",), "leave out the runs"),
        (("--coordination",), "--coordination is for reports of runs"),
        (("--html", "/dev/null/x"), "cannot be written"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, options: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(tmp_path, "r", "passed")
    capsys.readouterr()
    argv = ["report", *options, "--leaderboard", str(tmp_path / "board")]
    assert main([*argv, "--log-dir", str(tmp_path / "logs")]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["none", "empty"])
def test_a_folder_without_submissions(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["report", "--leaderboard", str(tmp_path / name)]) == 2
    assert "there " in capsys.readouterr().err
