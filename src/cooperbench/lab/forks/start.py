"""The beginning of a fork: a replay up to the fork point, then one intervention."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cooperbench.agents.session import AgentSession
from cooperbench.errors import AgentFailure, Interrupted, RunStopped
from cooperbench.gateway.recording import (
    Exchanges,
    ListFiles,
    PrefixExchanges,
    comparable,
    difference,
)
from cooperbench.lab.forks.gate import Gate
from cooperbench.lab.forks.intervention import Intervention, Replacement
from cooperbench.lab.forks.point import AgentPrefix, ForkPoint
from cooperbench.models import Message, Pair
from cooperbench.records import JsonObject
from cooperbench.records.conversation import ConversationMessage
from cooperbench.records.trajectory import Step, read_journal, read_trajectory
from cooperbench.runner.agent_code import AgentCode
from cooperbench.runner.config import AgentSpec, RunConfig
from cooperbench.runner.start import PairStart, Start
from cooperbench.storage import AgentPaths
from cooperbench.team.channel import Channel, ChannelRules, Sent
from cooperbench.team.team import Team
from cooperbench.text import printable

HANDED_OVER = "handed_over"
"""Status of an agent that is replaced at the fork point; no result has it."""
_RESET = 'git reset -q --hard "$(git rev-list --max-parents=0 HEAD | tail -n 1)" && git clean -qfd'


@dataclass(frozen=True)
class Fork(Start):
    """The beginnings of forks with one intervention."""

    points: Mapping[str, ForkPoint]
    """By the names of tasks and pairs, as `point_key` returns them."""
    intervention: Intervention

    @property
    def label(self) -> str:
        """The recorded run, the fork point and the intervention."""
        point = next(iter(self.points.values()))
        return f"{point.recorded.run_name} at {point.name}: {self.intervention.name}"

    def begin(self, config: RunConfig, pair: Pair) -> PairStart:
        """Begin an attempt at a pair."""
        return ForkStart(config, pair, self.points[point_key(pair)], self.intervention)


def point_key(pair: Pair) -> str:
    """Return what names a pair; its label may also name its arm."""
    return f"{pair.task.label} {pair.name}"


class ForkStart(PairStart):
    """The beginning of one attempt at a fork."""

    def __init__(
        self, config: RunConfig, pair: Pair, point: ForkPoint, intervention: Intervention
    ) -> None:
        super().__init__(config, pair)
        self.point = point
        self.intervention = intervention
        self._team: Team | None = None
        self.gate = Gate(point, self._insert_message)
        self._agents = {
            agent_id: ReplayedAgent(self, prefix) for agent_id, prefix in point.prefixes.items()
        }

    def make_channel(self, agent_id: str, agent_ids: Sequence[str]) -> Channel:
        """Return the channel of an agent."""
        label = f"{self.pair.task.label} {self.pair.name}"
        agent = self._agents[agent_id]
        rules = self.config.channel_rules
        return ReplayedChannel(rules, agent, agent_ids, label, self.intervention)

    def join(self, team: Team) -> None:
        """Get the communication of the agents."""
        self._team = team

    def make_code(self, agent_id: str, spec: AgentSpec) -> AgentCode:
        """Return the code of an agent, with that of its successor."""
        replacement = self.intervention.replacement(agent_id)
        if replacement is None:
            return AgentCode(spec.agent)
        return SuccessiveAgents(self._agents[agent_id], spec, replacement)

    def open_exchanges(
        self, agent_id: str, files: AgentPaths, list_files: ListFiles
    ) -> Exchanges | None:
        """Return exchanges that are replayed up to the fork point."""
        return self._agents[agent_id].open_exchanges(files, list_files)

    def prepare(self, session: AgentSession) -> None:
        """Get the session of an agent."""
        agent_id = session.slot.agent_id
        agent = self._agents[agent_id]
        agent.session = session
        recorded_model = agent.recorded.spec.model
        if recorded_model != session.model:
            session.called_model = session.model
            session.model = recorded_model

    def on_agent_end(self, agent_id: str, status: str, patch: bytes) -> None:
        """Compare an agent that has ended before the fork point with the record."""
        self._agents[agent_id].on_end(status, patch)

    def check(self) -> None:
        """Raise RunStopped with the first difference from the record."""
        problem = self.gate.problem
        if not problem and not self.gate.is_open:
            problem = "the agents ended before the fork point"
        if problem:
            raise RunStopped(
                f"the replay of {point_key(self.pair)} differs from run {self.run_name!r}, so that "
                f"it was not continued: {problem}"
            )

    @property
    def run_name(self) -> str:
        """The recorded run."""
        return self.point.recorded.run_name

    def close(self) -> None:
        """End everything that waits."""
        self.gate.close()

    def posted_messages(self) -> list[Message]:
        """Return the messages so far."""
        if self._team is None or self._team.mailbox is None:
            return []
        return self._team.mailbox.messages()

    def _insert_message(self) -> None:
        message = self.intervention.inserted_message()
        if message is None or self._team is None or self._team.mailbox is None:
            return
        step = self.point.prefixes[message.sender].steps
        self._team.mailbox.post(message.sender, message.recipient, message.text, step)


class ReplayedAgent:
    """One agent of a fork. It is the gate of the agent's exchanges."""

    session: AgentSession
    _files: AgentPaths
    _list_files: ListFiles
    _exchanges: PrefixExchanges

    def __init__(self, start: ForkStart, prefix: AgentPrefix) -> None:
        self._start = start
        self._gate = start.gate
        self._prefix = prefix
        self.recorded = prefix.agent
        self.agent_id = prefix.agent.agent_id
        self.is_replaced = False
        """Whether the agent has to end at the fork point, for another one."""
        self._is_live = False
        self._lock = threading.Lock()

    def open_exchanges(self, files: AgentPaths, list_files: ListFiles) -> PrefixExchanges:
        """Return the agent's exchanges."""
        self._files, self._list_files = files, list_files
        self._exchanges = PrefixExchanges(
            files.exchanges, self.recorded.exchanges, self._prefix.count, self, list_files
        )
        recorded = self._start.point.recorded
        self._exchanges.replacements = dict(
            self._start.intervention.replaced_texts(recorded.pair, recorded.setting, self.agent_id)
        )
        return self._exchanges

    def arrive(self, number: int) -> None:
        """Notify the others that the agent is about to send a request with this number."""
        self._gate.arrive(self.agent_id, number)

    def await_reply(self, number: int) -> None:
        """Wait until the others have done what they had done before this recorded reply."""
        self._gate.await_reply(self.agent_id, number, self.session)

    def fail(self, problem: str) -> AgentFailure:
        """End the replay of all agents; return the error to raise."""
        return self._gate.fail(f"{self.agent_id}: {problem}")

    def await_replayed(self, is_replayed: Callable[[], bool]) -> None:
        """Wait until all of the agent's recorded requests are answered."""
        self._wait("its other requests", is_replayed)

    def await_fork(self, is_replayed: Callable[[], bool]) -> None:
        """Wait until all agents are at the fork point and agree with the record."""
        with self._lock:
            if not self._is_live:
                self._go_live(is_replayed)
        if self.is_replaced:
            raise AgentFailure(HANDED_OVER, "another agent takes over")

    def _go_live(self, is_replayed: Callable[[], bool]) -> None:
        self.await_replayed(is_replayed)
        if self._prefix.has_ended:
            raise self.fail("it goes on after the end of the recorded run")
        self._wait("its messages to be sent", self._has_sent_all)
        problem = self._compare_steps() or self._compare_files()
        if problem:
            raise self.fail(problem)
        self._gate.await_open(self.agent_id, self.session)
        self.session.continue_from(
            cost=self.recorded.cost_of_first(self._prefix.count),
            seconds=self.recorded.seconds_until(self._prefix.end_time),
        )
        self._is_live = True

    def _wait(self, goal: str, is_met: Callable[[], bool]) -> None:
        self._gate.wait(self.agent_id, goal, is_met, self.session)

    def _own_messages(self) -> list[ConversationMessage]:
        messages = self._start.point.messages
        return [message for message in messages if message.sender == self.agent_id]

    def _sent_count(self) -> int:
        posted = self._start.posted_messages()
        return sum(message.sender == self.agent_id for message in posted)

    def _has_sent_all(self) -> bool:
        return self._sent_count() >= len(self._own_messages())

    def await_message_turn(self, recipient: str, text: str) -> ConversationMessage | None:
        """Wait until a message is the next one in the recorded order; return the recorded one.

        Returns:
            None after the fork point.

        Raises:
            AgentFailure: The recorded run had another message here.
        """
        if self._gate.is_open:
            return None
        own_messages = self._own_messages()
        count = self._sent_count()
        if count >= len(own_messages):
            raise self.fail(f"a message to {recipient} was not recorded: {text[:60]!r}")
        recorded = own_messages[count]
        now = {"to": recipient, "text": comparable(text)}
        then = {"to": recorded.recipient, "text": comparable(recorded.text)}
        if now != then:
            where = difference(then, now)
            raise self.fail(f"message {recorded.sequence} differs from the recorded run at {where}")
        position = self._start.point.messages.index(recorded)
        self._wait(
            f"the turn of message {recorded.sequence}",
            lambda: len(self._start.posted_messages()) == position,
        )
        return recorded

    def delivery_step(self, message: Message) -> float | None:
        """Return the step with which the agent gets a message of the replayed part.

        Returns:
            None for messages that were sent after the fork point.
        """
        messages = self._start.point.messages
        if message.sequence > len(messages):
            return None
        recorded = messages[message.sequence - 1]
        step: float = 0.0
        if self._prefix.has_shown(recorded):
            return float(recorded.delivered_step or 0)
        delay = self._start.config.channel_rules.delay_steps
        if delay:
            step = self.recorded.steps_begun_at(recorded.timestamp or "") + delay
        added = self._start.intervention.deliver(recorded).delay_steps
        return max(step, self._prefix.steps) + added if added else step

    def on_end(self, status: str, patch: bytes) -> None:
        """Compare the agent's end with the record, if it comes before the fork point."""
        if self._gate.is_open or self._gate.problem:
            return
        if not self._exchanges.is_replayed or not self._prefix.has_ended:
            self.fail(f"it ended ({status}) before the fork point, unlike in the recorded run")
        elif problem := self._compare_steps():
            self.fail(problem)
        elif patch != self.recorded.patch:
            then, now = self.recorded.patch.splitlines(), patch.splitlines()
            where = difference(
                {"patch": [line.decode("utf-8", "replace") for line in then]},
                {"patch": [line.decode("utf-8", "replace") for line in now]},
            )
            self.fail(f"its work differs from the recorded run at {where}")
        else:
            self._gate.end(self.agent_id)

    def _compare_steps(self) -> str:
        """Return the first difference between the replayed steps and the recorded ones."""
        journal = read_journal(self._files)
        if not journal and (trajectory := read_trajectory(self._files)) is not None:
            journal = trajectory.steps
        now = _comparable_steps(journal, self._prefix.steps)
        then = _comparable_steps(self.recorded.steps, self._prefix.steps)
        for number, content in then.items():
            if now.get(number) != content:
                where = difference(content, now.get(number))
                return f"step {number} differs from the recorded run at {where}"
        return ""

    def _compare_files(self) -> str:
        """Return the first file that is not as it was at the fork point in the recorded run.

        Older recordings have no files.
        """
        then = self.recorded.exchanges[self._prefix.count].get("files")
        if not isinstance(then, dict):
            return ""
        now = self._list_files()
        if now is None:
            return "its changed files cannot be listed"
        for path in sorted({*then, *now}):
            if then.get(path) != now.get(path):
                recorded, current = then.get(path, "unchanged"), now.get(path, "unchanged")
                return (
                    f"file {printable(path)} differs from the recorded run: recorded "
                    f"{printable(str(recorded))}, now {printable(current)} (mode, content, status)"
                )
        return ""


