"""The labels on everything that we make at Google, by which it is found again, and only by which.

Google takes small letters, digits, `_` and `-` in labels, 63 of them at most.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cooperbench.processes import start_of
from cooperbench.sandbox.ownership import Owner, is_dead, this_owner

if TYPE_CHECKING:
    from collections.abc import Mapping

OURS = "cooperbench"
RUN = "cooperbench-run"
PURPOSE = "cooperbench-purpose"
HOST = "cooperbench-host"
BOOT = "cooperbench-boot"
PROCESS = "cooperbench-process"
SESSION = "cooperbench-session"
_LONGEST = 63


def resource_labels(run_name: str, purpose: str, **others: str) -> dict[str, str]:
    """For a job, a machine or a disk of this process; `run_name` is empty where there is none."""
    owner = this_owner()
    labels = {
        OURS: "1",
        RUN: run_name or "-",
        PURPOSE: purpose,
        HOST: f"{owner.machine}-{owner.user}",
        BOOT: owner.boot,
        PROCESS: f"{owner.namespace}-{owner.pid}-{_fit(owner.start)}",
        **others,
    }
    return {name: _fit(value) for name, value in labels.items()}


def session_tag(session: str) -> str:
    """The network tag of one backend object's machines for agents."""
    return f"cooperbench-{session}"


def git_tag(session: str) -> str:
    """That of its git server."""
    return f"cooperbench-{session}-git"


def host_filter() -> str:
    """As the APIs take it: what this user has made from this machine."""
    owner = this_owner()
    return f'labels.{OURS}="1" AND labels.{HOST}="{_fit(f"{owner.machine}-{owner.user}")}"'


def is_leftover(labels: Mapping[str, str], *, running: bool = True) -> bool:
    """Is it ours, and its maker certainly gone?"""
    owner = owner_of(labels)
    return owner is not None and is_dead(owner, running=running)


def owner_of(labels: Mapping[str, str]) -> Owner | None:
    """None for what is not ours."""
    host, process = labels.get(HOST, "").split("-"), labels.get(PROCESS, "").split("-", 2)
    if labels.get(OURS) != "1" or len(host) != 2 or len(process) != 3 or not process[1].isdecimal():
        return None
    namespace, pid, start = process
    try:
        now = start_of(int(pid))
    except OSError:
        now = ""
    # A start time may have lost characters in the label.
    if now and _fit(now) == start:
        start = now
    return Owner(host[0], _boot(labels), namespace, host[1], int(pid), start)


def _boot(labels: Mapping[str, str]) -> str:
    boot, mine = labels.get(BOOT, ""), this_owner().boot
    return mine if boot == _fit(mine) else boot


def _fit(text: str) -> str:
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower())[:_LONGEST].strip("-") or "-"
