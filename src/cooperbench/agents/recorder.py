"""What one agent did, kept as it happens: a line in the journal (machines), a paragraph in the log (people).

At the end the journal becomes trajectory.json, whole. A run that is killed leaves the journal, and `read_trajectory`
reads either. Secrets of the harness are replaced before anything is written. One observation keeps
`KEPT_OBSERVATION_CHARACTERS`: beginning and end, and between them how much was cut; the agent saw what its framework
showed it, which is less as a rule. What an agent did itself (commands, files, messages) is never cut: it can be
replayed.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cooperbench.models import Usage
from cooperbench.secrets import redact
from cooperbench.storage import AgentPaths, read_json, utc_now, write_json
from cooperbench.text import head_and_tail, printable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cooperbench.models import Seat

SCHEMA = "cooperbench.trajectory/1"
KEPT_OBSERVATION_CHARACTERS = 60_000
_LOGGED_CHARACTERS = 4_000
_SPOKEN = ("think", "reply", "tell", "receive_message", "send_message")
START = "start"
"""The journal's first entry says whose it is; in trajectory.json that stands above the steps."""


class Recorder:
    """Of one agent in one attempt at a pair."""

    def __init__(
        self,
        paths: AgentPaths,
        seat: Seat,
        *,
        agent: str,
        model: str | None,
        agent_version: str | None = None,
    ) -> None:
        self._paths = paths
        self._who = {
            "agent_id": seat.agent_id,
            "feature_id": seat.feature_ids[0],
            "feature_ids": list(seat.feature_ids),
            "agent": agent,
            "agent_version": agent_version,
            "model": model,
        }
        self._lock = threading.Lock()
        self.started_at = utc_now()
        paths.journal.parent.mkdir(parents=True, exist_ok=True)
        self._journal = paths.journal.open("a", encoding="utf-8")
        self._log = paths.log.open("a", encoding="utf-8", errors="backslashreplace")
        self._write_entry({"action": START, "args": self._who, "timestamp": self.started_at})
        self.note(f"{seat.agent_id} ({agent}) starts on feature {', '.join(map(str, seat.feature_ids))}")

    @property
    def folder(self) -> Path:
        """Where the agent's trajectory is, and what its framework keeps beside it."""
        return self._paths.trajectory.parent

    def entry(self, action: str, args: Mapping[str, Any], observation: str, **more: Any) -> None:
        """One thing that the agent did or that happened to it; `step` in `more` where it counts as a step."""
        record: dict[str, Any] = {
            "action": action,
            "args": dict(args),
            "observation": observation,
            "timestamp": utc_now(),
            **more,
        }
        if len(observation) > KEPT_OBSERVATION_CHARACTERS:
            note = "\n[… {cut} characters are not kept in this record …]\n"
            record["observation"] = head_and_tail(observation, KEPT_OBSERVATION_CHARACTERS, note)
            record["observation_characters"] = len(observation)
        record = self._write_entry(record)
        self._write_log(record["timestamp"], _log_text(record))

    def note(self, headline: str) -> None:
        """For people only."""
        self._write_log(utc_now(), printable(redact(headline)) + "\n")

    def finish(self, status: str, usage: Usage, sandbox_seconds: float, error: str | None) -> None:
        """Write trajectory.json; the journal has done its work then."""
        self.note(f"ends: {status}" + (f" ({error})" if error else ""))
        self._close()
        write_json(
            self._paths.trajectory,
            _trajectory(
                self._who,
                read_journal(self._paths)[1:],
                usage,
                {
                    "status": status,
                    "error": redacted(error),
                    "start_time": self.started_at,
                    "end_time": utc_now(),
                    "sandbox_seconds": round(sandbox_seconds, 3),
                },
            ),
        )
        self._paths.journal.unlink()

    def abandon(self) -> None:
        """The attempt is over without an end of its own; the journal stays."""
        self._close()

    def _write_entry(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record as it was written: without secrets."""
        # What a framework adds to an entry may hold objects of its own; the record must not end an agent for that.
        line = json.dumps(record, default=str)
        if redact(line) != line:
            record = redacted(json.loads(line))
            line = json.dumps(record)
        with self._lock:
            self._journal.write(line + "\n")
            self._journal.flush()
        return record

    def _write_log(self, timestamp: str, text: str) -> None:
        with self._lock:
            self._log.write(f"{timestamp}  {text}")
            self._log.flush()

    def _close(self) -> None:
        with self._lock:
            self._journal.close()
            self._log.close()


def read_trajectory(paths: AgentPaths) -> dict[str, Any] | None:
    """trajectory.json; of an agent that was broken off, the same as far as its journal tells; None without either."""
    trajectory = read_json(paths.trajectory)
    if trajectory is not None:
        return trajectory
    entries = read_journal(paths)
    if not entries:
        return None
    who: dict[str, Any] = {"agent_id": paths.agent_id}
    if entries[0].get("action") == START:
        who |= entries.pop(0).get("args") or {}
    times = [entry["timestamp"] for entry in entries if "timestamp" in entry] or [None]
    usage = sum((_usage_of(entry) for entry in entries if entry.get("action") == "reply"), Usage())
    ending = {"status": "broken_off", "error": None, "start_time": times[0], "end_time": times[-1]}
    return _trajectory(who, entries, usage, ending)


def read_journal(paths: AgentPaths) -> list[dict[str, Any]]:
    """Its entries; the last line of a killed run may be a half one and is left out."""
    try:
        lines = paths.journal.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    entries = []
    for line in lines:
        with suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                entries.append(entry)
    return entries


def redacted(value: Any) -> Any:
    """The same with every secret replaced, in texts at any depth; keys and numbers stay."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: redacted(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [redacted(one) for one in value]
    return value


def _trajectory(
    who: Mapping[str, Any], steps: list[dict[str, Any]], usage: Usage, ending: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        **who,
        **ending,
        "steps": steps,
        "token_usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "total_tokens": usage.total_tokens,
        },
        "cost": usage.cost,
        "model_calls": usage.calls,
        "model_seconds": round(usage.model_seconds, 3),
        "unpriced_calls": usage.unpriced_calls,
    }


def _usage_of(reply: Mapping[str, Any]) -> Usage:
    tokens = reply.get("tokens") or {}
    return Usage(
        cost=float(reply.get("cost") or 0.0),
        prompt_tokens=int(tokens.get("prompt_tokens") or 0),
        completion_tokens=int(tokens.get("completion_tokens") or 0),
        cached_tokens=int(tokens.get("cached_tokens") or 0),
        calls=int(reply.get("calls", 1)),
        model_seconds=float(reply.get("model_seconds") or 0.0),
        unpriced_calls=int(reply.get("unpriced_calls") or 0),
    )


def _log_text(entry: Mapping[str, Any]) -> str:
    """An entry as people read it in agent1.log: a headline, what was said or done, what came back."""
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
    if len(text) > _LOGGED_CHARACTERS:
        text = text[:_LOGGED_CHARACTERS] + "\n[… the rest is in trajectory.json]"
    return "".join(f"{mark}{printable(line)}\n" for line in text.splitlines())
