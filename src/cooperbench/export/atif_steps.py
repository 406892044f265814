"""The entries of a trajectory as steps of the Agent Trajectory Interchange Format.

A model's reply and the actions that came of it are one step; what an agent did without asking a model is a step with
`llm_call_count` 0. Prompts, format errors and colleagues' messages are steps of the system or the user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Step = dict[str, Any]
_FUNCTIONS = {"run": "bash"}
"""Our actions by the names that readers of the format know; others keep theirs."""
_OF_ENTRIES = ("action", "args", "observation", "timestamp", "step", "thought")
_OF_REPLIES = (*_OF_ENTRIES, "tokens", "cost", "calls", "unpriced_calls", "model_seconds", "reasoning")


def steps_of(entries: Iterable[Mapping[str, Any]]) -> list[Step]:
    """Numbered from 1; at least one, since the format wants one."""
    steps: list[Step] = []
    open_reply: Step | None = None
    for entry in entries:
        action, args = str(entry.get("action")), _mapping(entry.get("args"))
        match action:
            case "reply":
                open_reply = _reply(entry, args)
                steps.append(open_reply)
            case "tell" | "receive_message":
                open_reply = None
                steps.append(_told(action, entry, args))
            case "think":
                open_reply = None
                steps.append(_unasked(entry, str(args.get("content", ""))))
            case _:
                step = open_reply
                if step is None:
                    step = _unasked(entry, str(entry.get("thought", "")))
                    steps.append(step)
                _add_call(step, action, entry, args)
    if not steps:
        steps.append({"source": "system", "message": "Nothing is on record."})
    for number, step in enumerate(steps, 1):
        _name_calls(step, number)
    return [{"step_id": number, **step} for number, step in enumerate(steps, 1)]


def _reply(entry: Mapping[str, Any], args: Mapping[str, Any]) -> Step:
    calls = int(entry.get("calls", 1))
    step = _step("agent", entry, str(args.get("content", ""))) | {"llm_call_count": calls}
    if calls:
        tokens = _mapping(entry.get("tokens"))
        names = ("prompt_tokens", "completion_tokens", "cached_tokens")
        metrics: dict[str, Any] = {name: tokens[name] for name in names if name in tokens}
        if "cost" in entry and not entry.get("unpriced_calls"):
            metrics["cost_usd"] = entry["cost"]
        if "model_seconds" in entry:
            metrics["extra"] = {"model_seconds": entry["model_seconds"]}
        step["metrics"] = metrics
        if entry.get("reasoning"):
            step["reasoning_content"] = str(entry["reasoning"])
    return _with_extra(step, entry, _OF_REPLIES)


def _told(action: str, entry: Mapping[str, Any], args: Mapping[str, Any]) -> Step:
    source = "system" if action == "tell" and args.get("kind") == "system" else "user"
    step = _step(source, entry, str(args.get("content", "")))
    step["extra"] = {"kind": action} | {key: value for key, value in args.items() if key != "content"}
    return step


def _unasked(entry: Mapping[str, Any], text: str) -> Step:
    return _step("agent", entry, text) | {"llm_call_count": 0}


def _step(source: str, entry: Mapping[str, Any], text: str) -> Step:
    time = {"timestamp": str(entry["timestamp"])} if entry.get("timestamp") else {}
    return {**time, "source": source, "message": text}


def _add_call(step: Step, action: str, entry: Mapping[str, Any], args: Mapping[str, Any]) -> None:
    call = {"function_name": _FUNCTIONS.get(action, action), "arguments": dict(args)}
    step.setdefault("tool_calls", []).append(
        _with_extra(call, {"step": entry["step"]} if "step" in entry else {})
    )
    result = _with_extra({"content": str(entry.get("observation", ""))}, entry, _OF_ENTRIES)
    step.setdefault("observation", {"results": []})["results"].append(result)


def _name_calls(step: Step, number: int) -> None:
    """By the model's own names for its calls where it has given some, so that both can be laid side by side."""
    asked = _mapping(step.get("extra")).get("tool_calls")
    names = [str(_mapping(call).get("id")) for call in asked] if isinstance(asked, list) else []
    calls = step.get("tool_calls", [])
    if len(names) < len(calls) or len(set(names)) < len(names):
        names = [f"call_{number}_{place}" for place in range(1, len(calls) + 1)]
    for place, call in enumerate(calls):
        call["tool_call_id"] = names[place]
        step["observation"]["results"][place]["source_call_id"] = names[place]


def _with_extra(
    target: dict[str, Any], entry: Mapping[str, Any], known: Iterable[str] = ()
) -> dict[str, Any]:
    extra = {key: value for key, value in entry.items() if key not in known}
    return target | {"extra": extra} if extra else target


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
