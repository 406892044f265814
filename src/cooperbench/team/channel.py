"""The channel between agents as an experimental factor: budgets, delay, loss, and who may write.

`ChannelRules` are the options of a run. A `Channel` applies them to the messages of one agent; the
harness accepts messages in `Inbox.send` only, and asks it there.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

from cooperbench.errors import UserError
from cooperbench.models import MAX_AGENTS, Message
from cooperbench.text import plural

Knowledge = Literal["nothing", "titles", "descriptions", "interfaces"]
KNOWLEDGE: tuple[Knowledge, ...] = get_args(Knowledge)
"""What an agent's prompt says about the features of others; each level includes the one before."""
TOPOLOGIES = ("all", "ring", "star")
"""Topologies that have a name. In a star, agent1 is in the middle."""
_EDGE = re.compile(r"(agent[1-9][0-9]?)>(agent[1-9][0-9]?)")
_DIGEST_RANGE = float(1 << 64)


@dataclass(frozen=True)
class ChannelRules:
    """Rules of messages: their number and size, who may write to whom, delay and loss."""

    messages: int | None = None
    """Number of messages that an agent may send; None for no limit. A message to several agents
    counts once for each of them."""
    characters: int | None = None
    """Number of characters that all messages of an agent may have; None for no limit."""
    delay_steps: int = 0
    """Steps that the recipient takes before it gets a message."""
    loss: float = 0.0
    """Probability that a message is lost."""
    loss_seed: int = 0
    topology: str = "all"
    knows: Knowledge = "nothing"

    @property
    def is_silent(self) -> bool:
        """Whether agents may not send anything, which is the same as a run without messages."""
        return self.messages == 0 or self.characters == 0

    @property
    def without_delay(self) -> ChannelRules:
        """The rules for a replay, which shows messages at the recorded points."""
        return replace(self, delay_steps=0)

    def recipients(self, sender: str, agent_ids: Sequence[str]) -> tuple[str, ...]:
        """Return the agents that an agent may write to."""
        others = [agent_id for agent_id in agent_ids if agent_id != sender]
        if self.topology == "all":
            return tuple(others)
        if self.topology == "star":
            center = agent_ids[0]
            return tuple(others) if sender == center else (center,)
        if self.topology == "ring":
            index = agent_ids.index(sender)
            neighbors = {agent_ids[index - 1], agent_ids[(index + 1) % len(agent_ids)]}
            return tuple(other for other in others if other in neighbors)
        edges = parse_edges(self.topology)
        return tuple(other for other in others if (sender, other) in edges)

    def senders(self, recipient: str, agent_ids: Sequence[str]) -> tuple[str, ...]:
        """Return the agents that may write to an agent."""
        return tuple(
            agent_id
            for agent_id in agent_ids
            if agent_id != recipient and recipient in self.recipients(agent_id, agent_ids)
        )


NO_RULES = ChannelRules()


def parse_edges(topology: str) -> list[tuple[str, str]]:
    """Return the senders and recipients in `agent1>agent2,agent2>agent3`.

    Raises:
        UserError: The text is not such a list.
    """
    edges: list[tuple[str, str]] = []
    for part in topology.split(","):
        match = _EDGE.fullmatch(part.strip())
        if match is None or match[1] == match[2]:
            raise UserError(
                f"topology {topology!r} is not one of {', '.join(TOPOLOGIES)}, and not a list of "
                "who may write to whom, e.g. 'agent1>agent2,agent2>agent1'"
            )
        if (match[1], match[2]) in edges:
            raise UserError(f"topology {topology!r} has {part.strip()} twice")
        edges.append((match[1], match[2]))
    return edges


def check_topology(topology: str, agents: int = MAX_AGENTS, owner: str = "a run") -> None:
    """Raise UserError for a topology that is not valid, or that has other agents than `owner`."""
    if topology in TOPOLOGIES:
        return
    for edge in parse_edges(topology):
        for agent_id in edge:
            if int(agent_id.removeprefix("agent")) > agents:
                raise UserError(
                    f"topology {topology!r} has {agent_id}, but {owner} has "
                    f"{plural(agents, 'agent')} at most"
                )


class Sent(NamedTuple):
    """The fate of a message: the text that is delivered, unless it is lost."""

    text: str
    lost: bool


class Channel:
    """The messages of one agent: whom it may write to, and what is left of its budget."""

    def __init__(
        self, rules: ChannelRules, agent_id: str, agent_ids: Sequence[str], pair_label: str = ""
    ) -> None:
        """Store the rules for an agent; the label of the pair is part of the seed of losses."""
        self.rules = rules
        self.recipients = rules.recipients(agent_id, agent_ids)
        self._seed = f"{rules.loss_seed} {pair_label} {agent_id}"
        self._messages = 0
        self._characters = 0
        self._posted = 0
        self._lock = threading.Lock()

    def spend(self, recipients: Sequence[str], text: str) -> str | None:
        """Count a message, or return why it may not be sent."""
        refused = [name for name in recipients if name not in self.recipients]
        if refused or not recipients:
            allowed = ", ".join(self.recipients) or "nobody"
            return f"you cannot write to {', '.join(refused) or 'anybody'}; you can: {allowed}"
        with self._lock:
            messages = self._messages + len(recipients)
            characters = self._characters + len(text) * len(recipients)
            limits = ((messages, self.rules.messages), (characters, self.rules.characters))
            if any(limit is not None and used > limit for used, limit in limits):
                return f"this is more than your budget has left: {self._left()}"
            self._messages = messages
            self._characters = characters
        return None

    def send(self, recipient: str, text: str) -> Sent:  # noqa: ARG002  # replays use it
        """Return what becomes of an accepted message on its way to one agent."""
        return Sent(text, self.is_next_lost())

    def delivery_step(self, message: Message, step: int) -> float:  # noqa: ARG002  # see `send`
        """Return the recipient's step with which it gets a message; `step` is its current one."""
        return step + self.rules.delay_steps

    def is_next_lost(self) -> bool:
        """Count a message to one agent, and return whether it is lost.

        It depends on the seed, the pair, the sender and the number of its message only: a message
        that is lost at some probability is lost at every higher one, in every run.
        """
        with self._lock:
            self._posted += 1
            digest = hashlib.sha256(f"{self._seed} {self._posted}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / _DIGEST_RANGE < self.rules.loss

    def budget_text(self) -> str:
        """Return what is left of the budget, for the sender; empty without a budget."""
        with self._lock:
            remaining = self._left()
        return f"{remaining} left" if remaining else ""

    def _left(self) -> str:
        texts = []
        if self.rules.messages is not None:
            texts.append(plural(self.rules.messages - self._messages, "message"))
        if self.rules.characters is not None:
            texts.append(plural(self.rules.characters - self._characters, "character"))
        return ", ".join(texts)
