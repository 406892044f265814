"""Requests between the agents of a team: one asks and waits, another answers.

Waiting ends with the answer, when the time is up, when the one who was asked has ended, or when the one who waits is
asked something itself: otherwise two who ask each other would both wait for nothing. A later answer is shown to the
one who asked before its next step.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cooperbench.storage import utc_now
from cooperbench.team.sandbox_rpc import Response
from cooperbench.text import head_and_tail, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DEFAULT_WAIT_SECONDS = 60.0
LONGEST_WAIT_SECONDS = 3600.0
MOST_ASKED = 500
"""Requests of one agent."""
LONGEST_BODY = 20_000
"""Characters of a request, and of its answer."""
NO_ANSWER = 3
"""Exit code of a request that was not answered in time."""
_MOST_SHOWN = 20


@dataclass(eq=False)
class Request:
    id: int
    sender: str
    recipient: str
    kind: str
    body: str
    asked_at: str
    sender_step: int
    answer: str | None = None
    answered_at: str | None = None
    waited_seconds: float | None = None
    """How long the sender waited; None while it still does."""
    asked: float = field(default_factory=time.monotonic)
    response: Future[Response] = field(default_factory=Future)

    def text(self) -> str:
        how = f'answer it with coop-respond {self.id} "…"'
        body = head_and_tail(self.body, 4_000)
        return f"Request {self.id} from {self.sender} ({self.kind}); {how}:\n{body}"

    def outcome(self) -> str:
        name = f"your request {self.id} ({self.kind})"
        return (
            f"{self.recipient} answered {name}:\n{self.answer}"
            if self.answer
            else f"No answer yet to {name}."
        )


class Requests:
    """All methods may be called from several threads."""

    def __init__(
        self,
        agent_ids: Sequence[str],
        step_of: Callable[[str], int],
        tell: Callable[[str, str, str], None],
    ) -> None:
        """`tell(agent, subject, text)` shows something to an agent before its next step."""
        self._agent_ids = tuple(agent_ids)
        self._step_of = step_of
        self._tell = tell
        self._all: list[Request] = []
        self._ended: set[str] = set()
        self._lock = threading.RLock()

    def ask(
        self, sender: str, recipient: str, kind: str, body: str, seconds: float
    ) -> Response | Future[Response]:
        """A future that holds the answer, or why there is none."""
        others = [one for one in self._agent_ids if one != sender]
        with self._lock:
            if recipient not in others:
                return Response(
                    2, f"no colleague {printable(recipient[:50])!r}; there is: {', '.join(others)}"
                )
            if recipient in self._ended:
                return Response(NO_ANSWER, f"{recipient} has finished and cannot answer")
            if not body.strip() or len(body) > LONGEST_BODY:
                return Response(2, f"a request has 1 to {LONGEST_BODY} characters")
            if not 0 <= seconds <= LONGEST_WAIT_SECONDS:
                return Response(2, f"a request waits 0 to {LONGEST_WAIT_SECONDS:g} seconds")
            if sum(one.sender == sender for one in self._all) >= MOST_ASKED:
                return Response(2, f"you have asked enough: at most {MOST_ASKED} requests")
            step, kind = self._step_of(sender), printable(kind[:40])
            request = Request(len(self._all) + 1, sender, recipient, kind, body, utc_now(), step)
            text = f"no answer yet: {sender} asks you.\n{request.text()}"
            self._end_waiting(lambda one: one.sender == recipient, text)
            self._all.append(request)
        text = f"no answer within {seconds:g} seconds"
        timer = threading.Timer(seconds, self._end_waiting, (lambda one: one is request, text))
        timer.daemon = True
        timer.start()
        request.response.add_done_callback(lambda _: timer.cancel())
        self._tell(recipient, f"request {request.id}", request.text())
        return request.response

    def respond(self, agent_id: str, request_id: int, body: str) -> Response:
        if not body.strip() or len(body) > LONGEST_BODY:
            return Response(2, f"an answer has 1 to {LONGEST_BODY} characters")
        with self._lock:
            found = [one for one in self._all if (one.id, one.recipient) == (request_id, agent_id)]
            if not found:
                return Response(2, f"there is no request {request_id} to you")
            (request,) = found
            if request.answer is not None:
                return Response(2, f"request {request_id} is answered already")
            request.answer, request.answered_at = body, utc_now()
            late = request.response.done()
            self._end_waiting(lambda one: one is request, f"{request.outcome()}\n", 0)
        if late:
            self._tell(request.sender, f"answer {request.id}", request.outcome())
        return Response(0, f"{request.sender} has your answer.\n")

    def pending(self, agent_id: str) -> Response:
        with self._lock:
            asked = [one.text() for one in self._all if one.recipient == agent_id and one.answer is None]
            own = [one.outcome() for one in self._all if one.sender == agent_id]
        texts = [*asked[:_MOST_SHOWN], *own[-_MOST_SHOWN:]] or ["No requests."]
        return Response(0, "\n\n".join(texts) + "\n")

    def end(self, agent_id: str) -> None:
        """An agent is done: nobody waits for its answers any more."""
        with self._lock:
            self._ended.add(agent_id)
            text = f"{agent_id} has finished and cannot answer"
            self._end_waiting(lambda one: agent_id in (one.sender, one.recipient), text)

    def log(self) -> list[dict[str, Any]]:
        hidden = ("asked", "response")
        with self._lock:
            return [
                {key: value for key, value in vars(one).items() if key not in hidden} for one in self._all
            ]

    def metrics(self) -> dict[str, Any]:
        with self._lock:
            return {
                "requests_total": len(self._all),
                "requests_answered": sum(one.answer is not None for one in self._all),
                "request_waiting_seconds": round(sum(one.waited_seconds or 0.0 for one in self._all), 3),
            }

    def _end_waiting(self, which: Callable[[Request], bool], text: str, code: int = NO_ANSWER) -> None:
        with self._lock:
            for request in self._all:
                if which(request) and not request.response.done():
                    request.waited_seconds = round(time.monotonic() - request.asked, 3)
                    request.response.set_result(Response(code, text))
