"""The tags on every sandbox that we make, by which it is found again, and only by which.

Modal takes letters, digits, `.`, `_` and `-` in tags, 63 of them at most.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cooperbench.sandbox.ownership import Owner, read_owner, this_owner

if TYPE_CHECKING:
    from collections.abc import Mapping

HOST = "cooperbench-host"
BOOT = "cooperbench-boot"
PROCESS = "cooperbench-process"
SESSION = "cooperbench-session"
PURPOSE = "cooperbench-purpose"
_LONGEST = 63


def sandbox_tags(session: str, purpose: str, labels: Mapping[str, str]) -> dict[str, str]:
    others = {f"cooperbench-{name}": value for name, value in labels.items()}
    tags = {**others, **owner_tags(this_owner()), SESSION: session, PURPOSE: purpose}
    return {_fit(name): _fit(value) for name, value in tags.items()}


def owner_tags(owner: Owner) -> dict[str, str]:
    return {
        **host_tags(owner),
        BOOT: _fit(owner.boot),
        PROCESS: f"{owner.namespace}.{owner.pid}.{owner.start}",
    }


def host_tags(owner: Owner) -> dict[str, str]:
    """What all sandboxes of one user on one machine have in common."""
    return {HOST: f"{owner.machine}.{owner.user}"}


def owner_of(tags: Mapping[str, str]) -> Owner | None:
    """None for what is no sandbox of ours."""
    host, process = tags.get(HOST, "").split("."), tags.get(PROCESS, "").split(".")
    if len(host) != 2 or len(process) != 3:
        return None
    return read_owner("/".join([host[0], tags.get(BOOT, ""), process[0], host[1], process[1], process[2]]))


def _fit(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:_LONGEST] or "-"
