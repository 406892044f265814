"""Tokens, limits, faults and accounts: what the gateway owns for an agent that brings its own model client."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from cooperbench.agents.base import Limits
from cooperbench.errors import AgentFailure, InfraError, Interrupted, UserError
from cooperbench.gateway.server import Gateway
from cooperbench.storage import AgentPaths
from tests.integration.gateway.conftest import KEY
from tests.support.gateway.clients import CLIENTS
from tests.support.modelserver import Answer, Broken, Request, Tokens, ToolCall, call, error, say
from tests.support.modelserver.replies import CONTEXT_OVERFLOW, Failure, Reply

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Agents, At
    from tests.support.modelserver import ModelServer

MODELS = {
    "chat": "hosted_vllm/qwen",
    "responses": "hosted_vllm/qwen",
    "anthropic": "anthropic/claude-sonnet-4-5",
    "gemini": "gemini/gemini-2.5-flash",
}
"""One for each API format; the last two are asked in their own."""
PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/any:streamGenerateContent",
}
each_api_format = pytest.mark.parametrize("api_format", CLIENTS)


def body(api_format: str, prompt: str = "hello", **more: Any) -> dict[str, Any]:
    if api_format == "gemini":
        return {"contents": [{"role": "user", "parts": [{"text": prompt}]}], **more}
    stream = {"model": "any", "stream": True, **more}
    if api_format == "responses":
        return {"input": prompt, **stream}
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": 100, **stream}


def post(at: At, api_format: str, token: str = "", **more: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token or at.access.token}"}
    return httpx.post(
        at.url + PATHS[api_format], json=body(api_format, **more), headers=headers, timeout=60
    )


def message_of(response: httpx.Response) -> str:
    return str(response.json()["error"]["message"])


@each_api_format
def test_only_the_token_of_an_agent_at_work_is_valid(
    api_format: str, agents: Agents, server: ModelServer
) -> None:
    server.script("", lambda _: say("Hello."))
    with agents.open(MODELS[api_format]) as at:
        assert post(at, api_format, token="cb-guessed").status_code == 401
        assert post(at, api_format).status_code == 200
    after = post(at, api_format)
    assert after.status_code == 401
    assert "token" in message_of(after)
    assert len(server.requests) == 1


def test_each_token_is_its_agents(agents: Agents, server: ModelServer) -> None:
    server.script("", lambda _: say("Hello.", tokens=Tokens(100, 10)))
    with agents.open() as one, agents.open() as other:
        post(one, "chat", token=other.access.token)
        assert (one.session.usage.calls, other.session.usage.calls) == (0, 1)


@each_api_format
def test_an_agent_ends_at_its_step_limit(
    api_format: str, agents: Agents, server: ModelServer
) -> None:
    server.script("", lambda _: call("ls"))
    with agents.open(MODELS[api_format], Limits(steps=2)) as at:
        tools = {"tools": TOOLS[api_format]}
        assert [post(at, api_format, **tools).status_code for _ in range(2)] == [200, 200]
        assert not at.access.ended.is_set()
        assert "step limit" in message_of(post(at, api_format, **tools))
        assert at.access.ended.is_set()
        outcome = at.access.outcome()
        assert isinstance(outcome, AgentFailure)
        assert outcome.status == "step_limit"
        assert "has ended" in message_of(post(at, api_format, **tools))
    assert len(server.requests) == 2


SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
TOOLS: dict[str, Any] = {
    "chat": [{"type": "function", "function": {"name": "bash", "parameters": SCHEMA}}],
    "responses": [{"type": "function", "name": "bash", "parameters": SCHEMA}],
    "anthropic": [{"name": "bash", "input_schema": SCHEMA}],
    "gemini": [{"functionDeclarations": [{"name": "bash", "parametersJsonSchema": SCHEMA}]}],
}


def test_an_agent_ends_at_its_cost_limit(agents: Agents, server: ModelServer) -> None:
    server.script("", lambda _: say("Hello.", tokens=Tokens(1_000_000, 10)))
    spent: list[float] = []
    with agents.open("openai/gpt-4o", Limits(cost=1.0)) as at:
        at.session.on_spend = lambda usage: spent.append(usage.cost)
        assert [post(at, "chat").status_code for _ in range(2)] == [200, 400]
        outcome = at.access.outcome()
    assert isinstance(outcome, AgentFailure)
    assert outcome.status == "cost_limit"
    assert spent == [pytest.approx(2.5001)]


def test_time_and_a_stopped_run_end_an_agent_that_asks_nothing(agents: Agents) -> None:
    with agents.open(limits=Limits(seconds=0.1)) as at:
        assert at.access.ended.wait(20)
        outcome = at.access.outcome()
    assert isinstance(outcome, AgentFailure)
    assert outcome.status == "time_limit"
    stop = threading.Event()
    with agents.open(stop=stop) as at:
        assert not at.access.ended.wait(0.3)
        stop.set()
        assert at.access.ended.wait(20)
        assert isinstance(at.access.outcome(), Interrupted)


@each_api_format
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_temporary_errors_are_retried_off_the_clock(
    api_format: str,
    stream: bool,
    agents: Agents,
    server: ModelServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COOPERBENCH_MODEL_RETRY_TIMEOUT", "90")
    failures: list[Reply] = [
        error(429, retry_after="0.2"),
        error(500),
        Broken(),
        say("Hello.", break_after=0),
    ]
    server.script("", [*failures[: 4 if stream else 3], call("ls", "Hello.")])
    with agents.open(MODELS[api_format]) as at:
        began = time.monotonic()
        assert CLIENTS[api_format](at, "hi", stream=stream).text == "Hello."
        took = time.monotonic() - began
        assert at.session.seconds < took + 1
        assert at.session.usage.calls == 1
        assert at.access.outcome() is None


@each_api_format
def test_pings_keep_a_stream_open(
    api_format: str, agents: Agents, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cooperbench.gateway.access._PING_SECONDS", 0.05)
    server.script("", [error(503, retry_after="0.5"), say("Hello.", hold=0.5)])
    with agents.open(MODELS[api_format]) as at:
        assert CLIENTS[api_format](at, "hi", stream=True).text == "Hello."


@each_api_format
def test_a_stream_that_breaks_ends_in_an_error_of_the_api_format(
    api_format: str, agents: Agents, server: ModelServer
) -> None:
    long = "This is a long answer, of which only the first part comes through."
    server.script("", lambda request: say(long, break_after=5 if request.number == 1 else None))
    with agents.open(MODELS[api_format]) as at:
        response = post(at, api_format)
        assert response.status_code == 200
        assert "send the request again" in response.text
        # OpenAI's library does not tell the reason.
        with pytest.raises(
            Exception,
            match="response.completed" if api_format == "responses" else "send the request again",
        ):
            _broken_again(server, long, at, api_format)
        server.script("", lambda _: say(long))
        assert CLIENTS[api_format](at, "hi", stream=True).text == long
        assert at.session.usage.calls == 1
        assert at.access.outcome() is None


def _broken_again(server: ModelServer, text: str, at: At, api_format: str) -> None:
    """With the vendor's client: it must see an error, not half an answer."""
    server.script("", lambda _: say(text, break_after=5))
    CLIENTS[api_format](at, "hi", stream=True)


