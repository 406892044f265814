"""Programs as the gateway sees them: requests of the shape that the CLIs send, in each API format.

What they do between two requests is theirs too: Claude Code moves its cache marks, Gemini CLI drops signatures, Codex
sends metadata in another order, all of them send the whole history again.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
API_FORMATS = ("chat", "responses", "anthropic", "gemini")
SHELLS = {
    "chat": "bash",
    "responses": "exec_command",
    "anthropic": "Bash",
    "gemini": "run_shell_command",
}
_ARGUMENT = {"responses": "cmd"}


@dataclass
class Turn:
    """What a model says, or what a program tells it."""

    text: str = ""
    calls: list[tuple[str, str, Json]] = field(default_factory=list)
    """Ids, names, arguments."""
    results: list[tuple[str, str, str]] = field(default_factory=list)
    """Ids of calls, names, texts."""
    own: bool = False


class Program:
    """One conversation of a program."""

    def __init__(
        self,
        api_format: str,
        task: str,
        *,
        tools: tuple[str, ...] = ("read",),
        system: str = "Be good.",
    ) -> None:
        self.api_format = api_format
        self.tools = (SHELLS[api_format], *tools) if tools else ()
        self.system = system
        self.turns = [Turn(task)]
        self.thread = "t1"
        self._requests = 0

    def shell(self, call_id: str, command: str) -> tuple[str, str, Json]:
        return (
            call_id,
            SHELLS[self.api_format],
            {_ARGUMENT.get(self.api_format, "command"): command},
        )

    def takes(self, turn: Turn) -> Json:
        """The answer as this program gets it; it goes into its history."""
        self.turns.append(copy.deepcopy(turn))
        self.turns[-1].own = True
        return answer(self.api_format, turn)

    def returns(self, *texts: str, instruction: str = "") -> None:
        """What its tools gave back for the last turn."""
        calls = self.turns[-1].calls
        assert len(calls) == len(texts)
        results = [(call[0], call[1], text) for call, text in zip(calls, texts, strict=True)]
        self.turns.append(Turn(instruction, results=results))

    def says(self, text: str) -> None:
        self.turns.append(Turn(text))

    def compacts(self, summary: str) -> None:
        self.turns = [Turn(summary)]

    def body(self) -> Json:
        self._requests += 1
        match self.api_format:
            case "chat":
                return self._chat()
            case "responses":
                return self._responses()
            case "anthropic":
                return self._anthropic()
        return self._gemini()

    def _chat(self) -> Json:
        messages: list[Json] = [{"role": "system", "content": self.system}]
        for turn in self.turns:
            if turn.own:
                message: Json = {"role": "assistant", "content": turn.text}
                if turn.calls:
                    message["tool_calls"] = _chat_calls(turn)
                messages.append(message)
                continue
            messages += [
                {"role": "tool", "tool_call_id": one[0], "content": one[2]} for one in turn.results
            ]
            if turn.text:
                messages.append({"role": "user", "content": turn.text})
        functions = [
            {"type": "function", "function": {"name": name, "parameters": {}}}
            for name in self.tools
        ]
        return {"model": "m", "messages": messages, **({"tools": functions} if functions else {})}

    def _responses(self) -> Json:
        items: list[Json] = [_message("developer", self.system)]
        for number, turn in enumerate(self.turns):
            if turn.text and turn.own:
                items.append(_message("assistant", turn.text, "output_text", f"msg_{number}"))
            items += _function_calls(turn)
            items += [
                {
                    "type": "function_call_output",
                    "id": f"fco_{one[0]}",
                    "call_id": one[0],
                    "output": one[2],
                }
                for one in turn.results
            ]
            if turn.text and not turn.own:
                items.append(_message("user", turn.text, number=f"msg_{number}"))
        metadata = {"thread_id": self.thread, "turn_id": f"{self._requests}"}
        if self._requests % 2:
            metadata = dict(reversed(metadata.items()))
        tools = [{"type": "function", "name": name} for name in self.tools]
        return {"model": "m", "input": items, "tools": tools, "client_metadata": metadata}

    def _anthropic(self) -> Json:
        messages: list[Json] = []
        for turn in self.turns:
            blocks: list[Json] = [
                {"type": "tool_result", "tool_use_id": one[0], "content": one[2], "is_error": False}
                for one in turn.results
            ]
            blocks += [{"type": "text", "text": turn.text}] if turn.text else []
            blocks += _tool_uses(turn)
            messages.append({"role": "assistant" if turn.own else "user", "content": blocks})
        messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        billing = f"x-anthropic-billing-header: cc_version=2.{hash(self.turns[0].text) % 99};"
        system = [{"type": "text", "text": text} for text in (billing, self.system)]
        tools = [{"name": name, "input_schema": {}} for name in self.tools]
        return {
            "model": "m",
            "system": system,
            "messages": messages,
            "tools": tools,
            "max_tokens": 9,
        }

    def _gemini(self) -> Json:
        contents: list[Json] = []
        for turn in self.turns:
            parts: list[Json] = [
                {"functionResponse": {"id": one[0], "name": one[1], "response": {"output": one[2]}}}
                for one in turn.results
            ]
            parts += [{"text": turn.text}] if turn.text else []
            parts += _function_parts(turn)
            contents.append({"role": "model" if turn.own else "user", "parts": parts})
        own = [content for content in contents if content["role"] == "model"]
        if own:
            own[-1]["parts"][-1]["thoughtSignature"] = "skip"
        declared = (
            [{"functionDeclarations": [{"name": name} for name in self.tools]}]
            if self.tools
            else []
        )
        system = {"role": "user", "parts": [{"text": self.system}]}
        return {"contents": contents, "systemInstruction": system, "tools": declared}


def answer(api_format: str, turn: Turn) -> Json:
    """What a provider says, in the API format."""
    match api_format:
        case "chat":
            message = {
                "role": "assistant",
                "content": turn.text or None,
                "tool_calls": _chat_calls(turn),
            }
            return {"choices": [{"message": message, "finish_reason": "stop"}]}
        case "responses":
            said = [_message("assistant", turn.text, "output_text")] if turn.text else []
            thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
            return {
                "id": "r",
                "status": "completed",
                "output": [thought, *said, *_function_calls(turn)],
            }
        case "anthropic":
            blocks = [{"type": "text", "text": turn.text}] if turn.text else []
            return {"content": [*blocks, *_tool_uses(turn)], "stop_reason": "end_turn"}
    content = {"role": "model", "parts": [{"text": turn.text}, *_function_parts(turn)]}
    return {"candidates": [{"content": content, "finishReason": "STOP"}]}


def _message(role: str, text: str, kind: str = "input_text", number: str = "") -> Json:
    more = {"id": number} if number else {}
    return {"type": "message", **more, "role": role, "content": [{"type": kind, "text": text}]}


def _chat_calls(turn: Turn) -> list[Json]:
    return [
        {
            "id": one[0],
            "type": "function",
            "function": {"name": one[1], "arguments": json.dumps(one[2])},
        }
        for one in turn.calls
    ]


def _function_calls(turn: Turn) -> list[Json]:
    return [
        {
            "type": "function_call",
            "call_id": one[0],
            "name": one[1],
            "arguments": json.dumps(one[2]),
        }
        for one in turn.calls
    ]


def _tool_uses(turn: Turn) -> list[Json]:
    return [
        {"type": "tool_use", "id": one[0], "name": one[1], "input": one[2]} for one in turn.calls
    ]


def _function_parts(turn: Turn) -> list[Json]:
    return [
        {"functionCall": {**({"id": one[0]} if one[0] else {}), "name": one[1], "args": one[2]}}
        for one in turn.calls
    ]
