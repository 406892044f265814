"""Output of tests and patches that take long to read: an agent's failure, soon, and never a hang."""

from __future__ import annotations

import pytest

from cooperbench.bounded import LIMIT_ATTRIBUTE, UnreadableInput, call_bounded
from cooperbench.eval.review_notes import read_review_notes
from cooperbench.eval.test_logs import find_named_file, read_log
from cooperbench.eval.test_runs import read_test_run
from cooperbench.sandbox.contract import CommandResult
from tests.support.hostile import hostile_texts
from tests.support.tiny import text_patch

SUMMARIES = """\
ℹ tests 1
ℹ pass 1
ℹ fail 0
ℹ cancelled 0
ℹ skipped 0
ℹ todo 0
ℹ duration_ms 4
  1 passing (5ms)
PASS a.js
"""
"""Without them some parsers read nothing."""
MARKS = (" ✔ ", " ✓ a > ", " > a", " (1ms)", " # SKIP", "] - ", " <- a", "1 a | ", "  1) a\n")


def test_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsers take time linear in the length of a line, so it stays far below the limit."""
    monkeypatch.setattr(read_log, LIMIT_ATTRIBUTE, 15)
    size = 60_000
    lines = [*hostile_texts(size).values(), *(mark * (size // len(mark)) for mark in MARKS)]
    starts = ("", "  1) ", "FAILED a.py::t - ", "test_x (m.T) ... ", "Traceback:\n")
    output = SUMMARIES + "\n".join(start + line for line in lines for start in starts[:2])
    output += "\n".join(start + "[" * size for start in starts)
    assert call_bounded(read_log, output, 1).counts.passed == 2
    assert call_bounded(find_named_file, output, ["b.py", "pkg/b.py"]) is None


def test_output_that_cannot_be_read_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_log, LIMIT_ATTRIBUTE, 1)
    result = CommandResult(0, stdout=b"test_x (m.T) ... ok\n" * 400_000)
    run = read_test_run(result, duration_seconds=1.0, timeout_seconds=9)
    assert not run.success
    assert run.error == (
        "the output of the tests cannot be read: it takes more than 1 s of processor time to read"
    )


def test_paths_to_look_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents choose the names of conflicting files."""
    monkeypatch.setattr(find_named_file, LIMIT_ATTRIBUTE, 1)
    paths = ["a " * number + ".py" for number in range(2000)]
    with pytest.raises(UnreadableInput, match="1 s of processor time"):
        call_bounded(find_named_file, "a " * 500_000, paths)


@pytest.mark.parametrize("name", ["a.py", "a.js"])
def test_patch_with_lines_to_review(name: str) -> None:
    texts = hostile_texts(50_000).values()
    fragments = [prefix + text for text in texts for prefix in ("os", "def __eq__(")]
    lines = [f"{line}\n" for fragment in fragments for line in fragment.split("\n")]
    patch = text_patch(name, None, [*lines, "// /proc/self\n"]).encode()
    notes = read_review_notes(patch, "agent1")
    assert [note.text for note in notes] == ["// /proc/self"]