def test_an_outage_is_nobodys_outcome(
    agents: Agents, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOPERBENCH_MODEL_RETRY_TIMEOUT", "0.5")
    server.script("", lambda _: error(503, retry_after="0.3"))
    with agents.open() as at:
        assert post(at, "chat").status_code == 503
        assert at.access.ended.is_set()
        assert isinstance(at.access.outcome(), InfraError)


MALFORMED: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "assistant", "content": "x", "tool_calls": 7}]},
    "responses": {"input": "x", "reasoning": 7},
    "gemini": {"contents": [{"role": "model", "parts": [{"functionCall": 7}]}]},
}
"""Requests that LiteLLM or our own translation cannot read, although the allowlist lets them through."""


@pytest.mark.parametrize("api_format", MALFORMED)
def test_permanent_request_error_is_an_outcome(
    api_format: str, agents: Agents, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an agent that has failed could send one, and its pair would never be scored."""
    monkeypatch.setenv("COOPERBENCH_MODEL_RETRY_TIMEOUT", "0.1")
    server.script("", lambda _: say("Hello."))
    with agents.open("openai/gpt-4o") as at:
        tools = {"tools": TOOLS["chat"]}
        assert post(at, "chat", stream=False, **tools).status_code == 200
        headers = {"Authorization": f"Bearer {at.access.token}"}
        for _ in range(3):
            url = at.url + PATHS[api_format]
            malformed = {**MALFORMED[api_format], "tools": TOOLS[api_format]}
            refused = httpx.post(url, json=malformed, headers=headers, timeout=60)
            assert refused.status_code == 400
            assert "answers other requests, but not this one" in message_of(refused)
        assert not isinstance(at.access.outcome(), InfraError)
        # The honest program goes on.
        if not at.access.ended.is_set():
            assert post(at, "chat", stream=False, **tools).status_code == 200


def test_an_outage_after_the_first_reply_is_nobodys_outcome(
    agents: Agents, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOPERBENCH_MODEL_RETRY_TIMEOUT", "0.1")
    server.script("", lambda _: say("Hello."))
    with agents.open() as at:
        assert post(at, "chat").status_code == 200
        server.script("", lambda _: error(503))
        assert post(at, "chat").status_code == 503
        assert isinstance(at.access.outcome(), InfraError)


@each_api_format
def test_a_full_context_is_told_to_the_program(
    api_format: str, agents: Agents, server: ModelServer
) -> None:
    server.script("", lambda request: say("Hello.") if request.number == 1 else CONTEXT_OVERFLOW)
    with agents.open(MODELS[api_format]) as at:
        assert post(at, api_format, tools=TOOLS[api_format]).status_code == 200
        refused = post(at, api_format, tools=TOOLS[api_format])
        assert refused.status_code == 400
        if api_format in ("chat", "responses"):
            assert refused.json()["error"]["code"] == "context_length_exceeded"
        if api_format == "anthropic":
            assert message_of(refused).startswith("prompt is too long")
        assert not at.access.ended.is_set()
        outcome = at.access.outcome()
        assert isinstance(outcome, AgentFailure)
        assert outcome.status == "context_overflow"
        # It made its history shorter.
        server.script("", lambda _: say("Go on."))
        assert post(at, api_format, tools=TOOLS[api_format]).status_code == 200
        assert at.access.outcome() is None


def test_content_filter_may_be_the_outcome(agents: Agents, server: ModelServer) -> None:
    refusal = error(400, "Output blocked by content filtering policy")
    server.script("", lambda request: say("Hello.") if request.number == 1 else refusal)
    with agents.open("anthropic/claude-sonnet-4-5") as at:
        post(at, "anthropic", tools=TOOLS["anthropic"])
        assert post(at, "anthropic", tools=TOOLS["anthropic"]).status_code == 400
        outcome = at.access.outcome()
    assert isinstance(outcome, AgentFailure)
    assert outcome.status == "content_policy"


@each_api_format
@pytest.mark.parametrize("status", [401, 404])
def test_what_no_agent_would_do_better_with_stops_the_run(
    api_format: str, status: int, agents: Agents, server: ModelServer
) -> None:
    server.script("", lambda _: error(status, f"no: {KEY}"))
    with agents.open(MODELS[api_format]) as at:
        refused = post(at, api_format)
        assert refused.status_code == 400
        assert isinstance(at.access.outcome(), UserError)
        assert KEY not in refused.text
        assert KEY not in str(at.access.outcome())
    assert len(server.requests) == 1


@each_api_format
def test_a_request_cannot_choose_where_it_goes(
    api_format: str, agents: Agents, server: ModelServer
) -> None:
    """A program in a sandbox is not trusted: neither with the key nor with the network of the provider."""
    server.script("", lambda _: say("Hello."))
    evil: dict[str, Any] = {
        "api_base": "http://127.0.0.1:9",
        "api_key": "x",
        "custom_llm_provider": "openai",
    }
    evil |= {
        "mcp_servers": [{"type": "url", "url": "http://127.0.0.1:9", "name": "mcp"}],
        "web_search_options": {},
        "mock_response": "mine",
        "extra_headers": {"Authorization": "x"},
        "fallbacks": ["openai/x"],
    }
    search: Any = (
        {"googleSearch": {}}
        if api_format == "gemini"
        else {"type": "web_search_20250305", "name": "web_search"}
    )
    hidden: dict[str, Any] = {}
    if api_format == "chat":
        hidden = {"type": "function", "googleSearch": {}}
    for model in (MODELS[api_format], "hosted_vllm/other", "gemini/gemini-2.5-flash"):
        with agents.open(model) as at:
            tools = [*TOOLS[api_format], search, hidden]
            response = post(at, api_format, tools=tools, **evil)
            assert response.status_code == 200
            assert "mine" not in response.text
        request = server.requests[-1]
        assert request.api_key == KEY
        assert "earch" not in json.dumps(request.body)
        assert "mcp" not in json.dumps(request.body)
        for name in ("api_base", "mcp_servers", "web_search_options", "extra_headers"):
            assert log_of(at).count(f"removed {name} from requests") == (api_format != "gemini")


def test_tokens_are_counted(agents: Agents, server: ModelServer) -> None:
    with agents.open("hosted_vllm/qwen") as at:
        from anthropic import Anthropic

        with Anthropic(base_url=at.url, api_key=at.access.token) as client:
            few, many = (
                client.messages.count_tokens(
                    model="any", messages=[{"role": "user", "content": "word " * count}]
                )
                for count in (10, 1000)
            )
        assert few.input_tokens < 50
        assert 900 < many.input_tokens < 1100
        assert at.session.usage.calls == 0


def count_tokens(at: At, prompt: str) -> httpx.Response:
    headers = {"x-api-key": at.access.token}
    url = f"{at.url}/v1/messages/count_tokens"
    return httpx.post(url, json=body("anthropic", prompt), headers=headers, timeout=60)


def test_counting_tokens_has_limits_and_is_on_record(
    agents: Agents, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cooperbench.gateway.access.MAX_TOKEN_COUNTS", 2)
    server.script("", lambda _: call("ls"))
    with agents.open("hosted_vllm/qwen", Limits(steps=1)) as at:
        assert [count_tokens(at, "hi").status_code for _ in range(3)] == [200, 200, 400]
        assert post(at, "anthropic", tools=TOOLS["anthropic"]).status_code == 200
        assert "step limit" in message_of(count_tokens(at, "hi"))
        outcome = at.access.outcome()
    assert isinstance(outcome, AgentFailure)
    assert outcome.status == "step_limit"
    assert "the program counted tokens 2 times" in log_of(at)


def test_bad_requests_get_one_line(agents: Agents) -> None:
    with agents.open() as at:
        headers = {"x-api-key": at.access.token}
        assert httpx.post(f"{at.url}/v1/messages", content=b"{", headers=headers).status_code == 400
        assert (
            httpx.post(f"{at.url}/v1/messages", json={"messages": 7}, headers=headers).status_code
            == 400
        )
        assert httpx.post(f"{at.url}/v1/embeddings", json={}, headers=headers).status_code == 404
        assert not at.access.ended.is_set()


def test_deeply_nested_requests_are_refused(agents: Agents) -> None:
    """Otherwise an agent could end its pair with a fault of the harness, which is not scored."""
    blocks: list[Any] = [{"type": "text", "text": "deep"}]
    for _ in range(300):
        blocks = [{"type": "tool_result", "tool_use_id": "t", "content": blocks}]
    nested: Any = {"messages": [{"role": "user", "content": blocks}]}
    with agents.open() as at:
        headers = {"x-api-key": at.access.token}
        for data in (json.dumps(nested), "[" * 100_000):
            for path in ("/v1/messages", "/v1/messages/count_tokens"):
                response = httpx.post(at.url + path, content=data, headers=headers)
                assert response.status_code == 400
        assert at.access.outcome() is None


def test_twenty_clients_at_once(agents: Agents, server: ModelServer) -> None:
    together = threading.Barrier(20)

    def reply(request: Request) -> Answer:
        together.wait(60)
        return say(f"Hello {request.last.split()[-1]}.", tokens=Tokens(100, 10))

    server.script("", reply)
    with ExitStack() as stack, ThreadPoolExecutor(20) as pool:
        opened = [
            stack.enter_context(agents.open(MODELS[list(CLIENTS)[number % 4]]))
            for number in range(20)
        ]

        def ask(number: int) -> str:
            return CLIENTS[list(CLIENTS)[number % 4]](
                opened[number], f"I am {number}", stream=True
            ).text

        assert list(pool.map(ask, range(20))) == [f"Hello {number}." for number in range(20)]
        assert [at.session.usage.calls for at in opened] == [1] * 20


def test_closing_breaks_off_what_is_under_way(agents: Agents, server: ModelServer) -> None:
    arrived = threading.Event()

    def never(_: Request) -> Answer:
        arrived.set()
        return say("late", hold=threading.Event())

    server.script("", never)
    with ThreadPoolExecutor(1) as pool:
        with agents.open() as at:
            waiting = pool.submit(post, at, "chat")
            assert arrived.wait(20)
        assert waiting.exception(20) or waiting.result().status_code >= 400


def test_an_answer_that_nobody_waits_for_is_paid_all_the_same(
    agents: Agents, server: ModelServer
) -> None:
    server.script("", lambda _: say("Some words, and then more of them.", pause_seconds=0.05))
    with agents.open() as at:
        headers = {"Authorization": f"Bearer {at.access.token}"}
        with httpx.stream(
            "POST", at.url + PATHS["chat"], json=body("chat"), headers=headers
        ) as response:
            next(response.iter_lines())
        end = time.monotonic() + 20
        while at.session.usage.calls == 0 and time.monotonic() < end:
            time.sleep(0.02)
        assert at.session.usage.completion_tokens == 10


def test_what_is_recorded_has_no_key(agents: Agents, server: ModelServer) -> None:
    leak = Answer(f"The key is {KEY}.", (ToolCall("bash", {"command": f"echo {KEY}"}),))
    server.script("", lambda _: leak)
    with agents.open("hosted_vllm/qwen") as at:
        post(at, "chat", tools=TOOLS["chat"])
    assert at.record
    assert KEY not in json.dumps(at.record)


def log_of(at: At) -> str:
    return AgentPaths(at.session.folder.parent, at.session.slot.agent_id).log.read_text()


@each_api_format
def test_stale_connection_is_no_failed_attempt(
    api_format: str, agents: Agents, server: ModelServer
) -> None:
    server.script("", lambda _: say("Hello."))
    with agents.open(MODELS[api_format]) as at:
        for _ in range(3):
            assert post(at, api_format).status_code == 200
            assert server.cut_connections() > 0
        assert "failed" not in log_of(at)
    assert len(server.requests) == 3


@pytest.mark.parametrize("kind", ["silent", "deaf", "halfway"])
def test_silent_server_times_out(
    kind: str, agents: Agents, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOPERBENCH_MODEL_RETRY_TIMEOUT", "0")
    server.script("", lambda _: say("late", hold=threading.Event()))
    with ExitStack() as stack:
        settings: dict[str, Any] = {"timeout": 0.5}
        if kind != "silent":
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            settings["api_base"] = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        if kind == "halfway":
            threading.Thread(target=half_an_answer, args=(listening, stack)).start()
        at = stack.enter_context(agents.open("hosted_vllm/qwen", settings=settings))
        # More than the kernel takes for somebody who does not read.
        prompt = "x" * (12 << 20) if kind == "deaf" else "hello"
        refused = post(at, "chat", prompt=prompt, stream=False)
        assert refused.status_code == 503
        expected = "Timeout on reading data" if kind == "halfway" else "no response within 0.5 s"
        assert expected in message_of(refused)


def half_an_answer(listening: socket.socket, stack: ExitStack) -> None:
    connection = stack.enter_context(listening.accept()[0])
    connection.recv(1 << 16)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")


def test_the_environments_proxy_is_used(
    agents: Agents, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stands in for a proxy, which gets the whole address of what is asked for."""
    server.script("", lambda _: say("Hello."))
    monkeypatch.setattr(
        "tests.support.modelserver.openai_chat.PATHS",
        re.compile(r"http://model\.invalid/chat/completions"),
    )
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALL_PROXY", server.anthropic_url.removeprefix("http://"))
    with agents.open("hosted_vllm/qwen", settings={"api_base": "http://model.invalid"}) as at:
        assert at.access.ask(body("chat"))["choices"][0]["message"]["content"] == "Hello."
    monkeypatch.setenv("NO_PROXY", "model2.invalid")
    monkeypatch.setenv("COOPERBENCH_MODEL_RETRY_TIMEOUT", "0")
    with (
        agents.open("hosted_vllm/qwen", settings={"api_base": "http://model2.invalid"}) as at,
        pytest.raises(InfraError, match="Cannot connect to host model2"),
    ):
        at.access.ask(body("chat"))


def test_cookies_and_credentials_of_an_address_are_kept(
    agents: Agents, server: ModelServer
) -> None:
    """Cookies lead an agent to the replica that it has asked before; each agent has its own."""
    base = server.openai_url.replace("://", "://me:secret@")
    for number in range(2):
        headers = {"Set-Cookie": f"replica={number}", "Retry-After": "0"}
        server.script("", [Failure(503, headers=headers), say("Hello.")])
        with agents.open("hosted_vllm/qwen", settings={"api_base": base}) as at:
            assert post(at, "chat").status_code == 200
        first, second = server.requests[-2:]
        assert "cookie" not in first.headers
        assert second.headers["cookie"] == f"replica={number}"
        assert second.headers["authorization"] == "Basic bWU6c2VjcmV0"


def test_a_framework_asks_for_whole_answers(agents: Agents, server: ModelServer) -> None:
    """In this process, without HTTP to the gateway; the end of the agent ends its question."""
    arrived = threading.Event()

    def reply(request: Request) -> Answer:
        if request.number > 1:
            arrived.set()
        return say("Hello.", hold=threading.Event() if request.number > 1 else None)

    server.script("", reply)
    with ThreadPoolExecutor(1) as pool:
        with agents.open("hosted_vllm/qwen") as at:
            assert (
                at.access.ask(body("chat", stream=False))["choices"][0]["message"]["content"]
                == "Hello."
            )
            waiting = pool.submit(at.access.ask, body("chat", stream=False))
            assert arrived.wait(20)
        assert isinstance(waiting.exception(20), InfraError)
    assert at.session.usage.calls == 1


WITHOUT_DESCRIPTORS = """
import resource
from cooperbench.errors import InfraError
from cooperbench.gateway.server import Gateway
from cooperbench.storage import AgentPaths

for most in range(3, 12):
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, 64))
    try:
        Gateway.shared()
    except InfraError as error:
        assert "the gateway does not start" in str(error)
    else:
        break
print("starts with", most)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
Gateway.shared()
"""


def test_a_gateway_that_cannot_start_is_not_waited_for() -> None:
    """Wherever the descriptors run out; the next one tries again."""
    words = [sys.executable, "-c", WITHOUT_DESCRIPTORS]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 7


def test_small_pieces_of_answers_are_sent_at_once() -> None:
    """Else each waits 40 ms for the acknowledgement of the one before it; connections take it over."""
    gateway = Gateway.shared()
    assert httpx.get(f"http://127.0.0.1:{gateway.port}/").status_code == 401
    (server,) = gateway._server.servers
    assert all(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for one in server.sockets)
