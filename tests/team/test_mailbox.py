"""Nothing is lost, doubled or reordered; who has finished is known."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cooperbench.team.mailbox import MemoryMailbox

AGENTS = ("agent1", "agent2", "agent3")


def test_a_message_sent_before_anybody_reads_is_there() -> None:
    mailbox = MemoryMailbox(AGENTS)
    posted = mailbox.post("agent1", "agent2", "hello\nthere ✓", sender_step=4)
    assert not posted.recipient_finished
    (message,) = mailbox.receive("agent2", 0, 0)
    assert (message.sender, message.text, message.sequence, message.sender_step) == (
        "agent1",
        "hello\nthere ✓",
        1,
        4,
    )
    assert mailbox.receive("agent3", 0, 0) == []


def test_a_restarted_reader_continues_where_it_was() -> None:
    mailbox = MemoryMailbox(AGENTS)
    for text in ("one", "two", "three"):
        mailbox.post("agent1", "agent2", text)
    first, *_ = mailbox.receive("agent2", 0, 0)
    assert [message.text for message in mailbox.receive("agent2", first.sequence, 0)] == ["two", "three"]
    assert [message.text for message in mailbox.receive("agent2", 0, 0)] == ["one", "two", "three"]


def test_a_reader_is_woken_by_a_message_and_by_the_end() -> None:
    mailbox = MemoryMailbox(AGENTS)
    with ThreadPoolExecutor() as pool:
        reader = pool.submit(mailbox.receive, "agent2", 0, 60)
        mailbox.post("agent3", "agent2", "now")
        assert [message.text for message in reader.result(30)] == ["now"]
        reader = pool.submit(mailbox.receive, "agent1", 0, 60)
        mailbox.close()
        assert reader.result(30) == []
    assert len(mailbox.messages()) == 1


def test_those_who_write_to_a_finished_agent_are_told() -> None:
    mailbox = MemoryMailbox(AGENTS)
    mailbox.finish("agent2")
    assert mailbox.is_finished("agent2")
    assert mailbox.post("agent1", "agent2", "too late").recipient_finished
    assert not mailbox.post("agent2", "agent1", "goodbye").recipient_finished


def test_strangers_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="agent9"):
        MemoryMailbox(AGENTS).post("agent1", "agent9", "?")


def test_many_senders_at_once_lose_and_double_nothing() -> None:
    mailbox = MemoryMailbox(AGENTS)
    together = threading.Barrier(3)

    def talk(sender: str) -> None:
        together.wait(30)
        for number in range(200):
            for recipient in AGENTS:
                if recipient != sender:
                    mailbox.post(sender, recipient, f"{sender} {number}")

    with ThreadPoolExecutor() as pool:
        for future in [pool.submit(talk, agent) for agent in AGENTS]:
            future.result(60)
    for reader in AGENTS:
        received = mailbox.receive(reader, 0, 0)
        for sender in AGENTS:
            texts = [message.text for message in received if message.sender == sender]
            assert texts == ([] if sender == reader else [f"{sender} {number}" for number in range(200)])
    assert [message.sequence for message in mailbox.messages()] == list(range(1, 1201))
