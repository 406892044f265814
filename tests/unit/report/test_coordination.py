"""From what is on disk to what it says, for pairs of every kind and for files that are missing, broken or hostile."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cooperbench.report.coordination import coordination_tables, measure_pair, measure_run
from cooperbench.report.loading import load_run
from tests.support.paths import ROOT
from tests.support.report.factory import Style, Talk, layout, share, write_run

if TYPE_CHECKING:
    from cooperbench.report.pairs import PairData
    from tests.support.report.factory import Kind

ONE = {"alpha_task": {3: [(1, 2)]}}


def one_pair(tmp_path: Path, kind: Kind = "passed", style: Style | None = None) -> PairData:
    write_run(tmp_path, "r", ONE, kind, style=style)
    (pair,) = load_run(tmp_path, "r").pairs
    return pair


def test_a_conflict_is_shown_with_all_its_evidence(tmp_path: Path) -> None:
    talk = (
        Talk(
            1,
            1,
            "I will change part_3 in src/app.py. I won't touch part_4. Which function do you change?",
        ),
        Talk(2, 2, "No function but part_9, and I won't touch src/app.py at all."),
        Talk(2, 4, "No function but part_9, and I won't touch src/app.py at all!"),
    )
    pair = one_pair(tmp_path, "conflict", Style(talk=talk))
    found = measure_pair(pair)
    assert found.problems == ()
    assert (pair.loss, pair.conflicting_files) == ("conflict", ["src/app.py"])
    first, second = found.agents
    assert (first.steps, first.messaging_steps, first.step_share) == (4, (1,), 0.25)
    assert (first.token_share, first.sent) == (0.25, 1)
    assert (first.first_message, first.first_step_fraction) == (1, 0.25)
    assert second.messaging_steps == (2, 4)
    assert [(one.message, one.text) for one in found.questions] == [
        (1, "Which function do you change?")
    ]
    assert [(one.message, one.text) for one in found.repetitions] == [(3, "repeats message 2")]
    (overlap,) = found.overlaps
    assert (overlap.files, overlap.symbols) == ({"src/app.py": 1}, ("src/app.py: part_3",))
    mentions = {
        (one.sender, one.name): (one.touched_by_sender, one.touched_by_other)
        for one in found.mentions or ()
    }
    assert mentions == {
        ("agent1", "part_3"): (True, True),
        ("agent1", "src/app.py"): (True, True),
        ("agent1", "part_4"): (False, False),
        ("agent2", "part_9"): (False, False),
        ("agent2", "src/app.py"): (True, True),
    }
    named = next(
        one for one in found.mentions or () if one.sender == "agent2" and one.kind == "file"
    )
    assert (named.messages, [touch.path for touch in named.touches]) == ((2, 3), ["src/app.py"] * 2)


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        ("passed", "passed"), ("union", "passed"), ("conflict", "conflict"), ("capability", "capability"),
        ("integration", "integration"), ("unevaluated", None), ("error", None), ("killed", None), ("missing", None),
        ("broken", None), ("eval_error", None),
    ],
)  # fmt: skip
def test_every_kind_of_pair_is_looked_at_and_is_json(
    tmp_path: Path, kind: Kind, loss: str | None
) -> None:
    pair = one_pair(tmp_path, kind)
    found = measure_pair(pair)
    assert pair.loss == loss
    assert bool(found.problems) == (kind in ("error", "killed", "missing"))
    content = json.loads(json.dumps(asdict(found)))
    assert found.messages == sum(agent["sent"] for agent in content["agents"])


def test_a_solo_pair_has_a_loss_and_no_cooperation(tmp_path: Path) -> None:
    write_run(tmp_path, "r", ONE, "conflict", setting="solo")
    (pair,) = load_run(tmp_path, "r").pairs
    found = measure_pair(pair)
    assert (pair.loss, found.messages, found.overlaps) == ("capability", 0, ())


@pytest.mark.parametrize("content", [b"", b"[]", b'{"messages": 3, "steps": {"a": 1}}', b"\xff\x00" * 50, b'{"messages": [1, {"from": 2}], "steps": [3, {"step": true, "args": 7, "tokens": "x"}]}'])  # fmt: skip
def test_broken_files_are_problems_and_never_tracebacks(tmp_path: Path, content: bytes) -> None:
    pair = one_pair(tmp_path)
    pair.paths.conversation.write_bytes(content)
    pair.paths.agent("agent1").trajectory.write_bytes(content)
    pair.paths.agent("agent2").patch.write_bytes(content)
    found = measure_pair(pair)
    assert found.problems
    json.dumps(asdict(found))


def test_message_commands_are_counted(
    tmp_path: Path,
) -> None:
    pair = one_pair(tmp_path)
    path = pair.paths.agent("agent1").trajectory
    content = json.loads(path.read_text())
    content["steps"] = [
        {"action": "run", "args": {"command": "x" * 300}, "step": 1},
        {
            "action": "run",
            "args": {"command": "sleep 1 && send_message agent2 " + "é" * 34 + "y"},
            "step": 2,
        },
        {
            "action": "run",
            "args": {"command": "echo send_message; cat send_message.txt"},
            "step": 3,
        },
        {"action": "run", "args": {"command": "if read_messages --wait; then true; fi"}, "step": 4},
    ]
    path.write_text(json.dumps(content))
    pair.paths.conversation.write_text('{"messages": []}')
    agent = measure_pair(pair).agents[0]
    assert (agent.messaging_steps, agent.step_share, agent.token_share) == ((2, 4), 0.5, None)


def test_a_run_adds_up(tmp_path: Path) -> None:
    kinds = share(
        {
            "passed": 3,
            "conflict": 2,
            "capability": 2,
            "integration": 2,
            "union": 1,
            "error": 1,
            "unevaluated": 1,
        }
    )
    write_run(tmp_path, "r", layout(2, 4, 24), kinds)
    write_run(tmp_path, "r", layout(2, 4, 24), "passed", setting="solo")
    run = load_run(tmp_path, "r")
    found = measure_run(run.pairs)
    states = [pair.state for pair in run.of("coop")]
    judged = sum(found.loss.values())
    assert judged == states.count("passed") + states.count("failed")
    assert (found.n, found.skipped, found.clusters) == (
        24 - states.count("error"),
        states.count("error"),
        4,
    )
    measures = {one.name: one for one in found.measures}
    messages = measures["messages"]
    assert (messages.estimate.value, messages.estimate.n, messages.value_text) == (
        4.0,
        found.n,
        "4.0",
    )
    assert measures["step_share"].estimate.value == 0.5
    first = measures["first_message_names_own_work"].estimate
    assert (first.value, first.n, first.clusters) == (1.0, 2 * found.n, 4)
    assert sum(found.conflicts.values()) == sum(
        pair.merge_status == "conflict" for pair in run.of("coop")
    )
    content = json.loads(json.dumps(found.to_json()))
    assert [len(content["pairs"]), content["n"], content["loss"]] == [found.n, found.n, found.loss]
    split, *_ = coordination_tables(run.name, found)
    assert list(split.rows[0]) == [*found.loss.values(), judged]
    assert f"{found.skipped} without a result left out" in split.notes


def test_what_is_not_on_record_is_unknown_and_not_zero(tmp_path: Path) -> None:
    """Only result.json and eval.json are there: nobody knows what was said, done or changed."""
    write_run(tmp_path, "bare", ONE, "conflict", style=Style(bare=True))
    pairs = load_run(tmp_path, "bare").pairs
    found = measure_run(pairs)
    assert (found.n, found.loss["conflict"]) == (1, 1)
    assert [
        one.name for one in found.measures if one.estimate.n or one.estimate.value is not None
    ] == []
    assert any("no trajectory" in line for line in found.problems)
    assert not measure_pair(pairs[0]).messages_known
    write_run(tmp_path, "mute", ONE, "conflict", style=Style(talk=()))
    (mute,) = load_run(tmp_path, "mute").pairs
    mute.paths.conversation.unlink()  # as without messaging
    silent = {one.name: one.estimate.value for one in measure_run([mute]).measures}
    assert [silent[name] for name in ("messages", "step_share", "shared_files")] == [0, 0, 1]


def test_names_are_not_known_where_a_patch_cannot_be_read(tmp_path: Path) -> None:
    pair = one_pair(tmp_path)
    pair.paths.agent("agent2").patch.write_bytes(b"no diff")
    assert measure_pair(pair).mentions is None
    known = {one.name: one.estimate.n for one in measure_run([pair]).measures}
    assert known["messages"] == 1
    assert {
        known[name] for name in ("names", "names_not_touched", "first_message_names_own_work")
    } == {0}


def test_a_run_without_pairs_has_no_numbers_and_says_so(tmp_path: Path) -> None:
    write_run(tmp_path, "r", ONE, "error")
    run = load_run(tmp_path, "r")
    found = measure_run(run.pairs)
    messages = found.measures[0].estimate
    assert (found.n, messages.value, messages.n) == (0, None, 0)
    (table,) = coordination_tables(run.name, found)
    assert list(table.notes) == ["no coop pair with a result"]


def test_every_number_has_its_definition_in_the_docs() -> None:
    found = measure_run([])
    docs = (ROOT / "docs" / "coordination.md").read_text()
    assert [one.name for one in found.measures if f"`{one.name}`" not in docs] == []
