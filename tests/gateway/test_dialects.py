"""Each dialect, streamed and not, by its vendor's own client, on models of every kind of provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.gateway.clients import CLIENTS
from tests.modelserver import Tokens, call

if TYPE_CHECKING:
    from tests.gateway.conftest import Agents
    from tests.modelserver import ModelServer

MODELS = ("openai/gpt-4o", "hosted_vllm/qwen", "anthropic/claude-sonnet-4-5", "gemini/gemini-2.5-flash")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", CLIENTS)
@pytest.mark.parametrize("model", MODELS)
def test_every_dialect_on_every_provider(
    dialect: str, model: str, stream: bool, agents: Agents, server: ModelServer
) -> None:
    answer = call("ls -la", "I will look at the files.", tokens=Tokens(1000, 50, cached=400))
    server.script("Look around", [answer])
    with agents.open(model) as at:
        said = CLIENTS[dialect](at, "Look around", stream=stream)
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
def test_a_server_of_ones_own_may_have_responses(stream: bool, agents: Agents, server: ModelServer) -> None:
    server.script("Look around", lambda _: call("ls", "Hello.", tokens=Tokens(1000, 50)))
    for own, path in ((None, "/v1/chat/completions"), (False, "/v1/responses")):
        settings = {} if own is None else {"use_chat_completions_api": own}
        with agents.open("openai/gpt-4o", settings=settings) as at:
            assert CLIENTS["responses"](at, "Look around", stream=stream) == ("Hello.", ["ls"], 1000)
        assert server.requests[-1].path == path
