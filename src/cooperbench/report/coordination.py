"""How the agents of a pair worked together, with the evidence; and over the pairs of a run: means and shares with
units, n and intervals over tasks. Every number is defined in docs/coordination.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any

from cooperbench.report.fields import mapping
from cooperbench.report.formatting import Table, decimal_text, first_lines, rate_text
from cooperbench.report.messages import (
    Activity,
    Mention,
    Question,
    Repetition,
    UnreadMessage,
    activity_of,
    mentions_of,
    never_shown,
    questions_in,
    repetitions_in,
)
from cooperbench.report.pairs import ENDED, LOSSES, Loss, PairData, PairKey
from cooperbench.report.patches import Overlap, overlap_of, read_work
from cooperbench.report.statistics import SHARE, Estimate, Observation, cluster_of, mean
from cooperbench.text import plural

SCHEMA = "cooperbench.run_coordination/3"
_MEASURES = {
    "messages": ("messages in a pair", "pairs"),
    "step_share": ("steps spent on messages", "agents"),
    "token_share": ("tokens spent on messages", "agents"),
    "agents_that_wrote": ("agents that wrote at all", "agents"),
    "first_message_step_fraction": ("steps before the first message", "agents"),
    "first_message_names_own_work": ("first message names what its patch touches", "agents that wrote"),
    "questions": ("questions in a pair", "pairs"),
    "repeated_messages": ("repeated messages", "messages"),
    "messages_never_shown": ("messages that were never read", "messages"),
    "names": ("names of code in a pair's messages", "pairs"),
    "names_touched_by_sender": ("named and touched by the sender", "names"),
    "names_touched_by_other": ("named and touched by another", "names"),
    "names_not_touched": ("named and touched by nobody", "names"),
    "shared_files": ("files changed by two agents", "pairs of agents"),
    "pairs_sharing_files": ("pairs that change the same file", "pairs of agents"),
    "file_share": ("files changed by two agents, of all they change", "pairs of agents"),
    "shared_files_named": ("files changed by two agents that a message names", "shared files"),
    "overlapping_changes": ("changes that overlap", "pairs of agents"),
    "adjacent_changes": ("changes that are adjacent", "pairs of agents"),
    "shared_symbols": ("functions and classes changed by two agents", "pairs of agents"),
}
"""Title and unit, in the order in which they are shown."""
_COUNTS = {
    "messages", "questions", "names", "shared_files", "overlapping_changes", "adjacent_changes", "shared_symbols",
}  # fmt: skip
"""The others are shares, between 0 and 1."""


class PairFiles:
    """The large files of a pair, read once."""

    def __init__(self, pair: PairData) -> None:
        self.conversation = pair.conversation()
        self.trajectories = {agent_id: pair.trajectory(agent_id) for agent_id in pair.agent_ids}
        self.works = {agent_id: read_work(agent_id, pair.patch(agent_id)) for agent_id in pair.agent_ids}
        self.problems = [*self.conversation.problems]
        for agent_id, one in self.trajectories.items():
            self.problems += [f"{agent_id}: {line}" for line in one.problems]


@dataclass(frozen=True)
class Coordination:
    """Of one pair. Lists are in the order of messages, agents or patches; empty where there was nothing."""

    agents: tuple[Activity, ...]
    questions: tuple[Question, ...]
    repetitions: tuple[Repetition, ...]
    never_shown: tuple[UnreadMessage, ...]
    mentions: tuple[Mention, ...]
    overlaps: tuple[Overlap, ...]
    """One per two agents with a readable patch; empty in solo."""
    messages_known: bool
    """False: there is no usable conversation.json, and more may have been sent than is seen here."""
    problems: tuple[str, ...]
    """What could not be read, a line each: what is missing here is not zero."""

    @property
    def messages(self) -> int:
        return sum(agent.sent for agent in self.agents)

    @property
    def named_files(self) -> frozenset[str]:
        """Files in somebody's patch that a message names."""
        named = (mention for mention in self.mentions if mention.kind == "file")
        return frozenset(touch.path for mention in named for touch in mention.touches)

    def names_own_work_first(self, agent: Activity) -> bool:
        """Does its first message name something that its own patch touches?"""
        own = (one for one in self.mentions if one.sender == agent.agent_id and one.touched_by_sender)
        return any(agent.first_message in one.messages for one in own)


