"""Recording of what one agent does: one line in the journal and one paragraph in the log per step.

The journal (steps.jsonl) is for programs, the log for people. At the end the journal becomes
trajectory.json. A killed run leaves its journal; `records.trajectory.read_trajectory` reads either.
Long observations are shortened. What the agent did itself (commands, files, messages) is always
complete, so that it can be replayed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any, TextIO

from msgspec import UNSET

from cooperbench import records
from cooperbench.models import AgentSlot, Usage
from cooperbench.records import JsonObject
from cooperbench.records.trajectory import (
    START,
    Step,
    decode_step,
    read_journal,
    trajectory_from_journal,
)
from cooperbench.secrets import redact
from cooperbench.storage import AgentPaths, utc_now
from cooperbench.text import head_and_tail, printable

KEPT_OBSERVATION_CHARACTERS = 60_000
_MAX_LOG_CHARACTERS = 4_000
"""Characters of one text in the log; the trajectory has all of it."""
_CUT_NOTE = "\n[… {cut} characters are not kept in this record …]\n"


class Recorder:
    """The journal, the log and the trajectory of one agent in one attempt at a pair."""

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
        self.write_error: OSError | None = None
        """The error of a write that failed, for example because the disk is full."""
        self.started_at = utc_now()
        self.folder = paths.trajectory.parent
        """Folder of the trajectory and of files that the agent framework keeps."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._journal = paths.journal.open("a", encoding="utf-8")
        self._log = paths.log.open("a", encoding="utf-8", errors="backslashreplace")
        description = {
            "agent_id": slot.agent_id,
            "feature_id": slot.feature_ids[0],
            "feature_ids": list(slot.feature_ids),
            "agent": agent,
            "agent_version": agent_version,
            "model": model,
        }
        start = {"action": START, "args": description, "timestamp": self.started_at}
        self._write_journal(start)
        features = ", ".join(str(feature_id) for feature_id in slot.feature_ids)
        self.note(f"{slot.agent_id} ({agent}) starts on feature {features}")

    def entry(
        self, action: str, args: Mapping[str, Any], observation: str, **extra_fields: Any
    ) -> None:
        """Record something that the agent did or that happened to it.

        Args:
            action: Name of the action, e.g. `run`.
            args: Arguments of the action.
            observation: Output of the action.
            **extra_fields: Further fields of `records.trajectory.Step`, such as `step` if it counts
                as a step, and whatever the agent framework adds.
        """
        content: JsonObject = {
            "action": action,
            "args": dict(args),
            "observation": shorten_observation(observation),
            "timestamp": utc_now(),
            **extra_fields,
        }
        if len(observation) > KEPT_OBSERVATION_CHARACTERS:
            content["observation_characters"] = len(observation)
        step = decode_step(self._write_journal(content))
        self._write_log(step.timestamp, _log_text(step))

    def reply(self, text: str, usage: Usage, **extra_fields: Any) -> None:
        """Record a model's reply, and the usage of that call."""
        self.entry(
            "reply",
            {"content": text},
            "",
            tokens={
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "cached_tokens": usage.cached_tokens,
            },
            cost=usage.cost,
            calls=usage.calls,
            unpriced_calls=usage.unpriced_calls,
            model_seconds=round(usage.model_seconds, 4),
            **extra_fields,
        )

    def note(self, headline: str) -> None:
        """Write a line to the log only."""
        self._write_log(utc_now(), printable(redact(headline)) + "\n")

    def finish(self, status: str, usage: Usage, sandbox_seconds: float, error: str | None) -> None:
        """Write trajectory.json and remove the journal."""
        self.note(f"ends: {status}" + (f" ({error})" if error else ""))
        self.abandon()
        trajectory = trajectory_from_journal(
            read_journal(self._paths),
            usage,
            agent_id=self._paths.agent_id,
            status=status,
            error=None if error is None else redact(error),
            start_time=self.started_at,
            end_time=utc_now(),
            sandbox_seconds=round(sandbox_seconds, 3),
        )
        records.write(self._paths.trajectory, trajectory)
        self._paths.journal.unlink()

    def abandon(self) -> None:
        """Close the files. If the attempt was interrupted, the journal stays."""
        with self._lock:
            self._journal.close()
            self._log.close()

    def _write_journal(self, content: JsonObject) -> bytes:
        """Append an entry without its secrets; return the line."""
        # A framework may add objects of its own, which must not end the agent.
        line = json.dumps(content, default=str)
        if redact(line) != line:
            line = json.dumps(_redact_texts(json.loads(line)))
        self._append(self._journal, line + "\n")
        return line.encode()

    def _write_log(self, timestamp: str, text: str) -> None:
        self._append(self._log, f"{timestamp}  {text}")

    def _append(self, file: TextIO, text: str) -> None:
        with self._lock:
            try:
                file.write(text)
                file.flush()
            except OSError as error:
                self.write_error = error
                raise


def shorten_observation(text: str) -> str:
    """Return an observation as trajectories keep it: the middle of a very long one is cut."""
    return head_and_tail(text, KEPT_OBSERVATION_CHARACTERS, _CUT_NOTE)


def _redact_texts(value: Any) -> Any:
    """Replace secrets in all texts, at any depth; keys and numbers stay."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: _redact_texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_redact_texts(item) for item in value]
    return value


def _log_text(step: Step) -> str:
    """Return a step for people: a headline, the action, its output."""
    number = f"[{step.number}] " if step.number is not None else ""
    headline = f"{number}{step.action} {_details(step)}".rstrip()
    text = step.args.get("content") or step.args.get("command") or step.args.get("patch") or ""
    action_prefix = "    $ " if step.action == "run" else "    "
    return (
        printable(headline)
        + "\n"
        + _indent(str(text), action_prefix)
        + _indent(step.observation, "    > ")
    )


def _details(step: Step) -> str:
    if step.action == "run":
        return f"({_command_outcome(step)}, {step.duration_seconds or 0:.2f}s)"
    if step.action == "reply":
        usage = step.usage
        price = "no known price" if usage.unpriced_calls else f"${usage.cost:.4f}"
        tokens = f"{usage.prompt_tokens} + {usage.completion_tokens} tokens"
        return f"({tokens}, {price}, {usage.model_seconds:.1f}s)"
    details = [f"{name} {step.args[name]}" for name in ("to", "from") if step.args.get(name)]
    details += [str(step.args[name]) for name in ("kind", "path", "name") if step.args.get(name)]
    return " ".join(details)


def _command_outcome(step: Step) -> str:
    if step.timed_out:
        return "timed out"
    exit_code = "unknown" if step.returncode is UNSET else step.returncode
    return f"exit {exit_code}"


def _indent(text: str, prefix: str) -> str:
    text = text.rstrip()
    if len(text) > _MAX_LOG_CHARACTERS:
        text = text[:_MAX_LOG_CHARACTERS] + "\n[… the rest is in trajectory.json]"
    return "".join(f"{prefix}{printable(line)}\n" for line in text.splitlines())
