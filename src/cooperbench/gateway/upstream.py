"""The way of a request to the model's provider.

A provider that has the API format itself gets the request as plain HTTP. For all others LiteLLM's
public functions translate it; Gemini's format is translated by `gemini_translation.py`. Requests
have passed the allowlist (`request_filter.py`).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from copy import deepcopy
from typing import Any

from aiohttp import ClientSession

from cooperbench.agents import llm
from cooperbench.gateway.allowlist import RULES
from cooperbench.gateway.api_formats import (
    ANTHROPIC,
    CHAT,
    GEMINI,
    RESPONSES,
    JsonMapping,
    JsonObject,
)
from cooperbench.gateway.gemini_translation import (
    to_chat_request,
    to_gemini_events,
    to_gemini_reply,
)
from cooperbench.gateway.http_requests import post_json, read_events
from cooperbench.gateway.providers import (
    OPENAI_URL_VARIABLES,
    Connection,
    endpoint_finder,
    first_variable,
)
from cooperbench.gateway.streams import BrokenStream, has_finish_reason
from cooperbench.gateway.usage import read_token_counts
from cooperbench.models import Usage

_ARGUMENTS = {api_format: rules.translated_fields for api_format, rules in RULES.items()}
"""Arguments of a request that LiteLLM and servers with OpenAI's API get."""
_PROVIDERS_WITH_FORMAT = {
    ANTHROPIC: ("anthropic",),
    GEMINI: ("gemini", "vertex_ai"),
    RESPONSES: ("openai",),
    CHAT: ("openai", "hosted_vllm"),
}
_CONNECTION_SETTINGS = {
    "api_key",
    "api_base",
    "timeout",
    "use_chat_completions_api",
    "vertex_project",
    "vertex_location",
    "vertex_credentials",
}
_ENCRYPTED_REASONING = "reasoning.encrypted_content"
_FORWARDED_HEADERS = ("anthropic-version", "anthropic-beta", "openai-beta")


