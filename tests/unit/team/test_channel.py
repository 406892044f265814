"""The rules for messages: budgets, who may write to whom, delay, loss."""

from __future__ import annotations

import pytest

from cooperbench.errors import UserError
from cooperbench.team.channel import Channel, ChannelRules, check_topology
from cooperbench.team.inbox import EVERYBODY, Inbox
from cooperbench.team.mailbox import Mailbox
from cooperbench.team.sandbox_rpc import SandboxRpc

AGENTS = ("agent1", "agent2", "agent3", "agent4")


def make_inboxes(rules: ChannelRules) -> tuple[dict[str, Inbox], Mailbox]:
    mailbox = Mailbox(AGENTS)
    inboxes = {}
    for agent_id in AGENTS:
        rpc = SandboxRpc(agent_id, [other for other in AGENTS if other != agent_id])
        channel = Channel(rules, agent_id, AGENTS, "repo/task1 f1_f2")
        inboxes[agent_id] = Inbox(rpc, mailbox, channel=channel)
    return inboxes, mailbox


def texts(inbox: Inbox) -> list[str]:
    return [message.text for message in inbox.incoming()]


@pytest.mark.parametrize(
    ("topology", "of_agent1", "of_agent2"),
    [
        ("all", "agent2 agent3 agent4", "agent1 agent3 agent4"),
        ("ring", "agent2 agent4", "agent1 agent3"),
        ("star", "agent2 agent3 agent4", "agent1"),
        ("agent1>agent3, agent2>agent1", "agent3", "agent1"),
        ("agent3>agent1", "", ""),
    ],
)
def test_topology_decides_who_gets_messages(topology: str, of_agent1: str, of_agent2: str) -> None:
    rules = ChannelRules(topology=topology)
    inboxes, mailbox = make_inboxes(rules)
    for agent_id, allowed in (("agent1", of_agent1), ("agent2", of_agent2)):
        accepted = [name for name in AGENTS if inboxes[agent_id].send(name, "hi").code == 0]
        assert accepted == allowed.split()
        before = len(mailbox.messages())
        assert (inboxes[agent_id].send(EVERYBODY, "hi").code == 0) is bool(allowed)
        recipients = [message.recipient for message in mailbox.messages()[before:]]
        assert recipients == allowed.split()
    assert rules.senders("agent1", AGENTS) == tuple(
        name for name in AGENTS[1:] if "agent1" in rules.recipients(name, AGENTS)
    )


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        ("circle", r"topology 'circle' is not one of all, ring, star, and not a list of who"),
        ("agent1>agent1", "and not a list of who may write to whom"),
        ("agent1>agent2,", "and not a list of who may write to whom"),
        ("agent1>agent2,agent1>agent2", "has agent1>agent2 twice"),
        ("agent1>agent3", "has agent3, but r/task1 f1_f2 has 2 agents at most"),
    ],
)
def test_bad_topology_is_refused(topology: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_topology(topology, 2, "r/task1 f1_f2")


def test_budget_counts_each_recipient_and_says_what_is_left() -> None:
    inboxes, mailbox = make_inboxes(ChannelRules(messages=4, characters=50))
    inbox = inboxes["agent1"]
    assert inbox.send("agent2", "0123456789").text == (
        "1\nsend_message: 3 messages, 40 characters left\n"
    )
    assert inbox.send(EVERYBODY, "0123456789").text.endswith("0 messages, 10 characters left\n")
    refusal = inbox.send("agent2", "x")
    assert (refusal.code, refusal.text) == (
        2,
        "this is more than your budget has left: 0 messages, 10 characters",
    )
    assert len(mailbox.messages()) == 4
    assert inboxes["agent2"].send("agent1", "x" * 51).code == 2
    assert inboxes["agent2"].send("agent1", "x" * 50).code == 0


def test_delayed_message_arrives_after_steps_of_its_recipient() -> None:
    inboxes, _ = make_inboxes(ChannelRules(delay_steps=2))
    recipient = inboxes["agent2"]
    recipient.begin_step(5)
    inboxes["agent1"].send("agent2", "first")
    recipient.begin_step(6)
    inboxes["agent1"].send("agent2", "second")
    assert texts(recipient) == []
    assert recipient.wait(0) is False
    recipient.begin_step(7)
    assert texts(recipient) == ["first"]
    recipient.begin_step(8)
    assert texts(recipient) == ["second"]


def lost_numbers(loss: float, seed: int = 0, count: int = 400) -> list[int]:
    inboxes, mailbox = make_inboxes(ChannelRules(loss=loss, loss_seed=seed))
    for number in range(count):
        assert inboxes["agent1"].send("agent2", str(number)).code == 0
    shown: list[str] = []
    while batch := texts(inboxes["agent2"]):
        shown += [text.partition("\n")[0] for text in batch]
    lost = [int(message.text) for message in mailbox.messages() if message.lost]
    assert sorted(map(int, shown)) == sorted(set(range(count)) - set(lost))
    return lost


def test_loss_is_reproducible_and_monotonic() -> None:
    lost = lost_numbers(0.3)
    assert lost == lost_numbers(0.3)
    assert 90 <= len(lost) <= 150
    assert set(lost) < set(lost_numbers(0.5))
    assert lost != lost_numbers(0.3, seed=1)
    assert lost_numbers(0.0, count=20) == []
    assert len(lost_numbers(1.0, count=20)) == 20