def coordination(pair: PairData, files: PairFiles | None = None) -> Coordination:
    """What trajectories, conversation and patches show. Never raises for their content."""
    files = files or PairFiles(pair)
    conversation, works = files.conversation, files.works
    records = mapping(pair.result, "agents")
    conflicting = frozenset(pair.conflicting_files) if pair.verdicts else None
    readable = [work for work in works.values() if work.usable]
    problems = [*files.problems]
    problems += [f"{agent_id}: no readable patch" for agent_id, work in works.items() if not work.usable]
    problems += [f"{one.agent_id}: no trajectory" for one in files.trajectories.values() if not one.entries]
    if not conversation.complete:
        problems.append("there is no usable conversation.json: only messages that were received are known")
    return Coordination(
        tuple(
            activity_of(mapping(records, one.agent_id), one, conversation.messages)
            for one in files.trajectories.values()
        ),
        tuple(questions_in(conversation.messages)),
        tuple(repetitions_in(conversation.messages)),
        tuple(never_shown(conversation)),
        mentions_of(conversation.messages, works),
        tuple(overlap_of(first, second, conflicting) for first, second in combinations(readable, 2)),
        conversation.complete,
        tuple(problems),
    )


def _values(pair: Coordination) -> dict[str, Sequence[float | None]]:
    """A pair's values of each measure; None where one is not known. What is not on record is not zero."""
    agents, overlaps, named = pair.agents, pair.overlaps, pair.named_files
    writers = [agent for agent in agents if agent.sent]
    compared = [one for one in pair.mentions if None not in (one.touched_by_sender, one.touched_by_other)]
    messages = range(pair.messages)
    of_messages: dict[str, Sequence[float | None]] = {
        "messages": [pair.messages],
        "agents_that_wrote": [agent.sent > 0 for agent in agents],
        "first_message_step_fraction": [agent.first_step_fraction for agent in agents],
        "first_message_names_own_work": [pair.names_own_work_first(agent) for agent in writers],
        "questions": [len(pair.questions)],
        "names": [len(pair.mentions)],
        "shared_files_named": [file.path in named for one in overlaps for file in one.files],
    }
    return (of_messages if pair.messages_known else dict.fromkeys(of_messages, ())) | {
        "step_share": [agent.step_share for agent in agents],
        "token_share": [agent.token_share for agent in agents],
        "repeated_messages": [at < len(pair.repetitions) for at in messages],
        "messages_never_shown": [at < len(pair.never_shown) for at in messages],
        "names_touched_by_sender": [bool(one.touched_by_sender) for one in compared],
        "names_touched_by_other": [bool(one.touched_by_other) for one in compared],
        "names_not_touched": [not one.touches for one in compared],
        "shared_files": [len(one.files) for one in overlaps],
        "pairs_sharing_files": [bool(one.files) for one in overlaps],
        "file_share": [one.file_share for one in overlaps],
        "overlapping_changes": [sum(file.overlapping for file in one.files) for one in overlaps],
        "adjacent_changes": [sum(file.adjacent for file in one.files) for one in overlaps],
        "shared_symbols": [len(one.symbols) for one in overlaps],
    }


@dataclass(frozen=True)
class Measure:
    """A mean, or a share, over everything that has a known value."""

    name: str
    title: str
    unit: str
    is_share: bool
    estimate: Estimate

    @property
    def value_text(self) -> str:
        if self.is_share:
            return rate_text(self.estimate)
        one = self.estimate
        interval = f" [{decimal_text(one.low, 1)}–{decimal_text(one.high, 1)}]"
        return decimal_text(one.value, 1) + ("" if one.low is None else interval)


