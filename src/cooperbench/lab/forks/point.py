"""Fork points: how much of each agent's work comes before one.

A fork point is a moment of the recorded run: just after a step of an agent, or just before a
message was shown to its recipient. All replies of models that had come by then are replayed for
every agent, and so is everything that the agents did because of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cooperbench.errors import UserError
from cooperbench.lab.forks.recording import RecordedAgent, RecordedPair
from cooperbench.records.conversation import ConversationMessage
from cooperbench.storage import parse_time
from cooperbench.text import plural

_POINT = re.compile(r"(solo|agent[1-9][0-9]?):([0-9]{1,9})|message:([1-9][0-9]{0,8})")


@dataclass(frozen=True)
class PointName:
    """A fork point as it is written: `agent1:12` or `message:3`."""

    agent_id: str | None
    """None for a message."""
    number: int
    """Number of the step or of the message."""

    def __str__(self) -> str:
        return f"{self.agent_id or 'message'}:{self.number}"


def parse_point(text: str) -> PointName:
    """Parse a fork point; UserError if the text is not one."""
    match = _POINT.fullmatch(text)
    if match is None:
        raise UserError(
            f"{text!r} is not a fork point; write agent1:12 (after step 12 of agent1) or message:3 "
            "(before message 3 is shown)"
        )
    if match[3]:
        return PointName(None, int(match[3]))
    return PointName(match[1], int(match[2]))


@dataclass(frozen=True)
class AgentPrefix:
    """The part of a recorded agent's work that comes before a fork point."""

    agent: RecordedAgent
    count: int
    """Number of exchanges that are replayed."""

    @property
    def steps(self) -> int:
        """Number of the agent's steps."""
        return self.agent.replies[self.count - 1].last_step if self.count else 0

    @property
    def has_ended(self) -> bool:
        """Whether the agent had sent its last request by then."""
        return self.count == len(self.agent.exchanges)

    @property
    def end_time(self) -> str:
        """When the agent had done what it was asked for by the replayed replies."""
        if not self.count:
            return self.agent.trajectory.start_time or ""
        return self.agent.replies[self.count - 1].steps_end

    def has_shown(self, message: ConversationMessage) -> bool:
        """Return whether a message to this agent was shown in the replayed part."""
        if message.delivered_by is None or not self.count:
            return False
        if message.delivered_by == "command":
            return (message.delivered_step or 0) <= self.steps
        last_reply = self.agent.replies[self.count - 1].index
        index = _receive_index(self.agent, message.sequence)
        return index is not None and index < last_reply


@dataclass(frozen=True)
class ForkPoint:
    """A fork point of a recorded pair."""

    name: PointName
    recorded: RecordedPair
    prefixes: Mapping[str, AgentPrefix]

    @property
    def messages(self) -> list[ConversationMessage]:
        """The messages that are sent in the replayed part, in the recorded order."""
        return [message for message in self.recorded.messages if self.has_sent(message)]

    def has_sent(self, message: ConversationMessage) -> bool:
        """Return whether a message is sent in the replayed part."""
        prefix = self.prefixes.get(message.sender)
        return prefix is not None and (message.sender_step or 0) <= prefix.steps

    def has_shown(self, message: ConversationMessage) -> bool:
        """Return whether a message is shown to its recipient in the replayed part."""
        prefix = self.prefixes.get(message.recipient)
        return prefix is not None and prefix.has_shown(message)

    @property
    def exchange_counts(self) -> dict[str, int]:
        """Number of exchanges that each agent replays."""
        return {agent_id: prefix.count for agent_id, prefix in self.prefixes.items()}


def find_message(recorded: RecordedPair, number: int) -> ConversationMessage:
    """Return a message; UserError if there is none with this number."""
    for message in recorded.messages:
        if message.sequence == number:
            return message
    count = plural(len(recorded.messages), "message")
    raise UserError(f"there is no message {number} in {recorded.label}: it has {count}")


def find_point(recorded: RecordedPair, name: PointName) -> ForkPoint:
    """Return a fork point of a recorded pair; UserError if the pair does not have it."""
    if name.agent_id is None:
        first, count, time = _before_message(recorded, find_message(recorded, name.number))
    else:
        first, count, time = _after_step(recorded, name)
    prefixes = {}
    for agent_id, agent in recorded.agents.items():
        replayed = count
        if agent_id != first:
            replayed = sum(reply.time <= time for reply in agent.replies)
        prefixes[agent_id] = AgentPrefix(agent, replayed)
    if all(prefix.has_ended for prefix in prefixes.values()):
        raise UserError(f"all agents of {recorded.label} have ended by {name}: nothing goes on")
    return ForkPoint(name, recorded, prefixes)


def _after_step(recorded: RecordedPair, name: PointName) -> tuple[str, int, str]:
    """Return the agent, how many replies it had by the end of the step, and the time."""
    agent_id = name.agent_id or ""
    agent = recorded.agents.get(agent_id)
    if agent is None:
        agents = ", ".join(recorded.agents)
        raise UserError(f"there is no {agent_id} in {recorded.label}: it has {agents}")
    if name.number == 0:
        return agent_id, 0, ""
    for count, reply in enumerate(agent.replies, 1):
        if reply.last_step >= name.number:
            return agent_id, count, reply.steps_end
    steps = agent.replies[-1].last_step if agent.replies else 0
    raise UserError(
        f"there is no step {name.number} of {agent_id} in {recorded.label}: "
        f"it took {plural(steps, 'step')}"
    )


def _before_message(recorded: RecordedPair, message: ConversationMessage) -> tuple[str, int, str]:
    """Return the recipient, how many replies it had before it got the message, and the time."""
    agent = recorded.agents.get(message.recipient)
    number = message.sequence
    if agent is None or message.delivered_by is None:
        raise UserError(
            f"message {number} of {recorded.label} was never shown to {message.recipient}: "
            "name a step as the fork point (--at agent1:12)"
        )
    if message.delivered_by == "command":
        return _before_command(recorded, agent, message)
    index = _receive_index(agent, number)
    if index is None:
        raise UserError(f"message {number} is not in the trajectory of {message.recipient}")
    count = sum(reply.index < index for reply in agent.replies)
    return message.recipient, count, agent.steps[index].timestamp


def _before_command(
    recorded: RecordedPair, agent: RecordedAgent, message: ConversationMessage
) -> tuple[str, int, str]:
    """Return the same for a message that the recipient read with a command."""
    step = message.delivered_step or 0
    earlier = [reply for reply in agent.replies if reply.last_step < step]
    time = earlier[-1].steps_end if earlier else agent.trajectory.start_time or ""
    if _is_before(time, message.timestamp or ""):
        raise UserError(
            f"message {message.sequence} of {recorded.label} was sent while {message.recipient} "
            "waited for it in a command: name a step as the fork point (--at agent1:12)"
        )
    return message.recipient, len(earlier), time


def _receive_index(agent: RecordedAgent, sequence: int) -> int | None:
    """Return where a message that was shown in the context is in the trajectory."""
    for index, step in enumerate(agent.steps):
        if step.action == "receive_message" and step.args.get("sequence") == sequence:
            return index
    return None


def _is_before(first: str, second: str) -> bool:
    times = parse_time(first), parse_time(second)
    return times[0] is not None and times[1] is not None and times[0] < times[1]
