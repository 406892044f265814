"""What people see: the documented lines, and in a terminal a picture that moves and leaves the summary."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from cooperbench import records
from cooperbench.agents.session import AgentProgress
from cooperbench.models import AgentSlot, Message, Pair, Task, agent_slots
from cooperbench.records.evaluation import Evaluation
from cooperbench.records.result import PairResult
from cooperbench.runner.display import Display, LiveDisplay, message_line, verdict_text

if TYPE_CHECKING:
    from pathlib import Path


def result(content: dict[str, Any]) -> PairResult:
    """Return the record of a result.json with these keys."""
    return records.from_object(content, PairResult)


def evaluated_as(content: dict[str, Any]) -> Evaluation:
    """Return the record of an eval.json with these keys."""
    return records.from_object(content, Evaluation)


def test_the_lines_are_those_of_the_documentation(tmp_path: Path) -> None:
    stream = io.StringIO()
    display = Display(stream)
    pair = Pair(Task("llama_index_task", 8394, tmp_path, (1, 2)), (1, 2))
    display.begin(["Starting experiment: my-first-experiment"], to_run=12, to_evaluate=12)
    features = Task("r", 1, tmp_path, (1, 2)).features
    display.pair_started(pair, [AgentSlot(f"agent{one.feature_id}", (one,)) for one in features])
    display.message(
        pair, Message(1, "agent1", "agent2", "I'm adding a new method", "2026-01-01T00:00:00Z")
    )
    display.pair_ended(pair, result({"status": "completed"}))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "[CooperBench] Starting experiment: my-first-experiment"
    assert lines[2] == "[Task 1/12] llama_index_task/task8394 features_1_2"
    assert lines[3].endswith("   Agent 1: Implementing feature 1...")
    assert lines[4].endswith("   Agent 2: Implementing feature 2...")
    assert lines[5].endswith('Agent 1 → Agent 2: "I\'m adding a new method"')
    assert re.fullmatch(r"\[Task 1/12\] ✓ Complete in [\d.]+s", lines[6])


def test_waiting_agents_are_shown_once(tmp_path: Path) -> None:
    pair = Pair(Task("tiny_task", 7, tmp_path, (1, 2)), (1, 2))
    stream = io.StringIO()
    plain = Display(stream)
    for reason in ("m fails", "m fails", ""):
        plain.outage(pair, "agent1", reason)
    waits, back = stream.getvalue().splitlines()
    assert waits.endswith("Agent 1 waits for its model: m fails")
    assert back.endswith("Agent 1 has its model back")
    console = Console(file=io.StringIO(), force_terminal=True, width=160)
    live = LiveDisplay(console)
    live.pair_started(pair, ())
    live.outage(pair, "agent2", "m fails")
    with console.capture() as shown:
        console.print(live._render())
    assert re.search(r"Agent 2 +waits for its model since 0.0s: m fails", shown.get())
    live.outage(pair, "agent2", "")
    with console.capture() as shown:
        console.print(live._render())
    assert "waits" not in shown.get()


def test_live_display_shows_each_agent(tmp_path: Path) -> None:
    pair = Pair(Task("tiny_task", 7, tmp_path, (1, 2)), (1, 2))
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=40)
    live = LiveDisplay(console)
    live.pair_started(pair, agent_slots(pair, "coop"))
    live.agent_progress(pair, "agent1", AgentProgress("waiting for the model", 1234, 0.25))
    with console.capture() as capture:
        console.print(live._render())
    status, pair_row, first, second = capture.get().splitlines()
    assert "$0.25" in status
    assert "tiny_task/task7 f1_f2" in pair_row
    assert re.search(r"Agent 1 +1,234 steps, \$0.25, waiting for the model", first)
    assert re.search(r"Agent 2 +starting its sandbox", second)
    live.pair_ended(pair, result({"status": "completed", "cost": 0.5}))
    with console.capture() as capture:
        console.print(live._render())
    assert "Agent 1" not in capture.get()
    assert "$0.50" in capture.get()


def test_pairs_wait_for_their_verdict_in_the_live_display(tmp_path: Path) -> None:
    pair = Pair(Task("tiny_task", 7, tmp_path, (1, 2)), (1, 2))
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    live = LiveDisplay(console)
    live.begin([], to_run=1, to_evaluate=1)
    live.end()
    live.pair_ended(pair, result({"status": "completed"}))
    with console.capture() as capture:
        console.print(live._render())
    assert re.search(r"tiny_task/task7 f1_f2 .*evaluation", capture.get())
    live.evaluated(pair, evaluated_as({"status": "error", "error": "x"}))
    with console.capture() as capture:
        console.print(live._render())
    assert "tiny_task" not in capture.get()


def test_an_agent_that_did_not_submit_is_not_complete(tmp_path: Path) -> None:
    pair = Pair(Task("tiny_task", 7, tmp_path, (1, 2)), (1, 2))
    stream = io.StringIO()
    display = Display(stream)
    display.begin([], to_run=1, to_evaluate=1)
    display.pair_started(pair, ())
    agents = {
        "agent1": {"status": "format_error", "error": "3 replies without a command"},
        "agent2": {"status": "submitted", "error": None},
    }
    display.pair_ended(pair, result({"status": "completed", "agents": agents}))
    line = stream.getvalue().splitlines()[-1]
    assert re.fullmatch(
        r"\[Task 1/1\] – Ended in [\d.]+s: "
        r"Agent 1 format_error \(3 replies without a command\); Agent 2 submitted",
        line,
    )


def test_verdicts_name_their_pair(tmp_path: Path) -> None:
    task = Task("tiny_task", 7, tmp_path, (1, 2, 3))
    stream = io.StringIO()
    display = Display(stream)
    display.begin([], to_run=0, to_evaluate=3)
    for pair in task.pairs:
        display.evaluated(pair, evaluated_as({"status": "error", "error": "lost"}))
    assert stream.getvalue().splitlines()[1:] == [
        "[Task 1/3] tiny_task/task7 f1_f2: ! evaluation error: lost",
        "[Task 2/3] tiny_task/task7 f1_f3: ! evaluation error: lost",
        "[Task 3/3] tiny_task/task7 f2_f3: ! evaluation error: lost",
    ]


def test_a_narrow_terminal_breaks_lines_between_words(tmp_path: Path) -> None:
    pair = Pair(Task("tiny_task", 7, tmp_path, (1, 2)), (1, 2))
    stream = io.StringIO()
    live = LiveDisplay(Console(file=stream, force_terminal=True, width=40))
    text = "please leave the parser to me and extend the writer instead"
    live.message(pair, Message(1, "agent1", "agent2", text, ""))
    lines = stream.getvalue().splitlines()
    assert len(lines) > 1
    assert all(len(line) <= 40 for line in lines)
    assert " ".join(" ".join(lines).split()).endswith(f'Agent 1 → Agent 2: "{text}"')


def test_hostile_messages_cannot_move_the_cursor() -> None:
    line = message_line(Message(1, "agent1", "agent2", "\x1b[2Jgone\r\nfake\u202e" + "x" * 500, ""))
    assert line.isprintable()
    assert len(line) < 250


def agent(*, success: bool) -> dict[str, object]:
    return {"success": success}


@pytest.mark.parametrize(
    ("first", "status", "strategy", "merged", "said"),
    [
        (True, "clean", "plain", True, "✓ passed"),
        (False, "clean", "plain", False, "✗ failed: Agent 1 failed alone"),
        (True, "conflict", "union", True, "✓ passed: merge conflict, union merge"),
        (True, "conflict", "none", False, "✗ failed: merge conflict"),
        (True, "clean", "plain", False, "✗ failed: fails together"),
    ],
)
def test_a_verdict_says_what_went_wrong(
    first: bool, status: str, strategy: str, merged: bool, said: str
) -> None:
    evaluation = {
        "status": "completed", "agent1": agent(success=first), "agent2": agent(success=True),
        "merged": {"merge_status": status, "strategy": strategy, "success": merged}, "overall_success": first and merged,
    }  # fmt: skip
    assert verdict_text(evaluated_as(evaluation)) == said


def test_no_reference_is_counted_apart(tmp_path: Path) -> None:
    evaluation = {
        "status": "no_reference",
        "error": "feature 2: the golden patch does not pass: \x1b[2Jboom",
    }
    assert (
        verdict_text(evaluated_as(evaluation))
        == "– no reference: feature 2: the golden patch does not pass: \\x1b[2Jboom"
    )
    stream = io.StringIO()
    display = LiveDisplay(Console(file=stream, force_terminal=True, width=160))
    task = Task("alpha_task", 0, tmp_path, (1, 2, 3))
    display.begin([], to_run=0, to_evaluate=3)
    display.evaluated(task.pairs[0], evaluated_as({"status": "error", "error": "lost"}))
    display.end()
    assert "0 passed, 0 failed, 1 error  $0.00" in stream.getvalue()
    display.begin([], to_run=0, to_evaluate=3)
    for pair in task.pairs[1:]:
        display.evaluated(pair, evaluated_as(evaluation))
    display.end()
    assert "evaluated 3  0 passed, 0 failed, 1 error, 2 no reference  $0.00" in stream.getvalue()
