"""Requests between agents of a team: one asks and waits, another answers (`coop-request`)."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from cooperbench.records.tasks import RequestRecord
from cooperbench.storage import utc_now
from cooperbench.team.sandbox_rpc import Response
from cooperbench.team.teammates import Teammates
from cooperbench.text import head_and_tail, printable

DEFAULT_WAIT_SECONDS = 60.0
MAX_WAIT_SECONDS = 3600.0
MAX_REQUESTS = 500
"""Maximum number of requests per agent."""
MAX_BODY_CHARACTERS = 20_000
"""Maximum length of a request, and of its answer."""
NO_ANSWER = 3
"""Exit code of a request that was not answered in time."""
_MAX_SHOWN = 20
_MAX_SHOWN_CHARACTERS = 4_000
_MAX_KIND_CHARACTERS = 40


@dataclass(eq=False)
class Request:
    """One request: what was asked, what was answered, and how long the sender waited."""

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
    """How long the sender waited; None while it is still waiting."""
    started: float = field(default_factory=time.monotonic)
    response: Response | None = None
    """The response to the sender's command; None while the sender is waiting."""

    def text(self) -> str:
        """Return the request as its recipient sees it."""
        body = head_and_tail(self.body, _MAX_SHOWN_CHARACTERS)
        how_to_answer = f'answer it with coop-respond {self.id} "…"'
        return f"Request {self.id} from {self.sender} ({self.kind}); {how_to_answer}:\n{body}"

    def outcome(self) -> str:
        """Return the answer, or that there is none yet, as the sender sees it."""
        name = f"your request {self.id} ({self.kind})"
        if self.answer is None:
            return f"No answer yet to {name}."
        return f"{self.recipient} answered {name}:\n{self.answer}"


@dataclass(frozen=True)
class RequestMetrics:
    """How a team used requests, over one attempt at a pair."""

    requests_total: int
    requests_answered: int
    request_waiting_seconds: float


class Requests:
    """All requests of a team. Safe to use from any thread.

    A sender stops waiting when it is asked something itself: two agents that ask each other would
    otherwise wait for each other. A later answer is shown to the sender before its next step.
    """

    def __init__(self, team: Teammates) -> None:
        self._team = team
        self._requests: list[Request] = []
        self._ended: set[str] = set()
        self._changed = threading.Condition()

    def ask(
        self, agent_id: str, agent: str, kind: str, body: str, wait: float = DEFAULT_WAIT_SECONDS
    ) -> Response:
        """Ask a teammate (kind: one word, e.g. review) and wait. Exit code 3: no answer in time."""
        if refusal := self._check_request(agent_id, agent, body, wait):
            return refusal
        with self._changed:
            if agent in self._ended:
                return Response(NO_ANSWER, f"{agent} has finished and cannot answer")
            if self._count_sent_by(agent_id) >= MAX_REQUESTS:
                return Response(2, f"Request limit reached ({MAX_REQUESTS})")
            request = Request(
                id=len(self._requests) + 1,
                sender=agent_id,
                recipient=agent,
                kind=printable(kind[:_MAX_KIND_CHARACTERS]),
                body=body,
                asked_at=utc_now(),
                sender_step=self._team.step_of(agent_id),
            )
            self._stop_waiting_of(agent, request)
            self._requests.append(request)
            self._team.notify(agent, f"request {request.id}", request.text())
            self._changed.wait_for(lambda: request.response, wait)
            if request.response is None:
                timeout = Response(NO_ANSWER, f"no answer within {wait:g} seconds")
                self._finish_waiting(request, timeout)
                return timeout
            return request.response

    def respond(self, agent_id: str, request_id: int, body: str) -> Response:
        """Answer a request."""
        if not body.strip() or len(body) > MAX_BODY_CHARACTERS:
            return Response(2, f"an answer has 1 to {MAX_BODY_CHARACTERS} characters")
        with self._changed:
            request = self._find(request_id)
            if request is None or request.recipient != agent_id:
                return Response(2, f"there is no request {request_id} to you")
            if request.answer is not None:
                return Response(2, f"request {request_id} is answered already")
            request.answer = body
            request.answered_at = utc_now()
            if request.response is None:
                self._finish_waiting(request, Response(0, f"{request.outcome()}\n"))
            else:
                self._team.notify(request.sender, f"answer {request.id}", request.outcome())
        return Response(0, f"{request.sender} has your answer.\n")

    def pending(self, agent_id: str) -> Response:
        """Show open requests to you, and the outcome of your own requests."""
        with self._changed:
            to_answer = [
                request.text()
                for request in self._requests
                if request.recipient == agent_id and request.answer is None
            ]
            own = [request.outcome() for request in self._requests if request.sender == agent_id]
        texts = [*to_answer[:_MAX_SHOWN], *own[-_MAX_SHOWN:]] or ["No requests."]
        return Response(0, "\n\n".join(texts) + "\n")

    def end(self, agent_id: str) -> None:
        """Stop all waiting for an agent that has finished, and its own waiting."""
        response = Response(NO_ANSWER, f"{agent_id} has finished and cannot answer")
        with self._changed:
            self._ended.add(agent_id)
            for request in self._requests:
                if request.response is None and agent_id in (request.sender, request.recipient):
                    self._finish_waiting(request, response)

    def log(self) -> list[RequestRecord]:
        """Return all requests in order, as task_log.json records them."""
        with self._changed:
            return [
                RequestRecord(
                    id=request.id,
                    sender=request.sender,
                    recipient=request.recipient,
                    kind=request.kind,
                    body=request.body,
                    asked_at=request.asked_at,
                    sender_step=request.sender_step,
                    answer=request.answer,
                    answered_at=request.answered_at,
                    waited_seconds=request.waited_seconds,
                )
                for request in self._requests
            ]

    def metrics(self) -> RequestMetrics:
        """Return how requests were used."""
        with self._changed:
            waited = sum(request.waited_seconds or 0.0 for request in self._requests)
            return RequestMetrics(
                requests_total=len(self._requests),
                requests_answered=sum(request.answer is not None for request in self._requests),
                request_waiting_seconds=round(waited, 3),
            )

    def _check_request(self, agent_id: str, agent: str, body: str, wait: float) -> Response | None:
        """Return a refusal if the arguments of a request are invalid."""
        teammates = [other for other in self._team.agent_ids if other != agent_id]
        if agent not in teammates:
            names = ", ".join(teammates)
            return Response(2, f"no teammate {printable(agent[:50])!r}; your teammates: {names}")
        if not body.strip() or len(body) > MAX_BODY_CHARACTERS:
            return Response(2, f"a request has 1 to {MAX_BODY_CHARACTERS} characters")
        if not 0 <= wait <= MAX_WAIT_SECONDS:
            return Response(2, f"a request waits 0 to {MAX_WAIT_SECONDS:g} seconds")
        return None

    def _count_sent_by(self, agent_id: str) -> int:
        return sum(request.sender == agent_id for request in self._requests)

    def _find(self, request_id: int) -> Request | None:
        if 1 <= request_id <= len(self._requests):
            return self._requests[request_id - 1]
        return None

    def _stop_waiting_of(self, agent_id: str, incoming: Request) -> None:
        """End the waiting of an agent that is now asked something itself."""
        text = f"no answer yet: {incoming.sender} asks you.\n{incoming.text()}"
        for request in self._requests:
            if request.response is None and request.sender == agent_id:
                self._finish_waiting(request, Response(NO_ANSWER, text))

    def _finish_waiting(self, request: Request, response: Response) -> None:
        request.response = response
        request.waited_seconds = round(time.monotonic() - request.started, 3)
        self._changed.notify_all()
