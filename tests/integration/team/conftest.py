"""Redis servers, mailboxes and sandboxes for the tests of this folder."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.team.mailbox import RedisClient, RedisMailbox, unique_run_id
from tests.support.team.agent_sandboxes import AgentSandboxes
from tests.support.team.redis_fixtures import AGENTS, Server, socket_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module")
def shared_redis() -> Iterator[Server]:
    """A server that no test breaks."""
    with socket_server() as server:
        yield server


@pytest.fixture
def open_redis() -> Iterator[Callable[..., RedisMailbox]]:
    """Mailboxes that are closed with the test."""
    opened: list[tuple[RedisMailbox, RedisClient]] = []

    def opening(url: str, run_id: str | None = None, **options: Any) -> RedisMailbox:
        client = RedisClient(url)
        mailbox = RedisMailbox(client, run_id or unique_run_id("test"), AGENTS, **options)
        opened.append((mailbox, client))
        return mailbox

    yield opening
    for mailbox, client in opened:
        mailbox.close()
        client.close()


@pytest.fixture
def fragile_redis() -> Iterator[Server]:
    """A server for one test, which may kill it."""
    with socket_server() as server:
        yield server


@pytest.fixture
def agent_sandboxes() -> Iterator[AgentSandboxes]:
    with ExitStack() as stack:
        yield AgentSandboxes(stack)
