"""Agents that play steps from disk: `scripted`, a YAML of steps (docs/scripted.md), and `replay`, an earlier run."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cooperbench.agents.base import Agent, read_yaml
from cooperbench.agents.session import REPLAYED_MESSAGE_SECONDS, AgentSession
from cooperbench.errors import AgentFailure, UserError
from cooperbench.models import AgentSlot, Pair, Setting, agent_slots
from cooperbench.records.trajectory import read_trajectory, step_object
from cooperbench.storage import ExperimentPaths

Step = dict[str, Any]
_TEXT = ((str,), set[str](), "a text")
_KINDS: dict[str, tuple[tuple[type, ...], set[str], str]] = {
    "think": _TEXT,
    "run": _TEXT,
    "write": ((dict,), {"path", "content"}, "a mapping with path and content"),
    "apply": _TEXT,
    "send": ((str, dict), {"text"}, "a text, or a mapping with text and to"),
    "wait": ((int, float, dict, type(None)), set(), "seconds, or a mapping with seconds and for"),
    "when": ((dict,), {"said"}, "a mapping with said"),
    "give_up": _TEXT,
}
"""Of steps: the types that one may have, the keys that it needs where it is a mapping, and both in words."""
_DEFAULT_WAIT_SECONDS = 10.0


class ScriptedAgent(Agent):
    uses_model = False

    def check(self, config_path: Path | None, pairs: Sequence[Pair], setting: Setting) -> None:
        if config_path is None:
            raise UserError("agent 'scripted' needs its script: --agent-config FILE.yaml")
        content = read_yaml(config_path)
        for pair in pairs:
            for slot in agent_slots(pair, setting):
                steps_for(config_path, pair, slot, setting, content)

    def run(self, session: AgentSession) -> None:
        assert session.config_path is not None
        steps = steps_for(session.config_path, session.pair, session.slot, session.setting)
        _play(steps, session, [], session.config_path.parent)


def steps_for(
    script: Path, pair: Pair, slot: AgentSlot, setting: Setting, content: Any = None
) -> list[Step]:
    """The steps of one agent; a script that lacks them is a UserError that names the place."""
    content = content or read_yaml(script)
    repos = content.get("repos") if isinstance(content, dict) else None
    if not isinstance(repos, dict):
        expected = "a mapping of repository, task, setting and feature to steps"
        raise UserError(f"{script}: 'repos' is missing, {expected}")
    place = f"{script}: repos.{pair.task.repo}.{pair.task.task_id}.{setting}"
    settings = (repos.get(pair.task.repo) or {}).get(pair.task.task_id) or {}
    chapters = settings.get(setting) or (settings.get("coop") if setting == "team" else None) or {}
    keys: list[Any] = [pair.name, "*"] if setting == "solo" else [*slot.feature_ids, "*"]
    for key in keys:
        if key in chapters:
            return _checked(chapters[key], f"{place}.{key}", script.parent)
    raise UserError(f"{place} has no steps for {keys[0]}")


def _checked(steps: Any, place: str, folder: Path) -> list[Step]:
    if not isinstance(steps, list):
        raise UserError(f"{place} is no list of steps")
    for number, step in enumerate(steps, 1):
        where = f"{place}, step {number}"
        if not isinstance(step, dict) or len(step) != 1 or next(iter(step)) not in _KINDS:
            raise UserError(f"{where} is not a mapping with exactly one of {', '.join(_KINDS)}")
        kind, value = next(iter(step.items()))
        types, needed, description = _KINDS[kind]
        if not isinstance(value, types) or (isinstance(value, dict) and not needed <= value.keys()):
            raise UserError(f"{where}: {kind} takes {description}")
        if kind == "apply" and not (folder / str(value)).is_file():
            raise UserError(f"{where}: no such patch: {folder / str(value)}")
        if isinstance(value, dict):
            pattern = str(value.get("for") or value.get("said") or "")
            try:
                re.compile(pattern)
            except re.error as error:
                raise UserError(
                    f"{where}: {pattern!r} is no regular expression: {error}"
                ) from error
            for branch in ("then", "else"):
                _checked(value.get(branch) or [], f"{where}, {branch}", folder)
    return steps


def _play(steps: list[Step], session: AgentSession, heard: list[str], folder: Path) -> None:
    for step in steps:
        heard += [message.text for message in session.incoming()]
        kind, value = next(iter(step.items()))
        match kind:
            case "think":
                session.think(value)
            case "run":
                session.execute(value)
            case "write":
                session.write_file(str(value["path"]), str(value["content"]).encode())
            case "apply":
                session.apply_patch((folder / value).read_bytes(), value)
            case "send" if session.teammates:
                parts = {"text": value} if isinstance(value, str) else value
                session.send(str(parts["text"]), parts.get("to"))
            case "wait":
                _wait(value if isinstance(value, dict) else {"seconds": value}, session, heard)
            case "when":
                said = any(re.search(str(value["said"]), text) for text in heard)
                _play(value.get("then" if said else "else") or [], session, heard, folder)
            case "give_up":
                raise AgentFailure("gave_up", value)


def _wait(parts: Step, session: AgentSession, heard: list[str]) -> None:
    deadline = time.monotonic() + float(parts.get("seconds") or _DEFAULT_WAIT_SECONDS)
    while not any(re.search(str(parts.get("for", "")), text) for text in heard):
        if not session.wait_for_message(deadline - time.monotonic()):
            return
        heard += [message.text for message in session.incoming()]


class ReplayAgent(Agent):
    """Each agent's commands, files and messages of the run in the folder `--agent-config`, in their order.

    Where a message came in, the replay waits for it. A run that was killed is played as far as it came.
    """

    uses_model = False

    def check(self, config_path: Path | None, pairs: Sequence[Pair], setting: Setting) -> None:
        if config_path is None:
            raise UserError(
                "agent 'replay' needs the folder of an earlier run: --agent-config logs/NAME"
            )
        for pair in pairs:
            for slot in agent_slots(pair, setting):
                _recorded_steps(config_path, pair, setting, slot.agent_id)

    def run(self, session: AgentSession) -> None:
        assert session.config_path is not None
        expected = received = 0
        agent_id = session.slot.agent_id
        for step in _recorded_steps(session.config_path, session.pair, session.setting, agent_id):
            if step.get("action") != "receive_message":
                _repeat(step, session)
                continue
            expected += 1
            while received < expected:
                if not session.wait_for_message(REPLAYED_MESSAGE_SECONDS):
                    raise AgentFailure(
                        "gave_up", f"message {expected} of the earlier run did not come"
                    )
                received += sum(message.sequence > 0 for message in session.incoming())


def _recorded_steps(run_folder: Path, pair: Pair, setting: Setting, agent_id: str) -> list[Step]:
    agent = ExperimentPaths(run_folder.parent, run_folder.name).pair(pair, setting).agent(agent_id)
    trajectory = read_trajectory(agent)
    if trajectory is None:
        raise UserError(
            f"nothing to replay for {pair.label}: {agent.trajectory} is missing or incomplete"
        )
    return [step_object(step) for step in trajectory.steps]


def _repeat(step: Step, session: AgentSession) -> None:
    args = step.get("args") or {}
    match step.get("action"):
        case "run" | "send_message" if "command" in args:
            session.execute(
                step.get("executed") or args["command"],
                timeout_seconds=args["timeout_seconds"],
                stdin=base64.b64decode(args.get("stdin_base64", "")),
                shown=args["command"],
            )
        case "write_file" if "content_base64" in args:
            session.write_file(args["path"], base64.b64decode(args["content_base64"]))
        case "write_file" if "path" in args:
            session.write_file(args["path"], args["content"].encode())
        case "apply_patch":
            session.apply_patch(args["patch"].encode("utf-8", "surrogateescape"), args["name"])
        case "send_message":
            session.send(args["content"], None if args["to"] == "all" else args["to"])
        case "think":
            session.think(args["content"])
        case _ if isinstance(path := args.get("file_path", args.get("filePath")), str):
            _edit(path, args, session)


def _edit(path: str, args: Step, session: AgentSession) -> None:
    """Files that tools of command-line agents write; a call that failed in the earlier run changes nothing."""
    old, new = (args.get(f"{which}_string", args.get(f"{which}String")) for which in ("old", "new"))
    content = args.get("content")
    if isinstance(old, str) and isinstance(new, str):
        try:
            before = session.read_file(path).decode("utf-8", "surrogateescape")
        except FileNotFoundError:
            before = ""
        count = -1 if args.get("replace_all") or args.get("replaceAll") else 1
        content = before.replace(old, new, count) if old in before else None
    if isinstance(content, str):
        session.write_file(path, content.encode("utf-8", "surrogateescape"))
