"""How the agents of one pair worked together: everything that is computed, with its evidence."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

from cooperbench.report.coordination.activity import activity_of, last_act
from cooperbench.report.coordination.changes import read_work
from cooperbench.report.coordination.mentions import mentions_of
from cooperbench.report.coordination.messages import never_shown, questions_in, repetitions_in
from cooperbench.report.coordination.overlap import overlap_of
from cooperbench.report.records import is_list, mapping

if TYPE_CHECKING:
    from cooperbench.report.coordination.activity import Activity
    from cooperbench.report.coordination.mentions import Mention
    from cooperbench.report.coordination.messages import Question, Repetition, UnreadMessage
    from cooperbench.report.coordination.overlap import Overlap
    from cooperbench.report.records import PairData

SCHEMA = "cooperbench.coordination/2"
LossClass = Literal["passed", "capability", "conflict", "integration"]
LOSS_CLASSES: tuple[LossClass, ...] = ("passed", "capability", "conflict", "integration")


@dataclass(frozen=True)
class Loss:
    """How one pair ended, and what that is read from in eval.json."""

    kind: LossClass
    """`passed`; else `capability`: a patch fails its own feature's tests alone; else `conflict`: git could not merge
    the patches plainly; else `integration`: they merge, and fail together."""
    failed_alone: tuple[str, ...]
    """Agents whose patch fails alone."""
    merge_status: str | None
    conflicting_files: tuple[str, ...]
    failed_features: tuple[int, ...]
    """Features whose tests fail on the merge."""


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
    loss: Loss | None
    """None: there is no verdict."""
    messages_known: bool = True
    """False: there is no usable conversation.json, and more may have been sent than is seen here."""
    problems: tuple[str, ...] = ()
    """What could not be read, a line each: what is missing here is not zero."""

    @property
    def messages(self) -> int:
        return sum(agent.sent for agent in self.agents)

    @property
    def named_files(self) -> frozenset[str]:
        """Files in somebody's patch that a message names."""
        named = (mention for mention in self.mentions if mention.named.kind == "file")
        return frozenset(touch.path for mention in named for touch in mention.touches)

    def names_own_work_first(self, agent: Activity) -> bool:
        """Does its first message name something that its own patch touches?"""
        first = agent.first.sequence if agent.first else None
        own = (one for one in self.mentions if one.sender == agent.agent_id and one.touched_by_sender)
        return any(first in one.messages for one in own)

    def to_json(self) -> dict[str, Any]:
        """For files and pages; holds nothing but JSON."""
        return {"schema": SCHEMA, "messages": self.messages, **asdict(self)}


def coordination(pair: PairData) -> Coordination:
    """Read a pair's trajectories, conversation and patches, and say what they show. Never raises for their content."""
    conversation = pair.conversation()
    messages = conversation.messages
    trajectories = {agent_id: pair.trajectory(agent_id) for agent_id in pair.agent_ids}
    works = {agent_id: read_work(agent_id, pair.patch(agent_id)) for agent_id in pair.agent_ids}
    readable = [work for work in works.values() if work.usable]
    loss = loss_of(pair)
    conflicting = frozenset(loss.conflicting_files) if loss else None
    ends = {
        agent_id: last_act(trajectory, mapping(mapping(pair.result, "agents"), agent_id))
        for agent_id, trajectory in trajectories.items()
    }
    problems = [*conversation.problems]
    problems += [f"{agent_id}: {line}" for agent_id, one in trajectories.items() for line in one.problems]
    problems += [f"{agent_id}: no readable patch" for agent_id, work in works.items() if not work.usable]
    problems += [
        f"{agent_id}: no trajectory"
        for agent_id, one in trajectories.items()
        if not (one.record or one.entries)
    ]
    if not conversation.complete:
        problems.append("there is no usable conversation.json: only messages that were received are known")
    return Coordination(
        tuple(activity_of(pair, trajectory, messages) for trajectory in trajectories.values()),
        tuple(questions_in(conversation)),
        tuple(repetitions_in(messages)),
        tuple(never_shown(conversation, ends)),
        mentions_of(messages, works),
        tuple(overlap_of(first, second, conflicting) for first, second in combinations(readable, 2)),
        loss,
        conversation.complete,
        tuple(problems),
    )


def loss_of(pair: PairData) -> Loss | None:
    """None where there is no verdict."""
    verdicts = pair.verdicts
    if verdicts is None:
        return None
    failed_alone = tuple(agent.agent_id for agent in pair.agents if agent.success is False)
    merged = mapping(pair.evaluation, "merged")
    files = merged.get("conflicting_files")
    kind: LossClass
    if verdicts.overall:
        kind = "passed"
    elif verdicts.individual is False or failed_alone or pair.setting == "solo":
        kind = "capability"
    elif verdicts.merge is False:
        kind = "conflict"
    else:
        kind = "integration"
    return Loss(
        kind,
        failed_alone,
        pair.merge_status,
        tuple(file for file in files if isinstance(file, str)) if is_list(files) else (),
        tuple(
            int(feature)
            for feature, run in mapping(merged, "features").items()
            if feature.isdigit() and isinstance(run, dict) and run.get("success") is False
        ),
    )
