"""How the agents of one pair worked together: everything that is computed, with its evidence."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from cooperbench.report.coordination.changes import overlap_of, read_work
from cooperbench.report.coordination.mentions import mentions_of
from cooperbench.report.coordination.messages import (
    activity_of,
    last_act,
    never_shown,
    questions_in,
    repetitions_in,
)
from cooperbench.report.records import mapping

if TYPE_CHECKING:
    from cooperbench.report.coordination.changes import Overlap
    from cooperbench.report.coordination.mentions import Mention
    from cooperbench.report.coordination.messages import Activity, Question, Repetition, UnreadMessage
    from cooperbench.report.records import PairData

SCHEMA = "cooperbench.coordination/3"


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

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "messages": self.messages, **asdict(self)}


def coordination(pair: PairData, files: PairFiles | None = None) -> Coordination:
    """What trajectories, conversation and patches show. Never raises for their content."""
    files = files or PairFiles(pair)
    conversation, works = files.conversation, files.works
    records = {agent_id: mapping(mapping(pair.result, "agents"), agent_id) for agent_id in pair.agent_ids}
    ends = {agent_id: last_act(one, records[agent_id]) for agent_id, one in files.trajectories.items()}
    conflicting = frozenset(pair.conflicting_files) if pair.verdicts else None
    readable = [work for work in works.values() if work.usable]
    problems = [*files.problems]
    problems += [f"{agent_id}: no readable patch" for agent_id, work in works.items() if not work.usable]
    problems += [
        f"{agent_id}: no trajectory" for agent_id, one in files.trajectories.items() if not one.entries
    ]
    if not conversation.complete:
        problems.append("there is no usable conversation.json: only messages that were received are known")
    return Coordination(
        tuple(
            activity_of(records[agent_id], one, conversation.messages)
            for agent_id, one in files.trajectories.items()
        ),
        tuple(questions_in(conversation.messages)),
        tuple(repetitions_in(conversation.messages)),
        tuple(never_shown(conversation, ends)),
        mentions_of(conversation.messages, works),
        tuple(overlap_of(first, second, conflicting) for first, second in combinations(readable, 2)),
        conversation.complete,
        tuple(problems),
    )
