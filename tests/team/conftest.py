"""Redis servers, mailboxes and sandboxes for the tests of this folder."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.team.redis_link import RedisLink
from cooperbench.team.redis_mailbox import RedisMailbox, unique_run_id
from tests.team.redis_fixtures import AGENTS, Server, socket_server
from tests.team.rooms import Rooms

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
    opened: list[tuple[RedisMailbox, RedisLink]] = []

    def opening(url: str, run_id: str | None = None, **options: Any) -> RedisMailbox:
        link = RedisLink(url)
        mailbox = RedisMailbox(link, run_id or unique_run_id("test"), AGENTS, **options)
        opened.append((mailbox, link))
        return mailbox

    yield opening
    for mailbox, link in opened:
        mailbox.close()
        link.close()


@pytest.fixture
def fragile_redis() -> Iterator[Server]:
    """A server for one test, which may kill it."""
    with socket_server() as server:
        yield server


@pytest.fixture
def rooms() -> Iterator[Rooms]:
    with ExitStack() as stack:
        yield Rooms(stack)
