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

    from cooperbench.eval.batch import Order
    from cooperbench.models import Pair, Setting
    from cooperbench.runner.config import RunConfig

EXECUTORS = ("local", "slurm", "ray")
Work = tuple["Pair", "Setting"]
Event = dict[str, Any]


@dataclass(frozen=True)
class Placement:
    """Where pairs are worked on, as the options of `run` and `eval` say it."""

    executor: str = "local"
    workers: int | None = None
    pairs_per_job: int | None = None
    slurm: str | None = None
    ray_address: str | None = None
    ray_resources: str | None = None

    def __post_init__(self) -> None:
        if self.executor not in EXECUTORS:
            raise UserError(f"executor is {self.executor!r}; it is one of {', '.join(EXECUTORS)}")
        for name in ("workers", "pairs_per_job", "slurm", "ray_address", "ray_resources"):
            owner = name.partition("_")[0]
            wrong = self.executor == "local" or (owner in EXECUTORS and owner != self.executor)
            if wrong and getattr(self, name) is not None:
                raise UserError(f"--{name.replace('_', '-')} is not for --executor {self.executor}")

    @property
    def is_local(self) -> bool:
        return self.executor == "local"


@dataclass(frozen=True)
class Carried:
    """Files that nodes cannot see. What is not in here they read, and write, where the driver does."""

    tasks: Mapping[str, bytes] = field(default_factory=dict)
    """Packed, by label."""
    results: Mapping[str, bytes] = field(default_factory=dict)
    """Packed folders of pairs that are to be judged, by key."""
    agent_configs: Mapping[Path, bytes] = field(default_factory=dict)
    """By path here."""
    logs: bool = False
    """Results have to be carried back."""


@dataclass(frozen=True)
class JobOrder:
    """All that one job needs to know; without job and work, what all jobs of a call have in common."""

    config: RunConfig | None
    """None: the results are there, and only judged."""
    judging: Order
    backend: str
    backend_options: Mapping[str, object]
    job: str = ""
    """Its name, unique within the experiment."""
    work: tuple[Work, ...] = ()
    carried: Carried = Carried()
    environment: Mapping[str, str] = field(default_factory=dict)
    """For what is not set on the node, where the engine does not pass it on itself."""
    version: str = __version__

    @property
    def judges(self) -> bool:
        return self.config is None or self.config.auto_eval


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
    """That may be submitted at a time; it lets `workers` of them run at once."""

    def check(self, seen: Sequence[Path], backend: str, options: Mapping[str, object]) -> None:
        """UserError for whatever can be known to be wrong before anything is submitted.

        It also finds out whether nodes see these paths; the first is where results are.
        """
        ...

    def sees(self, path: Path) -> bool:
        """Whether a path is the same file or folder on every node."""
        ...

    def submit(self, batch: str, orders: Sequence[JobOrder]) -> None: ...

    def events(self) -> Iterator[tuple[str, Event]]:
        """What jobs have told since the last call, with their names."""
        ...

    def ended(self, jobs: Collection[str]) -> dict[str, str]:
        """Those of the jobs that have ended, and how, as far as is known. Also asked about an earlier driver's jobs."""
        ...

    def hold(self) -> None:
        """No pair begins any more; those at work go on."""
        ...

    def cancel(self, jobs: Collection[str]) -> None:
        """End jobs, and return when they have ended."""
        ...

    def close(self, *, keep_files: bool) -> None:
        """No job is left. What they printed is kept if somebody has to look at it."""
        ...


def key_of(pair: Pair, setting: Setting) -> str:
    """A pair of an experiment, in events and in jobs.json."""
    return f"{setting} {pair.label}"


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
