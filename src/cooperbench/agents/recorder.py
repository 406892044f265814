"""What one agent did, kept as it happens: a line in the journal (machines), a paragraph in the log (people).

At the end the journal becomes trajectory.json; a killed run leaves it, and `read_trajectory` reads either. Observations
may be cut; what an agent did itself (commands, files, messages) never is: it can be replayed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from cooperbench.models import AgentSlot, Usage
from cooperbench.secrets import redact
from cooperbench.storage import AgentPaths, read_json, utc_now, write_json
from cooperbench.text import head_and_tail, printable

SCHEMA = "cooperbench.trajectory/1"
KEPT_OBSERVATION_CHARACTERS = 60_000
_LOGGED_CHARACTERS = 4_000
_START = "start"
"""The journal's first entry says whose it is; in trajectory.json that stands above the steps."""


class Recorder:
    """Of one agent in one attempt at a pair."""

    def __init__(
        self,
        paths: AgentPaths,
        slot: AgentSlot,
        *,
        agent: str,
        model: str | None,
        agent_version: str | None = None,
    ) -> None:
        self._paths = paths
        self._lock = threading.Lock()
        self.started_at = utc_now()
        self.folder = paths.trajectory.parent
        """Where the agent's trajectory is, and what its framework keeps beside it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._journal = paths.journal.open("a", encoding="utf-8")
        self._log = paths.log.open("a", encoding="utf-8", errors="backslashreplace")
        who = {
            "agent_id": slot.agent_id,
            "feature_id": slot.feature_ids[0],
            "feature_ids": list(slot.feature_ids),
            "agent": agent,
            "agent_version": agent_version,
            "model": model,
        }
        self._write_journal({"action": _START, "args": who, "timestamp": self.started_at})
        self.note(
            f"{slot.agent_id} ({agent}) starts on feature {', '.join(map(str, slot.feature_ids))}"
        )

    def entry(self, action: str, args: Mapping[str, Any], observation: str, **more: Any) -> None:
        """One thing that the agent did or that happened to it; `step` in `more` where it counts as a step."""
        note = "\n[… {cut} characters are not kept in this record …]\n"
        record: dict[str, Any] = {
            "action": action,
            "args": dict(args),
            "observation": head_and_tail(observation, KEPT_OBSERVATION_CHARACTERS, note),
            "timestamp": utc_now(),
            **more,
        }
        if len(observation) > KEPT_OBSERVATION_CHARACTERS:
            record["observation_characters"] = len(observation)
        record = self._write_journal(record)
        self._write_log(record["timestamp"], _log_text(record))

    def reply(self, text: str, usage: Usage, **more: Any) -> None:
        """What a model said, and what that call used."""
        self.entry(
            "reply",
            {"content": text},
            "",
            tokens=_tokens(usage),
            cost=usage.cost,
            calls=usage.calls,
            unpriced_calls=usage.unpriced_calls,
            model_seconds=round(usage.model_seconds, 4),
            **more,
        )

    def note(self, headline: str) -> None:
        """For people only."""
        self._write_log(utc_now(), printable(redact(headline)) + "\n")

    def finish(self, status: str, usage: Usage, sandbox_seconds: float, error: str | None) -> None:
        """Write trajectory.json; the journal has done its work then."""
        self.note(f"ends: {status}" + (f" ({error})" if error else ""))
        self.abandon()
        ending = {
            "status": status,
            "error": _redacted(error),
            "start_time": self.started_at,
            "end_time": utc_now(),
            "sandbox_seconds": round(sandbox_seconds, 3),
        }
        write_json(self._paths.trajectory, _trajectory(read_journal(self._paths), usage, ending))
        self._paths.journal.unlink()

    def abandon(self) -> None:
        """The attempt is over without an end of its own; the journal stays."""
        with self._lock:
            self._journal.close()
            self._log.close()

    def _write_journal(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record as it was written: without secrets."""
        # What a framework adds to an entry may hold objects of its own; the record must not end an agent for that.
        line = json.dumps(record, default=str)
        if redact(line) != line:
            record = _redacted(json.loads(line))
            line = json.dumps(record)
        with self._lock:
            self._journal.write(line + "\n")
            self._journal.flush()
        return record

    def _write_log(self, timestamp: str, text: str) -> None:
        with self._lock:
            self._log.write(f"{timestamp}  {text}")
            self._log.flush()


