"""Agents of whole runs in conversation: at their end, without a loop in the harness, and left alone by the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.runner.helpers import Left, run_tiny
from tests.support.tiny import write_script

if TYPE_CHECKING:
    from pathlib import Path


def talk(tmp_path: Path, first: list[Any], second: list[Any]) -> Left:
    script = write_script(tmp_path / "script.yaml", {1: first, 2: second})
    return run_tiny(tmp_path, "scripted", agent_config=str(script), auto_eval=False)


def test_what_is_sent_in_the_background_as_the_last_act_arrives(tmp_path: Path) -> None:
    left = talk(
        tmp_path,
        [{"run": 'for n in 1 2 3; do send_message agent2 "goodbye $n" >/dev/null 2>&1 & done'}],
        [{"wait": {"for": "goodbye", "seconds": 90}}, {"wait": {"for": "more", "seconds": 0.5}}],
    )
    messages = left.json("conversation.json")["messages"]
    assert sorted(message["message"] for message in messages) == [
        "goodbye 1",
        "goodbye 2",
        "goodbye 3",
    ]


def test_a_framework_inside_the_sandbox_works_with_files_alone(tmp_path: Path) -> None:
    """No step of the harness comes between: it takes what lies in the inbox, marks it, and drops its answer."""
    inside = """
        cd /cooperbench/team
        printf 'agent1\\nat work' >drafts/ready; mv drafts/ready send/ready; printf 'send ready\\n' 1<>bell
        for number in 00000002 00000003; do
            until [ -e inbox/$number ]; do sleep 0.05; done
            cat inbox/$number
            : >read/$number
        done
        printf 'agent1\\nboth came' >drafts/mine; mv drafts/mine send/mine; printf 'send mine\\n' 1<>bell
        until [ -e responses/mine ]; do sleep 0.05; done"""
    left = talk(
        tmp_path,
        [
            {"wait": {"for": "at work", "seconds": 90}},
            {"run": "send_message agent2 one; printf 'two\\nlines' | send_message agent2"},
            {"wait": {"for": "both came", "seconds": 90}},
        ],
        [{"run": inside}],
    )
    assert left.observations("agent2") == ["agent1\none\nagent1\ntwo\nlines\n"]
    assert not [
        step for step in left.trajectory("agent2")["steps"] if step["action"] == "receive_message"
    ]
    _, one, two, answer = left.json("conversation.json")["messages"]
    for message in (one, two):
        assert (message["delivered_by"], message["delivered_step"]) == ("command", 1)
    assert (answer["from"], answer["message"], answer["delivered_by"]) == (
        "agent2",
        "both came",
        "context",
    )


def test_whoever_waits_for_an_agent_that_gives_up_is_told(tmp_path: Path) -> None:
    left = talk(
        tmp_path,
        [{"run": "send_message --wait 600 agent2 'which one?'; echo code $?"}],
        [{"wait": {"for": "which", "seconds": 90}}, {"give_up": "no idea"}],
    )
    assert "no answer: agent2 has finished" in left.observations()[0]
    assert "code 3" in left.observations()[0]
    assert left.result["agents"]["agent2"]["status"] == "gave_up"
    assert left.result["agents"]["agent1"]["status"] == "submitted"
