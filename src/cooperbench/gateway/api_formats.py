"""The four API formats that programs may use, and how events and errors look in each.

`history.py` reads what is inside of requests and replies; `streams.py` joins streamed events.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cooperbench.agents.llm import CONTENT_POLICY, CONTEXT_OVERFLOW

JsonObject = dict[str, Any]
"""A JSON object: the fields of requests and replies depend on the API format."""
JsonMapping = Mapping[str, Any]
"""A JSON object that is only read."""
CHAT, RESPONSES, ANTHROPIC, GEMINI = "chat", "responses", "anthropic", "gemini"
_OVERFLOW_CODE = "context_length_exceeded"
_FAILURE_CODES = {CONTEXT_OVERFLOW: _OVERFLOW_CODE, CONTENT_POLICY: "content_policy_violation"}
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}
"""Error types of OpenAI and Anthropic by HTTP status."""
_GEMINI_ERROR_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    503: "UNAVAILABLE",
}


class Refused(Exception):
    """A request that gets an error instead of a reply.

    `status` is the HTTP status. `failure` is the status of an AgentFailure; for some of them there
    is an error code that programs know how to react to.
    """

    def __init__(self, status: int, message: str, failure: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = _FAILURE_CODES.get(failure)


def encode_event(api_format: str, event: JsonMapping) -> bytes:
    """Return a server-sent event."""
    data = f"data: {json.dumps(event)}\n\n"
    if api_format in (RESPONSES, ANTHROPIC):
        data = f"event: {event.get('type')}\n{data}"
    return data.encode()


def error_body(api_format: str, refusal: Refused) -> JsonObject:
    """Return the body of an error response."""
    message = str(refusal)
    if refusal.code == _OVERFLOW_CODE:
        # Clients search the message for these words.
        if api_format == ANTHROPIC:
            message = f"prompt is too long: {message}"
        else:
            message = f"this model's maximum context length is exceeded: {message}"
    if api_format == GEMINI:
        status = _GEMINI_ERROR_STATUSES[refusal.status]
        return {"error": {"code": refusal.status, "message": message, "status": status}}
    error_type = _ERROR_TYPES[refusal.status]
    if api_format == ANTHROPIC:
        return {"type": "error", "error": {"type": error_type, "message": message}}
    return {"error": {"message": message, "type": error_type, "param": None, "code": refusal.code}}


def error_event(api_format: str, refusal: Refused) -> bytes:
    """Return the event that ends a stream which has already begun."""
    if api_format != RESPONSES:
        return encode_event(api_format, error_body(api_format, refusal))
    # Clients of this format retry, unless they know the code.
    if refusal.code == _OVERFLOW_CODE:
        code = _OVERFLOW_CODE
    elif refusal.status == 400:
        code = "invalid_prompt"
    else:
        code = "server_error"
    response = {
        "id": "",
        "object": "response",
        "status": "failed",
        "output": [],
        "error": {"code": code, "message": str(refusal)},
    }
    return encode_event(api_format, {"type": "response.failed", "response": response})
