"""Tags on our sandboxes, and ending those that killed processes left running. Nothing without our tags is touched.

Modal takes letters, digits, `.`, `_` and `-` in tags, 63 of them at most.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from cooperbench.sandbox.ownership import Owner, is_dead, read_owner, this_owner

if TYPE_CHECKING:
    from collections.abc import Mapping

    import modal

    from cooperbench.backends.modal.connection import Connection

HOST = "cooperbench-host"
BOOT = "cooperbench-boot"
PROCESS = "cooperbench-process"
SESSION = "cooperbench-session"
_LONGEST_TAG = 63
_SWEEP_SECONDS = 300.0
_AT_ONCE = 20


def sandbox_tags(session: str, labels: Mapping[str, str]) -> dict[str, str]:
    others = {f"cooperbench-{name}": value for name, value in labels.items()}
    tags = {**others, **owner_tags(this_owner()), SESSION: session}
    return {_tag_text(name): _tag_text(value) for name, value in tags.items()}


def owner_tags(owner: Owner) -> dict[str, str]:
    process = f"{owner.namespace}.{owner.pid}.{owner.start}"
    return {HOST: _host_tag(owner), BOOT: _tag_text(owner.boot), PROCESS: process}


def owner_of(tags: Mapping[str, str]) -> Owner | None:
    """None for a sandbox that is not ours."""
    host, process = tags.get(HOST, "").split("."), tags.get(PROCESS, "").split(".")
    if len(host) != 2 or len(process) != 3:
        return None
    return read_owner("/".join([host[0], tags.get(BOOT, ""), process[0], host[1], process[1], process[2]]))


def remove_leftovers(connection: Connection) -> list[str]:
    """End the sandboxes of processes of this user and machine that are gone; returns their ids."""
    tags = {HOST: _host_tag(this_owner())}
    return connection.call(
        "looking for sandboxes left over", lambda: _end_tagged(connection, tags, dead=True), _SWEEP_SECONDS
    )


def remove_session(connection: Connection, session: str) -> list[str]:
    """End the sandboxes that one backend object has made and not ended itself; returns their ids."""
    tags = {SESSION: session}
    return connection.call("ending what is left", lambda: _end_tagged(connection, tags), _SWEEP_SECONDS)


async def _end_tagged(connection: Connection, tags: dict[str, str], *, dead: bool = False) -> list[str]:
    """`dead`: only those whose process is gone."""
    import modal

    listed = modal.Sandbox.list.aio(app_id=connection.app.app_id, tags=tags, client=connection.client)
    found = [sandbox async for sandbox in listed]
    slots = asyncio.Semaphore(_AT_ONCE)

    async def end(sandbox: modal.Sandbox) -> str:
        async with slots:
            try:
                if dead and not await _is_leftover(sandbox):
                    return ""
                await sandbox.terminate.aio()
            except modal.exception.NotFoundError:
                return ""
            return sandbox.object_id

    ended = await asyncio.gather(*map(end, found))
    return [name for name in ended if name]


async def _is_leftover(sandbox: modal.Sandbox) -> bool:
    owner = owner_of(await sandbox.get_tags.aio())
    return owner is not None and is_dead(owner, running=True)


def _host_tag(owner: Owner) -> str:
    """What all sandboxes of one user on one machine have in common."""
    return f"{owner.machine}.{owner.user}"


def _tag_text(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:_LONGEST_TAG] or "-"
