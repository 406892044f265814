"""How the agents of one pair worked together: everything that is computed, with its evidence."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from cooperbench.report.coordination.activity import activity_of, last_act
from cooperbench.report.coordination.changes import read_work
from cooperbench.report.coordination.claims import claims_of, distinct
from cooperbench.report.coordination.loss import loss_of
from cooperbench.report.coordination.overlap import overlap_of
from cooperbench.report.coordination.talk import never_shown, questions_in, repetitions_in
from cooperbench.report.coordination.verdicts import check_claims
from cooperbench.report.records import mapping

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.report.coordination.activity import Activity
    from cooperbench.report.coordination.changes import Work
    from cooperbench.report.coordination.claims import Claim
    from cooperbench.report.coordination.loss import Loss
    from cooperbench.report.coordination.overlap import Overlap
    from cooperbench.report.coordination.talk import Late, Question, Repetition
    from cooperbench.report.coordination.verdicts import CheckedClaim
    from cooperbench.report.records import PairData, SentMessage

SCHEMA = "cooperbench.coordination/1"


@dataclass(frozen=True)
class Plan:
    """An agent's first message, and whether it announces work on named files or symbols."""

    agent_id: str
    message: int
    announced: tuple[str, ...]
    """Files and symbols that it says it will, or does, change. Empty: the message is no plan."""


@dataclass(frozen=True)
class Coordination:
    """Of one pair. Lists are in the order of messages, agents or patches; empty where there was nothing."""

    agents: tuple[Activity, ...]
    plans: tuple[Plan, ...]
    """One per agent that sent anything."""
    questions: tuple[Question, ...]
    repetitions: tuple[Repetition, ...]
    never_shown: tuple[Late, ...]
    overlaps: tuple[Overlap, ...]
    """One per two agents with a readable patch; empty in solo."""
    claims: tuple[CheckedClaim, ...]
    loss: Loss | None
    """None: there is no verdict."""
    messages_known: bool = True
    """False: there is no usable conversation.json, and more may have been sent than is seen here."""
    problems: tuple[str, ...] = ()
    """What could not be read, a line each: what is missing here is not zero."""

    @property
    def messages(self) -> int:
        return sum(agent.sent for agent in self.agents)

    def to_json(self) -> dict[str, Any]:
        """For files and pages; holds nothing but JSON."""
        return {"schema": SCHEMA, "messages": self.messages, **asdict(self)}


def coordination(pair: PairData) -> Coordination:
    """Read a pair's trajectories, conversation and patches, and say what they show. Never raises for their content."""
    conversation = pair.conversation()
    messages = conversation.messages
    trajectories = {agent_id: pair.trajectory(agent_id) for agent_id in pair.agent_ids}
    works = {agent_id: read_work(agent_id, pair.patch(agent_id)) for agent_id in pair.agent_ids}
    claims = {
        agent_id: [claim for message in messages if message.sender == agent_id for claim in _claims(message)]
        for agent_id in pair.agent_ids
    }
    loss = loss_of(pair)
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
        tuple(_plans(messages, claims)),
        tuple(questions_in(conversation)),
        tuple(repetitions_in(messages)),
        tuple(never_shown(conversation, ends)),
        _overlaps(list(works.values()), frozenset(loss.conflicting_files) if loss else None),
        _checked(claims, works),
        loss,
        conversation.complete,
        tuple(problems),
    )


def _claims(message: SentMessage) -> list[Claim]:
    return claims_of(message.sender, message.sequence, message.text)


def _plans(messages: Sequence[SentMessage], claims: Mapping[str, Sequence[Claim]]) -> list[Plan]:
    plans = []
    for agent_id, said in claims.items():
        first = next((message.sequence for message in messages if message.sender == agent_id), None)
        if first is not None:
            names = (
                one.name for one in said if one.message == first and one.will_touch and one.tense != "past"
            )
            plans.append(Plan(agent_id, first, tuple(dict.fromkeys(names))))
    return plans


def _overlaps(works: Sequence[Work], conflicting: frozenset[str] | None) -> tuple[Overlap, ...]:
    readable = [work for work in works if work.usable]
    return tuple(overlap_of(first, second, conflicting) for first, second in combinations(readable, 2))


def _checked(claims: Mapping[str, Sequence[Claim]], works: Mapping[str, Work]) -> tuple[CheckedClaim, ...]:
    """In the order in which they were made."""
    known = frozenset(path for work in works.values() for path in work.paths)
    checked = [
        one
        for agent_id, said in claims.items()
        for one in check_claims(distinct(said), works[agent_id], known)
    ]
    return tuple(sorted(checked, key=lambda one: (one.claim.message, one.claim.start)))
