"""What is installed, reachable and configured on this machine, one finding a thing, with the command that mends it.

A check is a function that gives findings; `CHECKS` lists them in the order in which people read them. Backends and
agents that need more than to be loaded have an entry in `backends.OWN_CHECKS` and `agents.OWN_CHECKS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.doctor.agents import agents, model_keys
from cooperbench.doctor.backends import LOCAL_BACKEND, backends
from cooperbench.doctor.findings import Asked, Finding, Status
from cooperbench.doctor.machine import dataset, git, itself, node, redis, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CHECKS", "LOCAL_BACKEND", "Asked", "Finding", "Status", "examine_all"]

CHECKS: tuple[Callable[[Asked], Iterator[Finding]], ...] = (
    itself,
    settings,
    git,
    node,
    backends,
    agents,
    model_keys,
    redis,
    dataset,
)


def examine_all(asked: Asked | None = None) -> Iterator[Finding]:
    """Everything, each as soon as it is known. One check that fails does not keep the others from telling."""
    for check in CHECKS:
        try:
            yield from check(asked or Asked())
        except Exception as error:
            name = check.__name__.replace("_", " ")
            yield Finding(name, Status.BROKEN, f"the check itself failed: {type(error).__name__}: {error}")
