"""The way from a request in a dialect to the model's provider.

A provider that speaks the dialect itself gets the request as it is; else LiteLLM translates it to chat completions.
(LiteLLM's own functions for the former need packages of its proxy.) Requests come from sandboxes: only the arguments
that are listed here get through to LiteLLM, since others are addresses, keys and hooks.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from cooperbench.agents import llm
from cooperbench.gateway import dialects
from cooperbench.gateway.dialects import ANTHROPIC, CHAT, GEMINI, RESPONSES, Body
from cooperbench.models import Usage

_COMMON = "tools tool_choice temperature top_p parallel_tool_calls"
_ARGUMENTS = {
    CHAT: f"{_COMMON} messages max_tokens max_completion_tokens stop seed response_format frequency_penalty "
    "presence_penalty reasoning_effort verbosity prompt_cache_key thinking n",
    RESPONSES: f"{_COMMON} input instructions reasoning text max_output_tokens prompt_cache_key truncation",
    ANTHROPIC: f"{_COMMON} messages system max_tokens top_k stop_sequences thinking output_config",
    GEMINI: "contents generationConfig systemInstruction system_instruction tools toolConfig tool_config",
}
_NATIVE = {ANTHROPIC: ("anthropic",), GEMINI: ("gemini", "vertex_ai"), RESPONSES: ("openai",)}
_CONNECTION = {"api_key", "api_base", "timeout", "use_chat_completions_api"}
_CONNECTION |= {"vertex_project", "vertex_location", "vertex_credentials"}
_KEPT_HEADERS = ("anthropic-version", "anthropic-beta", "openai-beta")
_STREAM_STATUS = {
    "overloaded_error": 529, "rate_limit_error": 429, "rate_limit_exceeded": 429, "invalid_request_error": 400,
    "context_length_exceeded": 400, "invalid_prompt": 400,
}  # fmt: skip


class Upstream:
    """One model with its settings. Used on one event loop only."""

    def __init__(self, model: str, settings: Mapping[str, Any], http: Any) -> None:
        self.model = model
        self._litellm = llm.load_litellm()
        self._http = http
        self._settings = {"api_base" if name == "base_url" else name: settings[name] for name in settings}
        self._settings.setdefault("timeout", llm.DEFAULT_CALL_SECONDS)
        self._name, self._provider, *_ = self._litellm.get_llm_provider(
            model, api_base=self._settings.get("api_base")
        )

    def ask(
        self, dialect: str, body: Body, headers: Mapping[str, str], *, stream: bool
    ) -> AsyncIterator[Body]:
        """The events of a stream as they come; else the whole answer as the only one."""
        if self._is_native(dialect):
            return self._native(dialect, body, headers, stream=stream)
        return self._translated(dialect, body, stream=stream)

    def whole(self, dialect: str, events: Sequence[Body]) -> Body:
        """A streamed answer as one."""
        if dialect != CHAT:
            return dialects.whole(dialect, events)
        if not any(choice.get("finish_reason") for event in events for choice in event.get("choices", [])):
            raise dialects.BrokenStream
        chunks = [self._litellm.ModelResponseStream(**event) for event in events]
        return dict(self._litellm.stream_chunk_builder(chunks).model_dump(exclude_none=True))

    def usage(self, dialect: str, reply: Body, seconds: float) -> Usage:
        """What the answer says that it used, at LiteLLM's prices."""
        litellm, said = self._litellm, reply.get("usage") or {}
        if dialect == GEMINI:
            used = litellm.VertexGeminiConfig._calculate_usage({"usageMetadata": {}, **reply})
        elif dialect == ANTHROPIC:
            used = litellm.AnthropicConfig().calculate_usage(said, None)
        elif dialect == RESPONSES:
            utils = import_module("litellm.responses.utils").ResponseAPILoggingUtils
            used = utils._transform_response_api_usage_to_chat_usage(said)
        else:
            used = litellm.Usage(**said)
        return llm.usage_of(litellm.ModelResponse(model=self._name, usage=used), self.model, seconds)

    async def count_tokens(self, body: Body) -> int:
        """By the provider where it can; else an estimate."""
        system = body.get("system")
        given = {name: body.get(name) for name in ("messages", "tools")}
        given |= {name: self._settings.get(name) for name in ("api_key", "api_base")}
        text = "\n".join(block.get("text", "") for block in system) if isinstance(system, list) else system
        counted = await self._litellm.acount_tokens(self.model, system=text, **given)
        return int(counted.total_tokens)

    def _is_native(self, dialect: str) -> bool:
        if self._provider not in _NATIVE.get(dialect, ()) or set(self._settings) - _CONNECTION:
            return False
        if dialect == RESPONSES:
            own = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
            elsewhere = bool(self._settings.get("api_base") or any(map(os.environ.get, own)))
            return not self._settings.get("use_chat_completions_api", elsewhere)
        # Vertex AI has models of others, too.
        return dialect != GEMINI or "gemini" in self._name

    async def _native(
        self, dialect: str, body: Body, headers: Mapping[str, str], *, stream: bool
    ) -> AsyncIterator[Body]:
        base, key = self._settings.get("api_base"), self._settings.get("api_key")
        kept = {name: headers[name] for name in _KEPT_HEADERS if name in headers}
        if dialect == GEMINI:
            provider = self._litellm.LlmProviders(self._provider)
            configs = import_module("litellm.utils").ProviderConfigManager
            config = configs.get_provider_google_genai_generate_content_config(self._name, provider)
            auth, url = await config.get_auth_token_and_url(base, self._name, {**self._settings}, stream)
        elif dialect == ANTHROPIC:
            config = self._litellm.AnthropicMessagesConfig()
            auth, _ = config.validate_anthropic_messages_environment(kept, self._name, [], {}, {}, key, base)
            url = config.get_complete_url(base, key, self._name, {}, {}, stream)
        else:
            config = self._litellm.OpenAIResponsesAPIConfig()
            params = import_module("litellm.types.router").GenericLiteLLMParams(api_key=key, api_base=base)
            auth, url = config.validate_environment({}, self._name, params), config.get_complete_url(base, {})
        if dialect != GEMINI:
            body = {**body, "model": self._name}
        made = {"json": body, "headers": kept | auth, "timeout": self._settings["timeout"]}
        async with self._http.stream("POST", url, **made) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode("utf-8", "replace")
                self._refused(response.status_code, text, response.headers)
            if not stream:
                yield json.loads(await response.aread())
                return
            async for event in self._events(response.aiter_bytes()):
                yield event

    async def _translated(self, dialect: str, body: Body, *, stream: bool) -> AsyncIterator[Body]:
        litellm, more = self._litellm, {"model": self.model, "stream": stream, "drop_params": True}
        more |= self._settings | llm.NO_OTHER_RETRIES
        use_chat = more.pop("use_chat_completions_api", True)
        given = {name: body[name] for name in _ARGUMENTS[dialect].split() if body.get(name) is not None}
        if dialect == GEMINI:
            given = _gemini_adapter().translate_generate_content_to_completion(
                self.model, given.pop("contents", []), given.pop("generationConfig", None), **given
            )
        if dialect in (CHAT, GEMINI):
            options = {"stream_options": {"include_usage": True}} if stream else {}
            answer = await litellm.acompletion(**given | more | options)
            if not stream and not answer.choices:
                raise ValueError("the answer has no choices in it")
        elif dialect == RESPONSES:
            answer = await litellm.aresponses(**given | more, use_chat_completions_api=use_chat)
        else:
            if self._provider == "openai" and self._settings.get("api_base"):
                # LiteLLM would ask for it by the responses API, which is OpenAI's own.
                given.pop("thinking", None)
            adapters = import_module("litellm.llms.anthropic.pass_through.adapters.handler")
            handler = adapters.LiteLLMMessagesToCompletionTransformationHandler
            # Without a router it would try to import its proxy, with every request.
            answer = await handler.async_anthropic_messages_handler(**given | more, litellm_router=False)
        if not stream:
            yield _gemini_reply(answer) if dialect == GEMINI else _as_dict(answer)
            return
        if dialect == GEMINI:
            answer = self._gemini_stream(answer)
        elif dialect == ANTHROPIC:
            answer = self._events(answer)
        async for event in answer:
            yield _as_dict(event, exclude_unset=True)

    async def _gemini_stream(self, chunks: AsyncIterable[Any]) -> AsyncIterator[Body]:
        """Text as it comes; calls, finish reason and usage at the end. (LiteLLM's own stream loses the usage.)"""
        seen = []
        async for chunk in chunks:
            seen.append(chunk)
            if text := chunk.choices and chunk.choices[0].delta.content:
                content = {"role": "model", "parts": [{"text": text}]}
                yield {"candidates": [{"index": 0, "content": content}]}
        if not any(chunk.choices and chunk.choices[0].finish_reason for chunk in seen):
            raise dialects.BrokenStream
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
        raise self._litellm.exception_type(
            model=self._name, custom_llm_provider=self._provider, original_exception=error
        )


def _as_dict(answer: Any, **options: bool) -> Body:
    """A whole answer, or an event."""
    return answer if isinstance(answer, dict) else dict(answer.model_dump(exclude_none=True, **options))


def _failure(event: Body) -> tuple[int, str] | None:
    """The status and the message of an event that ends a provider's stream."""
    kind = event.get("type")
    error = event.get("response", {}).get("error") if kind == "response.failed" else event.get("error")
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
