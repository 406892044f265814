"""The vendors' own client libraries, each asked for the same: what a model says, and the command that it calls."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.gateway.conftest import At

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"command": {"type": "string"}},
    "required": ["command"],
}


class Said(NamedTuple):
    text: str
    commands: list[str]
    prompt_tokens: int


def chat(at: At, prompt: str, *, stream: bool, token: str = "") -> Said:
    from openai import OpenAI

    tool: Any = {"type": "function", "function": {"name": "bash", "parameters": SCHEMA}}
    messages: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": prompt},
    ]
    with OpenAI(base_url=f"{at.url}/v1", api_key=token or at.access.token, max_retries=0) as client:
        if not stream:
            whole = client.chat.completions.create(model="any", messages=messages, tools=[tool])
            message = whole.choices[0].message
            assert whole.usage is not None
            calls = [json.loads(one.function.arguments) for one in message.tool_calls or []]
            return Said(
                message.content or "", [one["command"] for one in calls], whole.usage.prompt_tokens
            )
        with client.chat.completions.stream(
            model="any", messages=messages, tools=[tool], stream_options={"include_usage": True}
        ) as events:
            final = events.get_final_completion()
        message = final.choices[0].message
        assert final.usage is not None
        calls = [json.loads(one.function.arguments) for one in message.tool_calls or []]
        return Said(
            message.content or "", [one["command"] for one in calls], final.usage.prompt_tokens
        )


def responses(at: At, prompt: str, *, stream: bool, token: str = "") -> Said:
    from openai import OpenAI

    tool: Any = {"type": "function", "name": "bash", "parameters": SCHEMA, "strict": False}
    given: Any = {"model": "any", "instructions": "Be brief.", "input": prompt, "tools": [tool]}
    with OpenAI(base_url=f"{at.url}/v1", api_key=token or at.access.token, max_retries=0) as client:
        if stream:
            with client.responses.stream(**given) as events:
                whole: Any = events.get_final_response()
        else:
            whole = client.responses.create(**given)
    calls = [json.loads(item.arguments) for item in whole.output if item.type == "function_call"]
    return Said(whole.output_text, [one["command"] for one in calls], whole.usage.input_tokens)


def anthropic(at: At, prompt: str, *, stream: bool, token: str = "") -> Said:
    from anthropic import Anthropic

    tool: Any = {"name": "bash", "input_schema": SCHEMA}
    given: Any = {"model": "any", "max_tokens": 1000, "system": "Be brief.", "tools": [tool]}
    given["messages"] = [{"role": "user", "content": prompt}]
    with Anthropic(base_url=at.url, api_key=token or at.access.token, max_retries=0) as client:
        if stream:
            with client.messages.stream(**given) as events:
                whole: Any = events.get_final_message()
        else:
            whole = client.messages.create(**given)
    texts = [block.text for block in whole.content if block.type == "text"]
    commands = [block.input["command"] for block in whole.content if block.type == "tool_use"]
    used = whole.usage
    return Said("".join(texts), commands, used.input_tokens + (used.cache_read_input_tokens or 0))


def gemini(at: At, prompt: str, *, stream: bool, token: str = "") -> Said:
    from google.genai import Client
    from google.genai.types import FunctionDeclaration, GenerateContentConfig, HttpOptions, Tool

    declared = FunctionDeclaration(name="bash", parameters_json_schema=SCHEMA)
    config = GenerateContentConfig(
        system_instruction="Be brief.",
        tools=[Tool(function_declarations=[declared])],
        temperature=0,
    )
    given: Any = {"model": "gemini-any", "contents": prompt, "config": config}
    options = HttpOptions(base_url=at.url)
    with Client(api_key=token or at.access.token, http_options=options) as client:
        if stream:
            chunks = list(client.models.generate_content_stream(**given))
        else:
            chunks = [client.models.generate_content(**given)]
    parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts or []]
    used: Any = chunks[-1].usage_metadata
    return Said(
        "".join(part.text or "" for part in parts),
        [str(part.function_call.args["command"]) for part in parts if part.function_call],
        used.prompt_token_count,
    )


CLIENTS: dict[str, Callable[..., Said]] = {
    "chat": chat,
    "responses": responses,
    "anthropic": anthropic,
    "gemini": gemini,
}
