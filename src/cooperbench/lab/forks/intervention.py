"""Interventions: the one thing that is different after a fork point."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from cooperbench.errors import UserError
from cooperbench.lab.forks.point import ForkPoint, PointName, find_message
from cooperbench.models import Pair, Setting, agent_slots
from cooperbench.records.conversation import ConversationMessage

CONTROL = "control"
_AGENT = re.compile(r"(solo|agent[1-9][0-9]?)=(.+)", re.DOTALL)
_MESSAGE = re.compile(r"([1-9][0-9]{0,8})=(.*)", re.DOTALL)
_DELAY = re.compile(r"([1-9][0-9]{0,8})=([1-9][0-9]{0,4})")
_INSERTED = re.compile(r"(agent[1-9][0-9]?)>(agent[1-9][0-9]?)=(.*)", re.DOTALL)
_MAX_NAME_CHARACTERS = 40


class Delivery(NamedTuple):
    """The fate of a message that was sent before the fork point and not shown yet."""

    text: str
    lost: bool = False
    delay_steps: int = 0


class InsertedMessage(NamedTuple):
    """A message that no agent has sent."""

    sender: str
    recipient: str
    text: str


class Replacement(NamedTuple):
    """The agent that takes over a slot at the fork point."""

    agent: str
    begins_with_base: bool
    """Whether it begins with the files of the base commit, not with those of its predecessor."""


@dataclass(frozen=True)
class Intervention:
    """No intervention; subclasses change one thing."""

    kind: ClassVar[str] = CONTROL

    @property
    def name(self) -> str:
        """The name of the arm, which is part of a path."""
        return self.kind

    @property
    def text(self) -> str:
        """The intervention for people."""
        return "no intervention"

    @property
    def slot(self) -> str | None:
        """The agent slot that changes."""
        return None

    @property
    def default_point(self) -> PointName | None:
        """The fork point if the user names none."""
        return None

    def check(self, point: ForkPoint) -> None:
        """Raise UserError if a fork point does not allow the intervention."""

    def deliver(self, message: ConversationMessage) -> Delivery:
        """Return what becomes of a message of the replayed part."""
        return Delivery(message.text)

    def inserted_message(self) -> InsertedMessage | None:
        """Return a message to send at the fork point."""
        return None

    def model(self, agent_id: str) -> str | None:
        """Return the model that the slot calls after the fork point, if it is another one."""
        del agent_id
        return None

    def replacement(self, agent_id: str) -> Replacement | None:
        """Return the agent that takes over a slot."""
        del agent_id
        return None

    def replaced_texts(self, pair: Pair, setting: Setting, agent_id: str) -> Mapping[str, str]:
        """Return texts in the requests of an agent, and what they are replaced with."""
        del pair, setting, agent_id
        return {}


@dataclass(frozen=True)
class _MessageIntervention(Intervention):
    """A change of one message. It has to be sent before the fork point and shown after it."""

    number: int

    @property
    def name(self) -> str:
        """The name of the arm."""
        return f"{self.kind}-{self.number}"

    @property
    def default_point(self) -> PointName | None:
        """The moment before the message is shown."""
        return PointName(None, self.number)

    def check(self, point: ForkPoint) -> None:
        """Raise UserError unless the message is sent before and shown after the fork point."""
        message = find_message(point.recorded, self.number)
        hint = f"fork at --at message:{self.number}"
        if not point.has_sent(message):
            raise UserError(
                f"message {self.number} of {point.recorded.label} was sent after {point.name}; "
                f"{hint}"
            )
        if point.has_shown(message):
            raise UserError(
                f"message {self.number} of {point.recorded.label} was shown to "
                f"{message.recipient} before {point.name}; {hint}"
            )
        if message.lost is True:
            raise UserError(f"message {self.number} of {point.recorded.label} was lost anyway")

    def deliver(self, message: ConversationMessage) -> Delivery:
        """Return what becomes of a message of the replayed part."""
        return (
            self._change(message.text)
            if message.sequence == self.number
            else super().deliver(message)
        )

    def _change(self, text: str) -> Delivery:
        raise NotImplementedError


@dataclass(frozen=True)
class DropMessage(_MessageIntervention):
    """A message never arrives."""

    kind: ClassVar[str] = "drop-message"

    @property
    def text(self) -> str:
        """The intervention for people."""
        return f"message {self.number} never arrives"

    def _change(self, text: str) -> Delivery:
        return Delivery(text, lost=True)


@dataclass(frozen=True)
class EditMessage(_MessageIntervention):
    """A message has another text."""

    kind: ClassVar[str] = "edit-message"
    new_text: str

    @property
    def name(self) -> str:
        """The name of the arm, with a digest of the text."""
        return f"{super().name}-{_digest(self.new_text)}"

    @property
    def text(self) -> str:
        """The intervention for people."""
        return f"message {self.number} has another text: {self.new_text}"

    def _change(self, text: str) -> Delivery:  # noqa: ARG002  # the old text does not matter
        return Delivery(self.new_text)


@dataclass(frozen=True)
class DelayMessage(_MessageIntervention):
    """A message arrives some steps later."""

    kind: ClassVar[str] = "delay-message"
    steps: int

    @property
    def name(self) -> str:
        """The name of the arm, with the number of steps."""
        return f"{super().name}-{self.steps}"

    @property
    def text(self) -> str:
        """The intervention for people."""
        return f"message {self.number} arrives {self.steps} steps later"

    def _change(self, text: str) -> Delivery:
        return Delivery(text, delay_steps=self.steps)


@dataclass(frozen=True)
class InsertMessage(Intervention):
    """A message that no agent has sent arrives at the fork point."""

    kind: ClassVar[str] = "insert-message"
    message: InsertedMessage

    @property
    def name(self) -> str:
        """The name of the arm, with a digest of the text."""
        message = self.message
        return f"{self.kind}-{message.sender}-{message.recipient}-{_digest(message.text)}"

    @property
    def text(self) -> str:
        """The intervention for people."""
        message = self.message
        return f"{message.recipient} gets a message from {message.sender}: {message.text}"

    def check(self, point: ForkPoint) -> None:
        """Raise UserError unless both are agents of the pair and may get messages."""
        for agent_id in (self.message.sender, self.message.recipient):
            _check_slot(point, agent_id)
        if point.prefixes[self.message.recipient].has_ended:
            raise UserError(
                f"{self.message.recipient} of {point.recorded.label} has ended by {point.name}"
            )

    def inserted_message(self) -> InsertedMessage | None:
        """Return the message."""
        return self.message


@dataclass(frozen=True)
class _SlotIntervention(Intervention):
    """A change of one agent slot, whose agent must not have ended."""

    agent_id: str

    @property
    def name(self) -> str:
        """The name of the arm."""
        return f"{self.kind}-{self.agent_id}"

    @property
    def slot(self) -> str | None:
        """The agent slot that changes."""
        return self.agent_id

    def check(self, point: ForkPoint) -> None:
        """Raise UserError unless the slot has an agent that is still at work."""
        _check_slot(point, self.agent_id)
        if point.prefixes[self.agent_id].has_ended:
            raise UserError(f"{self.agent_id} of {point.recorded.label} has ended by {point.name}")


@dataclass(frozen=True)
class SwapModel(_SlotIntervention):
    """One agent goes on with another model."""

    kind: ClassVar[str] = "model"
    new_model: str

    @property
    def name(self) -> str:
        """The name of the arm, with that of the model."""
        return f"{super().name}-{_path_part(self.new_model)}"

    @property
    def text(self) -> str:
        """The intervention for people."""
        return f"{self.agent_id} goes on with model {self.new_model}"

    def model(self, agent_id: str) -> str | None:
        """Return the model for the slot."""
        return self.new_model if agent_id == self.agent_id else None


@dataclass(frozen=True)
class SwapAgent(_SlotIntervention):
    """Another agent takes over a slot. It begins with the files of its predecessor."""

    kind: ClassVar[str] = "agent"
    new_agent: str

    @property
    def name(self) -> str:
        """The name of the arm, with that of the agent."""
        return f"{super().name}-{_path_part(self.new_agent)}"

    @property
    def text(self) -> str:
        """The intervention for people."""
        return f"agent {self.new_agent} takes over from {self.agent_id}"

    def replacement(self, agent_id: str) -> Replacement | None:
        """Return the agent for the slot."""
        if agent_id != self.agent_id:
            return None
        return Replacement(self.new_agent, begins_with_base=False)


@dataclass(frozen=True)
class Oracle(_SlotIntervention):
    """A slot has the golden patch from the fork point on, and nothing else."""

    kind: ClassVar[str] = "oracle"

    @property
    def text(self) -> str:
        """The intervention for people."""
        return f"{self.agent_id} has the golden patch"

    def replacement(self, agent_id: str) -> Replacement | None:
        """Return the agent for the slot."""
        if agent_id != self.agent_id:
            return None
        return Replacement("oracle", begins_with_base=True)


@dataclass(frozen=True)
class Describe(_SlotIntervention):
    """The feature of one agent has another description in all requests after the fork point."""

    kind: ClassVar[str] = "description"
    new_text: str

    @property
    def name(self) -> str:
        """The name of the arm, with a digest of the text."""
        return f"{super().name}-{_digest(self.new_text)}"

    @property
    def text(self) -> str:
        """The intervention for people."""
        return f"the feature of {self.agent_id} has another description"

    def check(self, point: ForkPoint) -> None:
        """Raise UserError unless the agent has one feature, whose description it was sent."""
        super().check(point)
        recorded = point.recorded
        texts = self.replaced_texts(recorded.pair, recorded.setting, self.agent_id)
        if len(texts) != 1:
            raise UserError(
                f"{self.agent_id} of {recorded.label} has {len(texts)} features: their "
                "descriptions cannot be replaced by one"
            )
        first_request = recorded.agents[self.agent_id].exchanges[0]["request"]
        if not _contains_text(first_request, next(iter(texts))):
            raise UserError(
                f"the first request of {self.agent_id} in {recorded.label} does not have the "
                "description of its feature as the dataset has it"
            )

    def replaced_texts(self, pair: Pair, setting: Setting, agent_id: str) -> Mapping[str, str]:
        """Return the old description and the new one."""
        if agent_id != self.agent_id:
            return {}
        texts = {}
        for slot in agent_slots(pair, setting):
            if slot.agent_id == agent_id:
                for feature in slot.features:
                    old_text = feature.description.read_bytes().decode("utf-8", "replace")
                    texts[old_text.strip("\n")] = self.new_text.strip("\n")
        return texts


def parse_edit(value: str) -> EditMessage:
    """Parse `3=TEXT`."""
    match = _MESSAGE.fullmatch(value)
    if match is None or not match[2].strip():
        raise UserError(f"--edit-message {value!r}: write the message's number and text: 3=TEXT")
    return EditMessage(int(match[1]), match[2])


def parse_delay(value: str) -> DelayMessage:
    """Parse `3=5`."""
    match = _DELAY.fullmatch(value)
    if match is None:
        raise UserError(f"--delay-message {value!r}: write the message's number and steps: 3=5")
    return DelayMessage(int(match[1]), int(match[2]))


def parse_insert(value: str) -> InsertMessage:
    """Parse `agent1>agent2=TEXT`."""
    match = _INSERTED.fullmatch(value)
    if match is None or match[1] == match[2] or not match[3].strip():
        raise UserError(f"--insert-message {value!r}: write agent1>agent2=TEXT")
    return InsertMessage(InsertedMessage(match[1], match[2], match[3]))


def parse_slot(flag: str, value: str, example: str) -> tuple[str, str]:
    """Parse `agent2=VALUE`; return the slot and the value."""
    match = _AGENT.fullmatch(value)
    if match is None:
        raise UserError(f"{flag} {value!r}: write {example}")
    return match[1], match[2]


def read_description(value: str) -> Describe:
    """Parse `agent2=FILE`, and read the file."""
    agent_id, path = parse_slot("--describe", value, "agent2=FILE")
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--describe: {path} cannot be read: {error}") from error
    if not text.strip():
        raise UserError(f"--describe: {path} is empty")
    return Describe(agent_id, text)


def _check_slot(point: ForkPoint, agent_id: str) -> None:
    if agent_id not in point.prefixes:
        agents = ", ".join(point.prefixes)
        raise UserError(f"there is no {agent_id} in {point.recorded.label}: it has {agents}")


def _contains_text(value: object, text: str) -> bool:
    if isinstance(value, dict):
        return any(_contains_text(inner, text) for inner in value.values())
    if isinstance(value, list):
        return any(_contains_text(inner, text) for inner in value)
    return isinstance(value, str) and text in value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]


def _path_part(text: str) -> str:
    characters = [c if c.isalnum() or c in "._-" else "_" for c in text.rpartition("/")[2]]
    return f"{''.join(characters)[:_MAX_NAME_CHARACTERS]}-{_digest(text)}"
