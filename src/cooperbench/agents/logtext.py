"""One entry of a trajectory as people read it in agent1.log: a headline, what was said or done, what came back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHOWN_CHARACTERS = 4_000
_SPOKEN = ("think", "reply", "tell", "receive_message", "send_message")


def entry_text(entry: Mapping[str, Any]) -> str:
    """Without its time, which stands before every headline of the log."""
    action, args = str(entry["action"]), entry["args"]
    headline = " ".join(filter(None, [_step(entry), action, _details(action, args, entry)]))
    body = str(entry.get("shown") or _body(action, args))
    text = printable(headline) + "\n" + _indented(body, "    $ " if action == "run" else "    ")
    return text + _indented(str(entry["observation"]), "    > ")


def _step(entry: Mapping[str, Any]) -> str:
    return f"[{entry['step']}]" if "step" in entry else ""


def _details(action: str, args: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    match action:
        case "reply":
            tokens = entry.get("tokens") or {}
            counts = f"{tokens.get('prompt_tokens', 0)} + {tokens.get('completion_tokens', 0)} tokens"
            price = "no known price" if entry.get("unpriced_calls") else f"${entry.get('cost', 0):.4f}"
            return f"({counts}, {price}, {entry.get('model_seconds', 0):.1f}s)"
        case "run":
            ended = "timed out" if entry.get("timed_out") else f"exit {entry.get('returncode')}"
            return f"({ended}, {entry.get('duration_seconds', 0):.2f}s)"
        case "tell":
            return f"({args.get('kind')})"
        case "send_message":
            return f"to {args.get('to')}"
        case "receive_message":
            return f"from {args.get('from')}"
        case "write_file" | "apply_patch":
            return str(args.get("path") or args.get("name"))
    return ""


def _body(action: str, args: Mapping[str, Any]) -> str:
    if action == "run":
        return str(args.get("command", ""))
    if action in _SPOKEN or action == "write_file":
        return str(args.get("content", ""))
    if action == "apply_patch":
        return str(args.get("patch", ""))
    return json.dumps(dict(args), ensure_ascii=False)


def _indented(text: str, mark: str) -> str:
    text = text.rstrip()
    if not text:
        return ""
    if len(text) > _SHOWN_CHARACTERS:
        text = text[:_SHOWN_CHARACTERS] + "\n[… the rest is in trajectory.json]"
    return "".join(f"{mark}{printable(line)}\n" for line in text.splitlines())
