"""Plays an earlier run again: each agent's commands, files and messages, in their order.

The agent config is the folder of that run (`--agent-config logs/my-run`). Where the trajectory says that a message
came in, the replay waits for it, so that what depended on what still does. What a model said or was told is left out:
its commands, which are played, send its messages too. A run that was killed is played as far as it came.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from cooperbench.agents.recorder import read_trajectory
from cooperbench.errors import AgentFailure, UserError
from cooperbench.models import seats_of
from cooperbench.storage import ExperimentPaths

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cooperbench.agents.session import Session
    from cooperbench.models import Pair, Setting

MESSAGE_SECONDS = 60.0
"""How long to wait for a message that came in the earlier run."""


class ReplayAgent:
    uses_model = False

    def check(self, config_path: Path | None, pairs: Sequence[Pair], setting: Setting) -> None:
        if config_path is None:
            raise UserError("agent 'replay' needs the folder of an earlier run: --agent-config logs/NAME")
        for pair in pairs:
            for seat in seats_of(pair, setting):
                _load_steps(config_path, pair, setting, seat.agent_id)

    def run(self, session: Session) -> None:
        assert session.config_path is not None
        seat = session.seat
        received = 0
        expected = 0
        for step in _load_steps(session.config_path, session.pair, session.setting, seat.agent_id):
            args = step.get("args") or {}
            match step.get("action"):
                case "run":
                    session.execute(
                        str(args["command"]),
                        timeout_seconds=float(args.get("timeout_seconds", 600)),
                        stdin=base64.b64decode(args.get("stdin_base64", "")),
                    )
                case "write_file":
                    session.write_file(str(args["path"]), _content(args))
                case "apply_patch":
                    patch = str(args["patch"]).encode("utf-8", "surrogateescape")
                    session.apply_patch(patch, str(args.get("name", "patch")))
                case "send_message":
                    recipient = str(args.get("to", "all"))
                    session.send(str(args["content"]), None if recipient == "all" else recipient)
                case "receive_message":
                    expected += 1
                    while received < expected:
                        if not session.wait_for_message(MESSAGE_SECONDS):
                            raise AgentFailure(
                                "gave_up", f"message {expected} of the earlier run did not come"
                            )
                        received += len(session.incoming())
                case "think":
                    session.think(str(args.get("content", "")))


def _content(args: dict[str, Any]) -> bytes:
    if "content_base64" in args:
        return base64.b64decode(args["content_base64"])
    return str(args["content"]).encode()


def _load_steps(run_folder: Path, pair: Pair, setting: Setting, agent_id: str) -> list[dict[str, Any]]:
    paths = ExperimentPaths(run_folder.parent, run_folder.name).pair(pair, setting)
    agent = paths.agent(agent_id)
    steps = (read_trajectory(agent) or {}).get("steps")
    if not isinstance(steps, list):
        raise UserError(f"nothing to replay for {pair.label}: {agent.trajectory} is missing or not whole")
    return steps
