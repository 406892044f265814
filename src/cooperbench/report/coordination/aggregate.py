"""Coordination over the pairs of a run: means, medians and rates, with their units, n and intervals over tasks."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from cooperbench.report.coordination.loss import loss_of, split_loss
from cooperbench.report.coordination.pair import coordination
from cooperbench.report.states import ENDED
from cooperbench.report.statistics.intervals import Estimate, Observation, cluster_of, mean, rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cooperbench.report.coordination.loss import LossSplit
    from cooperbench.report.coordination.pair import Coordination
    from cooperbench.report.records import PairData, PairKey

SCHEMA = "cooperbench.run_coordination/1"


@dataclass(frozen=True)
class Measure:
    """A number that every unit has one of, where it is known."""

    name: str
    unit: str
    """What n counts, e.g. `pairs` or `agents`."""
    mean: Estimate
    """Its interval is clustered by task."""
    median: float | None


@dataclass(frozen=True)
class Share:
    """So many of n."""

    name: str
    unit: str
    count: int
    rate: Estimate


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

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}

    def measure(self, name: str) -> Measure:
        return next(one for one in self.measures if one.name == name)

    def share(self, name: str) -> Share:
        return next(one for one in self.shares if one.name == name)


@dataclass(frozen=True)
class _Looked:
    """A pair and what was found in it."""

    key: PairKey
    found: Coordination


def coordination_of_run(
    pairs: Sequence[PairData], look: Callable[[PairData], Coordination] = coordination
) -> RunCoordination:
    """Over the coop pairs among these. `look` is for callers who have looked at each pair already."""
    coop = [pair for pair in pairs if pair.setting == "coop"]
    looked = [_Looked(pair.key, look(pair)) for pair in coop if pair.state in ENDED]
    conflicts = Counter(
        (*cluster_of(one.key), path)
        for one in looked
        if one.found.loss
        for path in one.found.loss.conflicting_files
    )
    return RunCoordination(
        len(looked),
        len(coop) - len(looked),
        len({cluster_of(one.key) for one in looked}),
        tuple(_measures(looked)),
        tuple(_shares(looked)),
        split_loss(loss_of(pair) for pair in coop),
        tuple(
            ConflictedFile(*place, count)
            for place, count in sorted(conflicts.items(), key=lambda item: (-item[1], item[0]))
        ),
        tuple(f"{one.key.label}: {line}" for one in looked for line in one.found.problems),
    )


def _measures(looked: Sequence[_Looked]) -> Iterable[Measure]:
    heard = [one for one in looked if one.found.messages_known]
    agents = [(one.key, agent) for one in looked for agent in one.found.agents]
    writers = [(one.key, agent) for one in heard for agent in one.found.agents]
    firsts = [(key, agent.first) for key, agent in writers if agent.first]
    questions = [(one.key, question) for one in looked for question in one.found.questions]
    overlaps = [(one.key, overlap) for one in looked for overlap in one.found.overlaps]
    yield _measure("messages", "pairs", ((one.key, one.found.messages) for one in heard))
    yield _measure("messages_per_agent", "agents", ((key, agent.sent) for key, agent in writers))
    yield _measure("step_share", "agents", ((key, agent.step_share) for key, agent in agents))
    yield _measure("token_share", "agents", ((key, agent.token_share) for key, agent in agents))
    yield _measure("first_message_step", "agents", ((key, first.step) for key, first in firsts))
    yield _measure("first_message_seconds", "agents", ((key, first.seconds) for key, first in firsts))
    yield _measure("first_message_step_fraction", "agents", ((key, one.step_fraction) for key, one in firsts))
    yield _measure("first_message_time_fraction", "agents", ((key, one.time_fraction) for key, one in firsts))
    yield _measure("questions", "pairs", ((one.key, len(one.found.questions)) for one in heard))
    yield _measure("answer_steps", "answers", ((key, question.asker_steps) for key, question in questions))
    yield _measure("answer_seconds", "answers", ((key, question.seconds) for key, question in questions))
    yield _measure(
        "shared_files", "pairs of agents", ((key, len(overlap.files)) for key, overlap in overlaps)
    )
    yield _measure("file_share", "pairs of agents", ((key, overlap.file_share) for key, overlap in overlaps))
    yield _measure(
        "overlapping_changes", "pairs of agents", ((key, overlap.overlapping) for key, overlap in overlaps)
    )
    yield _measure(
        "adjacent_changes", "pairs of agents", ((key, overlap.adjacent) for key, overlap in overlaps)
    )
    yield _measure(
        "shared_base_lines", "pairs of agents", ((key, overlap.base_lines) for key, overlap in overlaps)
    )
    yield _measure(
        "shared_symbols", "pairs of agents", ((key, len(overlap.symbols)) for key, overlap in overlaps)
    )


def _shares(looked: Sequence[_Looked]) -> Iterable[Share]:
    messages = [one.key for one in looked for _ in range(one.found.messages)]
    heard = [one for one in looked if one.found.messages_known]
    plans = [(one.key, plan) for one in heard for plan in one.found.plans]
    questions = [(one.key, question) for one in looked for question in one.found.questions]
    claims = [(one.key, claim) for one in looked for claim in one.found.claims]
    checked = [(key, claim) for key, claim in claims if claim.verdict in ("kept", "broken")]
    overlaps = [(one.key, overlap) for one in looked for overlap in one.found.overlaps]
    writers = [(one.key, agent) for one in heard for agent in one.found.agents]
    repeated = Counter(one.key for one in looked for _ in one.found.repetitions)
    unseen = Counter(one.key for one in looked for _ in one.found.never_shown)
    late = Counter(one.key for one in looked for message in one.found.never_shown if message.after_end)
    yield _share("agents_that_wrote", "agents", ((key, agent.sent > 0) for key, agent in writers))
    yield _share(
        "first_message_is_plan", "agents that wrote", ((key, bool(plan.announced)) for key, plan in plans)
    )
    yield _share(
        "questions_replied_to", "questions", ((key, one.replied_by is not None) for key, one in questions)
    )
    yield _share(
        "questions_answered", "questions", ((key, one.answered_by is not None) for key, one in questions)
    )
    yield _share("repeated_messages", "messages", _spread(messages, repeated))
    yield _share("messages_never_shown", "messages", _spread(messages, unseen))
    yield _share("messages_to_finished", "messages", _spread(messages, late))
    yield _share(
        "claims_kept", "verifiable claims", ((key, claim.verdict == "kept") for key, claim in checked)
    )
    yield _share(
        "claims_not_verifiable", "claims", ((key, one.verdict == "not_verifiable") for key, one in claims)
    )
    yield _share("claims_withdrawn", "claims", ((key, one.verdict == "withdrawn") for key, one in claims))
    yield _share(
        "pairs_sharing_files", "pairs of agents", ((key, bool(overlap.files)) for key, overlap in overlaps)
    )
    yield _share(
        "pairs_sharing_symbols",
        "pairs of agents",
        ((key, bool(overlap.symbols)) for key, overlap in overlaps),
    )
    yield from _conflicts_by_plan(heard)


def _conflicts_by_plan(looked: Sequence[_Looked]) -> Iterable[Share]:
    """Do patches merge better where everybody announced their work first?"""
    for name, wanted in (("conflicts_with_plans", True), ("conflicts_without_plans", False)):
        yield _share(
            name,
            "pairs with a verdict",
            (
                (one.key, one.found.loss.merge_status == "conflict")
                for one in looked
                if one.found.loss is not None and _all_planned(one.found) is wanted
            ),
        )


def _all_planned(found: Coordination) -> bool:
    return len(found.plans) == len(found.agents) and all(plan.announced for plan in found.plans)


def _spread(messages: Sequence[PairKey], met: Counter[PairKey]) -> Iterable[tuple[PairKey, bool]]:
    """A yes or no for each message, with as many of the one as were counted in its pair."""
    left = Counter(met)
    for key in messages:
        left[key] -= 1
        yield key, left[key] >= 0


def _measure(name: str, unit: str, values: Iterable[tuple[PairKey, float | None]]) -> Measure:
    known = [Observation(key, float(value)) for key, value in values if value is not None]
    limits = (0.0, 1.0) if name.endswith(("share", "fraction")) else None
    estimate = mean(known, limits)
    if estimate.low is not None and estimate.low < 0.0:
        # Nothing that is measured here can be negative.
        estimate = replace(estimate, low=0.0)
    if not known:
        estimate = replace(estimate, note=f"no {unit}")
    return Measure(name, unit, estimate, median(one.value for one in known) if known else None)


def _share(name: str, unit: str, outcomes: Iterable[tuple[PairKey, bool]]) -> Share:
    known = [Observation(key, float(met)) for key, met in outcomes]
    estimate = rate(known) if known else replace(rate(known), note=f"no {unit}")
    return Share(name, unit, int(sum(one.value for one in known)), estimate)
