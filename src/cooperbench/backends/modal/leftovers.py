"""What killed processes of ours left running at Modal, and its end. Nothing without our tags is touched."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cooperbench.backends.modal.labels import SESSION, host_tags, owner_of
from cooperbench.sandbox.ownership import is_dead, this_owner

if TYPE_CHECKING:
    import modal

    from cooperbench.backends.modal.account import Account

_SWEEP_SECONDS = 300.0
_AT_ONCE = 20


def remove_leftovers(account: Account) -> list[str]:
    """End the sandboxes of processes of this user and machine that are gone; returns their ids."""
    return account.insist("looking for what is left over", lambda: _sweep(account, dead=True), _SWEEP_SECONDS)


def remove_session(account: Account, session: str) -> list[str]:
    """End whatever one backend object has made and not ended itself."""
    return account.insist("ending what is left", lambda: _sweep(account, session=session), _SWEEP_SECONDS)


def clean(app_name: str = "") -> list[str]:
    """For `cooperbench clean --backend modal`: connect, end leftovers, tell their ids."""
    from cooperbench.backends.modal.account import Account
    from cooperbench.backends.modal.settings import read_settings

    return remove_leftovers(Account(app_name or read_settings().app))


async def _sweep(account: Account, *, session: str = "", dead: bool = False) -> list[str]:
    import modal

    tags = {SESSION: session} if session else host_tags(this_owner())
    listed = modal.Sandbox.list.aio(app_id=account.app.app_id, tags=tags, client=account.client)
    found = [sandbox async for sandbox in listed]
    places = asyncio.Semaphore(_AT_ONCE)

    async def end(sandbox: modal.Sandbox) -> str:
        async with places:
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
