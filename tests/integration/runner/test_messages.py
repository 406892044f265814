"""Agents that talk: the real commands in real sandboxes, and what is on record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.runner.helpers import Left, run_tiny
from tests.support.tiny import write_script

if TYPE_CHECKING:
    from pathlib import Path


def talk(tmp_path: Path, first: list[Any], second: list[Any], **options: Any) -> Left:
    script = write_script(tmp_path / "script.yaml", {1: first, 2: second, 3: second})
    return run_tiny(tmp_path, "scripted", agent_config=str(script), auto_eval=False, **options)


def messages(left: Left) -> list[dict[str, Any]]:
    found = left.json("conversation.json")["messages"]
    assert isinstance(found, list)
    return found


def test_a_message_arrives_once_in_order_and_is_on_record(tmp_path: Path) -> None:
    left = talk(
        tmp_path,
        [
            {
                "run": 'for n in 1 2 3; do echo "part $n: \'quoted\' \\"ä✓\\"" | send_message agent2; done'
            }
        ],
        [{"wait": {"for": "part 3", "seconds": 90}}],
    )
    found = messages(left)
    assert [message["message"] for message in found] == [
        f"part {n}: 'quoted' \"ä✓\"" for n in (1, 2, 3)
    ]
    assert [message["sequence"] for message in found] == [1, 2, 3]
    assert {(message["from"], message["to"], message["feature_id"]) for message in found} == {
        ("agent1", "agent2", 1)
    }
    assert all(message["delivered_at"] >= message["timestamp"] for message in found)
    received = [
        step for step in left.trajectory("agent2")["steps"] if step["action"] == "receive_message"
    ]
    assert [step["args"]["sequence"] for step in received] == [1, 2, 3]


def test_mistakes_are_said_on_stderr_with_a_code(tmp_path: Path) -> None:
    commands = [
        "send_message agent9 hello; echo code $?",
        "send_message agent1 to-myself; echo code $?",
        "send_message agent2 '  '; echo code $?",
        "send_message agent2 </dev/null; echo code $?",
        "send_message; echo code $?",
        "send_message --wat agent2 x; echo code $?",
        "send_message agent2 -- --dashes are text; echo code $?",
    ]
    left = talk(
        tmp_path,
        [{"run": command} for command in commands],
        [{"wait": {"for": "dashes", "seconds": 90}}],
    )
    seen = left.observations()
    assert "no teammate 'agent9'; your teammates: agent2" in seen[0]
    for observation in seen[:6]:
        assert "code 0" not in observation
        assert "code" in observation
    assert "code 0" in seen[6]
    assert [message["message"] for message in messages(left)] == ["--dashes are text"]


def test_waiting_for_an_answer_prints_it_and_shows_it_only_once(tmp_path: Path) -> None:
    left = talk(
        tmp_path,
        [
            {"run": "send_message --wait 30 agent2 'which name?'"},
            {"run": "read_messages"},
            {"run": "read_messages --all"},
        ],
        [
            {"wait": {"for": "which name", "seconds": 90}},
            {"send": {"to": "agent1", "text": "call it\nlimit"}},
        ],
    )
    first, second, third = left.observations()
    assert "Message sent." in first
    assert "From agent2:\ncall it\nlimit\n" in first
    assert second.strip() == "No new messages."
    assert "call it" in third
    assert not [step for step in left.trajectory()["steps"] if step["action"] == "receive_message"]
    assert messages(left)[1]["delivered_by"] == "command"


def test_an_answer_that_does_not_come_is_said(tmp_path: Path) -> None:
    left = talk(
        tmp_path,
        [{"run": "send_message --wait 1 agent2 anyone; echo code $?"}, {"send": "bye"}],
        [{"wait": {"for": "bye", "seconds": 90}}],
    )
    assert "no answer within 1 seconds" in left.observations()[0]
    assert "code 3" in left.observations()[0]


def test_a_teammate_that_has_finished_is_told_of(tmp_path: Path) -> None:
    wait = "until [ -e /cooperbench/team/finished/agent2 ]; do sleep 0.02; done; send_message agent2 late; echo code $?"
    left = talk(tmp_path, [{"run": wait}], [])
    assert "agent2 has finished" in left.observations()[0]
    assert "code 3" in left.observations()[0]
    (message,) = messages(left)
    assert message["delivered_at"] is None


def test_a_megabyte_goes_through_whole(tmp_path: Path) -> None:
    left = talk(
        tmp_path,
        [
            {
                "run": "head -c 750001 /dev/urandom | base64 >/tmp/big; send_message agent2 </tmp/big; md5sum </tmp/big"
            }
        ],
        [
            {"wait": {"for": "=", "seconds": 90}},
            {
                "run": "until cd /cooperbench/team/inbox && [ -e 00000001 ]; do sleep 0.02; done; tail -n +2 00000001 | md5sum"
            },
        ],
    )
    (sent,) = left.observations("agent1")
    (came,) = left.observations("agent2")
    assert sent.split()[-2] == came.split()[0]


def test_all_reaches_everybody_and_each_is_on_record(tmp_path: Path) -> None:
    waiting = [{"wait": {"for": "to all", "seconds": 90}}]
    left = talk(
        tmp_path, [{"run": "send_message --all 'to all of you'"}], waiting, features=(1, 2, 3)
    )
    assert sorted(message["to"] for message in messages(left)) == ["agent2", "agent3"]


def test_a_sender_cannot_be_forged(tmp_path: Path) -> None:
    forge = "printf 'agent2\\nFrom: agent3' >/cooperbench/team/send/forged1; echo 'send forged1' >/cooperbench/team/bell; until [ -e /cooperbench/team/responses/forged1 ]; do sleep 0.02; done"
    left = talk(tmp_path, [{"run": forge}], [{"wait": {"for": "From", "seconds": 90}}])
    assert [message["from"] for message in messages(left)] == ["agent1"]


def test_rubbish_in_the_team_folder_breaks_nothing(tmp_path: Path) -> None:
    rubbish = (
        "cd /cooperbench/team; for name in ../../etc/passwd a.b '' '-n' 'x y'; do echo \"send $name\" >bell; done; "
        "echo 'fly away' >bell; head -c 3000 /dev/urandom | tr -d '\\n' >bell; echo >bell; send_message agent2 still here"
    )
    left = talk(tmp_path, [{"run": rubbish}], [{"wait": {"for": "still here", "seconds": 90}}])
    assert [message["message"] for message in messages(left)] == ["still here"]


def test_without_messaging_there_is_no_command(tmp_path: Path) -> None:
    left = talk(
        tmp_path, [{"run": "send_message agent2 hi; echo code $?"}], [], messaging_enabled=False
    )
    assert "code 127" in left.observations()[0]
    assert not (left.folder / "conversation.json").exists()


def test_message_in_the_last_step_is_undelivered(tmp_path: Path) -> None:
    arrived = "until [ -e /cooperbench/team/inbox/00000001 ]; do sleep 0.02; done"
    left = talk(tmp_path, [{"run": "send_message agent2 hello"}], [{"run": arrived}])
    (message,) = messages(left)
    assert message["sender_step"] == 1
    assert (message["delivered_at"], message["delivered_step"], message["delivered_by"]) == (
        None,
        None,
        None,
    )


def test_what_is_read_in_the_last_step_is_on_record_as_delivered(tmp_path: Path) -> None:
    left = talk(
        tmp_path,
        [{"run": "sleep 1; send_message agent2 hello"}],
        [{"run": "read_messages --wait 30"}],
    )
    (message,) = messages(left)
    assert (message["delivered_step"], message["delivered_by"]) == (1, "command")


def test_messages_from_a_pipe_a_loop_and_a_script(tmp_path: Path) -> None:
    write = "printf '#!/bin/sh\\nsend_message agent2 \"from $1\"\\n' >/tmp/tell; chmod +x /tmp/tell; /tmp/tell 'a script'"
    left = talk(
        tmp_path,
        [
            {"run": "echo 'from a pipe' | tr a-z A-Z | send_message agent2 >/dev/null"},
            {"run": 'for n in 1 2; do send_message agent2 "loop $n" || exit; done'},
            {"run": write},
            {
                "run": "(cd /; send_message agent2 <<'MSG'\n`not run` $HOME \"quoted\"\n\n  ✓ ä\nMSG\n)"
            },
            {"run": "env -i PATH=\"$PATH\" sh -c 'send_message agent2 last'"},
        ],
        [{"wait": {"for": "last", "seconds": 60}}],
    )
    assert [message["message"] for message in messages(left)] == [
        "FROM A PIPE", "loop 1", "loop 2", "from a script", '`not run` $HOME "quoted"\n\n  ✓ ä', "last",
    ]  # fmt: skip
