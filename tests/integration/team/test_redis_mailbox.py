"""The mailbox in a real Redis: its keys, any text, and what happens when Redis fails or is loaded.

What every mailbox promises is in test_mailbox.py.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cooperbench.errors import InfraError
from cooperbench.team.mailbox import RedisClient, RedisMailbox, RedisUnavailable, unique_run_id
from tests.support.team.redis_fixtures import AGENTS, Received, Server, texts_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@settings(max_examples=60)
@given(text=st.text(st.characters(codec=None)), step=st.integers(0, 2**40))
def test_any_text_comes_out_as_it_went_in(shared_redis: Server, text: str, step: int) -> None:
    client, run_id = RedisClient(shared_redis.url), unique_run_id("any")
    mailbox = RedisMailbox(client, run_id, AGENTS)
    received = Received(mailbox, "agent2")
    posted = mailbox.post("agent1", "agent2", text, step)
    assert received.messages == [posted]
    assert texts_in(shared_redis, run_id, "agent2") == [text]
    mailbox.close()
    client.close()


# Keys.


def test_the_keys_are_those_of_the_documentation_and_expire(
    fragile_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    mailbox = open_redis(fragile_redis.url, "r1")
    mailbox.post("agent1", "agent2", "hi", 3)
    mailbox.finish("agent1")
    assert fragile_redis.keys() == {"run:r1", "run:r1:agent2"}
    client = RedisClient(fragile_redis.url)
    assert all(0 < client.execute("TTL", key) <= 24 * 3600 for key in ("run:r1", "run:r1:agent2"))
    assert client.execute("HGETALL", "run:r1") == {b"sequence": b"1", b"finished:agent1": b"1"}
    ((entry, fields),) = client.execute("XRANGE", "run:r1:agent2", "-", "+")
    assert entry == b"1-0"
    (message,) = mailbox.messages()
    assert fields.pop(b"timestamp").decode() == message.timestamp
    assert fields == {b"sequence": b"1", b"sender": b"agent1", b"text": b"hi", b"sender_step": b"3"}
    client.close()


def test_closing_removes_the_own_keys_and_no_others(
    fragile_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    client = RedisClient(fragile_redis.url)
    for foreign in ("run:r", "run:r11", "run:r1x:agent1", "other"):
        client.execute("SET", foreign, "theirs")
    before = fragile_redis.keys()
    mailbox = open_redis(fragile_redis.url, "r1")
    mailbox.post("agent1", "agent2", "hi")
    mailbox.finish("agent1")
    mailbox.close()
    mailbox.post("agent1", "agent2", "late")
    assert fragile_redis.keys() == before
    assert {client.execute("GET", key) for key in before} == {b"theirs"}
    client.close()


def test_two_runs_on_one_server_do_not_see_each_other(
    shared_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    one, two = open_redis(shared_redis.url, "one"), open_redis(shared_redis.url, "two")
    one.post("agent1", "agent2", "for one")
    two.finish("agent2")
    assert texts_in(shared_redis, "two", "agent2") == []
    one.post("agent1", "agent2", "again")
    assert one.finished == []
    two.close()
    assert texts_in(shared_redis, "one", "agent2") == ["for one", "again"]


def test_foreign_stream_entries_are_ignored(
    shared_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    mailbox = open_redis(shared_redis.url, "foreign")
    received = Received(mailbox, "agent2")
    client = RedisClient(shared_redis.url)
    client.execute("XADD", "run:foreign:agent2", "5-0", "sender", "agent3", "text", "forged")
    client.close()
    mailbox.post("agent1", "agent2", "real")
    assert received.texts == ["real"]
    assert texts_in(shared_redis, "foreign", "agent2") == ["real"]


def test_run_ids_are_never_the_same_twice() -> None:
    one, two = (
        unique_run_id("my run", "click task1 f1_f2"),
        unique_run_id("my run", "click task1 f1_f2"),
    )
    assert one != two
    assert one.startswith("my-run/click-task1-f1_f2/")


# Faults.


def test_a_dropped_connection_is_taken_up_again(
    fragile_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    mailbox = open_redis(fragile_redis.url, "dropped")
    mailbox.post("agent1", "agent2", "one")
    operator = RedisClient(fragile_redis.url)
    operator.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    operator.close()
    mailbox.post("agent1", "agent2", "two")
    assert texts_in(fragile_redis, "dropped", "agent2") == ["one", "two"]


def test_a_server_that_lost_everything_gets_it_back(
    fragile_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    mailbox = open_redis(fragile_redis.url, "lost")
    mailbox.post("agent1", "agent2", "before")
    mailbox.post("agent2", "agent1", "answer")
    mailbox.finish("agent3")
    fragile_redis.restart()
    assert mailbox.post("agent1", "agent2", "after").sequence == 3
    assert texts_in(fragile_redis, "lost", "agent2") == ["before", "after"]
    assert texts_in(fragile_redis, "lost", "agent1") == ["answer"]
    client = RedisClient(fragile_redis.url)
    assert client.execute("HGETALL", "run:lost") == {b"sequence": b"3", b"finished:agent3": b"1"}
    client.close()
    fragile_redis.restart()
    mailbox.finish("agent1")
    assert texts_in(fragile_redis, "lost", "agent2") == ["before", "after"]


def test_readers_and_writers_wait_for_a_server_that_comes_back(
    fragile_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    mailbox = open_redis(fragile_redis.url, "waits")
    received = Received(mailbox, "agent2")
    mailbox.post("agent1", "agent2", "one")
    fragile_redis.kill()
    with ThreadPoolExecutor() as pool:
        writer = pool.submit(mailbox.post, "agent1", "agent2", "two")
        assert [message.text for message in mailbox.messages()] == ["one"]
        fragile_redis.start()
        assert writer.result(30).sequence == 2
    assert received.texts == texts_in(fragile_redis, "waits", "agent2") == ["one", "two"]


def test_killed_server_loses_no_message(
    fragile_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    mailbox = open_redis(fragile_redis.url, "again")
    count = 400
    readers = {agent_id: Received(mailbox, agent_id) for agent_id in ("agent1", "agent2")}

    def write(sender: str, recipient: str) -> None:
        for number in range(count):
            mailbox.post(sender, recipient, f"{number}")

    with ThreadPoolExecutor() as pool:
        work = [pool.submit(write, "agent1", "agent2"), pool.submit(write, "agent2", "agent1")]
        for place in range(1, 5):
            while len(mailbox.messages()) < place * 150:
                assert not all(future.done() for future in work)
            fragile_redis.restart()
        for future in work:
            future.result(60)
    mailbox.finish("agent1")
    expected = [f"{number}" for number in range(count)]
    for agent_id, received in readers.items():
        assert received.texts == expected
        assert texts_in(fragile_redis, "again", agent_id) == expected
    assert [message.sequence for message in mailbox.messages()] == list(range(1, 2 * count + 1))


def test_a_post_whose_answer_was_lost_is_not_doubled(shared_redis: Server) -> None:
    """The server takes the message, then the connection breaks before the answer."""

    class LosesAnswers(RedisClient):
        lost = 0

        def transaction(self, commands: Sequence[tuple[str | bytes | int, ...]]) -> list[Any]:
            answers = super().transaction(commands)
            if self.lost < 2:
                self.lost += 1
                raise RedisUnavailable("the answer was lost")
            return answers

    client, run_id = LosesAnswers(shared_redis.url), unique_run_id("twice")
    mailbox = RedisMailbox(client, run_id, AGENTS)
    received = Received(mailbox, "agent2")
    posted = mailbox.post("agent1", "agent2", "once")
    assert client.lost == 2
    assert received.messages == [posted]
    assert posted.sequence == 1
    assert texts_in(shared_redis, run_id, "agent2") == ["once"]
    mailbox.close()
    client.close()


def test_a_server_that_stays_away_is_an_infrastructure_error(
    fragile_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    mailbox = open_redis(fragile_redis.url, retry_timeout_seconds=0.3)
    mailbox.post("agent1", "agent2", "kept")
    fragile_redis.kill()
    for call in (lambda: mailbox.post("agent1", "agent2", "?"), lambda: mailbox.finish("agent1")):
        with pytest.raises(InfraError, match="does not answer") as problem:
            call()
        assert "\n" not in str(problem.value)
    mailbox.close()
    assert [message.text for message in mailbox.messages()] == ["kept"]


def test_closing_ends_whoever_waits_for_a_server_that_is_gone(
    fragile_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    mailbox = open_redis(fragile_redis.url, retry_timeout_seconds=600)
    fragile_redis.kill()
    with ThreadPoolExecutor() as pool:
        writer = pool.submit(mailbox.post, "agent1", "agent2", "on record all the same")
        mailbox.close()
        writer.result(30)
    assert [message.text for message in mailbox.messages()] == ["on record all the same"]


# Load.


def test_flooding_does_not_stop_others(
    shared_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    mailbox = open_redis(shared_redis.url, "flood")
    flooded, asked = Received(mailbox, "agent2"), Received(mailbox, "agent1")
    count = 10_000
    with ThreadPoolExecutor() as pool:
        flood = pool.submit(
            lambda: [mailbox.post("agent1", "agent2", f"{number}") for number in range(count)]
        )
        mailbox.post("agent3", "agent1", "may I?")
        assert asked.texts == ["may I?"]
        flood.result(120)
    expected = [f"{number}" for number in range(count)]
    assert flooded.texts == texts_in(shared_redis, "flood", "agent2") == expected


def test_two_hundred_agents_at_once(shared_redis: Server) -> None:
    client = RedisClient(shared_redis.url)
    pairs = [RedisMailbox(client, unique_run_id("many"), ("agent1", "agent2")) for _ in range(100)]

    def talk(mailbox: RedisMailbox, me: str, other: str) -> list[str]:
        received = Received(mailbox, other)
        for number in range(3):
            mailbox.post(me, other, f"{me} {number}")
        return received.texts

    with ThreadPoolExecutor(200) as pool:
        ones = [pool.submit(talk, mailbox, "agent1", "agent2") for mailbox in pairs]
        twos = [pool.submit(talk, mailbox, "agent2", "agent1") for mailbox in pairs]
        assert [future.result(120) for future in ones] == [
            [f"agent1 {number}" for number in range(3)]
        ] * 100
        assert [future.result(120) for future in twos] == [
            [f"agent2 {number}" for number in range(3)]
        ] * 100
    for mailbox in pairs:
        mailbox.close()
    client.close()
