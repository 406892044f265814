"""Coordination over the pairs of a run: means, medians and shares, with their units, n and intervals over tasks."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from cooperbench.report.coordination.pair import LOSS_CLASSES, coordination, loss_of
from cooperbench.report.states import ENDED
from cooperbench.report.statistics.intervals import Estimate, Observation, cluster_of, mean, rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cooperbench.report.coordination.pair import Coordination, Loss
    from cooperbench.report.records import PairData, PairKey

SCHEMA = "cooperbench.run_coordination/2"

_MEASURES = {
    "messages": ("messages in a pair", "pairs"),
    "step_share": ("steps spent on messages", "agents"),
    "token_share": ("tokens spent on messages", "agents"),
    "first_message_step_fraction": ("steps before the first message", "agents"),
    "first_message_seconds": ("seconds before the first message", "agents"),
    "questions": ("questions in a pair", "pairs"),
    "answer_steps": ("steps until an answer", "answers"),
    "answer_seconds": ("seconds until an answer", "answers"),
    "names": ("names of code in a pair's messages", "pairs"),
    "shared_files": ("files changed by both", "pairs of agents"),
    "file_share": ("files changed by both, of all they change", "pairs of agents"),
    "overlapping_changes": ("changes that overlap", "pairs of agents"),
    "adjacent_changes": ("changes that are adjacent", "pairs of agents"),
    "shared_symbols": ("functions and classes changed by both", "pairs of agents"),
}
"""Title and unit, in the order in which they are shown. docs/coordination.md defines each."""
_SHARES = {
    "agents_that_wrote": ("agents that wrote at all", "agents"),
    "first_message_names_own_work": ("first message names what its patch touches", "agents that wrote"),
    "questions_replied_to": ("questions replied to", "questions"),
    "questions_answered": ("questions answered", "questions"),
    "repeated_messages": ("repeated messages", "messages"),
    "messages_never_shown": ("messages that were never read", "messages"),
    "messages_to_finished": ("messages to a finished partner", "messages"),
    "names_touched_by_sender": ("named and touched by the sender", "names"),
    "names_touched_by_other": ("named and touched by the other", "names"),
    "names_not_touched": ("named and touched by nobody", "names"),
    "pairs_sharing_files": ("pairs that change the same file", "pairs of agents"),
    "pairs_sharing_symbols": ("pairs that change the same function or class", "pairs of agents"),
    "shared_files_named": ("files changed by both that a message names", "shared files"),
}


@dataclass(frozen=True)
class Measure:
    """A number that every unit has one of, where it is known."""

    name: str
    title: str
    unit: str
    """What n counts, e.g. `pairs` or `agents`."""
    mean: Estimate
    """Its interval is clustered by task."""
    median: float | None


@dataclass(frozen=True)
class Share:
    """So many of n."""

    name: str
    title: str
    unit: str
    count: int
    rate: Estimate


@dataclass(frozen=True)
class LossSplit:
    """Of a set of pairs."""

    n: int
    """Pairs with a verdict; the four classes sum to it."""
    passed: int
    capability: int
    conflict: int
    integration: int
    capability_with_conflict: int
    """Of `capability`, those whose patches conflict besides."""
    without_verdict: int
    """Not run, not evaluated, broken off: no part of n."""


@dataclass(frozen=True)
class ConflictedFile:
    """A file in which patches of a task could not be merged."""

    repo: str
    task_id: int
    path: str
    pairs: int


@dataclass(frozen=True)
class RunCoordination:
    """Of the coop pairs of a run that have been run to their end."""

    n: int
    """Pairs that were looked at: those with a result."""
    skipped: int
    """Pairs without one."""
    clusters: int
    """Tasks among them."""
    measures: tuple[Measure, ...]
    shares: tuple[Share, ...]
    loss: LossSplit
    conflicts: tuple[ConflictedFile, ...]
    """The most frequent first."""
    problems: tuple[str, ...]
    pairs: tuple[tuple[PairKey, Coordination], ...]
    """Those that were looked at."""

    def to_json(self) -> dict[str, Any]:
        """All of it, with the evidence of every pair."""
        summary = asdict(replace(self, pairs=()))
        pairs = [
            {**key._asdict(), "features": list(key.features), **one.to_json()} for key, one in self.pairs
        ]
        return {"schema": SCHEMA, **summary, "pairs": pairs}

    def measure(self, name: str) -> Measure:
        return next(one for one in self.measures if one.name == name)

    def share(self, name: str) -> Share:
        return next(one for one in self.shares if one.name == name)


def coordination_of_run(
    pairs: Sequence[PairData], look: Callable[[PairData], Coordination] = coordination
) -> RunCoordination:
    """Over the coop pairs among these. `look` is for callers who have looked at each pair already."""
    coop = [pair for pair in pairs if pair.setting == "coop"]
    looked = tuple((pair.key, look(pair)) for pair in coop if pair.state in ENDED)
    conflicts = Counter(
        (*cluster_of(key), path) for key, one in looked if one.loss for path in one.loss.conflicting_files
    )
    measured = [(key, _measured(one)) for key, one in looked]
    shared = [(key, _shared(one)) for key, one in looked]
    return RunCoordination(
        len(looked),
        len(coop) - len(looked),
        len({cluster_of(key) for key, _ in looked}),
        tuple(_measure(name, *about, _gathered(name, measured)) for name, about in _MEASURES.items()),
        tuple(_share(name, *about, _gathered(name, shared)) for name, about in _SHARES.items()),
        _split_loss([loss_of(pair) for pair in coop]),
        tuple(
            ConflictedFile(*place, count)
            for place, count in sorted(conflicts.items(), key=lambda item: (-item[1], item[0]))
        ),
        tuple(f"{key.label}: {line}" for key, one in looked for line in one.problems),
        looked,
    )


def _measured(pair: Coordination) -> dict[str, Sequence[float | None]]:
    """A pair's values of each measure; None where one is not known."""
    writers = pair.agents if pair.messages_known else ()
    firsts = [agent.first for agent in writers if agent.first]
    return {
        "messages": [pair.messages] if pair.messages_known else [],
        "step_share": [agent.step_share for agent in pair.agents],
        "token_share": [agent.token_share for agent in pair.agents],
        "first_message_step_fraction": [first.step_fraction for first in firsts],
        "first_message_seconds": [first.seconds for first in firsts],
        "questions": [len(pair.questions)] if pair.messages_known else [],
        "answer_steps": [question.asker_steps for question in pair.questions],
        "answer_seconds": [question.seconds for question in pair.questions],
        "names": [len(pair.mentions)] if pair.messages_known else [],
        "shared_files": [len(overlap.files) for overlap in pair.overlaps],
        "file_share": [overlap.file_share for overlap in pair.overlaps],
        "overlapping_changes": [overlap.overlapping for overlap in pair.overlaps],
        "adjacent_changes": [overlap.adjacent for overlap in pair.overlaps],
        "shared_symbols": [len(overlap.symbols) for overlap in pair.overlaps],
    }


