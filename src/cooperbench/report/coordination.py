"""How the agents of a pair worked together, with the evidence; and over the pairs of a run: means and shares with
units, n and intervals over tasks. Every number is defined in docs/coordination.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any

from cooperbench.report import messages
from cooperbench.report.formatting import Table, decimal_text, first_lines, rate_text
from cooperbench.report.mentions import Mention, find_mentions
from cooperbench.report.messages import Activity, Remark
from cooperbench.report.pairs import ENDED, LOSSES, Loss, PairData, PairKey
from cooperbench.report.patches import Overlap, find_overlap, read_agent_patch
from cooperbench.report.statistics import SHARE, Estimate, Observation, cluster_of, mean
from cooperbench.text import plural

SCHEMA = "cooperbench.run_coordination/4"
_TWO_AGENTS = "pairs of agents"


class PairFiles:
    """The large files of a pair, read once."""

    def __init__(self, pair: PairData) -> None:
        self.conversation = pair.conversation()
        self.trajectories = {agent_id: pair.trajectory(agent_id) for agent_id in pair.agent_ids}
        self.works = [
            read_agent_patch(agent_id, pair.patch(agent_id)) for agent_id in pair.agent_ids
        ]


@dataclass(frozen=True)
class Coordination:
    """Of one pair. Lists are in the order of messages, agents or patches; empty where there was nothing."""

    agents: tuple[Activity, ...]
    questions: tuple[Remark, ...]
    repetitions: tuple[Remark, ...]
    never_shown: tuple[Remark, ...]
    mentions: tuple[Mention, ...] | None
    """None: a patch cannot be read, so who touches what is not known."""
    overlaps: tuple[Overlap, ...]
    """One per two agents with a readable patch; empty in solo."""
    messages_known: bool
    """False: there is no usable conversation.json, and more may have been sent than is seen here."""
    problems: tuple[str, ...]
    """What could not be read, a line each: what is missing here is not zero."""

    @property
    def messages(self) -> int:
        return sum(agent.sent for agent in self.agents)


def coordination(pair: PairData, files: PairFiles | None = None) -> Coordination:
    """What trajectories, conversation and patches show. Never raises for their content."""
    files = files or PairFiles(pair)
    conversation = files.conversation
    results = pair.result.agents if pair.result else {}
    problems = [
        f"{work.agent_id}: no readable patch" for work in files.works if not work.is_readable
    ]
    problems += [
        f"{one}: no trajectory" for one, entries in files.trajectories.items() if not entries
    ]
    if not conversation.complete:
        problems.append(
            "there is no usable conversation.json: only messages that were received are known"
        )
    readable = [work for work in files.works if work.is_readable]
    return Coordination(
        tuple(
            messages.activity_of(agent_id, results.get(agent_id), steps, conversation.messages)
            for agent_id, steps in files.trajectories.items()
        ),
        tuple(messages.questions_in(conversation.messages)),
        tuple(messages.repetitions_in(conversation.messages)),
        tuple(messages.never_shown(conversation)),
        find_mentions(conversation.messages, readable)
        if len(readable) == len(files.works)
        else None,
        tuple(find_overlap(first, second) for first, second in combinations(readable, 2)),
        conversation.complete,
        tuple(problems),
    )


def _measured(pair: Coordination) -> dict[str, tuple[str, str, Sequence[float | None]]]:
    """Title, unit and the pair's values of each measure, in the order in which they are shown; None where a value is
    not known. What is counted by pairs is a mean, all else a share."""
    agents, names, overlaps = pair.agents, pair.mentions or (), pair.overlaps
    own_work = {(one.sender, at) for one in names if one.touched_by_sender for at in one.messages}
    writers = [one for one in agents if one.sent] if pair.mentions is not None else []
    first = [(one.agent_id, one.first_message) in own_work for one in writers]
    begun = [one.first_step_fraction for one in agents]
    repeated = [at < len(pair.repetitions) for at in range(pair.messages)]
    unread = [at < len(pair.never_shown) for at in range(pair.messages)]
    named = None if pair.mentions is None else len(names)
    by_sender = [one.touched_by_sender for one in names]
    by_other = [one.touched_by_other for one in names]
    met = [sum(one.files.values()) for one in overlaps]
    symbols = [len(one.symbols) for one in overlaps]
    return {
        "messages": ("messages in a pair", "pairs", [pair.messages]),
        "step_share": ("steps spent on messages", "agents", [one.step_share for one in agents]),
        "token_share": ("tokens spent on messages", "agents", [one.token_share for one in agents]),
        "first_message_step_fraction": ("steps before the first message", "agents", begun),
        "first_message_names_own_work": (
            "first message names what its patch touches",
            "writers",
            first,
        ),
        "questions": ("questions in a pair", "pairs", [len(pair.questions)]),
        "repeated_messages": ("repeated messages", "messages", repeated),
        "messages_never_shown": ("messages that were never read", "messages", unread),
        "names": ("names of code in a pair's messages", "pairs", [named]),
        "names_touched_by_sender": ("named and touched by the sender", "names", by_sender),
        "names_touched_by_other": ("named and touched by another", "names", by_other),
        "names_not_touched": (
            "named and touched by nobody",
            "names",
            [not one.touches for one in names],
        ),
        "shared_files": (
            "files changed by two agents",
            _TWO_AGENTS,
            [len(one.files) for one in overlaps],
        ),
        "overlapping_changes": ("changes that overlap", _TWO_AGENTS, met),
        "shared_symbols": ("functions and classes changed by two agents", _TWO_AGENTS, symbols),
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
        pairs = [
            {**asdict(key), "messages": one.messages, **asdict(one)} for key, one in self.pairs
        ]
        return {"schema": SCHEMA, **asdict(replace(self, pairs=())), "pairs": pairs}


def coordination_of_run(
    pairs: Sequence[PairData], look: Callable[[PairData], Coordination] = coordination
) -> RunCoordination:
    """`look` is for callers who have looked at each pair already."""
    coop = [pair for pair in pairs if pair.setting != "solo"]
    ended = [pair for pair in coop if pair.state in ENDED]
    looked = tuple((pair.key, look(pair)) for pair in ended)
    measures = _measured(Coordination((), (), (), (), (), (), messages_known=True, problems=()))
    found: dict[str, list[Observation]] = {name: [] for name in measures}
    for key, one in looked:
        for name, (_, unit, values) in _measured(one).items():
            if one.messages_known or unit == _TWO_AGENTS:
                found[name] += [
                    Observation(key, float(value)) for value in values if value is not None
                ]
    conflicts = Counter(
        f"{pair.key.repo}/task{pair.key.task_id} {path}"
        for pair in ended
        for path in pair.conflicting_files
    )
    losses = [pair.loss for pair in coop]
    return RunCoordination(
        len(looked),
        len(coop) - len(looked),
        len({cluster_of(key) for key, _ in looked}),
        tuple(
            _measure(name, title, unit, found[name]) for name, (title, unit, _) in measures.items()
        ),
        {kind: losses.count(kind) for kind in LOSSES},
        dict(conflicts.most_common()),
        tuple(f"{key.label}: {line}" for key, one in looked for line in one.problems),
        looked,
    )


def _measure(name: str, title: str, unit: str, known: Sequence[Observation]) -> Measure:
    is_share = unit not in ("pairs", _TWO_AGENTS)
    estimate = mean(known, SHARE if is_share else None)
    if estimate.low is not None and estimate.low < 0.0:
        # Nothing that is measured here can be negative.
        estimate = replace(estimate, low=0.0)
    return Measure(name, title, unit, is_share, estimate)


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
    conflicts = [f"{place}: {plural(pairs, 'pair')}" for place, pairs in found.conflicts.items()]
    for title, lines in (("Conflicts by file", conflicts), ("Could not be read", found.problems)):
        if lines:
            yield Table(title, notes=first_lines(lines))