class Upstream:
    """One model with its settings. All of its methods run on one event loop."""

    def __init__(self, model: str, settings: JsonMapping, http: ClientSession) -> None:
        self.model = model
        self.http = http
        self._litellm = llm.load_litellm()
        self._settings = dict(settings)
        if "base_url" in self._settings:
            self._settings["api_base"] = self._settings.pop("base_url")
        self._settings.setdefault("timeout", llm.DEFAULT_CALL_SECONDS)
        self._connection = self._find_connection()
        self._finders = {
            api_format: endpoint_finder(self._connection, api_format)
            for api_format, providers in _PROVIDERS_WITH_FORMAT.items()
            if self._connection.provider in providers
        }

    def ask(
        self, api_format: str, body: JsonObject, headers: Mapping[str, str], *, stream: bool
    ) -> AsyncIterator[JsonObject]:
        """Yield the events of a stream as they come, or the whole reply as the only one."""
        if self._is_native(api_format):
            return self._ask_natively(api_format, body, headers, stream=stream)
        arguments = {
            name: body[name] for name in _ARGUMENTS[api_format] if body.get(name) is not None
        }
        if api_format == GEMINI:
            return self._ask_for_gemini(arguments, stream=stream)
        return self._ask_litellm(api_format, arguments, stream=stream)

    def usage(self, api_format: str, reply: JsonObject, seconds: float) -> Usage:
        """Return the tokens that a reply used, with their cost at LiteLLM's prices."""
        tokens = self._litellm.Usage(**read_token_counts(api_format, reply))
        response = self._litellm.ModelResponse(model=self._connection.model, usage=tokens)
        return llm.usage_of(response, self.model, seconds)

    async def count_tokens(self, body: JsonObject) -> int:
        """Return the number of tokens of a request in Anthropic's format.

        The provider counts them if it can; otherwise LiteLLM estimates the number.
        """
        system = body.get("system")
        if isinstance(system, list):
            system = "\n".join(block.get("text", "") for block in system)
        count = await self._litellm.acount_tokens(
            self.model,
            system=system,
            messages=body.get("messages"),
            tools=body.get("tools"),
            api_key=self._settings.get("api_key"),
            api_base=self._settings.get("api_base"),
        )
        return int(count.total_tokens)

    def _find_connection(self) -> Connection:
        name, provider, api_key, api_base = self._litellm.get_llm_provider(
            self.model,
            api_base=self._settings.get("api_base"),
            api_key=self._settings.get("api_key"),
        )
        if provider == "openai":
            api_base = api_base or first_variable(*OPENAI_URL_VARIABLES)
        regions = self._litellm.model_cost.get(f"vertex_ai/{name}", {}).get("supported_regions")
        return Connection(
            provider=provider,
            model=name,
            api_base=str(api_base or ""),
            api_key=str(api_key or self._settings.get("api_key") or ""),
            settings=self._settings,
            supported_regions=tuple(regions or ()),
        )

    def _is_native(self, api_format: str) -> bool:
        """Return whether requests in this format go to the provider as plain HTTP."""
        if api_format not in self._finders:
            return False
        other_settings = set(self._settings) - _CONNECTION_SETTINGS
        if api_format == CHAT:
            chat_arguments = {*_ARGUMENTS[CHAT], "drop_params"}
            return not self._is_openai() and other_settings <= chat_arguments
        if other_settings:
            return False
        if api_format == RESPONSES:
            has_own_server = bool(self._connection.api_base)
            return not self._settings.get("use_chat_completions_api", has_own_server)
        # Vertex AI also has models of other vendors.
        return api_format != GEMINI or "gemini" in self._connection.model

    def _is_openai(self) -> bool:
        """Return whether the model is OpenAI's. LiteLLM knows the arguments that each one takes."""
        price = self._litellm.model_cost.get(self._connection.model, {})
        if price.get("litellm_provider") == "openai":
            return True
        base = self._connection.api_base
        return not base or "openai.com" in base

    async def _ask_natively(
        self, api_format: str, body: JsonObject, headers: Mapping[str, str], *, stream: bool
    ) -> AsyncIterator[JsonObject]:
        endpoint = await self._finders[api_format].find(stream=stream)
        forwarded = {name: headers[name] for name in _FORWARDED_HEADERS if name in headers}
        if api_format == CHAT:
            body = self._chat_body(body, stream=stream)
        if api_format != GEMINI:
            body = {**body, "model": self._connection.model}
        if api_format == RESPONSES and self._litellm.supports_reasoning(self._connection.model):
            body["include"] = _with_encrypted_reasoning(body.get("include"))
        response = await post_json(
            self.http,
            endpoint,
            body,
            {**endpoint.headers, **forwarded},
            self._settings["timeout"],
        )
        async with response:
            if not stream:
                reply = json.loads(await response.read())
                yield self._checked_chat_reply(reply) if api_format == CHAT else reply
                return
            is_finished = api_format != CHAT
            async for event in read_events(response.content.iter_any()):
                is_finished = is_finished or has_finish_reason(event)
                yield event
            if not is_finished:
                raise BrokenStream

    def _chat_body(self, body: JsonObject, *, stream: bool) -> JsonObject:
        """Return a chat completion for a server that has OpenAI's API."""
        settings = {
            name: value for name, value in self._settings.items() if name in _ARGUMENTS[CHAT]
        }
        request = {name: body[name] for name in _ARGUMENTS[CHAT] if body.get(name) is not None}
        messages = request.get("messages", [])
        request["messages"] = [_without_cache_control(message) for message in messages]
        request |= settings
        if stream:
            request |= {"stream": True, "stream_options": {"include_usage": True}}
        return request

    def _checked_chat_reply(self, reply: JsonObject) -> JsonObject:
        """Return a whole chat completion with the fields that OpenAI's API promises.

        Raises:
            ValueError: It has no choices.
        """
        if not reply.get("choices"):
            raise ValueError("the reply has no choices")
        return _to_dict(self._litellm.ModelResponse(**reply))

    async def _ask_for_gemini(
        self, arguments: JsonObject, *, stream: bool
    ) -> AsyncIterator[JsonObject]:
        """Ask for a chat completion, and yield it in Gemini's format."""
        events = self.ask(CHAT, to_chat_request(arguments), {}, stream=stream)
        if stream:
            events = to_gemini_events(events)
        async for event in events:
            yield event if stream else to_gemini_reply(event)

    def _litellm_model(self) -> JsonObject:
        """Return the arguments that name the model for LiteLLM.

        A server with OpenAI's API is `hosted_vllm`. For `openai`, LiteLLM would use OpenAI's own
        client, which takes 12 ms more CPU time for a long request. `openai` is needed for OpenAI's
        models, whose arguments differ, and to ask a server for responses.
        """
        connection = self._connection
        asks_for_responses = self._settings.get("use_chat_completions_api") is False
        if connection.provider != "openai" or self._is_openai() or asks_for_responses:
            return {"model": self.model}
        return {
            "model": f"hosted_vllm/{connection.model}",
            "api_base": connection.api_base,
            "api_key": connection.api_key or first_variable("OPENAI_API_KEY"),
        }

    async def _ask_litellm(
        self, api_format: str, arguments: JsonObject, *, stream: bool
    ) -> AsyncIterator[JsonObject]:
        settings = {
            **self._settings,
            **self._litellm_model(),
            **llm.NO_OTHER_RETRIES,
            "stream": stream,
        }
        settings.setdefault("drop_params", True)
        use_chat = settings.pop("use_chat_completions_api", True)
        if "tools" in arguments:
            # LiteLLM changes the schemas of tools in place, and the request is recorded later.
            arguments = {**arguments, "tools": deepcopy(arguments["tools"])}
        if api_format == RESPONSES:
            reply = await self._litellm.aresponses(
                **arguments, **settings, use_chat_completions_api=use_chat
            )
        elif api_format == ANTHROPIC:
            if self._connection.provider == "openai" and self._connection.api_base:
                # LiteLLM would turn it into an argument that only OpenAI's own models accept.
                arguments.pop("thinking", None)
            reply = await self._litellm.anthropic.messages.acreate(**arguments, **settings)
        else:
            if stream:
                settings["stream_options"] = {"include_usage": True}
            reply = await self._litellm.acompletion(**arguments, **settings)
            if not stream and not reply.choices:
                raise ValueError("the reply has no choices")
        if not stream:
            yield _to_dict(reply)
            return
        async for event in _events_of(api_format, reply):
            yield event


async def _events_of(api_format: str, stream: AsyncIterable[Any]) -> AsyncIterator[JsonObject]:
    """Yield the events of a stream of LiteLLM's: bytes in Anthropic's format, objects otherwise."""
    if api_format == ANTHROPIC:
        async for event in read_events(stream):
            yield event
        return
    async for chunk in stream:
        yield _to_dict(chunk, exclude_unset=True)


def _to_dict(reply: Any, *, exclude_unset: bool = False) -> JsonObject:
    if isinstance(reply, dict):
        return reply
    return dict(reply.model_dump(mode="json", exclude_none=True, exclude_unset=exclude_unset))


def _with_encrypted_reasoning(include: object) -> list[object]:
    """Return `include` so that replies have the reasoning, which the provider does not keep."""
    names = list(include) if isinstance(include, list) else []
    return names if _ENCRYPTED_REASONING in names else [*names, _ENCRYPTED_REASONING]


def _without_cache_control(message: JsonObject) -> JsonObject:
    """Return a message without marks for Anthropic's cache, which other servers may reject."""
    message = _drop_cache_control(message)
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = [_drop_cache_control(block) for block in content]
    return message


def _drop_cache_control(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: inner for name, inner in value.items() if name != "cache_control"}
