"""Where a run's messages are carried: one Redis for all its pairs, or this process where Redis is not installed."""

from __future__ import annotations

from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cooperbench.errors import UserError
from cooperbench.team.mailbox import MemoryMailbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cooperbench.team.mailbox import Mailbox

DEFAULT_REDIS_URL = "redis://localhost:6379"


class PostOffice:
    """Makes a mailbox for each attempt at a pair."""

    def __init__(self, kind: str, make: Callable[[str, Sequence[str]], Mailbox]) -> None:
        self.kind = kind
        """What carries the messages, for people."""
        self._make = make

    def mailbox(self, pair_label: str, agent_ids: Sequence[str]) -> Mailbox:
        return self._make(pair_label, agent_ids)


@contextmanager
def open_post_office(url: str, run_name: str) -> Iterator[PostOffice]:
    """At a Redis that works; one that is started for the run ends with the block. UserError where there is none."""
    if find_spec("redis") is None:
        if url != DEFAULT_REDIS_URL:
            raise UserError("messages over Redis need the redis package: pip install 'cooperbench[redis]'")
        yield PostOffice(
            "in this process (pip install 'cooperbench[redis]' for Redis)",
            lambda _label, agent_ids: MemoryMailbox(agent_ids),
        )
        return
    from cooperbench.team.redis_link import RedisLink
    from cooperbench.team.redis_mailbox import RedisMailbox, unique_run_id
    from cooperbench.team.redis_server import ensure_redis

    with ensure_redis(url) as redis:
        link = RedisLink(redis.url)
        try:
            yield PostOffice(
                redis.kind,
                lambda label, agent_ids: RedisMailbox(link, unique_run_id(run_name, label), agent_ids),
            )
        finally:
            link.close()
