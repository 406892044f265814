"""Plain HTTP requests to providers: JSON bodies, server-sent events, errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from functools import cache
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from aiohttp import ClientResponse, ClientSession, ClientTimeout
from pydantic_core import to_json

from cooperbench.agents.llm import ProviderError
from cooperbench.gateway.api_formats import JsonObject
from cooperbench.gateway.providers import Endpoint

_STREAM_ERROR_STATUSES = {
    "overloaded_error": 529,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "invalid_prompt": 400,
}
"""HTTP statuses for errors that come in a stream, which has already begun with status 200."""


async def post_json(
    http: ClientSession,
    endpoint: Endpoint,
    body: JsonObject,
    headers: Mapping[str, str],
    timeout_seconds: float,
) -> ClientResponse:
    """Send a request and return its response, whose body has not been read.

    Raises:
        ProviderError: The provider refused the request.
        TimeoutError: The response did not begin in time.
    """
    headers = {"content-type": "application/json", **headers}
    if urlsplit(endpoint.url).username:
        # aiohttp sends the credentials of the address only if there is no other authorization.
        headers = {name: value for name, value in headers.items() if name != "authorization"}
    try:
        async with asyncio.timeout(timeout_seconds):
            response = await http.post(
                endpoint.url,
                data=BytesIO(_encode(body)),
                headers=headers,
                proxy=_proxy(endpoint.url),
                timeout=ClientTimeout(total=None, sock_read=timeout_seconds),
                allow_redirects=False,
            )
    except TimeoutError as error:
        raise TimeoutError(f"no response within {timeout_seconds:g} s") from error
    if response.status != 200:
        async with response:
            text = (await response.read()).decode("utf-8", "replace")
        raise ProviderError(response.status, _error_message(text), response.headers)
    return response


async def read_events(data: AsyncIterable[bytes]) -> AsyncIterator[JsonObject]:
    """Yield the objects of server-sent events.

    Raises:
        ProviderError: An event says that the stream has failed.
    """
    partial_line = b""
    async for piece in data:
        *lines, partial_line = (partial_line + piece).split(b"\n")
        for line in lines:
            text = line.removeprefix(b"data:").strip()
            if not line.startswith(b"data:") or text == b"[DONE]":
                continue
            event = json.loads(text)
            _raise_if_failed(event)
            yield event


def _encode(body: JsonObject) -> bytes:
    """Encode a body. pydantic is three times as fast as `json`, but rejects lone surrogates."""
    try:
        return to_json(body)
    except ValueError:
        return json.dumps(body).encode()


@cache
def _proxy(url: str) -> str | None:
    """Return the proxy that the environment (HTTPS_PROXY, ALL_PROXY, NO_PROXY) names for a URL."""
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    host = parts.netloc.rpartition("@")[2]
    if not proxy or proxy_bypass(host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _error_message(text: str) -> str:
    """Return the message in an error response, or the whole text if it has another structure."""
    try:
        body = json.loads(text)
    except ValueError:
        return text
    error = _error_of(body) if isinstance(body, dict) else None
    return text if error is None else _describe(error)


def _raise_if_failed(event: Any) -> None:
    error = _error_of(event) if isinstance(event, dict) else None
    if error is None:
        return
    code = error.get("code") or error.get("type")
    status = code if isinstance(code, int) else _STREAM_ERROR_STATUSES.get(str(code), 500)
    raise ProviderError(status, _describe(error), {})


def _error_of(event: JsonObject) -> JsonObject | None:
    """Return the error in a response or an event, if there is one."""
    if event.get("type") == "response.failed":
        error = event.get("response", {}).get("error")
    elif event.get("type") == "error":
        error = event.get("error") or event
    else:
        error = event.get("error")
    return error if isinstance(error, dict) else None


def _describe(error: JsonObject) -> str:
    """Return the provider's message and code. Only the code may name a full context or a filter."""
    message = str(error.get("message") or error)
    code = error.get("code")
    if isinstance(code, str) and code not in message:
        return f"{message} ({code})"
    return message