@dataclass(frozen=True)
class RunCoordination:
    """Of the pairs of a run that several agents worked on."""

    n: int
    """Pairs that were looked at: those with a result."""
    skipped: int
    """Pairs without one."""
    clusters: int
    measures: tuple[Measure, ...]
    loss: dict[Loss, int]
    conflicts: dict[str, int]
    """Pairs that conflict in a file, the most frequent first."""
    problems: tuple[str, ...]
    pairs: tuple[tuple[PairKey, Coordination], ...]

    def to_json(self) -> dict[str, Any]:
        pairs = [{**asdict(key), "messages": one.messages, **asdict(one)} for key, one in self.pairs]
        return {"schema": SCHEMA, **asdict(replace(self, pairs=())), "pairs": pairs}

    def measure(self, name: str) -> Measure:
        return next(one for one in self.measures if one.name == name)


def coordination_of_run(
    pairs: Sequence[PairData], look: Callable[[PairData], Coordination] = coordination
) -> RunCoordination:
    """`look` is for callers who have looked at each pair already."""
    coop = [pair for pair in pairs if pair.setting != "solo"]
    ended = [pair for pair in coop if pair.state in ENDED]
    looked = tuple((pair.key, look(pair)) for pair in ended)
    found: dict[str, list[Observation]] = {name: [] for name in _MEASURES}
    for key, one in looked:
        for name, values in _values(one).items():
            found[name] += [Observation(key, float(value)) for value in values if value is not None]
    conflicts = Counter(
        f"{pair.key.repo}/task{pair.key.task_id} {path}" for pair in ended for path in pair.conflicting_files
    )
    losses = [pair.loss for pair in coop]
    return RunCoordination(
        len(looked),
        len(coop) - len(looked),
        len({cluster_of(key) for key, _ in looked}),
        tuple(_measure(name, known) for name, known in found.items()),
        {kind: losses.count(kind) for kind in LOSSES},
        dict(conflicts.most_common()),
        tuple(f"{key.label}: {line}" for key, one in looked for line in one.problems),
        looked,
    )


def _measure(name: str, known: Sequence[Observation]) -> Measure:
    is_share = name not in _COUNTS
    estimate = mean(known, SHARE if is_share else None)
    if estimate.low is not None and estimate.low < 0.0:
        # Nothing that is measured here can be negative.
        estimate = replace(estimate, low=0.0)
    return Measure(name, *_MEASURES[name], is_share, estimate)


def coordination_tables(run_name: str, found: RunCoordination) -> Iterator[Table]:
    if not found.n:
        yield Table(f"Coordination in {run_name}", notes=["no coop pair with a result"])
        return
    yield Table(
        f"Where pairs of {run_name} were lost",
        (*(one.short for one in LOSSES.values()), "with a verdict"),
        [[*found.loss.values(), sum(found.loss.values())]],
        [f"{found.skipped} without a result left out"] if found.skipped else [],
    )
    yield Table(
        f"Coordination in {run_name} ({plural(found.n, 'pair')} of {plural(found.clusters, 'task')})",
        ("", "mean or share", "n"),
        [[one.title, one.value_text, f"{one.estimate.n} {one.unit}"] for one in found.measures],
        ["95 % intervals, clustered by task. What each number means: docs/coordination.md"],
    )
    elsewhere = [
        f"{key.label} {one.sender}, message {one.messages[0]}: {one.name} "
        f"({touch.agent_id}, {touch.path}, patch line {touch.patch_line})"
        for key, pair in found.pairs
        for one in pair.mentions
        if one.touched_by_other and one.touched_by_sender is False
        for touch in one.touches
    ]
    conflicts = [f"{place}: {plural(pairs, 'pair')}" for place, pairs in found.conflicts.items()]
    for title, lines in (
        ("Named in a message, touched only by others", elsewhere),
        ("Conflicts by file", conflicts),
        ("Could not be read", found.problems),
    ):
        if lines:
            yield Table(title, notes=first_lines(lines))
