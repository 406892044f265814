"""The labels on everything that we make in an engine, by which it is found again, and only by which."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from cooperbench.sandbox.owner import Owner, read_owner, this_owner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cooperbench.sandbox.contract import SandboxOptions

OWNER = "cooperbench.owner"
SESSION = "cooperbench.session"
PURPOSE = "cooperbench.purpose"
EXPIRES = "cooperbench.expires"
TASK = "cooperbench.task"
CONTEXT = "cooperbench.context"
"""On images that we built: what from."""
PREPARED = "cooperbench.prepared"
"""On images without history: the id of the image that they were made from."""
INSTALLS = "cooperbench.installs"
"""On images with what a runner installs: the id of the image that they were made from."""
CONTAINER_ONLY = (OWNER, SESSION, PURPOSE, EXPIRES)
_NAME = re.compile(r"[a-z0-9_.-]+", re.IGNORECASE)


def ownership(session: str) -> dict[str, str]:
    return {OWNER: str(this_owner()), SESSION: session}


def container_labels(session: str, options: SandboxOptions, lifetime_seconds: float) -> dict[str, str]:
    others = {f"cooperbench.{name}": value for name, value in options.labels.items() if _NAME.fullmatch(name)}
    expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + lifetime_seconds))
    return {**others, **ownership(session), PURPOSE: options.purpose, EXPIRES: expires}


def owner_of(labels: Mapping[str, str] | None) -> Owner | None:
    return read_owner((labels or {}).get(OWNER, ""))
