"""The scripted provider keeps conversations apart and leaves nothing running."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from http.client import RemoteDisconnected
from typing import Any

import pytest

from tests.support.modelserver import Broken, ModelServer, Request, Tokens, call, error, say


def ask(url: str, prompt: str, key: str = "k") -> dict[str, Any]:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}]}).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, body, headers)
    with urllib.request.urlopen(request, timeout=20) as response:
        content = json.load(response)
    assert isinstance(content, dict)
    return content


def test_each_conversation_goes_through_its_own_script() -> None:
    with ModelServer() as server:
        chat, messages = (
            f"{server.openai_url}/chat/completions",
            f"{server.anthropic_url}/v1/messages",
        )
        server.script(
            "alice",
            [call("ls", tokens=Tokens(7, 3, cached=5)), error(429, retry_after="2"), say("bye")],
        )
        server.script("key-of-bob", lambda request: say(f"{request.number}: {request.last}"))
        first = ask(chat, "I am alice")
        assert (
            first["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
            == '{"command": "ls"}'
        )
        assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}
        assert ask(messages, "hello", "key-of-bob")["content"] == [
            {"type": "text", "text": "1: hello"}
        ]
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(chat, "I am alice")
        assert (refused.value.code, refused.value.headers["Retry-After"]) == (429, "2")
        refused.value.close()
        assert ask(chat, "I am alice")["choices"][0]["message"]["content"] == "bye"
        with pytest.raises(urllib.error.HTTPError, match="400") as over:
            ask(chat, "I am alice")
        over.value.close()
        assert ask(messages, "hello", "key-of-bob")["content"][0]["text"] == "2: hello"
        assert [request.number for request in server.requests_of("alice")] == [1, 2, 3, 4]


def test_closing_frees_those_who_wait_and_ends_all_threads() -> None:
    arrived = threading.Event()

    def never(request: Request) -> Broken:
        arrived.set()
        return Broken(hold=threading.Event())

    before = threading.active_count()
    with ModelServer() as server:
        server.script("", never)
        outcomes: list[type[Exception]] = []

        def client() -> None:
            try:
                ask(f"{server.openai_url}/chat/completions", "x")
            except (RemoteDisconnected, ConnectionError) as problem:
                outcomes.append(type(problem))

        thread = threading.Thread(target=client)
        thread.start()
        assert arrived.wait(20)
    thread.join(20)
    assert len(outcomes) == 1
    assert threading.active_count() == before
