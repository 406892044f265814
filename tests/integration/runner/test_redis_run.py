"""Whole runs over a real Redis: what is said goes through it, what it loses is not lost, nothing stays in it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.errors import UserError
from cooperbench.team.mailbox import RedisClient, open_mailboxes
from tests.support.runner.helpers import Left, run_tiny
from tests.support.team.redis_fixtures import Received, free_port, socket_server, wait_for_message
from tests.support.tiny import write_script

if TYPE_CHECKING:
    from pathlib import Path


def talk(tmp_path: Path, url: str, first: list[Any], second: list[Any]) -> Left:
    script = write_script(tmp_path / "script.yaml", {1: first, 2: second})
    return run_tiny(tmp_path, "scripted", agent_config=str(script), auto_eval=False, redis_url=url)


def texts(left: Left) -> list[str]:
    return [message["message"] for message in left.json("conversation.json")["messages"]]


def test_messages_use_the_named_redis(tmp_path: Path) -> None:
    with socket_server() as server:
        client = RedisClient(server.url)
        client.execute("SET", "run:somebody-else", "stays")
        seen: set[str] = set()

        def watch() -> None:
            wait_for_message(server)
            seen.update(server.keys())

        watcher = threading.Thread(target=watch)
        watcher.start()
        left = talk(
            tmp_path,
            server.url,
            [
                {"send": "over redis"},
                {"wait": {"for": "heard", "seconds": 30}},
                {"run": "sleep 0.3"},
            ],
            [{"wait": {"for": "over", "seconds": 30}}, {"send": "heard"}],
        )
        watcher.join(60)
        assert texts(left) == ["over redis", "heard"]
        assert any(
            key.startswith("run:r/tiny_task/task7-f1_f2/") and key.endswith(":agent2")
            for key in seen
        )
        assert server.keys() == {"run:somebody-else"}
        client.close()


def test_a_redis_that_is_killed_in_mid_run_costs_no_message(tmp_path: Path) -> None:
    with socket_server() as server:

        def break_it() -> None:
            wait_for_message(server)
            server.restart()

        breaker = threading.Thread(target=break_it)
        breaker.start()
        left = talk(
            tmp_path,
            server.url,
            [{"send": "before"}, {"run": "sleep 1.5"}, {"send": "after"}],
            [{"wait": {"for": "after", "seconds": 60}}],
        )
        breaker.join(60)
    assert texts(left) == ["before", "after"]
    received = [
        step for step in left.trajectory("agent2")["steps"] if step["action"] == "receive_message"
    ]
    assert [step["args"]["content"] for step in received] == ["before", "after"]


@pytest.mark.parametrize(
    "url", ["redis://192.0.2.1:PORT", "http://localhost", "redis://localhost:x"]
)
def test_unusable_redis_is_rejected_first(tmp_path: Path, url: str) -> None:
    wrong = url.replace("192.0.2.1:PORT", f"localhost.invalid:{free_port()}")
    with pytest.raises(UserError) as caught:
        talk(tmp_path, wrong, [], [])
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "logs/r/config.json").exists()
    assert not (tmp_path / "logs/r/coop").exists()


def test_local_redis_is_started_and_stopped() -> None:
    with open_mailboxes(f"redis://localhost:{free_port()}", "r") as mailboxes:
        assert "started for this run" in mailboxes.description
        mailbox = mailboxes.make("pair", ["agent1", "agent2"])
        received = Received(mailbox, "agent2")
        mailbox.post("agent1", "agent2", "hello")
        assert received.texts == ["hello"]
        mailbox.close()
