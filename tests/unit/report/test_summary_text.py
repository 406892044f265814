"""The summary of a run as people see it in a terminal and in a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.models import Pair, Setting, Task
from cooperbench.records.summary import Summary
from cooperbench.report.summary import save_summary
from cooperbench.report.summary_text import summary_text
from cooperbench.storage import ExperimentPaths, write_json

if TYPE_CHECKING:
    from pathlib import Path

ERROR = "agent 1: the patch changes nothing; agent 2: the patch does not apply to the base commit"


def make_summary(
    folder: Path,
    *,
    statuses: tuple[str, ...] = ("submitted", "format_error"),
    error: str | None = ERROR,
    setting: Setting = "coop",
    tokens: int = 10,
    attempt: int = 1,
) -> Summary:
    """Write one evaluated pair and return its summary; it passed if there is no error."""
    paths = ExperimentPaths(folder, "r")
    pair = Pair(Task("llama_index_task", 8394, folder, (1, 2)), (1, 2))
    ids = ["solo"] if setting == "solo" else ["agent1", "agent2"]
    agents = {
        agent_id: {"status": status, "prompt_tokens": tokens, "completion_tokens": 0, "steps": 1}
        for agent_id, status in zip(ids, statuses, strict=True)
    }
    result = {
        "status": "completed",
        "agents": agents,
        "messages": 0,
        "duration_seconds": 1.0,
        "attempt": attempt,
    }
    passed = error is None
    merged = {"success": passed, "merge_status": "clean", "strategy": "plain", "error": error}
    evaluation = {
        "status": "completed",
        **{agent_id: {"success": passed} for agent_id in ids},
        "merged": merged,
        "individual_success": passed,
        "merge_success": True,
        "overall_success": passed,
        "overall_success_strict": passed,
        "duration_seconds": 2.0,
    }
    write_json(paths.pair(pair, setting).result, result)
    write_json(paths.pair(pair, setting).evaluation, evaluation)
    return save_summary(paths, {setting: [pair]})


def pair_lines(text: str) -> list[str]:
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if "repository" in line)
    return lines[start : lines.index("", start)]


def test_a_pipe_gets_the_whole_error_and_how_each_agent_ended(tmp_path: Path) -> None:
    heading, row = pair_lines(summary_text(make_summary(tmp_path), "logs/r"))
    assert heading.split()[-1] == "agents"
    assert "submitted, format_error" in row
    assert row.endswith(ERROR)


def test_agents_that_ended_alike_share_a_word(tmp_path: Path) -> None:
    summary = make_summary(tmp_path, statuses=("step_limit", "step_limit"), error=None)
    _, row = pair_lines(summary_text(summary, "logs/r"))
    assert row.endswith("step_limit")
    assert row.count("step_limit") == 1


@pytest.mark.parametrize("width", [60, 80, 120, 140, 300])
def test_the_error_fills_the_terminal_and_ends_with_an_ellipsis(tmp_path: Path, width: int) -> None:
    text = summary_text(make_summary(tmp_path), "logs/r", width)
    _, *rows = pair_lines(text)
    assert len(rows[-1]) <= width
    if width == 300:
        assert rows[0].endswith(ERROR)
    else:
        # Below the row where there is no room beside it.
        assert len(rows) == (2 if width < 140 else 1)
        assert rows[-1].endswith("…") or rows[-1].endswith(ERROR)
        shown = rows[-1].rstrip("…").partition("agent 1:")[2]
        assert ERROR.partition("agent 1:")[2].startswith(shown)
        assert len(shown) > 25


def test_solo_has_its_own_words(tmp_path: Path) -> None:
    summary = make_summary(tmp_path, statuses=("cost_limit",), setting="solo")
    text = summary_text(summary, "logs/r")
    heading, row = pair_lines(text)
    assert heading.split() == ["repository", "task", "features", "overall", "agent"]
    assert row.split()[:5] == ["llama_index_task", "8394", "1,2", "✗", "cost_limit"]
    assert "merged" not in text.replace("is not merged", "")
    assert "the agent's patch passes the tests of all its features" in text


def test_numbers_have_separators_and_plurals_fit(tmp_path: Path) -> None:
    text = summary_text(make_summary(tmp_path, tokens=617_283), "logs/r")
    assert "1,234,566 tokens, 2 steps, 0 messages" in text
    assert "coop: 1 pair, 1 evaluated" in text


def test_attempts_are_shown_for_a_pair_that_needed_several(tmp_path: Path) -> None:
    first = make_summary(tmp_path / "a")
    third = make_summary(tmp_path / "b", error=None, attempt=3)
    assert "attempts" not in summary_text(first, "logs/r")
    assert "3 attempts" in summary_text(third, "logs/r")
