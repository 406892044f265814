"""A model provider on loopback whose answers are written beforehand: real HTTP for real clients, no key, no network.

    with ModelServer() as server:
        server.script("You are agent1", [call("ls"), error(429, retry_after="0"), call("git diff"), say("Done.")])
        server.script("You are agent2", lambda request: call("pytest") if request.number == 1 else say("Done."))
        ...                                  # a client with api_base=server.openai_url, or server.anthropic_url
        server.requests_of("You are agent1")[0].messages

A *script* is found by its marker: a text that occurs in the API key of a request, or in its system prompt and first
user message; of several the longest counts, and `""` fits everything. It is a function of the request, or a list of
replies. A list is gone through once per *conversation*, that is, per marker and opening of the conversation, one reply
a request, failed requests included. Past its end the server answers 400, which no client tries again.

Spoken are OpenAI chat completions and responses, Anthropic messages and Gemini's generateContent, each streamed where
the request asks for it. A further protocol is a module like `openai_chat` and a line in `server.PROTOCOLS`.
"""

from __future__ import annotations

from tests.support.modelserver.replies import (
    Answer,
    Broken,
    Failure,
    Tokens,
    ToolCall,
    call,
    error,
    say,
)
from tests.support.modelserver.requests import Request
from tests.support.modelserver.server import ModelServer

__all__ = [
    "Answer",
    "Broken",
    "Failure",
    "ModelServer",
    "Request",
    "Tokens",
    "ToolCall",
    "call",
    "error",
    "say",
]
