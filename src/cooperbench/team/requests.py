"""Requests between the agents of a team: one asks and waits, another answers.

Waiting ends with the answer, when the time is up, when the one who was asked has ended, or when the one who waits is
asked something itself: otherwise two who ask each other would both wait for nothing. An answer that comes later is
shown to the one who asked before its next step.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cooperbench.storage import utc_now
from cooperbench.team.sandbox_rpc import Response
from cooperbench.text import head_and_tail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DEFAULT_WAIT_SECONDS = 60.0
LONGEST_WAIT_SECONDS = 3600.0
LONGEST_BODY = 20_000
"""Characters of a request, and of its answer."""
MOST_ASKED = 500
"""Requests of one agent."""
NO_ANSWER = 3
"""Exit code of a request that was not answered in time."""
_SHOWN_BODY = 4_000
_KIND = re.compile(r"[\w-]{1,40}")


@dataclass
class TeamRequest:
    id: int
    sender: str
    recipient: str
    kind: str
    body: str
    asked_at: str
    asked_step: int
    answer: str | None = None
    answered_at: str | None = None
    waited_seconds: float | None = None
    """How long the sender waited; None while it still does."""
    asked: float = field(default_factory=time.monotonic)
    response: Future[Response] = field(default_factory=Future)
    timer: threading.Timer | None = None

    def text(self) -> str:
        body = head_and_tail(self.body, _SHOWN_BODY)
        return f'Request {self.id} from {self.sender} ({self.kind}); answer it with coop-respond {self.id} "…":\n{body}'

    def answer_text(self) -> str:
        return f"{self.recipient} answered your request {self.id} ({self.kind}):\n{self.answer}"


class Requests:
    """All methods may be called from several threads."""

    def __init__(
        self,
        agent_ids: Sequence[str],
        step_of: Callable[[str], int],
        tell: Callable[[str, str, str], None],
    ) -> None:
        self._agent_ids = tuple(agent_ids)
        self._step_of = step_of
        self._tell = tell
        """Called with the agent to whom something is to be shown, what it is about, and the text."""
        self._all: list[TeamRequest] = []
        self._asked: Counter[str] = Counter()
        self._ended: set[str] = set()
        self._lock = threading.RLock()

    def ask(
        self, sender: str, recipient: str, kind: str, body: str, wait_seconds: float | None = None
    ) -> Response | Future[Response]:
        """A future that holds the answer, or why there is none."""
        seconds = DEFAULT_WAIT_SECONDS if wait_seconds is None else wait_seconds
        others = [one for one in self._agent_ids if one != sender]
        if recipient not in others:
            return Response(2, f"no colleague {recipient[:50]!r}; there is: {', '.join(others)}")
        if not _KIND.fullmatch(kind):
            return Response(2, "the kind is one word, e.g. review or question")
        if not body.strip() or len(body) > LONGEST_BODY:
            return Response(2, f"the text has 1 to {LONGEST_BODY} characters")
        if not 0 <= seconds <= LONGEST_WAIT_SECONDS:
            return Response(2, f"a request waits 0 to {LONGEST_WAIT_SECONDS:g} seconds")
        with self._lock:
            if recipient in self._ended:
                return Response(NO_ANSWER, f"{recipient} has finished and cannot answer")
            if self._asked[sender] >= MOST_ASKED:
                return Response(2, f"you have asked enough: at most {MOST_ASKED} requests")
            self._asked[sender] += 1
            request = TeamRequest(
                len(self._all) + 1, sender, recipient, kind, body, utc_now(), self._step_of(sender)
            )
            self._all.append(request)
            for waiting in self._waiting(lambda one: one.sender == recipient):
                self._settle(
                    waiting, Response(NO_ANSWER, f"no answer yet: {sender} asks you.\n{request.text()}")
                )
            request.timer = threading.Timer(seconds, self._expire, (request, seconds))
            request.timer.daemon = True
            request.timer.start()
        self._tell(recipient, f"request {request.id}", request.text())
        return request.response

    def respond(self, agent_id: str, request_id: int, body: str) -> Response:
        if not body.strip() or len(body) > LONGEST_BODY:
            return Response(2, f"the text has 1 to {LONGEST_BODY} characters")
        with self._lock:
            if not 1 <= request_id <= len(self._all) or self._all[request_id - 1].recipient != agent_id:
                return Response(2, f"there is no request {request_id} to you")
            request = self._all[request_id - 1]
            if request.answer is not None:
                return Response(2, f"request {request_id} is answered already")
            request.answer, request.answered_at = body, utc_now()
            late = not self._settle(request, Response(0, request.answer_text() + "\n"))
        if late:
            self._tell(request.sender, f"answer {request.id}", request.answer_text())
        return Response(0, f"{request.sender} has your answer.\n")

    def pending(self, agent_id: str) -> Response:
        """What the agent is asked, and what became of its own requests."""
        with self._lock:
            parts = [one.text() for one in self._all if one.recipient == agent_id and one.answer is None][:20]
            own = [one for one in self._all if one.sender == agent_id][-10:]
        for one in own:
            waiting = f"Your request {one.id} to {one.recipient} ({one.kind}) has no answer yet."
            parts.append(waiting if one.answer is None else one.answer_text())
        return Response(0, "\n\n".join(parts or ["No requests."]) + "\n")

    def end(self, agent_id: str) -> None:
        """An agent is done: nobody waits for its answers any more."""
        with self._lock:
            self._ended.add(agent_id)
            for request in self._waiting(lambda one: agent_id in (one.sender, one.recipient)):
                self._settle(request, Response(NO_ANSWER, f"{agent_id} has finished and cannot answer"))

    def log(self) -> list[dict[str, Any]]:
        hidden = ("asked", "response", "timer")
        with self._lock:
            return [
                {name: value for name, value in vars(one).items() if name not in hidden} for one in self._all
            ]

    def metrics(self) -> dict[str, Any]:
        with self._lock:
            return {
                "requests_total": len(self._all),
                "requests_answered": sum(one.answer is not None for one in self._all),
                "request_waiting_seconds": round(sum(one.waited_seconds or 0.0 for one in self._all), 3),
            }

    def _waiting(self, which: Callable[[TeamRequest], bool]) -> list[TeamRequest]:
        return [one for one in self._all if not one.response.done() and which(one)]

    def _expire(self, request: TeamRequest, seconds: float) -> None:
        with self._lock:
            text = f"no answer from {request.recipient} within {seconds:g} seconds"
            self._settle(request, Response(NO_ANSWER, f"{text}; `coop-pending` shows it when it comes"))

    def _settle(self, request: TeamRequest, response: Response) -> bool:
        """End the waiting; False where it had ended before."""
        if request.response.done():
            return False
        if request.timer is not None:
            request.timer.cancel()
        request.waited_seconds = round(time.monotonic() - request.asked, 3)
        request.response.set_result(response)
        return True