def _shared(pair: Coordination) -> dict[str, Sequence[bool]]:
    """A yes or no for everything that each share is of."""
    writers = pair.agents if pair.messages_known else ()
    compared = [one for one in pair.mentions if None not in (one.touched_by_sender, one.touched_by_other)]
    files = [file.path for overlap in pair.overlaps for file in overlap.files]
    named = pair.named_files
    unread = len(pair.never_shown)
    late = sum(message.after_end for message in pair.never_shown)
    return {
        "agents_that_wrote": [agent.sent > 0 for agent in writers],
        "first_message_names_own_work": [pair.names_own_work_first(one) for one in writers if one.first],
        "questions_replied_to": [question.replied_by is not None for question in pair.questions],
        "questions_answered": [question.answered_by is not None for question in pair.questions],
        "repeated_messages": [at < len(pair.repetitions) for at in range(pair.messages)],
        "messages_never_shown": [at < unread for at in range(pair.messages)],
        "messages_to_finished": [at < late for at in range(pair.messages)],
        "names_touched_by_sender": [bool(one.touched_by_sender) for one in compared],
        "names_touched_by_other": [bool(one.touched_by_other) for one in compared],
        "names_not_touched": [not one.touches for one in compared],
        "pairs_sharing_files": [bool(overlap.files) for overlap in pair.overlaps],
        "pairs_sharing_symbols": [bool(overlap.symbols) for overlap in pair.overlaps],
        "shared_files_named": [path in named for path in files if pair.messages_known],
    }


def _gathered(
    name: str, pairs: Iterable[tuple[PairKey, Mapping[str, Sequence[float | None]]]]
) -> list[Observation]:
    return [
        Observation(key, float(value)) for key, values in pairs for value in values[name] if value is not None
    ]


def _measure(name: str, title: str, unit: str, known: Sequence[Observation]) -> Measure:
    limits = (0.0, 1.0) if name.endswith(("share", "fraction")) else None
    estimate = mean(known, limits)
    if estimate.low is not None and estimate.low < 0.0:
        # Nothing that is measured here can be negative.
        estimate = replace(estimate, low=0.0)
    if not known:
        estimate = replace(estimate, note=f"no {unit}")
    return Measure(name, title, unit, estimate, median(one.value for one in known) if known else None)


def _share(name: str, title: str, unit: str, known: Sequence[Observation]) -> Share:
    estimate = rate(known) if known else replace(rate(known), note=f"no {unit}")
    return Share(name, title, unit, int(sum(one.value for one in known)), estimate)


def _split_loss(losses: Sequence[Loss | None]) -> LossSplit:
    known = [loss for loss in losses if loss is not None]
    counts = {kind: sum(loss.kind == kind for loss in known) for kind in LOSS_CLASSES}
    both = sum(loss.kind == "capability" and loss.merge_status == "conflict" for loss in known)
    return LossSplit(
        n=len(known),
        **counts,
        capability_with_conflict=both,
        without_verdict=len(losses) - len(known),
    )
