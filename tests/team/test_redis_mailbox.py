"""The mailbox over a real Redis: the same promises as the embedded one, and those that a server in between can break."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cooperbench.errors import InfraError
from cooperbench.team.mailbox import MemoryMailbox
from cooperbench.team.redis_link import RedisLink
from cooperbench.team.redis_mailbox import RedisMailbox, unique_run_id
from cooperbench.team.redis_server import FakeServer
from tests.team.redis_fixtures import AGENTS, Server, blocked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cooperbench.team.mailbox import Mailbox

KINDS = ("memory", "redis", "fakeredis")


@pytest.fixture(scope="module")
def fake_url() -> Iterator[str]:
    pytest.importorskip("fakeredis")
    server = FakeServer()
    yield server.url
    server.stop()


@pytest.fixture(params=KINDS)
def mailbox(request: pytest.FixtureRequest, open_redis: Callable[..., RedisMailbox]) -> Mailbox:
    if request.param == "memory":
        return MemoryMailbox(AGENTS)
    if request.param == "redis":
        return open_redis(request.getfixturevalue("shared_redis").url)
    return open_redis(request.getfixturevalue("fake_url"))


# What every mailbox promises.


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
        for number in range(60):
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
            assert texts == ([] if sender == reader else [f"{sender} {number}" for number in range(60)])
    everything = mailbox.messages()
    assert [message.sequence for message in everything] == list(range(1, 361))
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


@settings(max_examples=60)
@given(text=st.text(st.characters(codec=None)), step=st.integers(0, 2**40))
def test_any_text_comes_out_as_it_went_in(shared_redis: Server, text: str, step: int) -> None:
    link = RedisLink(shared_redis.url)
    mailbox = RedisMailbox(link, unique_run_id("any"), AGENTS)
    posted = mailbox.post("agent1", "agent2", text, step).message
    assert mailbox.receive("agent2", 0, 0) == [posted]
    assert posted.text == text
    mailbox.close()
    link.close()


# Keys.


def test_the_keys_are_those_of_the_documentation_and_expire(
    fragile_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    mailbox = open_redis(fragile_redis.url, "r1")
    mailbox.post("agent1", "agent2", "hi")
    assert fragile_redis.keys() == {"run:r1", "run:r1:agent2"}
    link = RedisLink(fragile_redis.url)
    assert all(0 < link.ask("TTL", key) <= 24 * 3600 for key in ("run:r1", "run:r1:agent2"))
    link.close()


def test_closing_removes_the_own_keys_and_no_others(
    fragile_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    link = RedisLink(fragile_redis.url)
    for foreign in ("run:r", "run:r11", "run:r1x:agent1", "other"):
        link.ask("SET", foreign, "theirs")
    before = fragile_redis.keys()
    mailbox = open_redis(fragile_redis.url, "r1")
    mailbox.post("agent1", "agent2", "hi")
    mailbox.finish("agent1")
    with ThreadPoolExecutor() as pool:
        reader = pool.submit(mailbox.receive, "agent1", 0, 60)
        mailbox.close()
        assert reader.result(30) == []
    mailbox.post("agent1", "agent2", "late")
    assert fragile_redis.keys() == before
    assert {link.ask("GET", key) for key in before} == {b"theirs"}
    link.close()


def test_two_runs_on_one_server_do_not_see_each_other(
    shared_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    one, two = open_redis(shared_redis.url), open_redis(shared_redis.url)
    one.post("agent1", "agent2", "for one")
    two.finish("agent2")
    assert two.receive("agent2", 0, 0) == []
    assert not one.is_finished("agent2")
    two.close()
    assert [message.text for message in one.receive("agent2", 0, 0)] == ["for one"]


def test_another_process_can_read_along(
    shared_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    run_id = unique_run_id("shared")
    writer, viewer = open_redis(shared_redis.url, run_id), open_redis(shared_redis.url, run_id)
    posted = writer.post("agent1", "agent2", "hi").message
    writer.finish("agent1")
    assert viewer.messages() == [posted]
    assert viewer.is_finished("agent1")


def test_rubbish_in_a_stream_is_said(shared_redis: Server, open_redis: Callable[..., RedisMailbox]) -> None:
    run_id = unique_run_id("rubbish")
    mailbox = open_redis(shared_redis.url, run_id)
    link = RedisLink(shared_redis.url)
    link.ask("XADD", f"run:{run_id}:agent2", "5-0", "what", "ever")
    link.close()
    with pytest.raises(InfraError, match=r"5-0.*not one of ours"):
        mailbox.receive("agent2", 0, 0)


def test_a_reader_is_woken_when_an_agent_finishes_and_only_once(
    fragile_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    mailbox = open_redis(fragile_redis.url)
    operator = RedisLink(fragile_redis.url)
    with ThreadPoolExecutor() as pool:
        reader = pool.submit(mailbox.receive, "agent2", 0, 600)
        while not blocked(operator):
            assert not reader.done()
        mailbox.finish("agent1")
        assert reader.result(30) == []
        reader = pool.submit(mailbox.receive, "agent2", 0, 600)
        while not blocked(operator):
            assert not reader.done()
        posted = mailbox.post("agent3", "agent2", "hi").message
        assert reader.result(30) == [posted]
    operator.close()


def test_closing_wakes_a_blocking_read_at_once(
    fragile_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    mailbox = open_redis(fragile_redis.url)
    operator = RedisLink(fragile_redis.url)
    with ThreadPoolExecutor() as pool:
        reader = pool.submit(mailbox.receive, "agent2", 0, 600)
        while not blocked(operator):
            assert not reader.done()
        mailbox.close()
        # A read that nothing wakes goes on for longer than that.
        assert reader.result(2) == []
    operator.close()


def test_run_ids_are_never_the_same_twice() -> None:
    one, two = unique_run_id("my run", "click task1 f1_f2"), unique_run_id("my run", "click task1 f1_f2")
    assert one != two
    assert one.startswith("my-run/click-task1-f1_f2/")
