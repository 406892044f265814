"""Redis fails, or is loaded: what was accepted is neither lost nor doubled, and whoever waits is told in the end."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.errors import InfraError
from cooperbench.team.redis_mailbox import RedisClient, RedisMailbox, RedisUnavailable, unique_run_id
from tests.team.redis_fixtures import AGENTS, Server, blocked

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_dropped_connection_is_taken_up_again(
    fragile_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    mailbox = open_redis(fragile_redis.url)
    operator = RedisClient(fragile_redis.url)
    with ThreadPoolExecutor() as pool:
        reader = pool.submit(mailbox.receive, "agent2", 0, 60)
        while not blocked(operator):
            assert not reader.done()
        operator.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        mailbox.post("agent1", "agent2", "still here")
        assert [message.text for message in reader.result(30)] == ["still here"]
    operator.close()


def test_a_server_that_lost_everything_gets_it_back(
    fragile_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    run_id = unique_run_id("lost")
    mailbox = open_redis(fragile_redis.url, run_id)
    mailbox.post("agent1", "agent2", "before")
    mailbox.post("agent2", "agent1", "answer")
    mailbox.finish("agent3")
    fragile_redis.restart()
    assert mailbox.post("agent1", "agent2", "after").message.sequence == 3
    viewer = open_redis(fragile_redis.url, run_id)
    assert [message.text for message in viewer.messages()] == ["before", "answer", "after"]
    assert [message.text for message in viewer.receive("agent2", 0, 0)] == ["before", "after"]
    assert viewer.is_finished("agent3")


def test_an_accepted_message_outlives_the_server_without_another_post(
    fragile_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    mailbox = open_redis(fragile_redis.url)
    posted = mailbox.post("agent1", "agent2", "accepted").message
    fragile_redis.restart()
    assert mailbox.receive("agent2", 0, 30) == [posted]
    assert mailbox.receive("agent2", posted.sequence, 0) == []


def test_readers_and_writers_wait_for_a_server_that_comes_back(
    fragile_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    mailbox = open_redis(fragile_redis.url)
    mailbox.post("agent1", "agent2", "one")
    fragile_redis.kill()
    with ThreadPoolExecutor() as pool:
        reader = pool.submit(mailbox.receive, "agent2", 1, 60)
        writer = pool.submit(mailbox.post, "agent1", "agent2", "two")
        assert mailbox.receive("agent3", 0, 0.2) == []
        assert [message.text for message in mailbox.messages()] == ["one"]
        fragile_redis.start()
        assert writer.result(30).message.sequence == 2
        assert [message.text for message in reader.result(30)] == ["two"]


def test_a_server_killed_again_and_again_loses_and_doubles_nothing(
    fragile_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    mailbox = open_redis(fragile_redis.url)
    count = 400
    received: dict[str, list[str]] = {"agent1": [], "agent2": []}

    def read(reader: str) -> None:
        seen = 0
        while len(received[reader]) < count:
            for message in mailbox.receive(reader, seen, 1):
                seen = message.sequence
                received[reader].append(message.text)

    def write(sender: str, recipient: str) -> None:
        for number in range(count):
            mailbox.post(sender, recipient, f"{number}")

    with ThreadPoolExecutor() as pool:
        work = [pool.submit(read, "agent1"), pool.submit(read, "agent2")]
        work += [pool.submit(write, "agent1", "agent2"), pool.submit(write, "agent2", "agent1")]
        for place in range(1, 5):
            while len(mailbox.messages()) < place * 150:
                assert not all(future.done() for future in work)
            fragile_redis.restart()
        for future in work:
            future.result(60)
    expected = [f"{number}" for number in range(count)]
    assert received == {"agent1": expected, "agent2": expected}
    assert [message.sequence for message in mailbox.messages()] == list(range(1, 2 * count + 1))


def test_a_post_whose_answer_was_lost_is_not_doubled(
    shared_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    """The server takes the message, then the connection breaks before the answer."""

    class LosesAnswers(RedisClient):
        lost = 0

        def execute(self, *command: str | bytes | int) -> Any:
            answer = super().execute(*command)
            if "XADD" in str(command[1]) and self.lost < 2:
                self.lost += 1
                raise RedisUnavailable("the answer was lost")
            return answer

    client = LosesAnswers(shared_redis.url)
    mailbox = RedisMailbox(client, unique_run_id("twice"), AGENTS)
    posted = mailbox.post("agent1", "agent2", "once").message
    assert client.lost == 2
    assert mailbox.receive("agent2", 0, 0) == [posted]
    assert posted.sequence == 1
    mailbox.close()
    client.close()


def test_a_server_that_stays_away_is_an_infrastructure_error(
    fragile_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    mailbox = open_redis(fragile_redis.url, patience_seconds=0.3)
    mailbox.post("agent1", "agent2", "kept")
    fragile_redis.kill()
    for call in (
        lambda: mailbox.post("agent1", "agent2", "?"),
        lambda: mailbox.receive("agent2", 1, 60),
        lambda: mailbox.finish("agent1"),
        lambda: mailbox.is_finished("agent3"),
    ):
        with pytest.raises(InfraError, match=r"given up after .* does not answer") as problem:
            call()
        assert "\n" not in str(problem.value)
    mailbox.close()
    assert [message.text for message in mailbox.messages()] == ["kept"]


def test_closing_ends_whoever_waits_for_a_server_that_is_gone(
    fragile_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    mailbox = open_redis(fragile_redis.url, patience_seconds=600)
    fragile_redis.kill()
    with ThreadPoolExecutor() as pool:
        reader = pool.submit(mailbox.receive, "agent2", 0, 600)
        writer = pool.submit(mailbox.post, "agent1", "agent2", "on record all the same")
        mailbox.close()
        writer.result(30)
        assert [message.text for message in reader.result(30)] in ([], ["on record all the same"])
    assert [message.text for message in mailbox.messages()] == ["on record all the same"]


# Load.


def test_an_agent_that_floods_loses_nothing_and_does_not_stop_others(
    shared_redis: Server, open_redis: Callable[..., RedisMailbox]
) -> None:
    mailbox = open_redis(shared_redis.url)
    count = 10_000
    with ThreadPoolExecutor() as pool:
        flood = pool.submit(
            lambda: [mailbox.post("agent1", "agent2", f"{number}") for number in range(count)]
        )
        mailbox.post("agent3", "agent1", "may I?")
        assert [message.text for message in mailbox.receive("agent1", 0, 60)] == ["may I?"]
        flood.result(120)
    received = mailbox.receive("agent2", 0, 0)
    assert [message.text for message in received] == [f"{number}" for number in range(count)]


def test_two_hundred_agents_at_once(shared_redis: Server) -> None:
    client = RedisClient(shared_redis.url)
    pairs = [RedisMailbox(client, unique_run_id("many"), ("agent1", "agent2")) for _ in range(100)]
    together = threading.Barrier(200)

    def converse(mailbox: RedisMailbox, me: str, other: str) -> list[str]:
        together.wait(60)
        seen = 0
        texts: list[str] = []
        for number in range(3):
            mailbox.post(me, other, f"{me} {number}")
            while len(texts) <= number:
                for message in mailbox.receive(me, seen, 60):
                    seen = message.sequence
                    texts.append(message.text)
        return texts

    with ThreadPoolExecutor(200) as pool:
        ones = [pool.submit(converse, mailbox, "agent1", "agent2") for mailbox in pairs]
        twos = [pool.submit(converse, mailbox, "agent2", "agent1") for mailbox in pairs]
        assert [future.result(120) for future in ones] == [[f"agent2 {number}" for number in range(3)]] * 100
        assert [future.result(120) for future in twos] == [[f"agent1 {number}" for number in range(3)]] * 100
    for mailbox in pairs:
        mailbox.close()
    client.close()
