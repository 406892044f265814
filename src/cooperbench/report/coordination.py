"""How the agents of a pair worked together, with the evidence, and the measures of a whole run.

Measures are means and shares with units, n and intervals over tasks. docs/coordination.md defines
every number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations

from cooperbench.bounded import UnreadableInput, call_bounded, limit_seconds
from cooperbench.records import JsonObject
from cooperbench.report import messages
from cooperbench.report.formatting import (
    Cell,
    Rows,
    Table,
    decimal_text,
    first_lines,
    rate_text,
)
from cooperbench.report.mentions import Mention, find_mentions
from cooperbench.report.messages import Activity, Remark
from cooperbench.report.pairs import ENDED, LOSSES, Loss, PairData, PairKey
from cooperbench.report.patches import Overlap, find_overlap, read_agent_patch
from cooperbench.report.statistics import SHARE, Estimate, Observation, cluster_of, mean
from cooperbench.report.workspace import WorkspaceUse, measure_workspace
from cooperbench.text import plural

SCHEMA = "cooperbench.run_coordination/4"
_MAX_ROWS = 40


class PairFiles:
    """The large files of a pair, read once."""

    def __init__(self, pair: PairData) -> None:
        """Read trajectories, conversation, patches and the changes of a shared workspace."""
        self.conversation = pair.conversation()
        self.trajectories = {agent_id: pair.trajectory(agent_id) for agent_id in pair.agent_ids}
        self.patches = [read_agent_patch(name, pair.patch(name)) for name in pair.patch_names]
        self.workspace = measure_workspace(pair)


@dataclass(frozen=True)
class Coordination:
    """How the agents of one pair worked together.

    Lists are in the order of messages, agents or patches; empty if there was nothing.
    """

    agents: tuple[Activity, ...]
    plans: tuple[Remark, ...]
    questions: tuple[Remark, ...]
    repetitions: tuple[Remark, ...]
    never_shown: tuple[Remark, ...]
    mentions: tuple[Mention, ...] | None
    """None if nobody knows who touches what: a patch cannot be read, or belongs to all agents."""
    overlaps: tuple[Overlap, ...]
    """One for every two agents with a readable patch of their own."""
    workspace: WorkspaceUse | None
    """None if each agent had its own."""
    messages_known: bool
    """False if there is no usable conversation.json: more may have been sent than is known."""
    problems: tuple[str, ...]
    """One line for everything that could not be read. What is missing here is not zero."""

    @property
    def messages(self) -> int:
        """Number of messages that the agents sent."""
        return sum(agent.sent for agent in self.agents)


def measure_pair(pair: PairData, files: PairFiles | None = None) -> Coordination:
    """Return what trajectories, conversation and patches show; never raise for their content."""
    files = files or PairFiles(pair)
    conversation = files.conversation
    results = pair.result.agents if pair.result else {}
    readable = [patch for patch in files.patches if patch.is_readable]
    is_known_who = len(readable) == len(files.patches) and not pair.shares_workspace
    return Coordination(
        agents=tuple(
            messages.measure_activity(agent_id, results.get(agent_id), steps, conversation.messages)
            for agent_id, steps in files.trajectories.items()
        ),
        plans=tuple(messages.find_plans(conversation.messages)),
        questions=tuple(messages.find_questions(conversation.messages)),
        repetitions=tuple(messages.find_repetitions(conversation.messages)),
        never_shown=tuple(messages.find_unread(conversation)),
        mentions=find_mentions(conversation.messages, readable) if is_known_who else None,
        overlaps=tuple(find_overlap(first, second) for first, second in combinations(readable, 2)),
        workspace=files.workspace,
        messages_known=conversation.complete,
        problems=tuple(_problems(files)),
    )


@limit_seconds(30)
def measure_files(pair: PairData) -> Coordination:
    """Return what the files of a pair show. Callers use `call_bounded`: agents wrote them."""
    return measure_pair(pair)


def measure_pair_bounded(pair: PairData) -> Coordination:
    """Return what the files of a pair show, read in a worker process with limits."""
    try:
        return call_bounded(measure_files, pair)
    except UnreadableInput as problem:
        return unreadable_coordination(f"the files of this pair cannot be read: {problem}")


def unreadable_coordination(problem: str) -> Coordination:
    """Return the coordination of a pair about which nothing is known."""
    return Coordination(
        agents=(),
        plans=(),
        questions=(),
        repetitions=(),
        never_shown=(),
        mentions=None,
        overlaps=(),
        workspace=None,
        messages_known=False,
        problems=(problem,),
    )


def _problems(files: PairFiles) -> Iterator[str]:
    for patch in files.patches:
        if not patch.is_readable:
            yield f"{patch.agent_id}: no readable patch"
    if files.workspace is not None:
        yield from files.workspace.problems
    for agent_id, steps in files.trajectories.items():
        if not steps:
            yield f"{agent_id}: no trajectory"
    if not files.conversation.complete:
        yield "there is no usable conversation.json: only messages that were received are known"


Values = Sequence[float | None]
"""The values of one pair; None for a value that is not known."""


@dataclass(frozen=True)
class MeasureDefinition:
    """A measure of coordination, and how to get its values from one pair."""

    name: str
    title: str
    unit: str
    """What is counted: pairs, agents, messages, …"""
    values: Callable[[Coordination], Values]
    is_share: bool = True
    """False for a mean of counts."""
    needs_messages: bool = True
    """Whether it means nothing if some messages are not known."""
    needs_workspace: bool = False
    """Whether it is left out unless agents share a workspace."""


def _share_values(marked: int, total: int) -> list[float]:
    """Return a value for each of `total` things: 1 for those that are marked, 0 for the others."""
    return [1.0] * marked + [0.0] * (total - marked)


def _first_messages_name_own_work(pair: Coordination) -> Values:
    """Return for each writer whether its first message names something that its patch touches."""
    if pair.mentions is None:
        return []
    own_work: set[tuple[str, int]] = set()
    for mention in pair.mentions:
        if mention.touched_by_sender:
            own_work.update((mention.sender, number) for number in mention.messages)
    writers = [agent for agent in pair.agents if agent.first_message is not None]
    return [float((agent.agent_id, agent.first_message) in own_work) for agent in writers]


def _count_mentions(pair: Coordination) -> Values:
    return [None if pair.mentions is None else len(pair.mentions)]


def _mention_values(condition: Callable[[Mention], bool]) -> Callable[[Coordination], Values]:
    def values(pair: Coordination) -> Values:
        """Return 1 for each name that fulfills the condition, 0 for the others."""
        return [float(condition(mention)) for mention in pair.mentions or ()]

    return values


def _overlap_values(number: Callable[[Overlap], int]) -> Callable[[Coordination], Values]:
    def values(pair: Coordination) -> Values:
        """Return the number for every two agents."""
        return [number(overlap) for overlap in pair.overlaps]

    return values


def _overlap_definition(
    name: str, title: str, number: Callable[[Overlap], int]
) -> MeasureDefinition:
    return MeasureDefinition(
        name=name,
        title=title,
        unit="pairs of agents",
        values=_overlap_values(number),
        is_share=False,
        needs_messages=False,
    )


def _count_overwrites(pair: Coordination) -> Values:
    return [len(pair.workspace.overwrites)] if pair.workspace else []


def _joint_changes(pair: Coordination) -> Values:
    """Return for each change of a file whether commands of several agents ran."""
    if pair.workspace is None:
        return []
    return _share_values(pair.workspace.joint_changes, pair.workspace.changes)


MEASURES = (
    MeasureDefinition(
        "messages", "messages in a pair", "pairs", lambda pair: [pair.messages], is_share=False
    ),
    MeasureDefinition(
        "step_share",
        "steps spent on messages",
        "agents",
        lambda pair: [agent.step_share for agent in pair.agents],
    ),
    MeasureDefinition(
        "token_share",
        "tokens spent on messages",
        "agents",
        lambda pair: [agent.token_share for agent in pair.agents],
    ),
    MeasureDefinition(
        "first_message_step_fraction",
        "steps before the first message",
        "agents",
        lambda pair: [agent.first_step_fraction for agent in pair.agents],
    ),
    MeasureDefinition(
        "first_message_names_own_work",
        "first message names what its patch touches",
        "writers",
        _first_messages_name_own_work,
    ),
    MeasureDefinition(
        "plans", "plans in a pair", "pairs", lambda pair: [len(pair.plans)], is_share=False
    ),
    MeasureDefinition(
        "questions",
        "questions in a pair",
        "pairs",
        lambda pair: [len(pair.questions)],
        is_share=False,
    ),
    MeasureDefinition(
        "repeated_messages",
        "repeated messages",
        "messages",
        lambda pair: _share_values(len(pair.repetitions), pair.messages),
    ),
    MeasureDefinition(
        "messages_never_shown",
        "messages that were never read",
        "messages",
        lambda pair: _share_values(len(pair.never_shown), pair.messages),
    ),
    MeasureDefinition(
        "names", "names of code in a pair's messages", "pairs", _count_mentions, is_share=False
    ),
    MeasureDefinition(
        "names_touched_by_sender",
        "named and touched by the sender",
        "names",
        _mention_values(lambda mention: mention.touched_by_sender),
    ),
    MeasureDefinition(
        "names_touched_by_other",
        "named and touched by another",
        "names",
        _mention_values(lambda mention: mention.touched_by_other),
    ),
    MeasureDefinition(
        "names_not_touched",
        "named and touched by nobody",
        "names",
        _mention_values(lambda mention: not mention.touches),
    ),
    _overlap_definition(
        "shared_files", "files changed by two agents", lambda overlap: len(overlap.files)
    ),
    _overlap_definition(
        "overlapping_changes", "changes that overlap", lambda overlap: sum(overlap.files.values())
    ),
    _overlap_definition(
        "shared_symbols",
        "functions and classes changed by two agents",
        lambda overlap: len(overlap.symbols),
    ),
    MeasureDefinition(
        "overwrites",
        "changes of files that another agent had changed",
        "pairs",
        _count_overwrites,
        is_share=False,
        needs_messages=False,
        needs_workspace=True,
    ),
    MeasureDefinition(
        "joint_changes",
        "changes while several agents ran commands",
        "changes",
        _joint_changes,
        needs_messages=False,
        needs_workspace=True,
    ),
)
"""All measures, in the order in which they are shown."""


@dataclass(frozen=True)
class Measure:
    """A mean or a share over everything that has a known value."""

    name: str
    title: str
    unit: str
    is_share: bool
    estimate: Estimate

    @property
    def value_text(self) -> str:
        """The value with its interval."""
        if self.is_share:
            return rate_text(self.estimate)
        value = decimal_text(self.estimate.value, 1)
        if self.estimate.low is None:
            return value
        low, high = decimal_text(self.estimate.low, 1), decimal_text(self.estimate.high, 1)
        return f"{value} [{low}–{high}]"


@dataclass(frozen=True)
class RunCoordination:
    """How agents worked together in the pairs of a run that have several agents."""

    n: int
    """Number of pairs with a result."""
    skipped: int
    """Number of pairs without one."""
    clusters: int
    measures: tuple[Measure, ...]
    loss: dict[Loss, int]
    conflicts: dict[str, int]
    """Number of pairs that conflict in a file, the most frequent first."""
    problems: tuple[str, ...]
    pairs: tuple[tuple[PairKey, Coordination], ...]

    def to_json(self) -> JsonObject:
        """Return the content of `--json`."""
        pairs = [
            {**asdict(key), "messages": coordination.messages, **asdict(coordination)}
            for key, coordination in self.pairs
        ]
        return {"schema": SCHEMA, **asdict(replace(self, pairs=())), "pairs": pairs}


def measure_run(
    pairs: Sequence[PairData],
    measure: Callable[[PairData], Coordination] = measure_pair_bounded,
) -> RunCoordination:
    """Return the measures over all pairs with several agents.

    Args:
        pairs: The pairs of a run; solo pairs are left out.
        measure: Returns the coordination of a pair, for callers that have it already.
    """
    together = [pair for pair in pairs if pair.setting != "solo"]
    ended = [pair for pair in together if pair.state in ENDED]
    measured = tuple((pair.key, measure(pair)) for pair in ended)
    losses = [pair.loss for pair in together]
    return RunCoordination(
        n=len(measured),
        skipped=len(together) - len(measured),
        clusters=len({cluster_of(key) for key, _ in measured}),
        measures=tuple(_estimate_measures(measured)),
        loss={loss: losses.count(loss) for loss in LOSSES},
        conflicts=_count_conflicts(ended),
        problems=tuple(_run_problems(measured)),
        pairs=measured,
    )


def _run_problems(measured: Sequence[tuple[PairKey, Coordination]]) -> Iterator[str]:
    for key, coordination in measured:
        for line in coordination.problems:
            yield f"{key.label}: {line}"


def _count_conflicts(pairs: Sequence[PairData]) -> dict[str, int]:
    conflicts: Counter[str] = Counter()
    for pair in pairs:
        task = f"{pair.key.repo}/task{pair.key.task_id}"
        conflicts.update(f"{task} {path}" for path in pair.conflicting_files)
    return dict(conflicts.most_common())


def _estimate_measures(measured: Sequence[tuple[PairKey, Coordination]]) -> Iterator[Measure]:
    """Yield all measures; those of shared workspaces only if a pair has one."""
    has_workspace = any(coordination.workspace for _, coordination in measured)
    for definition in MEASURES:
        if has_workspace or not definition.needs_workspace:
            yield _estimate_measure(definition, measured)


def _estimate_measure(
    definition: MeasureDefinition, measured: Sequence[tuple[PairKey, Coordination]]
) -> Measure:
    observations: list[Observation] = []
    for key, coordination in measured:
        if definition.needs_messages and not coordination.messages_known:
            continue
        for value in definition.values(coordination):
            if value is not None:
                observations.append(Observation(key, float(value)))  # noqa: PERF401  # two loops
    estimate = mean(observations, SHARE if definition.is_share else None)
    if estimate.low is not None and estimate.low < 0.0:
        # No measure can be negative.
        estimate = replace(estimate, low=0.0)
    return Measure(
        name=definition.name,
        title=definition.title,
        unit=definition.unit,
        is_share=definition.is_share,
        estimate=estimate,
    )


def coordination_tables(run_name: str, run: RunCoordination) -> Iterator[Table]:
    """Yield the tables for the terminal."""
    if not run.n:
        yield Table(f"Coordination in {run_name}", notes=["no coop pair with a result"])
        return
    yield Table(
        f"Where pairs of {run_name} were lost",
        (*(meaning.short for meaning in LOSSES.values()), "with a verdict"),
        [[*run.loss.values(), sum(run.loss.values())]],
        [f"{run.skipped} without a result left out"] if run.skipped else [],
    )
    size = f"{plural(run.n, 'pair')} of {plural(run.clusters, 'task')}"
    yield Table(
        f"Coordination in {run_name} ({size})",
        ("", "mean or share", "n"),
        [
            [measure.title, measure.value_text, f"{measure.estimate.n} {measure.unit}"]
            for measure in run.measures
        ],
        ["95 % intervals, clustered by task. What each number means: docs/coordination.md"],
    )
    if run.conflicts:
        lines = [f"{path}: {plural(count, 'pair')}" for path, count in run.conflicts.items()]
        yield Table("Conflicts by file", notes=first_lines(lines))
    yield from _workspace_tables(run)
    if run.problems:
        yield Table("Could not be read", notes=first_lines(run.problems))


def _workspace_tables(run: RunCoordination) -> Iterator[Table]:
    """Yield who contributed what to shared workspaces, and what was overwritten."""
    rows: Rows = []
    overwrites: list[str] = []
    for key, coordination in run.pairs:
        if coordination.workspace is None:
            continue
        for agent in coordination.workspace.contributions:
            lines = f"+{agent.added} −{agent.removed}"
            changes: list[Cell] = [agent.own_changes, lines, agent.joint_changes]
            rows.append([key.label, agent.agent_id, *changes, len(agent.final_files)])
        overwrites += [
            f"{key.label}: {overwrite.text}" for overwrite in coordination.workspace.overwrites
        ]
    if rows:
        headings = ("", "agent", "own changes", "lines", "joint changes", "last in files")
        hidden = len(rows) - _MAX_ROWS
        notes = [f"… {hidden:,} more (--json prints all)"] if hidden > 0 else []
        yield Table("Contributions to shared workspaces", headings, rows[:_MAX_ROWS], notes)
    if overwrites:
        yield Table("Overwritten in shared workspaces", notes=first_lines(overwrites))
