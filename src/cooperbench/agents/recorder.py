"""What one agent did, kept as it happens: a line in the journal (machines), a paragraph in the log (people).

At the end the journal becomes trajectory.json, whole. A run that is killed leaves the journal.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from cooperbench.storage import AgentPaths, utc_now, write_json
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cooperbench.models import Seat, Usage

SCHEMA = "cooperbench.trajectory/1"
_LOG_OBSERVATION_CHARACTERS = 4_000


class Recorder:
    """Of one agent in one attempt at a pair."""

    def __init__(self, paths: AgentPaths, seat: Seat, *, agent: str, model: str | None) -> None:
        self._paths = paths
        self._seat = seat
        self._agent = agent
        self._model = model
        self._lock = threading.Lock()
        self.started_at = utc_now()
        paths.journal.parent.mkdir(parents=True, exist_ok=True)
        self._journal = paths.journal.open("a", encoding="utf-8")
        self._log = paths.log.open("a", encoding="utf-8", errors="backslashreplace")
        self.note(f"{seat.agent_id} ({agent}) starts on feature {', '.join(map(str, seat.feature_ids))}")

    def entry(self, action: str, args: Mapping[str, Any], observation: str, **more: Any) -> None:
        """One thing that the agent did or that happened to it; `step` in `more` where it counts as a step."""
        record = {
            "action": action,
            "args": dict(args),
            "observation": observation,
            "timestamp": utc_now(),
            **more,
        }
        with self._lock:
            self._journal.write(json.dumps(record) + "\n")
            self._journal.flush()
        shown = (
            json.dumps(dict(args), ensure_ascii=False) if action != "run" else str(args.get("command", ""))
        )
        if len(observation) > _LOG_OBSERVATION_CHARACTERS:
            observation = observation[:_LOG_OBSERVATION_CHARACTERS] + "\n[… the rest is in trajectory.json]"
        self.note(f"{action}: {shown}", observation)

    def note(self, headline: str, body: str = "") -> None:
        """For people only."""
        text = f"{utc_now()}  {printable(headline)}\n"
        if body.strip():
            text += "".join(f"    {printable(line)}\n" for line in body.rstrip().splitlines())
        with self._lock:
            self._log.write(text)
            self._log.flush()

    def finish(self, status: str, usage: Usage, error: str | None) -> None:
        """Write trajectory.json; the journal has done its work then."""
        self.note(f"ends: {status}" + (f" ({error})" if error else ""))
        with self._lock:
            self._journal.close()
            self._log.close()
        with self._paths.journal.open(encoding="utf-8") as journal:
            steps = [json.loads(line) for line in journal]
        write_json(
            self._paths.trajectory,
            {
                "schema": SCHEMA,
                "agent_id": self._seat.agent_id,
                "feature_id": self._seat.feature_ids[0],
                "feature_ids": list(self._seat.feature_ids),
                "agent": self._agent,
                "model": self._model,
                "status": status,
                "error": error,
                "start_time": self.started_at,
                "end_time": utc_now(),
                "steps": steps,
                "token_usage": {
                    "prompt_tokens": usage.prompt_tokens,
                    "completion_tokens": usage.completion_tokens,
                    "cached_tokens": usage.cached_tokens,
                    "total_tokens": usage.total_tokens,
                },
                "cost": usage.cost,
            },
        )
        self._paths.journal.unlink()

    def abandon(self) -> None:
        """The attempt is over without an end of its own; the journal stays."""
        with self._lock:
            self._journal.close()
            self._log.close()
