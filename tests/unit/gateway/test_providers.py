"""Addresses and credentials of providers that are called without LiteLLM."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cooperbench.errors import UserError
from cooperbench.gateway.providers import Connection, Endpoint, endpoint_finder

VARIABLES = (
    "ANTHROPIC_API_BASE",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "GOOGLE_API_KEY",
    "GEMINI_API_KEY",
    "OPENAI_BASE_URL",
    "OPENAI_API_BASE",
    "OPENAI_API_KEY",
    "VERTEXAI_PROJECT",
    "VERTEXAI_LOCATION",
    "VERTEX_LOCATION",
    "VERTEXAI_CREDENTIALS",
)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def find(provider: str, api_format: str, *, stream: bool = False, **given: Any) -> Endpoint:
    connection = Connection(
        provider=provider,
        model=given.pop("model", "m"),
        api_base=given.pop("api_base", ""),
        api_key=given.pop("api_key", ""),
        supported_regions=given.pop("supported_regions", ()),
        settings=given,
    )
    return asyncio.run(endpoint_finder(connection, api_format).find(stream=stream))


@pytest.mark.parametrize(
    ("provider", "api_format", "url"),
    [
        ("openai", "responses", "https://api.openai.com/v1/responses"),
        ("anthropic", "anthropic", "https://api.anthropic.com/v1/messages"),
        (
            "gemini",
            "gemini",
            "https://generativelanguage.googleapis.com/v1beta/models/m:generateContent",
        ),
    ],
)
def test_vendors_have_their_own_addresses(provider: str, api_format: str, url: str) -> None:
    assert find(provider, api_format, api_key="k").url == url


def test_addresses_may_be_whole_or_have_a_slash() -> None:
    for base in ("http://h/v1", "http://h/v1/", "http://h/v1/chat/completions"):
        url = find("hosted_vllm", "chat", api_base=base).url
        assert url == "http://h/v1/chat/completions"
    assert find("anthropic", "anthropic", api_base="http://h/").url == "http://h/v1/messages"


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "token")
    assert find("anthropic", "anthropic").headers["authorization"] == "Bearer token"
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
    headers = find("anthropic", "anthropic").headers
    assert (headers["x-api-key"], "authorization" in headers) == ("key", False)
    assert find("anthropic", "anthropic", api_key="mine").headers["x-api-key"] == "mine"
    monkeypatch.setenv("GEMINI_API_KEY", "gemini")
    assert find("gemini", "gemini").headers == {"x-goog-api-key": "gemini"}
    monkeypatch.setenv("OPENAI_API_KEY", "openai")
    assert find("openai", "responses").headers == {"authorization": "Bearer openai"}


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """google-auth, with credentials that count how often they are renewed."""
    credentials = SimpleNamespace(valid=False, token="", renewals=0)

    def refresh(_: object) -> None:
        credentials.renewals += 1
        credentials.valid, credentials.token = True, f"token {credentials.renewals}"

    credentials.refresh = refresh
    monkeypatch.setattr("google.auth.default", lambda scopes: (credentials, "default-project"))
    return credentials


def test_vertex_renews_its_token_only_if_needed(google: SimpleNamespace) -> None:
    connection = Connection("vertex_ai", "gemini-x", "", "", {"vertex_location": "eu"})

    async def ask_twice() -> list[Endpoint]:
        finder = endpoint_finder(connection, "gemini")
        return [await finder.find(stream=True), await finder.find(stream=True)]

    first, second = asyncio.run(ask_twice())
    assert first == second
    assert first.headers == {"authorization": "Bearer token 1"}
    assert first.url == (
        "https://aiplatform.eu.rep.googleapis.com/v1/projects/default-project/locations/eu"
        "/publishers/google/models/gemini-x:streamGenerateContent?alt=sse"
    )


@pytest.mark.parametrize(
    ("location", "regions", "host"),
    [
        ("", (), "us-central1-aiplatform.googleapis.com"),
        ("", ("global",), "aiplatform.googleapis.com"),
        ("europe-west1", (), "europe-west1-aiplatform.googleapis.com"),
        ("europe-west1", ("global",), "aiplatform.googleapis.com"),
    ],
)
def test_vertex_uses_a_region_that_has_the_model(
    location: str, regions: tuple[str, ...], host: str, google: SimpleNamespace
) -> None:
    endpoint = find("vertex_ai", "gemini", vertex_location=location, supported_regions=regions)
    assert endpoint.url.startswith(f"https://{host}/")


def test_vertex_needs_a_project(google: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("google.auth.default", lambda scopes: (google, None))
    with pytest.raises(UserError, match="VERTEXAI_PROJECT"):
        find("vertex_ai", "gemini")
