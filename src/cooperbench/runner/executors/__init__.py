"""Pairs that are worked on elsewhere: by jobs of an engine (Slurm, Ray), each with one or a few pairs.

An engine starts jobs and tells what becomes of them; it knows nothing of pairs. `driver` knows what is left to do, and
`worker` is what a job does: the same as `--executor local` does here. A job tells the driver by events (JSON objects)
what happens; where nodes and driver share no disk, files go with orders and come back with events.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from cooperbench._version import __version__
from cooperbench.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from cooperbench.models import Pair
    from cooperbench.runner.config import RunConfig

Event = dict[str, Any]


@dataclass(frozen=True)
class JobOrder:
    """All that one job needs to know."""

    job: str
    """Its name, unique within the experiment."""
    config: RunConfig
    pairs: tuple[Pair, ...]
    files: Mapping[Path, bytes] = field(default_factory=dict)
    """Folders that nodes cannot see, packed, by path here. Others they read, and write, where the driver does."""
    carries_logs: bool = False
    """Results have to be carried back."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """For what is not set on the node, where the engine does not pass it on itself."""
    version: str = __version__


class Link(Protocol):
    """From a job to the driver."""

    owner: str
    """Which job on which node, for people."""

    def tell(self, event: Event) -> None: ...

    def may_start(self) -> bool:
        """Whether the driver still lets pairs begin."""
        ...


class Engine(Protocol):
    """Starts jobs on other machines. Called from one thread."""

    name: str
    poll_seconds: float
    most_jobs: int
    """That may be submitted at a time; it lets `RunConfig.most_jobs` of them run at once."""

    def check(self, seen: Sequence[Path]) -> None:
        """UserError for whatever can be known to be wrong before anything is submitted.

        It also finds out whether nodes see these paths; the first is where results are.
        """
        ...

    def sees(self, path: Path) -> bool:
        """Whether a path is the same file or folder on every node."""
        ...

    def submit(self, batch: str, orders: Sequence[JobOrder]) -> None: ...

    def events(self, jobs: Collection[str]) -> Iterator[tuple[str, Event]]:
        """What jobs have told since the last call, with their names.

        `lost` for those of `jobs`, also of an earlier driver, that have ended without telling it, with what is known.
        """
        ...

    def hold(self, jobs: Collection[str]) -> None:
        """No pair of these begins any more; those at work go on."""
        ...

    def cancel(self, jobs: Collection[str]) -> None:
        """End jobs, and return when they have ended."""
        ...

    def close(self, *, keep_files: bool) -> None:
        """No job is left. What they printed is kept if somebody has to look at it."""
        ...


def key_of(config: RunConfig, pair: Pair) -> str:
    """A pair of an experiment, in events and in jobs.json."""
    return f"{config.setting} {pair.label}"


def parse_options(text: str | None, option: str) -> dict[str, str]:
    """`a=1,b=2` as a mapping; a part without `=` belongs to the value before it (`nodelist=n1,n2`)."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        name, equals, value = part.partition("=")
        if equals and name:
            found[name.lstrip("-")] = value
        elif found:
            found[next(reversed(found))] += f",{part}"
        else:
            raise UserError(f"{option} {text!r} is no list of key=value, e.g. partition=cpu,mem=16G")
    return found
