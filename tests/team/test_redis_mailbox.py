"""The mailbox in a real Redis: its keys, its readers, and any text. What every mailbox promises is in test_mailbox.py."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cooperbench.errors import InfraError
from cooperbench.team.redis_mailbox import RedisClient, RedisMailbox, unique_run_id
from tests.team.redis_fixtures import AGENTS, Server, blocked

if TYPE_CHECKING:
    from collections.abc import Callable


@settings(max_examples=60)
@given(text=st.text(st.characters(codec=None)), step=st.integers(0, 2**40))
def test_any_text_comes_out_as_it_went_in(shared_redis: Server, text: str, step: int) -> None:
    client = RedisClient(shared_redis.url)
    mailbox = RedisMailbox(client, unique_run_id("any"), AGENTS)
    posted = mailbox.post("agent1", "agent2", text, step).message
    assert mailbox.receive("agent2", 0, 0) == [posted]
    assert posted.text == text
    mailbox.close()
    client.close()


# Keys.


def test_the_keys_are_those_of_the_documentation_and_expire(
    fragile_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    mailbox = open_redis(fragile_redis.url, "r1")
    mailbox.post("agent1", "agent2", "hi")
    assert fragile_redis.keys() == {"run:r1", "run:r1:agent2"}
    client = RedisClient(fragile_redis.url)
    assert all(0 < client.execute("TTL", key) <= 24 * 3600 for key in ("run:r1", "run:r1:agent2"))
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
    with ThreadPoolExecutor() as pool:
        reader = pool.submit(mailbox.receive, "agent1", 0, 60)
        mailbox.close()
        assert reader.result(30) == []
    mailbox.post("agent1", "agent2", "late")
    assert fragile_redis.keys() == before
    assert {client.execute("GET", key) for key in before} == {b"theirs"}
    client.close()


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
    client = RedisClient(shared_redis.url)
    client.execute("XADD", f"run:{run_id}:agent2", "5-0", "what", "ever")
    client.close()
    with pytest.raises(InfraError, match=r"5-0.*not one of ours"):
        mailbox.receive("agent2", 0, 0)


def test_a_reader_is_woken_when_an_agent_finishes_and_only_once(
    fragile_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    mailbox = open_redis(fragile_redis.url)
    operator = RedisClient(fragile_redis.url)
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
    operator = RedisClient(fragile_redis.url)
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
