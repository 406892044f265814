"""What every mailbox promises: nothing is lost, doubled or reordered; who has finished is known."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from cooperbench.team.mailbox import Mailbox
from tests.support.team.redis_fixtures import AGENTS, Received

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.team.mailbox import RedisMailbox


@pytest.fixture(params=["memory", "redis"])
def mailbox(request: pytest.FixtureRequest, open_redis: Callable[..., RedisMailbox]) -> Mailbox:
    if request.param == "memory":
        return Mailbox(AGENTS)
    return open_redis(request.getfixturevalue("shared_redis").url)


def test_a_message_reaches_its_recipient_as_it_was_sent(mailbox: Mailbox) -> None:
    received, other = Received(mailbox, "agent2"), Received(mailbox, "agent3")
    posted = mailbox.post("agent1", "agent2", "hello\nthere ✓", sender_step=4)
    assert mailbox.finished == []
    assert received.messages == [posted]
    assert (posted.sender, posted.text, posted.sequence, posted.sender_step) == (
        "agent1",
        "hello\nthere ✓",
        1,
        4,
    )
    assert other.messages == []


def test_everybody_learns_once_that_an_agent_finished(mailbox: Mailbox) -> None:
    one, three = Received(mailbox, "agent1"), Received(mailbox, "agent3")
    mailbox.post("agent2", "agent1", "last words")
    mailbox.finish("agent2")
    mailbox.finish("agent2")
    assert (one.texts, one.finished, three.finished) == (["last words"], ["agent2"], ["agent2"])
    mailbox.post("agent1", "agent2", "too late")
    assert mailbox.finished == ["agent2"]


def test_strangers_cannot_be_written_to(mailbox: Mailbox) -> None:
    with pytest.raises(ValueError, match="agent9"):
        mailbox.post("agent1", "agent9", "?")


def test_many_senders_at_once_lose_and_double_nothing(mailbox: Mailbox) -> None:
    together = threading.Barrier(3)
    readers = {agent: Received(mailbox, agent) for agent in AGENTS}

    def talk(sender: str) -> None:
        together.wait(30)
        for number in range(100):
            for recipient in AGENTS:
                if recipient != sender:
                    mailbox.post(sender, recipient, f"{sender} {number}")

    with ThreadPoolExecutor() as pool:
        for future in [pool.submit(talk, agent) for agent in AGENTS]:
            future.result(60)
    for reader, received in readers.items():
        sequences = [message.sequence for message in received.messages]
        assert sequences == sorted(sequences)
        for sender in AGENTS:
            texts = [message.text for message in received.messages if message.sender == sender]
            assert texts == (
                [] if sender == reader else [f"{sender} {number}" for number in range(100)]
            )
    everything = mailbox.messages()
    assert [message.sequence for message in everything] == list(range(1, 601))
    assert [message.timestamp for message in everything] == sorted(
        message.timestamp for message in everything
    )


def test_what_comes_after_the_end_is_on_record(mailbox: Mailbox) -> None:
    mailbox.post("agent1", "agent2", "in time")
    mailbox.close()
    mailbox.close()
    assert mailbox.post("agent1", "agent2", "late").sequence == 2
    mailbox.finish("agent1")
    mailbox.post("agent2", "agent1", "too late")
    assert mailbox.finished == ["agent1"]
    assert [message.text for message in mailbox.messages()] == ["in time", "late", "too late"]
