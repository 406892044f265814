"""The gate of a replayed pair: agents replay in the recorded order and go on together.

A recorded reply is given when all other agents have ended the steps that they had ended before it
in the recorded run. So messages, pushes and changes of shared files have the same order as then.
No agent calls its model before all have reached the fork point and agree with the record.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from cooperbench.agents.session import AgentSession
from cooperbench.errors import AgentFailure, Interrupted
from cooperbench.gateway.recording import DIFFERS
from cooperbench.lab.forks.point import ForkPoint

_POLL_SECONDS = 0.02
_STUCK_SECONDS = 120.0
"""How long all agents may wait for each other without any progress."""


class Gate:
    """The order of one replayed pair, which its agents have in common."""

    def __init__(self, point: ForkPoint, on_open: Callable[[], None]) -> None:
        """Store the arguments; `on_open` is called when all agents are at the fork point."""
        self._point = point
        self._on_open = on_open
        self._changed = threading.Condition()
        self._requests = dict.fromkeys(point.prefixes, 0)
        """The number of the request that each agent has reached."""
        self._done: set[str] = set()
        """Agents that have ended or are at the fork point."""
        self._ended: set[str] = set()
        self._waiting: dict[str, str] = {}
        """What agents wait for."""
        self._progress = time.monotonic()
        self._is_closed = False
        self.problem = ""
        """The first difference from the record."""
        self.is_open = False

    def fail(self, problem: str) -> AgentFailure:
        """End the replay of all agents, and return the error to raise."""
        with self._changed:
            self.problem = self.problem or problem
            self._changed.notify_all()
            return AgentFailure(DIFFERS, self.problem)

    def close(self) -> None:
        """End all waiting."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def arrive(self, agent_id: str, number: int) -> None:
        """Record that an agent is about to send a request."""
        with self._changed:
            if number > self._requests[agent_id]:
                self._requests[agent_id] = number
                self._note_progress()

    def end(self, agent_id: str) -> None:
        """Record that an agent has ended as it had in the recorded run."""
        with self._changed:
            self._ended.add(agent_id)
            self._mark_done(agent_id)

    def await_reply(self, agent_id: str, number: int, session: AgentSession) -> None:
        """Wait until the others have done what they had done before a recorded reply."""
        reply_time = self._point.prefixes[agent_id].agent.replies[number - 1].time
        needed: dict[str, int] = {}
        for other, prefix in self._point.prefixes.items():
            if other != agent_id:
                replies = prefix.agent.replies[: prefix.count]
                needed[other] = sum(reply.steps_end < reply_time for reply in replies)

        def is_due() -> bool:
            """Return whether the others have done what they had done."""
            return all(
                self._requests[other] > count or other in self._ended
                for other, count in needed.items()
            )

        self.wait(agent_id, f"its recorded reply {number}", is_due, session)

    def await_open(self, agent_id: str, session: AgentSession) -> None:
        """Wait at the fork point until all agents are there."""
        with self._changed:
            self._mark_done(agent_id)
        self.wait(agent_id, "the fork point", lambda: self.is_open, session)

    def wait(
        self, agent_id: str, goal: str, is_met: Callable[[], bool], session: AgentSession
    ) -> None:
        """Wait for a condition; `goal` describes it.

        Raises:
            AgentFailure: The replay has failed, or the agent has reached a limit.
            Interrupted: The run is being stopped.
        """
        with self._changed:
            self._waiting[agent_id] = goal
            try:
                while not is_met():
                    self._raise_if_over()
                    session.check_running()
                    self._fail_if_stuck()
                    self._changed.wait(_POLL_SECONDS)
                self._raise_if_over()
            finally:
                self._waiting.pop(agent_id, None)
                self._note_progress()

    def _raise_if_over(self) -> None:
        if self.problem:
            raise AgentFailure(DIFFERS, self.problem)
        if self._is_closed:
            raise Interrupted("the pair has ended")

    def _fail_if_stuck(self) -> None:
        is_everybody_waiting = self._waiting.keys() | self._done == self._requests.keys()
        if is_everybody_waiting and time.monotonic() - self._progress > _STUCK_SECONDS:
            goals = [f"{agent_id} waits for {goal}" for agent_id, goal in self._waiting.items()]
            raise self.fail(f"the replay does not go on: {', '.join(goals)}")

    def _note_progress(self) -> None:
        self._progress = time.monotonic()
        self._changed.notify_all()

    def _mark_done(self, agent_id: str) -> None:
        self._done.add(agent_id)
        if self._done == self._requests.keys() and not self.is_open and not self.problem:
            self._on_open()
            self.is_open = True
        self._note_progress()
