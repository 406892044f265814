"""Calls from a sandbox: what happens when things go wrong in it, or come at the same moment."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from cooperbench.errors import InfraError
from cooperbench.team import inbox as inbox_module
from cooperbench.team import sandbox_rpc
from cooperbench.team.mailbox import Mailbox
from cooperbench.team.sandbox_rpc import Response
from tests.support.team.agent_sandboxes import AGENTS, BOTH_WAYS

if TYPE_CHECKING:
    from cooperbench.models import Message
    from tests.support.team.agent_sandboxes import AgentSandbox, AgentSandboxes


def _set(event: threading.Event, _: object) -> None:
    event.set()


def texts(agent: AgentSandbox) -> list[str]:
    return [message.text for message in agent.mailbox.messages()]


@BOTH_WAYS
def test_a_message_is_never_shown_both_ways(agent_sandboxes: AgentSandboxes, streams: bool) -> None:
    agent = agent_sandboxes.open(streams=streams)
    for number in range(20 if streams else 3):
        agent.mailbox.post("agent2", "agent1", f"context {number}")
        assert agent.inbox.wait(30)
        assert [message.text for message in agent.inbox.incoming()] == [f"context {number}"]
        assert agent.run("read_messages").stdout_read() == "No new messages.\n"
        agent.mailbox.post("agent2", "agent1", f"command {number}")
        assert (
            agent.run("read_messages --wait 30").stdout_read()
            == f"From agent2:\ncommand {number}\n\n"
        )
        assert agent.inbox.incoming() == []


@BOTH_WAYS
def test_last_answer_of_a_sender_arrives(agent_sandboxes: AgentSandboxes, streams: bool) -> None:
    for _ in range(4 if streams else 1):
        agent = agent_sandboxes.open(streams=streams)
        asked = threading.Event()
        agent.mailbox.subscribe("agent2", partial(_set, asked), lambda _: None)

        def answer(mailbox: Mailbox = agent.mailbox, asked: threading.Event = asked) -> None:
            asked.wait(60)
            mailbox.post("agent2", "agent1", "the answer")
            mailbox.finish("agent2")

        thread = threading.Thread(target=answer)
        thread.start()
        done = agent.run("send_message --wait 60 agent2 question")
        thread.join()
        assert "From agent2:\nthe answer\n" in done.stdout_read()
        assert done.returncode == 0


def test_earlier_messages_are_not_answers(
    agent_sandboxes: AgentSandboxes,
) -> None:
    agent = agent_sandboxes.open()
    agent.mailbox.post("agent2", "agent1", "earlier")
    done = agent.run("send_message --wait 1 agent2 question")
    assert done.returncode == 3
    agent.mailbox.post("agent2", "agent1", "answer")
    done = agent.run("read_messages --wait 30")
    assert done.stdout_read() == "From agent2:\nearlier\n\nFrom agent2:\nanswer\n\n"


STATUS = "read -r _ _ _ parent group _ </proc/$(cat /cooperbench/team/rpc.pid)/stat"


@pytest.mark.parametrize(
    "killing",
    [
        "kill -9 $(cat /cooperbench/team/rpc.pid)",
        f"{STATUS}; kill -9 $parent",
        f"{STATUS}; kill -9 -- -$group",
        f"{STATUS}; rm -f /cooperbench/team/rpc.pid; kill -9 -- -$group",
    ],
    ids=["half", "main", "all", "all-and-pid"],
)
def test_a_script_that_was_killed_is_replaced(
    agent_sandboxes: AgentSandboxes, killing: str
) -> None:
    agent = agent_sandboxes.open()
    for number in range(3):
        agent.run(killing)
        agent.mailbox.post("agent2", "agent1", f"in {number}")
        assert agent.run(f"send_message agent2 'out {number}'").returncode == 0
        assert f"in {number}" in agent.run("read_messages --wait 30").stdout_read()
    assert [text for text in texts(agent) if "out" in text] == ["out 0", "out 1", "out 2"]


def test_queued_calls_are_done_once(
    agent_sandboxes: AgentSandboxes,
) -> None:
    agent = agent_sandboxes.open()
    drop = "printf 'agent2\\nwaiting' >/cooperbench/team/send/dropped; kill -9 $(cat /cooperbench/team/rpc.pid)"
    agent.run(drop + "; until [ -e /cooperbench/team/responses/dropped ]; do sleep 0.02; done")
    agent.run(
        "rm /cooperbench/team/responses/dropped; kill -9 $(cat /cooperbench/team/rpc.pid); send_message agent2 next"
    )
    assert texts(agent) == ["waiting", "next"]


def test_commands_say_so_when_nobody_listens_any_more(agent_sandboxes: AgentSandboxes) -> None:
    agent = agent_sandboxes.open()
    agent.rpc.close()
    for command in ("send_message agent2 hello", "read_messages"):
        done = agent.run(command)
        assert done.returncode == 1
        assert "the harness no longer listens in this sandbox" in done.stderr_read()


def test_an_agent_that_stops_the_script_stops_nobody_else(agent_sandboxes: AgentSandboxes) -> None:
    agent = agent_sandboxes.open()
    agent.run(f"{STATUS}; kill -STOP -- -$group")
    for _ in range(20):
        agent.mailbox.post("agent2", "agent1", "x" * 100_000)
    seen = 0
    while seen < 20:
        assert agent.inbox.wait(30)
        seen += len(agent.inbox.incoming())
    agent.leave()


def test_many_writers_at_once(agent_sandboxes: AgentSandboxes) -> None:
    agent = agent_sandboxes.open()
    done = agent.run('for n in $(seq 40); do send_message agent2 "text $n" & done; wait')
    assert done.stdout_read().count("Message sent.") == 40
    assert sorted(texts(agent)) == sorted(f"text {number}" for number in range(1, 41))


@pytest.mark.parametrize("rubbish", ["half a line", "send ", "\\303", "\\360\\237\\230", "\\0"])
def test_half_a_line_on_the_bell_swallows_nothing(
    agent_sandboxes: AgentSandboxes, rubbish: str
) -> None:
    agent = agent_sandboxes.open()
    done = agent.run(f"printf '{rubbish}' >/cooperbench/team/bell; send_message agent2 whole")
    assert (done.returncode, texts(agent)) == (0, ["whole"])


@BOTH_WAYS
def test_no_thread_is_left(agent_sandboxes: AgentSandboxes, streams: bool) -> None:
    before = set(threading.enumerate())
    agent = agent_sandboxes.open(streams=streams)
    agent.run(
        "send_message agent2 hello; kill -9 $(cat /cooperbench/team/rpc.pid); send_message agent2 again"
    )
    agent.leave()
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not {name for name in left if name.startswith(("rpc", "inbox"))}


class AwayMailbox(Mailbox):
    """One whose server has gone away for good."""

    away = False

    def post(
        self, sender: str, recipient: str, text: str, sender_step: int = 0, *, lost: bool = False
    ) -> Message:
        if self.away:
            raise InfraError("the server is away")
        return super().post(sender, recipient, text, sender_step, lost=lost)


def test_mailbox_failure_reaches_agent_and_harness(
    agent_sandboxes: AgentSandboxes,
) -> None:
    mailbox = AwayMailbox(AGENTS)
    agent = agent_sandboxes.open(mailbox)
    assert agent.run("send_message agent2 fine").returncode == 0
    mailbox.away = True
    done = agent.run("send_message agent2 lost")
    assert done.returncode == 1
    assert "the server is away" in done.stderr_read()
    with pytest.raises(InfraError, match="the server is away"):
        agent.inbox.incoming()


@BOTH_WAYS
def test_what_is_too_much_is_refused(
    agent_sandboxes: AgentSandboxes, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_module, "MAX_SENT_BYTES", 6_000_000)
    agent = agent_sandboxes.open(streams=streams)
    done = agent.run("head -c 30000000 /dev/zero | tr '\\0' x | send_message agent2")
    assert (done.returncode, "too long" in done.stderr_read()) == (2, True)
    big = "head -c 3500000 /dev/zero | tr '\\0' x | send_message agent2"
    assert agent.run(big).returncode == 0
    done = agent.run(big)
    assert (done.returncode, "limit reached" in done.stderr_read()) == (2, True)
    assert agent.run("send_message agent2 short").returncode == 0


def test_an_agent_that_floods_is_no_longer_listened_to(
    agent_sandboxes: AgentSandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_rpc, "MAX_CALLS", 50)
    agent = agent_sandboxes.open()
    # From this answer on, calls arrive in the order of the FIFO.
    assert agent.run("send_message agent2 first").returncode == 0
    done = agent.run(
        'for n in $(seq 100); do echo "sync flood$n" 1<>/cooperbench/team/bell; done; send_message agent2 hi'
    )
    assert "no longer listens" in done.stderr_read()


def test_a_handler_of_ones_own(agent_sandboxes: AgentSandboxes) -> None:
    agent = agent_sandboxes.open()
    asked: list[tuple[str, bytes]] = []

    def taken(name: str, content: bytes) -> Response:
        asked.append((name, content))
        return Response(7, "ä\nb")

    agent.rpc.handle("push", taken)
    ask = "printf 'a\\0b' >/cooperbench/team/push/it; echo push it 1<>/cooperbench/team/bell; . /cooperbench/bin/team.sh; await it 30"
    assert agent.run(ask + "; cat /cooperbench/team/responses/it").stdout_read() == "7\nä\nb"
    assert asked == [("it", b"a\0b")]
