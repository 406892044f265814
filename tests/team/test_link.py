"""The line into a sandbox: what happens when things go wrong in it, or come at the same moment."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from cooperbench.errors import InfraError
from cooperbench.team import link as link_module
from cooperbench.team import postbox as postbox_module
from cooperbench.team.link import Receipt
from cooperbench.team.mailbox import MemoryMailbox, Posted
from tests.team.rooms import AGENTS, BOTH_WAYS

if TYPE_CHECKING:
    from cooperbench.team.mailbox import Mailbox
    from tests.team.rooms import Room, Rooms


def texts(room: Room) -> list[str]:
    return [message.text for message in room.mailbox.messages()]


@BOTH_WAYS
def test_a_message_is_never_shown_both_ways(rooms: Rooms, streams: bool) -> None:
    room = rooms.open(streams=streams)
    for number in range(20 if streams else 3):
        room.mailbox.post("agent2", "agent1", f"context {number}")
        assert room.box.wait(30)
        assert [message.text for message in room.box.incoming()] == [f"context {number}"]
        assert room.run("read_messages").stdout_read() == "No new messages.\n"
        room.mailbox.post("agent2", "agent1", f"command {number}")
        assert room.run("read_messages --wait 30").stdout_read() == f"From agent2:\ncommand {number}\n\n"
        assert room.box.incoming() == []


@BOTH_WAYS
def test_an_answer_is_not_missed_when_its_sender_finishes_at_once(rooms: Rooms, streams: bool) -> None:
    for _ in range(4 if streams else 1):
        room = rooms.open(streams=streams)

        def answer(mailbox: Mailbox = room.mailbox) -> None:
            mailbox.receive("agent2", 0, 60)
            mailbox.post("agent2", "agent1", "the answer")
            mailbox.finish("agent2")

        thread = threading.Thread(target=answer)
        thread.start()
        done = room.run("send_message --wait 60 agent2 question")
        thread.join()
        assert "From agent2:\nthe answer\n" in done.stdout_read()
        assert done.returncode == 0


def test_what_came_before_the_question_is_no_answer_but_is_shown_in_order(rooms: Rooms) -> None:
    room = rooms.open()
    room.mailbox.post("agent2", "agent1", "earlier")
    done = room.run("send_message --wait 1 agent2 question")
    assert done.returncode == 3
    room.mailbox.post("agent2", "agent1", "answer")
    done = room.run("read_messages --wait 30")
    assert done.stdout_read() == "From agent2:\nearlier\n\nFrom agent2:\nanswer\n\n"


STATUS = "read -r _ _ _ parent group _ </proc/$(cat /cooperbench/team/courier.pid)/stat"


@pytest.mark.parametrize(
    "killing",
    [
        "kill -9 $(cat /cooperbench/team/courier.pid)",
        f"{STATUS}; kill -9 $parent",
        f"{STATUS}; kill -9 -- -$group",
        f"{STATUS}; rm -f /cooperbench/team/courier.pid; kill -9 -- -$group",
    ],
    ids=["half", "main", "all", "all-and-pid"],
)
def test_a_courier_that_was_killed_is_replaced(rooms: Rooms, killing: str) -> None:
    room = rooms.open()
    for number in range(3):
        room.run(killing)
        room.mailbox.post("agent2", "agent1", f"in {number}")
        assert room.run(f"send_message agent2 'out {number}'").returncode == 0
        assert f"in {number}" in room.run("read_messages --wait 30").stdout_read()
    assert [text for text in texts(room) if "out" in text] == ["out 0", "out 1", "out 2"]


def test_what_was_asked_for_while_no_courier_was_there_is_done_once(rooms: Rooms) -> None:
    room = rooms.open()
    drop = "printf 'agent2\\nwaiting' >/cooperbench/team/send/dropped; kill -9 $(cat /cooperbench/team/courier.pid)"
    room.run(drop + "; until [ -e /cooperbench/team/receipts/dropped ]; do sleep 0.02; done")
    room.run(
        "rm /cooperbench/team/receipts/dropped; kill -9 $(cat /cooperbench/team/courier.pid); send_message agent2 next"
    )
    assert texts(room) == ["waiting", "next"]


def test_commands_say_so_when_nobody_listens_any_more(rooms: Rooms) -> None:
    room = rooms.open()
    room.link.close()
    for command in ("send_message agent2 hello", "read_messages"):
        done = room.run(command)
        assert done.returncode == 1
        assert "the harness no longer listens in this sandbox" in done.stderr_read()


def test_an_agent_that_stops_its_courier_stops_nobody_else(rooms: Rooms) -> None:
    room = rooms.open()
    room.run(f"{STATUS}; kill -STOP -- -$group")
    for _ in range(20):
        room.mailbox.post("agent2", "agent1", "x" * 100_000)
    seen = 0
    while seen < 20:
        assert room.box.wait(30)
        seen += len(room.box.incoming())
    room.leave()


def test_many_writers_at_once(rooms: Rooms) -> None:
    room = rooms.open()
    done = room.run('for n in $(seq 40); do send_message agent2 "text $n" & done; wait')
    assert done.stdout_read().count("Message sent.") == 40
    assert sorted(texts(room)) == sorted(f"text {number}" for number in range(1, 41))


@pytest.mark.parametrize("rubbish", ["half a line", "send ", "\\303", "\\360\\237\\230", "\\0"])
def test_half_a_line_on_the_bell_swallows_nothing(rooms: Rooms, rubbish: str) -> None:
    room = rooms.open()
    done = room.run(f"printf '{rubbish}' >/cooperbench/team/bell; send_message agent2 whole")
    assert (done.returncode, texts(room)) == (0, ["whole"])


@BOTH_WAYS
def test_no_thread_is_left(rooms: Rooms, streams: bool) -> None:
    before = set(threading.enumerate())
    room = rooms.open(streams=streams)
    room.run(
        "send_message agent2 hello; kill -9 $(cat /cooperbench/team/courier.pid); send_message agent2 again"
    )
    room.leave()
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not {name for name in left if name.startswith(("link", "postbox", "courier"))}


class AwayMailbox(MemoryMailbox):
    """One whose server has gone away for good."""

    away = False

    def post(self, sender: str, recipient: str, text: str, sender_step: int = 0) -> Posted:
        if self.away:
            raise InfraError("the server is away")
        return super().post(sender, recipient, text, sender_step)


def test_a_mailbox_that_fails_is_said_to_the_agent_and_to_the_harness(rooms: Rooms) -> None:
    mailbox = AwayMailbox(AGENTS)
    room = rooms.open(mailbox)
    assert room.run("send_message agent2 fine").returncode == 0
    mailbox.away = True
    done = room.run("send_message agent2 lost")
    assert done.returncode == 1
    assert "the server is away" in done.stderr_read()
    with pytest.raises(InfraError, match="the server is away"):
        room.box.incoming()


@BOTH_WAYS
def test_what_is_too_much_is_refused(rooms: Rooms, streams: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postbox_module, "MAX_SENT_BYTES", 6_000_000)
    room = rooms.open(streams=streams)
    done = room.run("head -c 30000000 /dev/zero | tr '\\0' x | send_message agent2")
    assert (done.returncode, "too long" in done.stderr_read()) == (2, True)
    big = "head -c 3500000 /dev/zero | tr '\\0' x | send_message agent2"
    assert room.run(big).returncode == 0
    done = room.run(big)
    assert (done.returncode, "enough" in done.stderr_read()) == (2, True)
    assert room.run("send_message agent2 short").returncode == 0


def test_an_agent_that_floods_is_no_longer_listened_to(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "MOST_REQUESTS", 50)
    room = rooms.open()
    done = room.run(
        'for n in $(seq 100); do echo "sync flood$n" 1<>/cooperbench/team/bell; done; send_message agent2 hi'
    )
    assert "no longer listens" in done.stderr_read()


def test_a_handler_of_ones_own(rooms: Rooms) -> None:
    room = rooms.open()
    asked: list[tuple[str, bytes]] = []

    def taken(name: str, content: bytes) -> Receipt:
        asked.append((name, content))
        return Receipt(7, "ä\nb")

    room.link.handle("push", taken)
    ask = "printf 'a\\0b' >/cooperbench/team/push/it; echo push it 1<>/cooperbench/team/bell; . /cooperbench/bin/team.sh; await it 30"
    assert room.run(ask + "; cat /cooperbench/team/receipts/it").stdout_read() == "7\nä\nb"
    assert asked == [("it", b"a\0b")]
