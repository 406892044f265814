"""One agent's inbox: how much is put before an agent, how much it may send, and what happens at its end."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cooperbench.errors import SandboxDead
from cooperbench.team import inbox as inbox_module
from cooperbench.team import sandbox_rpc
from cooperbench.team.inbox import MAX_BATCH_CHARACTERS, MAX_MESSAGE_CHARACTERS, Inbox
from cooperbench.team.mailbox import Mailbox
from cooperbench.team.sandbox_rpc import SandboxRpc
from tests.support.team.agent_sandboxes import BOTH_WAYS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.team.agent_sandboxes import AgentSandboxes


def inbox_with(texts: Sequence[str]) -> Inbox:
    """Without a sandbox: what has come to agent1."""
    mailbox = Mailbox(["agent1", "agent2"])
    inbox = Inbox(SandboxRpc("agent1", ["agent2"]), mailbox)
    for text in texts:
        mailbox.post("agent2", "agent1", text)
    return inbox


def test_long_message_is_shortened() -> None:
    (message,) = inbox_with(["begin" + "x" * 1_000_000 + "end"]).incoming()
    assert len(message.text) < MAX_MESSAGE_CHARACTERS + 300
    assert message.text.startswith("beginx")
    assert message.text.endswith("xend")
    assert "990008 of 1000008 characters left out" in message.text
    assert "/cooperbench/team/inbox/00000001" in message.text


@settings(max_examples=30)
@given(st.lists(st.integers(1, 3 * MAX_MESSAGE_CHARACTERS), max_size=30))
def test_messages_are_shown_once_in_order(
    lengths: list[int],
) -> None:
    inbox = inbox_with([f"{number} ".ljust(length, "x") for number, length in enumerate(lengths)])
    shown: list[int] = []
    while batch := inbox.incoming():
        assert sum(len(message.text) for message in batch) <= MAX_BATCH_CHARACTERS + 300
        shown += [int(message.text.partition(" ")[0]) for message in batch]
        left = len(lengths) - len(shown)
        assert (f"[{left} more message" in batch[-1].text) is (left > 0)
    assert shown == list(range(len(lengths)))
    assert inbox.wait(0) is False


def test_thousand_short_ones_are_not_shown_at_once() -> None:
    inbox = inbox_with(["hi"] * 1_000)
    first = inbox.incoming()
    assert 100 < len(first) < 500
    assert inbox.delivery(first[-1].sequence).delivered_by == "context"
    assert inbox.delivery(first[-1].sequence + 1).delivered_by is None
    assert inbox.incoming()[0].sequence == first[-1].sequence + 1


@BOTH_WAYS
def test_what_came_before_there_was_a_sandbox_is_there(
    agent_sandboxes: AgentSandboxes, streams: bool
) -> None:
    mailbox = EarlyMailbox(["agent1", "agent2"])
    agent = agent_sandboxes.open(mailbox, streams=streams)
    assert agent.run("read_messages --wait 30").stdout_read() == "From agent2:\nearly\n\n"
    done = agent.run("send_message --wait 600 agent2 'are you there?'")
    assert "agent2 has finished and will not read this" in done.stderr_read()


class EarlyMailbox(Mailbox):
    """One to which a teammate has written, and finished, before the agent's sandbox is open."""

    def subscribe(self, agent_id: str, *readers: Any) -> None:
        super().subscribe(agent_id, *readers)
        self.post("agent2", agent_id, "early")
        self.finish("agent2")


@BOTH_WAYS
def test_whoever_sends_too_many_is_told_so(
    agent_sandboxes: AgentSandboxes, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_module, "MAX_SENT_MESSAGES", 3)
    agent = agent_sandboxes.open(streams=streams)
    done = agent.run("for n in 1 2 3 4; do send_message agent2 text $n; echo code $?; done")
    assert done.stdout_read().split("code ")[1:] == [
        "0\nMessage sent.\n",
        "0\nMessage sent.\n",
        "0\n",
        "2\n",
    ]
    assert "message limit reached: at most 3 messages" in done.stderr_read()
    assert [message.text for message in agent.mailbox.messages()] == ["text 1", "text 2", "text 3"]


@BOTH_WAYS
def test_background_messages_are_taken_at_the_end(
    agent_sandboxes: AgentSandboxes, streams: bool
) -> None:
    agent = agent_sandboxes.open(streams=streams)
    dropped = "printf 'agent2\\ndropped' >/cooperbench/team/send/dropped"
    agent.run(
        f"{dropped}; for n in 1 2 3; do send_message agent2 bye $n >/dev/null 2>&1 & done; wait $!"
    )
    agent.rpc.last_call("read", "send")
    agent.leave()
    expected = ["bye 1", "bye 2", "bye 3", "dropped"]
    assert sorted(message.text for message in agent.mailbox.messages()) == expected


def test_an_agent_that_never_stops_sending_is_left_all_the_same(
    agent_sandboxes: AgentSandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_rpc, "LAST_CALL_SECONDS", 0.5)
    agent = agent_sandboxes.open()
    agent.run("while :; do send_message agent2 again; done >/dev/null 2>&1 &")
    agent.rpc.last_call("send")
    agent.leave()
    sent = len(agent.mailbox.messages())
    assert sent > 0
    agent.run("sleep 0.2")
    assert len(agent.mailbox.messages()) == sent


def test_an_agent_whose_sandbox_ends_does_not_wait_on(agent_sandboxes: AgentSandboxes) -> None:
    agent = agent_sandboxes.open()
    waiting = threading.Event()

    def wait() -> None:
        waiting.set()
        agent.inbox.wait(600)

    with ThreadPoolExecutor() as pool:
        waits = pool.submit(wait)
        assert waiting.wait(30)
        agent.sandbox.terminate()
        with pytest.raises(SandboxDead):
            waits.result(60)
