"""Addresses and credentials of providers that get requests as plain HTTP.

Environment variables and defaults are the ones that LiteLLM documents for these providers.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cooperbench.errors import UserError
from cooperbench.gateway.api_formats import ANTHROPIC, CHAT, GEMINI, JsonMapping

_ANTHROPIC_URL = "https://api.anthropic.com"
_ANTHROPIC_VERSION = "2023-06-01"
_ANTHROPIC_OAUTH_PREFIX = "sk-ant-oat"
_GEMINI_URL = "https://generativelanguage.googleapis.com"
_OPENAI_URL = "https://api.openai.com/v1"
_VERTEX_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_VERTEX_LOCATION = "us-central1"
OPENAI_URL_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")


@dataclass(frozen=True)
class Endpoint:
    """The address of a provider's API, and the headers that authenticate a request."""

    url: str
    headers: Mapping[str, str]


class EndpointFinder(Protocol):
    """Finds the endpoint of one model."""

    async def find(self, *, stream: bool) -> Endpoint:
        """Return the endpoint for the next request."""
        ...


@dataclass(frozen=True)
class Connection:
    """One model at its provider, as the user's settings describe it."""

    provider: str
    """LiteLLM's name of the provider."""
    model: str
    """Name of the model without the provider."""
    api_base: str
    """Empty if it is the provider's own address."""
    api_key: str
    """Empty if it is in the environment."""
    settings: JsonMapping
    """Every setting of the agent config for model calls."""
    supported_regions: tuple[str, ...] = ()
    """Regions of Vertex AI that have the model; empty if all of them have it."""


def endpoint_finder(connection: Connection, api_format: str) -> EndpointFinder:
    """Return the finder for a model whose provider has this API format."""
    if connection.provider == "vertex_ai":
        return _VertexFinder(connection)
    if api_format == GEMINI:
        return _GeminiFinder(connection)
    if api_format == ANTHROPIC:
        return _AnthropicFinder(connection)
    path = "/chat/completions" if api_format == CHAT else "/responses"
    return _OpenAIFinder(connection, path)


@dataclass(frozen=True)
class _OpenAIFinder:
    """Finds OpenAI, and servers that have its API."""

    connection: Connection
    path: str

    async def find(self, *, stream: bool) -> Endpoint:  # noqa: ARG002  # the path is the same
        """Return the endpoint for the next request."""
        base = self.connection.api_base or first_variable(*OPENAI_URL_VARIABLES) or _OPENAI_URL
        base = base.rstrip("/")
        url = base if base.endswith(self.path) else base + self.path
        key = self.connection.api_key or first_variable("OPENAI_API_KEY")
        return Endpoint(url, {"authorization": f"Bearer {key}"})


@dataclass(frozen=True)
class _AnthropicFinder:
    connection: Connection

    async def find(self, *, stream: bool) -> Endpoint:  # noqa: ARG002  # the path is the same
        """Return the endpoint for the next request."""
        base = self.connection.api_base
        base = base or first_variable("ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL") or _ANTHROPIC_URL
        path = "/v1/messages"
        url = base if base.endswith(path) else base.rstrip("/") + path
        key = self.connection.api_key or first_variable("ANTHROPIC_API_KEY")
        headers = {"anthropic-version": _ANTHROPIC_VERSION}
        if key.startswith(_ANTHROPIC_OAUTH_PREFIX):
            headers["authorization"] = f"Bearer {key}"
        elif key:
            headers["x-api-key"] = key
        else:
            headers["authorization"] = f"Bearer {first_variable('ANTHROPIC_AUTH_TOKEN')}"
        return Endpoint(url, headers)


@dataclass(frozen=True)
class _GeminiFinder:
    """Finds Google AI Studio."""

    connection: Connection

    async def find(self, *, stream: bool) -> Endpoint:
        """Return the endpoint for the next request."""
        base = (self.connection.api_base or f"{_GEMINI_URL}/v1beta").rstrip("/")
        if not base.endswith("/models"):
            base += "/models"
        key = self.connection.api_key or first_variable("GOOGLE_API_KEY", "GEMINI_API_KEY")
        url = f"{base}/{self.connection.model}{_gemini_method(stream=stream)}"
        return Endpoint(url, {"x-goog-api-key": key})


class _VertexFinder:
    """Finds Google's Vertex AI. Its tokens expire after an hour; google-auth renews them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._credentials: Any = None
        self._default_project: str | None = None
        self._lock = asyncio.Lock()

    async def find(self, *, stream: bool) -> Endpoint:
        """Return the endpoint for the next request."""
        async with self._lock:
            # google-auth reads files and asks Google's servers.
            token = await asyncio.to_thread(self._renewed_token)
        settings = self._connection.settings
        project = settings.get("vertex_project") or first_variable("VERTEXAI_PROJECT")
        project = project or self._default_project
        if not project:
            raise UserError("the project of Vertex AI is unknown: set VERTEXAI_PROJECT")
        location = self._location()
        base = self._connection.api_base or _vertex_url(location)
        url = (
            f"{base.rstrip('/')}/v1/projects/{project}/locations/{location}"
            f"/publishers/google/models/{self._connection.model}{_gemini_method(stream=stream)}"
        )
        return Endpoint(url, {"authorization": f"Bearer {token}"})

    def _location(self) -> str:
        location = self._connection.settings.get("vertex_location")
        location = location or first_variable("VERTEXAI_LOCATION", "VERTEX_LOCATION")
        regions = self._connection.supported_regions
        if regions and location not in regions:
            return regions[0]
        return str(location or _VERTEX_LOCATION)

    def _renewed_token(self) -> str:
        from google.auth.transport.requests import Request

        if self._credentials is None:
            self._credentials, self._default_project = self._load_credentials()
        if not self._credentials.valid:
            self._credentials.refresh(Request())
        return str(self._credentials.token)

    def _load_credentials(self) -> tuple[Any, str | None]:
        """Return the credentials and their project: of the settings, else the machine's default."""
        import google.auth

        value = self._connection.settings.get("vertex_credentials")
        value = value or first_variable("VERTEXAI_CREDENTIALS")
        scopes = [_VERTEX_SCOPE]
        if not value:
            credentials, project = google.auth.default(scopes=scopes)
            return credentials, project
        if isinstance(value, str):
            value = json.loads(Path(value).read_text("utf-8") if Path(value).is_file() else value)
        load: Any = google.auth.load_credentials_from_dict
        credentials, project = load(value, scopes=scopes)
        return credentials, project


def _vertex_url(location: str) -> str:
    if location == "global":
        return "https://aiplatform.googleapis.com"
    if "-" not in location:  # several regions: "us", "eu"
        return f"https://aiplatform.{location}.rep.googleapis.com"
    return f"https://{location}-aiplatform.googleapis.com"


def _gemini_method(*, stream: bool) -> str:
    return ":streamGenerateContent?alt=sse" if stream else ":generateContent"


def first_variable(*names: str) -> str:
    """Return the value of the first environment variable that is set, or an empty string."""
    for name in names:
        value = os.environ.get(name)
        if value:
            return value
    return ""
