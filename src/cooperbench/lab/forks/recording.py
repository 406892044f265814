"""A recorded pair: exchanges with models, trajectories and messages.

It may come from somebody else. It is data only: it names no code to load and no file to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cooperbench import records
from cooperbench.dataset.content_hash import pair_content_sha256
from cooperbench.errors import UserError
from cooperbench.gateway.recording import read_exchanges
from cooperbench.models import Pair, Setting, agent_slots
from cooperbench.records import JsonObject
from cooperbench.records.conversation import Conversation, ConversationMessage
from cooperbench.records.result import PairResult
from cooperbench.records.trajectory import Step, Trajectory
from cooperbench.runner.config import AgentSpec, RunConfig
from cooperbench.storage import AgentPaths, ExperimentPaths, read_bytes, seconds_between
from cooperbench.text import printable

_EXCHANGE_FIELDS = {"kind": str, "request": dict, "answer": list, "received": int}


@dataclass(frozen=True)
class Reply:
    """A reply of a model, and when the steps that it asked for had ended."""

    index: int
    """Position in the trajectory."""
    time: str
    steps_end: str
    last_step: int
    """Number of the agent's steps so far, with those of this reply."""


@dataclass(frozen=True)
class RecordedAgent:
    """One agent of a recorded pair."""

    agent_id: str
    spec: AgentSpec
    """The agent of the slot, by config.json."""
    trajectory: Trajectory
    exchanges: tuple[JsonObject, ...]
    patch: bytes

    @property
    def steps(self) -> list[Step]:
        """Everything in the trajectory."""
        return self.trajectory.steps

    @cached_property
    def replies(self) -> list[Reply]:
        """The replies of models, one for each exchange."""
        indexes = [index for index, step in enumerate(self.steps) if step.action == "reply"]
        replies = []
        last_step = 0
        for position, index in enumerate(indexes):
            is_last = position + 1 == len(indexes)
            following = self.steps[index + 1 : None if is_last else indexes[position + 1]]
            time = self.steps[index].timestamp
            steps_end = time
            for step in following:
                if step.number is not None:
                    last_step = max(last_step, step.number)
                    steps_end = max(steps_end, step.timestamp)
            replies.append(Reply(index, time, steps_end, last_step))
        return replies

    def cost_of_first(self, count: int) -> float:
        """Return the cost of the first replies."""
        return sum(self.steps[reply.index].usage.cost for reply in self.replies[:count])

    def steps_begun_at(self, time: str) -> int:
        """Return the number of steps that the agent had begun at some time."""
        return max((reply.last_step for reply in self.replies if reply.time <= time), default=0)

    def seconds_until(self, time: str) -> float:
        """Return the seconds that the agent had worked at some time."""
        return seconds_between(self.trajectory.start_time, time) or 0.0


@dataclass(frozen=True)
class RecordedPair:
    """A pair of a recorded run."""

    run_name: str
    pair: Pair
    setting: Setting
    agents: Mapping[str, RecordedAgent]
    messages: tuple[ConversationMessage, ...]

    @property
    def label(self) -> str:
        """The pair as it is shown to people."""
        return self.pair.label


def read_recorded_pair(config: RunConfig, run: ExperimentPaths, pair: Pair) -> RecordedPair:
    """Read everything that a fork needs of a pair.

    Args:
        config: A configuration with the agents of the recorded run.
        run: The recorded run.
        pair: The pair.

    Raises:
        UserError: The pair cannot be replayed.
    """
    setting = config.setting
    paths = run.pair(pair, setting)
    result = records.read(paths.result, PairResult)
    if result is None or not result.is_completed:
        raise UserError(f"{pair.label} has no complete result in run {run.run_name!r}")
    if result.dataset_sha256 and result.dataset_sha256 != pair_content_sha256(pair):
        raise UserError(f"{pair.label} has changed in the dataset since it was recorded")
    if result.shared is not None:
        raise UserError(
            f"{pair.label} of run {run.run_name!r} cannot be forked: its agents shared a "
            "workspace, where the effects of commands depend on when others ran theirs"
        )
    agents = {}
    for slot, spec in zip(agent_slots(pair, setting), config.agent_specs(pair), strict=True):
        agents[slot.agent_id] = _read_agent(paths.agent(slot.agent_id), pair, spec)
    conversation = records.read(paths.conversation, Conversation)
    messages = tuple(conversation.messages) if conversation is not None else ()
    return RecordedPair(run.run_name, pair, setting, agents, messages)


def _read_agent(files: AgentPaths, pair: Pair, spec: AgentSpec) -> RecordedAgent:
    agent_id = files.agent_id
    trajectory = records.read(files.trajectory, Trajectory)
    if trajectory is None:
        raise UserError(f"{pair.label}: {files.trajectory} is missing or cannot be read")
    owner = f"{agent_id} of {pair.label} ({printable(spec.agent)})"
    if spec.model is None:
        raise UserError(f"{owner} cannot be replayed: it does not use a model")
    if (trajectory.agent, trajectory.model) != (spec.agent, spec.model):
        raise UserError(f"{owner} cannot be replayed: its trajectory is of another agent or model")
    exchanges = tuple(read_exchanges(files.exchanges))
    if not exchanges:
        raise UserError(f"{owner} was not recorded: make the run with --record")
    if not all(_is_exchange(exchange) for exchange in exchanges):
        raise UserError(f"{owner}: {files.exchanges} is damaged")
    patch = read_bytes(files.patch) or b""
    agent = RecordedAgent(agent_id, spec, trajectory, exchanges, patch)
    if len(agent.replies) != len(exchanges):
        raise UserError(
            f"{owner} cannot be replayed: {len(exchanges)} exchanges were recorded, but its "
            f"trajectory has {len(agent.replies)} replies"
        )
    return agent


def _is_exchange(record: object) -> bool:
    if not isinstance(record, dict):
        return False
    return all(isinstance(record.get(name), kind) for name, kind in _EXCHANGE_FIELDS.items())