class ReplayedChannel(Channel):
    """The messages of one agent: as recorded up to the fork point, with the intervention."""

    def __init__(
        self,
        rules: ChannelRules,
        agent: ReplayedAgent,
        agent_ids: Sequence[str],
        pair_label: str,
        intervention: Intervention,
    ) -> None:
        super().__init__(rules, agent.agent_id, agent_ids, pair_label)
        self._agent = agent
        self._intervention = intervention

    def send(self, recipient: str, text: str) -> Sent:
        """Return what becomes of a message. Those of the replayed part have the recorded order."""
        is_lost = self.is_next_lost()
        try:
            recorded = self._agent.await_message_turn(recipient, text)
        except (AgentFailure, Interrupted):
            # The replay has failed, which ends the agents.
            return Sent(text, lost=True)
        if recorded is None:
            return Sent(text, is_lost)
        delivery = self._intervention.deliver(recorded)
        new_text = text if delivery.text == recorded.text else delivery.text
        return Sent(new_text, is_lost or delivery.lost)

    def delivery_step(self, message: Message, step: int) -> float:
        """Return the recipient's step with which it gets a message."""
        recorded_step = self._agent.delivery_step(message)
        return super().delivery_step(message, step) if recorded_step is None else recorded_step


class SuccessiveAgents(AgentCode):
    """An agent that is replayed up to the fork point, and the one that takes over."""

    def __init__(self, agent: ReplayedAgent, spec: AgentSpec, replacement: Replacement) -> None:
        super().__init__(spec.agent)
        agent.is_replaced = True
        self._agent = agent
        self._spec = spec
        self._replacement = replacement
        self._predecessor = AgentCode(agent.recorded.spec.agent)

    def programs(self) -> Path | None:
        """Return the folder with programs of either agent."""
        return self._predecessor.programs() or super().programs()

    def run(self, session: AgentSession) -> None:
        """Run the recorded agent, then its successor in the same session."""
        recorded = self._agent.recorded.spec
        session.config_path = recorded.config_path
        session.model, session.called_model = recorded.model, None
        try:
            self._predecessor.run(session)
        except AgentFailure as failure:
            if failure.status != HANDED_OVER:
                raise
        else:
            return
        self._agent.is_replaced = False
        session.fault = None
        session.config_path = self._spec.config_path
        session.model, session.base_url = self._spec.model, self._spec.base_url
        session.note(f"{self._spec.agent} takes over")
        if self._replacement.begins_with_base:
            session.execute(_RESET)
        super().run(session)


def _comparable_steps(steps: Sequence[Step], last: int) -> dict[int, JsonObject]:
    """Return what is compared of each step, by its number."""
    contents = {}
    for step in steps:
        if step.number is not None and step.number <= last:
            content: JsonObject = {
                "action": step.action,
                "args": step.args,
                "observation": step.observation,
            }
            if isinstance(step.returncode, int):
                content["returncode"] = step.returncode
            contents[step.number] = comparable(content)
    return contents
