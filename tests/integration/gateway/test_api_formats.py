"""Each API format, streamed and not, by its vendor's own client, on models of every kind of provider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.support.gateway.clients import CLIENTS
from tests.support.modelserver import Tokens, call

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.gateway.conftest import Agents, At
    from tests.support.modelserver import ModelServer

MODELS = (
    "openai/gpt-4o",
    "hosted_vllm/qwen",
    "anthropic/claude-sonnet-4-5",
    "gemini/gemini-2.5-flash",
)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api_format", CLIENTS)
@pytest.mark.parametrize("model", MODELS)
def test_every_api_format_on_every_provider(
    api_format: str, model: str, stream: bool, agents: Agents, server: ModelServer
) -> None:
    answer = call("ls -la", "I will look at the files.", tokens=Tokens(1000, 50, cached=400))
    server.script("Look around", [answer])
    with agents.open(model) as at:
        said = CLIENTS[api_format](at, "Look around", stream=stream)
        assert said == ("I will look at the files.", ["ls -la"], 1000)
        assert at.access.outcome() is None
    usage = at.session.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.calls) == (
        1000,
        50,
        400,
        1,
    )
    assert (usage.cost > 0, usage.unpriced_calls) == ((False, 1) if "qwen" in model else (True, 0))
    (request,) = server.requests
    assert request.texts("system")[0] == "Be brief."


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_server_of_ones_own_may_have_responses(
    stream: bool, agents: Agents, server: ModelServer
) -> None:
    server.script("Look around", lambda _: call("ls", "Hello.", tokens=Tokens(1000, 50)))
    for own, path in ((None, "/v1/chat/completions"), (False, "/v1/responses")):
        settings = {} if own is None else {"use_chat_completions_api": own}
        with agents.open("openai/gpt-4o", settings=settings) as at:
            assert CLIENTS["responses"](at, "Look around", stream=stream) == (
                "Hello.",
                ["ls"],
                1000,
            )
        assert server.requests[-1].path == path


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("model", ["openai/any", "hosted_vllm/any"])
def test_a_server_with_openais_api_gets_the_programs_request(
    model: str, stream: bool, agents: Agents, server: ModelServer
) -> None:
    """It is asked without LiteLLM. One more setting brings LiteLLM back: the record is the same."""
    server.script("", lambda _: call("ls", "I look.", tokens=Tokens(100, 10, cached=60)))
    parameters = {"type": "object", "properties": {"command": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "bash", "parameters": parameters}}
    system = {"type": "text", "text": "Be brief."}
    sent = {
        "tools": [tool],
        "tool_choice": "auto",
        "temperature": 0.5,
        "max_tokens": 100,
        "seed": 1,
        "stop": ["END"],
    }
    user_message = {"role": "user", "content": "Look around."}
    marked = {"role": "system", "content": [system | {"cache_control": {"type": "ephemeral"}}]}
    body = {**sent, "messages": [marked, user_message], "stream": stream, "user": "not forwarded"}
    records = []
    for settings in ({"top_p": 0.9}, {"top_p": 0.9, "extra_headers": {"x-by": "litellm"}}):
        with agents.open(model, settings=settings) as at:
            headers = {"Authorization": f"Bearer {at.access.token}"}
            url = f"{at.url}/v1/chat/completions"
            assert httpx.post(url, json=body, headers=headers, timeout=60).status_code == 200
            (reply,) = (entry for entry in at.record if entry["action"] == "reply")
            reply["tool_calls"][0].pop("id")
            records.append({key: reply[key] for key in ("args", "tokens", "tool_calls")})
    plain, by_litellm = server.requests
    expected = {**sent, "top_p": 0.9, "model": "any"}
    expected["messages"] = [{"role": "system", "content": [system]}, user_message]
    if stream:
        expected |= {"stream": True, "stream_options": {"include_usage": True}}
    assert plain.body == expected
    assert by_litellm.headers["x-by"] == "litellm"
    assert plain.api_key == by_litellm.api_key
    assert records[0] == records[1]


def test_half_of_a_surrogate_pair_reaches_a_server(agents: Agents, server: ModelServer) -> None:
    server.script("", [call("ls")])
    with agents.open("openai/any") as at:
        at.access.ask({"messages": [{"role": "user", "content": "half: \ud83d"}]})
    assert server.requests[0].texts("user") == ["half: \ud83d"]


URL = "http://127.0.0.1:9/data"


def _chat_with_url(at: At) -> None:
    from openai import OpenAI

    block: Any = {"type": "image_url", "image_url": {"url": URL}}
    with OpenAI(base_url=f"{at.url}/v1", api_key=at.access.token, max_retries=0) as client:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": [block]}])


def _responses_with_url(at: At) -> None:
    from openai import OpenAI

    content: Any = [{"type": "input_file", "file_url": URL}]
    with OpenAI(base_url=f"{at.url}/v1", api_key=at.access.token, max_retries=0) as client:
        client.responses.create(model="m", input=[{"role": "user", "content": content}])


def _anthropic_with_url(at: At) -> None:
    from anthropic import Anthropic

    block: Any = {"type": "document", "source": {"type": "url", "url": URL}}
    messages: Any = [{"role": "user", "content": [block]}]
    with Anthropic(base_url=at.url, api_key=at.access.token, max_retries=0) as client:
        client.messages.create(model="m", max_tokens=10, messages=messages)


def _anthropic_count_with_url(at: At) -> None:
    from anthropic import Anthropic

    block: Any = {"type": "image", "source": {"type": "url", "url": URL}}
    messages: Any = [{"role": "user", "content": [block]}]
    with Anthropic(base_url=at.url, api_key=at.access.token, max_retries=0) as client:
        client.messages.count_tokens(model="m", messages=messages)


def _gemini_with_url(at: At) -> None:
    from google.genai import Client
    from google.genai.types import HttpOptions, Part

    part = Part.from_uri(file_uri=URL, mime_type="text/html")
    with Client(api_key=at.access.token, http_options=HttpOptions(base_url=at.url)) as client:
        client.models.generate_content(model="m", contents=[part])


@pytest.mark.parametrize(
    ("model", "ask"),
    [
        ("hosted_vllm/qwen", _chat_with_url),
        ("openai/gpt-4o", _responses_with_url),
        ("anthropic/claude-sonnet-4-5", _anthropic_with_url),
        ("anthropic/claude-sonnet-4-5", _anthropic_count_with_url),
        ("gemini/gemini-2.5-flash", _gemini_with_url),
    ],
)
def test_data_by_url_is_refused_in_the_words_of_the_vendor(
    model: str, ask: Callable[[At], None], agents: Agents, server: ModelServer
) -> None:
    """The vendor's own client shows why, and the provider is not asked."""
    server.script("", lambda _: call("ls", "I have read it."))
    with (
        agents.open(model, settings={"use_chat_completions_api": False}) as at,
        pytest.raises(Exception, match="only inline data is forwarded") as raised,
    ):
        ask(at)
    assert getattr(raised.value, "status_code", getattr(raised.value, "code", None)) == 400
    assert server.requests == []


def test_reasoning_is_not_kept_at_the_provider_and_comes_back(
    agents: Agents, server: ModelServer
) -> None:
    server.script("", lambda _: call("ls", "Hello."))
    for model, include in (("openai/gpt-5", ["reasoning.encrypted_content"]), ("openai/x", None)):
        with agents.open(model, settings={"use_chat_completions_api": False}) as at:
            CLIENTS["responses"](at, "Look around", stream=False)
        assert server.requests[-1].body["store"] is False
        assert server.requests[-1].body.get("include") == include
