"""The way from a request in an API format to the model's provider.

A provider that speaks the API format itself gets the request as it is; else LiteLLM translates it to chat completions. It
also asks for these, save from servers that have no ways of their own: what it does around a call takes 10 to 20 ms.
(LiteLLM's own functions for other API formats need packages of its proxy.) Requests come from sandboxes: only the
arguments that are listed here get through to LiteLLM, since others are addresses, keys and hooks.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from io import BytesIO
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from aiohttp import ClientSession, ClientTimeout
from pydantic_core import to_json

from cooperbench.agents import llm
from cooperbench.gateway import api_formats
from cooperbench.gateway.api_formats import ANTHROPIC, CHAT, GEMINI, RESPONSES, Body
from cooperbench.models import Usage

Headers = Mapping[str, str]
_COMMON = "tools tool_choice temperature top_p parallel_tool_calls"
_ARGUMENTS = {
    CHAT: f"{_COMMON} messages max_tokens max_completion_tokens stop seed response_format frequency_penalty "
    "presence_penalty reasoning_effort verbosity prompt_cache_key thinking n",
    RESPONSES: f"{_COMMON} input instructions reasoning text max_output_tokens prompt_cache_key truncation",
    ANTHROPIC: f"{_COMMON} messages system max_tokens top_k stop_sequences thinking output_config",
    GEMINI: "contents generationConfig systemInstruction system_instruction tools toolConfig tool_config",
}
_NATIVE = {
    ANTHROPIC: ("anthropic",),
    GEMINI: ("gemini", "vertex_ai"),
    RESPONSES: ("openai",),
    CHAT: ("openai", "hosted_vllm"),
}
_CONNECTION = {"api_key", "api_base", "timeout", "use_chat_completions_api"}
_CONNECTION |= {"vertex_project", "vertex_location", "vertex_credentials"}
_KEPT_HEADERS = ("anthropic-version", "anthropic-beta", "openai-beta")
_NO_CHOICES = "the answer has no choices in it"
_STREAM_STATUS = {
    "overloaded_error": 529, "rate_limit_error": 429, "rate_limit_exceeded": 429, "invalid_request_error": 400,
    "context_length_exceeded": 400, "invalid_prompt": 400,
}  # fmt: skip


class Upstream:
    """One model with its settings. Used on one event loop only."""

    def __init__(self, model: str, settings: Mapping[str, Any], http: ClientSession) -> None:
        self.model = model
        self._litellm = llm.load_litellm()
        self.http = http
        self._settings = {
            "api_base" if name == "base_url" else name: settings[name] for name in settings
        }
        self._settings.setdefault("timeout", llm.DEFAULT_CALL_SECONDS)
        given = {name: self._settings.get(name) for name in ("api_base", "api_key")}
        self._name, self._provider, key, base = self._litellm.get_llm_provider(model, **given)
        self._key = key or self._litellm.OpenAIGPTConfig.get_api_key(given["api_key"])
        own = ("OPENAI_BASE_URL", "OPENAI_API_BASE") if self._provider == "openai" else ()
        self._base = str(base or next(filter(None, map(os.environ.get, own)), ""))
        """Where a server of OpenAI's API is that is not OpenAI."""

    def ask(
        self, api_format: str, body: Body, headers: Headers, *, stream: bool
    ) -> AsyncIterator[Body]:
        """The events of a stream as they come; else the whole answer as the only one."""
        if self._is_native(api_format):
            return self._native(api_format, body, headers, stream=stream)
        return self._translated(api_format, body, stream=stream)

    def whole(self, api_format: str, events: Sequence[Body]) -> Body:
        """A streamed answer as one."""
        if api_format != CHAT:
            return api_formats.whole(api_format, events)
        if not any(map(_is_finished, events)):
            raise api_formats.BrokenStream
        chunks = [self._chunk(event) for event in events]
        return dict(self._litellm.stream_chunk_builder(chunks).model_dump(exclude_none=True))

    def usage(self, api_format: str, reply: Body, seconds: float) -> Usage:
        """What the answer says that it used, at LiteLLM's prices."""
        litellm, said = self._litellm, reply.get("usage") or {}
        if api_format == GEMINI:
            used = litellm.VertexGeminiConfig._calculate_usage({"usageMetadata": {}, **reply})
        elif api_format == ANTHROPIC:
            used = litellm.AnthropicConfig().calculate_usage(said, None)
        elif api_format == RESPONSES:
            utils = import_module("litellm.responses.utils").ResponseAPILoggingUtils
            used = utils._transform_response_api_usage_to_chat_usage(said)
        else:
            used = litellm.Usage(**said)
        return llm.usage_of(
            litellm.ModelResponse(model=self._name, usage=used), self.model, seconds
        )

    async def count_tokens(self, body: Body) -> int:
        """By the provider where it can; else an estimate."""
        system = body.get("system")
        given = {name: body.get(name) for name in ("messages", "tools")}
        given |= {name: self._settings.get(name) for name in ("api_key", "api_base")}
        text = (
            "\n".join(block.get("text", "") for block in system)
            if isinstance(system, list)
            else system
        )
        counted = await self._litellm.acount_tokens(self.model, system=text, **given)
        return int(counted.total_tokens)

    def _is_native(self, api_format: str) -> bool:
        more = set(self._settings) - _CONNECTION
        if self._provider not in _NATIVE[api_format]:
            return False
        if api_format == CHAT:
            # LiteLLM knows what each of OpenAI's models takes, and by which API it has to be asked.
            known = self._litellm.model_cost.get(self._name, {}).get("litellm_provider") == "openai"
            own = known or not self._base or "openai.com" in self._base
            return not own and more <= {*_ARGUMENTS[CHAT].split(), "drop_params"}
        if more:
            return False
        if api_format == RESPONSES:
            return not self._settings.get("use_chat_completions_api", bool(self._base))
        # Vertex AI has models of others, too.
        return api_format != GEMINI or "gemini" in self._name

    async def _native(
        self, api_format: str, body: Body, sent: Headers, *, stream: bool
    ) -> AsyncIterator[Body]:
        base, key, seconds = (
            self._settings.get(name) for name in ("api_base", "api_key", "timeout")
        )
        kept = {name: sent[name] for name in _KEPT_HEADERS if name in sent}
        provider = self._litellm.LlmProviders(self._provider)
        configs = import_module("litellm.utils").ProviderConfigManager
        if api_format == GEMINI:
            config = configs.get_provider_google_genai_generate_content_config(self._name, provider)
            auth, url = await config.get_auth_token_and_url(
                base, self._name, {**self._settings}, stream
            )
        elif api_format == ANTHROPIC:
            config = self._litellm.AnthropicMessagesConfig()
            auth, _ = config.validate_anthropic_messages_environment(
                kept, self._name, [], {}, {}, key, base
            )
            url = config.get_complete_url(base, key, self._name, {}, {}, stream)
        elif api_format == CHAT:
            config = configs.get_provider_chat_config(self._name, provider)
            auth = config.validate_environment({}, self._name, [], {}, {}, self._key)
            url = config.get_complete_url(self._base, None, self._name, {}, {}, stream)
            body = self._chat_body(config, body, stream=stream)
        else:
            config = self._litellm.OpenAIResponsesAPIConfig()
            params = import_module("litellm.types.router").GenericLiteLLMParams(
                api_key=key, api_base=base
            )
            auth, url = (
                config.validate_environment({}, self._name, params),
                config.get_complete_url(base, {}),
            )
        if api_format != GEMINI:
            body = {**body, "model": self._name}
        headers = {"content-type": "application/json"} | kept | auth
        if urlsplit(url).username:
            # What is in the address is meant.
            headers = {
                name: value for name, value in headers.items() if name.lower() != "authorization"
            }
        made: Any = {"data": BytesIO(_json(body)), "headers": headers, "proxy": _proxy(url)}
        made |= {"timeout": ClientTimeout(total=None, sock_read=seconds), "allow_redirects": False}
        try:
            async with asyncio.timeout(seconds):
                response = await self.http.post(url, **made)
        except TimeoutError as error:
            raise TimeoutError(f"no answer within {seconds:g} s") from error
        async with response:
            if response.status != 200:
                text = (await response.read()).decode("utf-8", "replace")
                self._refused(response.status, text, response.headers)
            if not stream:
                reply = json.loads(await response.read())
                if api_format == CHAT:
                    if not reply.get("choices"):
                        raise ValueError(_NO_CHOICES)
                    module = (
                        "litellm.litellm_core_utils.llm_response_utils.convert_dict_to_response"
                    )
                    convert = import_module(module).convert_to_model_response_object
                    reply = _as_dict(convert(reply, self._litellm.ModelResponse()))
                yield reply
                return
            finished = api_format != CHAT
            async for event in self._events(response.content.iter_any()):
                finished = finished or _is_finished(event)
                yield event
            if not finished:
                raise api_formats.BrokenStream

    def _chat_body(self, config: Any, body: Body, *, stream: bool) -> Body:
        """As LiteLLM would send it."""
        given = {
            name: body[name] for name in _ARGUMENTS[CHAT].split() if body.get(name) is not None
        }
        given |= {name: value for name, value in self._settings.items() if name not in _CONNECTION}
        messages = [{**message} for message in given.pop("messages", [])]
        # LiteLLM changes what it gets.
        given = json.loads(json.dumps(given)) | {"messages": messages, "drop_params": True}
        about = {"custom_llm_provider": self._provider, "api_base": self._base}
        params = self._litellm.get_optional_params(
            self._name, custom_llm_provider=self._provider, **given
        )
        more = params.pop("extra_body", {})
        more |= {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        return {**config.transform_request(self._name, messages, params, about, {}), **more}

    def _chunk(self, event: Body) -> Any:
        handlers = import_module("litellm.llms.openai.chat.gpt_transformation")
        return handlers.OpenAIChatCompletionStreamingHandler(None, sync_stream=False).chunk_parser(
            event
        )

    async def _chat(self, given: Body, *, stream: bool) -> Any:
        """The answer, or its chunks, as LiteLLM's objects."""
        if self._is_native(CHAT):
            events = self._native(CHAT, given, {}, stream=stream)
            if stream:
                return (self._chunk(event) async for event in events)
            return self._litellm.ModelResponse(**await anext(events))
        given = {
            "model": self.model,
            **given,
            "stream": stream,
            "drop_params": True,
            **self._settings,
        }
        given |= llm.NO_OTHER_RETRIES | (
            {"stream_options": {"include_usage": True}} if stream else {}
        )
        given.pop("use_chat_completions_api", None)
        answer = await self._litellm.acompletion(**given)
        if not stream and not answer.choices:
            raise ValueError(_NO_CHOICES)
        return answer

    async def _translated(
        self, api_format: str, body: Body, *, stream: bool
    ) -> AsyncIterator[Body]:
        given = {
            name: body[name]
            for name in _ARGUMENTS[api_format].split()
            if body.get(name) is not None
        }
        if api_format == RESPONSES:
            answer = await self._responses(given, stream=stream)
        elif api_format == ANTHROPIC:
            answer = await self._messages(given, stream=stream)
        elif api_format == GEMINI:
            given = _gemini_adapter().translate_generate_content_to_completion(
                self.model, given.pop("contents", []), given.pop("generationConfig", None), **given
            )
            answer = await self._chat(given, stream=stream)
            answer = self._gemini_stream(answer) if stream else _gemini_reply(answer)
        else:
            answer = await self._chat(given, stream=stream)
        if not stream:
            yield _as_dict(answer)
            return
        async for event in answer:
            yield _as_dict(event, exclude_unset=True)

    async def _responses(self, given: Body, *, stream: bool) -> Any:
        if not self._settings.get("use_chat_completions_api", True):
            more = {"model": self.model, "stream": stream, "drop_params": True, **self._settings}
            return await self._litellm.aresponses(**given | more | llm.NO_OTHER_RETRIES)
        package = "litellm.responses.litellm_completion_transformation"
        config = import_module(f"{package}.transformation").LiteLLMCompletionResponsesConfig
        hoist = import_module("litellm.responses.additional_tools").hoist_additional_tools
        hoisted = hoist(given.pop("input", []), given.get("tools"))
        asked, given = hoisted.input, given | {"tools": list(hoisted.tools)}
        request = config.transform_responses_api_request_to_chat_completion_request(
            self._name, asked, given, self._provider, stream, api_base=self._base or None
        )
        request |= {
            "model": self.model,
            "custom_llm_provider": None,
            "_skip_responses_api_bridge": True,
        }
        answer = await self._chat(request, stream=stream)
        if not stream:
            return config.transform_chat_completion_response_to_responses_api_response(
                asked, given, answer
            )
        translate = import_module(
            f"{package}.streaming_iterator"
        ).LiteLLMCompletionStreamingIterator
        # All that it uses of a stream of LiteLLM's own.
        chunks = SimpleNamespace(logging_obj=None, __anext__=aiter(answer).__anext__)
        return translate(self._name, chunks, asked, given, self._provider)

    async def _messages(self, given: Body, *, stream: bool) -> Any:
        if self._provider == "openai" and self._base:
            # LiteLLM would ask for it by the responses API, which is OpenAI's own.
            given.pop("thinking", None)
        adapters = import_module("litellm.llms.anthropic.pass_through.adapters.handler")
        prepare = (
            adapters.LiteLLMMessagesToCompletionTransformationHandler._prepare_completion_kwargs
        )
        more = {name: given.pop(name) for name in ("output_config",) if name in given}
        request, names = prepare(model=self.model, stream=stream, extra_kwargs=more, **given)
        answer, adapter = await self._chat(request, stream=stream), adapters.ANTHROPIC_ADAPTER
        if not stream:
            return adapter.translate_completion_output_params(answer, names)
        translate = adapter.translate_completion_output_params_streaming
        return self._events(translate(answer, self._name, names, is_async=True))

    async def _gemini_stream(self, chunks: AsyncIterable[Any]) -> AsyncIterator[Body]:
        """Text as it comes; calls, finish reason and usage at the end. (LiteLLM's own stream loses the usage.)"""
        seen = []
        async for chunk in chunks:
            seen.append(chunk)
            if text := chunk.choices and chunk.choices[0].delta.content:
                content = {"role": "model", "parts": [{"text": text}]}
                yield {"candidates": [{"index": 0, "content": content}]}
        if not any(chunk.choices and chunk.choices[0].finish_reason for chunk in seen):
            raise api_formats.BrokenStream
        reply = _gemini_reply(self._litellm.stream_chunk_builder(seen))
        content = reply["candidates"][0]["content"]
        content["parts"] = [part for part in content["parts"] if "text" not in part]
        yield reply

    async def _events(self, data: AsyncIterable[bytes]) -> AsyncIterator[Body]:
        """The objects of server-sent events; one that ends the stream with an error is raised."""
        rest = b""
        async for piece in data:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data:") and (text := line[5:].strip()) != b"[DONE]":
                    event = json.loads(text)
                    if failure := _failure(event):
                        self._refused(*failure, {})
                    yield event

    def _refused(self, status: int, text: str, headers: Mapping[str, str]) -> None:
        """Raise what LiteLLM would raise for this answer."""
        base = import_module("litellm.llms.base_llm.chat.transformation").BaseLLMException
        error = base(status_code=status, message=text, headers=headers)
        with suppress(ValueError, AttributeError, TypeError):
            # What is shown of it.
            error.body = {"message": _failure(json.loads(text))[1]}  # type: ignore[index]
        raise self._litellm.exception_type(
            model=self._name, custom_llm_provider=self._provider, original_exception=error
        )


def _json(body: Body) -> bytes:
    """Three times as fast as `json`, save for half a surrogate pair, which has no UTF-8."""
    try:
        return to_json(body)
    except ValueError:
        return json.dumps(body).encode()


@cache
def _proxy(url: str) -> str | None:
    """What the environment (HTTPS_PROXY, ALL_PROXY, NO_PROXY, …) says about this address."""
    parts, found = urlsplit(url), getproxies()
    proxy = found.get(parts.scheme) or found.get("all")
    if not proxy or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_finished(chunk: Body) -> bool:
    return any(choice.get("finish_reason") for choice in chunk.get("choices") or ())


def _as_dict(answer: Any, **options: bool) -> Body:
    """A whole answer, or an event."""
    return (
        answer
        if isinstance(answer, dict)
        else dict(answer.model_dump(exclude_none=True, **options))
    )


def _failure(event: Body) -> tuple[int, str] | None:
    """The status and the message of an event that ends a provider's stream."""
    kind = event.get("type")
    error = (
        event.get("response", {}).get("error") if kind == "response.failed" else event.get("error")
    )
    if kind == "error" and not error:
        error = event
    if not isinstance(error, dict):
        return None
    code = error.get("code") or error.get("type")
    status = code if isinstance(code, int) else _STREAM_STATUS.get(str(code), 500)
    return status, str(error.get("message") or error)


def _gemini_reply(response: Any) -> Body:
    """A chat completion as Gemini would have said it, with the cached tokens that LiteLLM leaves out."""
    reply = dict(_gemini_adapter().translate_completion_to_generate_content(response))
    details = getattr(response.usage, "prompt_tokens_details", None)
    cached = getattr(details, "cached_tokens", None) or 0
    return reply | {"usageMetadata": {**reply["usageMetadata"], "cachedContentTokenCount": cached}}


def _gemini_adapter() -> Any:
    return import_module("litellm.google_genai.adapters.transformation").GoogleGenAIAdapter()
