"""What every mailbox promises: nothing is lost, doubled or reordered; who has finished is known."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from cooperbench.team.mailbox import MemoryMailbox
from tests.team.redis_fixtures import AGENTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.team.mailbox import Mailbox
    from cooperbench.team.redis_mailbox import RedisMailbox


@pytest.fixture(params=["memory", "redis"])
def mailbox(request: pytest.FixtureRequest, open_redis: Callable[..., RedisMailbox]) -> Mailbox:
    if request.param == "memory":
        return MemoryMailbox(AGENTS)
    return open_redis(request.getfixturevalue("shared_redis").url)


def test_a_message_sent_before_anybody_reads_is_there(mailbox: Mailbox) -> None:
    posted = mailbox.post("agent1", "agent2", "hello\nthere ✓", sender_step=4)
    assert not posted.recipient_finished
    (message,) = mailbox.receive("agent2", 0, 0)
    assert message == posted.message
    assert (message.sender, message.text, message.sequence, message.sender_step) == (
        "agent1",
        "hello\nthere ✓",
        1,
        4,
    )
    assert mailbox.receive("agent3", 0, 0) == []


def test_a_restarted_reader_continues_where_it_was(mailbox: Mailbox) -> None:
    for text in ("one", "two", "three"):
        mailbox.post("agent1", "agent2", text)
    first, *_ = mailbox.receive("agent2", 0, 0)
    assert [message.text for message in mailbox.receive("agent2", first.sequence, 0)] == ["two", "three"]
    assert [message.text for message in mailbox.receive("agent2", 0, 0)] == ["one", "two", "three"]


def test_a_reader_is_woken_by_a_message_and_by_the_end(mailbox: Mailbox) -> None:
    with ThreadPoolExecutor() as pool:
        reader = pool.submit(mailbox.receive, "agent2", 0, 60)
        mailbox.post("agent3", "agent2", "now")
        assert [message.text for message in reader.result(30)] == ["now"]
        reader = pool.submit(mailbox.receive, "agent1", 0, 60)
        mailbox.close()
        assert reader.result(30) == []
    assert [message.text for message in mailbox.messages()] == ["now"]
    assert [message.text for message in mailbox.receive("agent2", 0, 60)] == ["now"]


def test_those_who_write_to_a_finished_agent_are_told(mailbox: Mailbox) -> None:
    assert not mailbox.is_finished("agent2")
    mailbox.finish("agent2")
    mailbox.finish("agent2")
    assert mailbox.is_finished("agent2")
    assert mailbox.post("agent1", "agent2", "too late").recipient_finished
    assert not mailbox.post("agent2", "agent1", "goodbye").recipient_finished


def test_every_reader_learns_that_an_agent_finished_also_one_that_did_not_wait_just_then(
    mailbox: Mailbox,
) -> None:
    assert mailbox.receive("agent2", 0, 0) == []
    assert mailbox.receive("agent3", 0, 0) == []
    mailbox.finish("agent1")
    with ThreadPoolExecutor() as pool:
        # Both come back long before their time is up, the second after the first has heard of it.
        assert pool.submit(mailbox.receive, "agent2", 0, 600).result(30) == []
        assert pool.submit(mailbox.receive, "agent3", 0, 600).result(30) == []
        # And neither does so again.
        waiting = pool.submit(mailbox.receive, "agent3", 0, 600)
        posted = mailbox.post("agent2", "agent3", "still here").message
        assert waiting.result(30) == [posted]


def test_strangers_cannot_be_written_to(mailbox: Mailbox) -> None:
    with pytest.raises(ValueError, match="agent9"):
        mailbox.post("agent1", "agent9", "?")


def test_many_senders_at_once_lose_and_double_nothing(mailbox: Mailbox) -> None:
    together = threading.Barrier(3)

    def talk(sender: str) -> None:
        together.wait(30)
        for number in range(100):
            for recipient in AGENTS:
                if recipient != sender:
                    mailbox.post(sender, recipient, f"{sender} {number}")

    with ThreadPoolExecutor() as pool:
        for future in [pool.submit(talk, agent) for agent in AGENTS]:
            future.result(60)
    for reader in AGENTS:
        received = mailbox.receive(reader, 0, 0)
        assert [message.sequence for message in received] == sorted(message.sequence for message in received)
        for sender in AGENTS:
            texts = [message.text for message in received if message.sender == sender]
            assert texts == ([] if sender == reader else [f"{sender} {number}" for number in range(100)])
    everything = mailbox.messages()
    assert [message.sequence for message in everything] == list(range(1, 601))
    assert [message.timestamp for message in everything] == sorted(
        message.timestamp for message in everything
    )


def test_what_comes_after_the_end_is_on_record(mailbox: Mailbox) -> None:
    mailbox.post("agent1", "agent2", "in time")
    mailbox.close()
    mailbox.close()
    assert mailbox.post("agent1", "agent2", "late").message.sequence == 2
    mailbox.finish("agent1")
    assert mailbox.is_finished("agent1")
    assert [message.text for message in mailbox.messages()] == ["in time", "late"]