def read_trajectory(paths: AgentPaths) -> dict[str, Any] | None:
    """trajectory.json; of an agent that was broken off, the same as far as its journal tells; None without either."""
    trajectory = read_json(paths.trajectory)
    entries = [] if trajectory else read_journal(paths)
    if trajectory or not entries:
        return trajectory
    usage = sum((_usage_of(entry) for entry in entries if entry.get("action") == "reply"), Usage())
    times = [entry.get("timestamp") for entry in entries]
    ending = {"status": "broken_off", "error": None, "start_time": times[0], "end_time": times[-1]}
    return {"agent_id": paths.agent_id} | _trajectory(entries, usage, ending)


def read_journal(paths: AgentPaths) -> list[dict[str, Any]]:
    """Its entries; the last line of a killed run may be a half one and is left out."""
    try:
        lines = paths.journal.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    entries = []
    for line in lines:
        with suppress(ValueError):
            entries.append(json.loads(line))
    return [entry for entry in entries if isinstance(entry, dict)]


def _trajectory(
    entries: list[dict[str, Any]], usage: Usage, ending: Mapping[str, Any]
) -> dict[str, Any]:
    start, steps = entries[0], entries[1:]
    return {
        "schema": SCHEMA,
        **start.get("args", {}),
        **ending,
        "steps": steps,
        "token_usage": _tokens(usage) | {"total_tokens": usage.total_tokens},
        "cost": usage.cost,
        "model_calls": usage.calls,
        "model_seconds": round(usage.model_seconds, 3),
        "unpriced_calls": usage.unpriced_calls,
    }


def _tokens(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
    }


def _usage_of(reply: Mapping[str, Any]) -> Usage:
    accounts = {"calls": 1, **(reply.get("tokens") or {}), **reply}
    return Usage(**{name: accounts.get(name) or 0 for name in Usage.__dataclass_fields__})


def _redacted(value: Any) -> Any:
    """The same with every secret replaced, in texts at any depth; keys and numbers stay."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: _redacted(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_redacted(one) for one in value]
    return value


def _log_text(entry: Mapping[str, Any]) -> str:
    """An entry as people read it in agent1.log: a headline, what was said or done, what came back."""
    action, args = str(entry["action"]), entry["args"]
    step = f"[{entry['step']}] " if "step" in entry else ""
    text = printable(f"{step}{action} {_details(action, args, entry)}".rstrip()) + "\n"
    done = args.get("content") or args.get("command") or args.get("patch") or ""
    text += _indented(str(done), "    $ " if action == "run" else "    ")
    return text + _indented(str(entry["observation"]), "    > ")


def _details(action: str, args: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    if action == "run":
        code = entry.get("returncode", "unknown")
        ended = "timed out" if entry.get("timed_out") else f"exit {code}"
        return f"({ended}, {entry.get('duration_seconds', 0):.2f}s)"
    if action == "reply":
        tokens = (
            f"{entry['tokens']['prompt_tokens']} + {entry['tokens']['completion_tokens']} tokens"
        )
        price = "no known price" if entry["unpriced_calls"] else f"${entry['cost']:.4f}"
        return f"({tokens}, {price}, {entry['model_seconds']:.1f}s)"
    whom = [f"{word} {args[word]}" for word in ("to", "from") if args.get(word)]
    return " ".join(
        [*whom, *(str(args[name]) for name in ("kind", "path", "name") if args.get(name))]
    )


def _indented(text: str, mark: str) -> str:
    text = text.rstrip()
    if len(text) > _LOGGED_CHARACTERS:
        text = text[:_LOGGED_CHARACTERS] + "\n[… the rest is in trajectory.json]"
    return "".join(f"{mark}{printable(line)}\n" for line in text.splitlines())
