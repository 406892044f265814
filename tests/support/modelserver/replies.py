"""What the server can be told to answer. Independent of the protocol that the client speaks."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Hold = threading.Event | float | None
"""When the reply goes out: at once, after so many seconds, or when somebody sets the event."""


@dataclass(frozen=True)
class Tokens:
    """What the reply says that it cost."""

    prompt: int = 100
    """All of the prompt, cached or not."""
    completion: int = 10
    cached: int = 0
    """Of the prompt, read from the provider's cache."""
    written: int = 0
    """Of the prompt, put into the provider's cache (Anthropic only)."""


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: Mapping[str, Any] | str
    """A text is sent as it is, be it JSON or not."""


@dataclass(frozen=True)
class Answer:
    """What a model says."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    tokens: Tokens = Tokens()
    finish_reason: str | None = None
    """Of the protocol; None is its usual one."""
    hold: Hold = None
    break_after: int | None = None
    """Where it is streamed: the connection ends after so many events."""
    pause_seconds: float = 0.0
    """Where it is streamed: between one event and the next."""


@dataclass(frozen=True)
class Failure:
    """An HTTP error in the provider's own form."""

    status: int
    message: str = ""
    kind: str = ""
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    hold: Hold = None


@dataclass(frozen=True)
class Broken:
    """No answer at all: these bytes as a whole HTTP response body, or with None a connection that just ends."""

    body: bytes | None = None
    hold: Hold = None


Reply = Answer | Failure | Broken


def say(text: str, **more: Any) -> Answer:
    return Answer(text, **more)


def call(command: str, text: str = "", tool: str = "bash", **more: Any) -> Answer:
    """A tool call with one argument, `command`."""
    return Answer(text, (ToolCall(tool, {"command": command}),), **more)


_USUAL_ERRORS = {
    400: ("invalid_request_error", "The request is not valid."),
    401: ("authentication_error", "Incorrect API key provided."),
    403: ("permission_error", "You are not allowed to use this model."),
    404: ("not_found_error", "The model does not exist."),
    429: ("rate_limit_error", "Rate limit reached. Please try again later."),
    500: ("api_error", "The server had an error while processing your request."),
    503: ("overloaded_error", "The server is overloaded."),
}


def error(
    status: int, message: str = "", *, code: str | None = None, retry_after: str | None = None
) -> Failure:
    """An error as providers send it."""
    kind, usual = _USUAL_ERRORS.get(status, ("api_error", "Something went wrong."))
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return Failure(status, message or usual, kind, code, headers)


CONTEXT_OVERFLOW = Failure(
    400,
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
    "invalid_request_error",
    "context_length_exceeded",
)


def pieces(text: str) -> Iterator[str]:
    """As a model streams it."""
    for place in range(0, len(text), 12):
        yield text[place : place + 12]


def sse(data: Mapping[str, Any], event: str = "") -> bytes:
    """One server-sent event."""
    return ((f"event: {event}\n" if event else "") + f"data: {json.dumps(data)}\n\n").encode()
