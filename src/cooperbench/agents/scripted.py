"""Agents that play steps from disk.

`scripted` plays a YAML file of steps (docs/scripted.md), `replay` plays an earlier run.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cooperbench.agents.base import Agent, read_yaml
from cooperbench.agents.session import REPLAYED_MESSAGE_SECONDS, AgentSession
from cooperbench.errors import AgentFailure, UserError
from cooperbench.models import AgentSlot, Pair, Setting, agent_slots
from cooperbench.records import JsonObject
from cooperbench.records.trajectory import read_trajectory, step_object
from cooperbench.storage import ExperimentPaths

_DEFAULT_WAIT_SECONDS = 10.0


@dataclass(frozen=True)
class _StepKind:
    """The values that one kind of step may have."""

    types: tuple[type, ...]
    description: str
    required_keys: frozenset[str] = frozenset()
    """Keys that the value needs if it is a mapping."""

    def accepts(self, value: object) -> bool:
        """Return whether a step of this kind may have the value."""
        if isinstance(value, dict) and not self.required_keys <= value.keys():
            return False
        return isinstance(value, self.types)


_TEXT = _StepKind((str,), "a text")
_STEP_KINDS = {
    "think": _TEXT,
    "run": _TEXT,
    "write": _StepKind((dict,), "a mapping with path and content", frozenset({"path", "content"})),
    "apply": _TEXT,
    "send": _StepKind((str, dict), "a text, or a mapping with text and to", frozenset({"text"})),
    "wait": _StepKind((int, float, dict, type(None)), "seconds, or a mapping with seconds and for"),
    "when": _StepKind((dict,), "a mapping with said", frozenset({"said"})),
    "give_up": _TEXT,
}


class ScriptedAgent(Agent):
    """An agent that plays the steps of a YAML file."""

    uses_model = False

    def check(self, config_path: Path | None, pairs: Sequence[Pair], setting: Setting) -> None:
        """Check that the script has valid steps for every agent."""
        if config_path is None:
            raise UserError("agent 'scripted' needs its script: --agent-config FILE.yaml")
        content = read_yaml(config_path)
        for pair in pairs:
            for slot in agent_slots(pair, setting):
                steps_for(config_path, pair, slot, setting, content)

    def run(self, session: AgentSession) -> None:
        """Play the steps of the agent's features."""
        assert session.config_path is not None
        steps = steps_for(session.config_path, session.pair, session.slot, session.setting)
        _Player(session, session.config_path.parent).play(steps)


def steps_for(
    script: Path, pair: Pair, slot: AgentSlot, setting: Setting, content: Any = None
) -> list[JsonObject]:
    """Return the steps of one agent.

    `content` is the parsed script, if the caller has it.

    Raises:
        UserError: The script has no steps for the agent, or invalid ones. The message says where.
    """
    content = content or read_yaml(script)
    by_feature = _steps_by_feature(script, pair, setting, content)
    location = f"{script}: repos.{pair.task.repo}.{pair.task.task_id}.{setting}"
    for keys in _script_keys(slot):
        if all(key in by_feature for key in keys):
            steps: list[JsonObject] = []
            for key in keys:
                _check_steps(by_feature[key], f"{location}.{key}", script.parent)
                steps += by_feature[key]
            return steps
    raise UserError(f"{location} has no steps for {_script_keys(slot)[0][0]}")


def _script_keys(slot: AgentSlot) -> list[list[Any]]:
    """Return the keys of a script that have the steps of an agent, the first choice first.

    An agent with several features plays what the script has for these features together, or else
    the steps of one feature after the other.
    """
    features = list(slot.feature_ids)
    if len(features) == 1 and slot.agent_id != "solo":
        return [features, ["*"]]
    together = "_".join(f"f{number}" for number in features)
    if slot.agent_id == "solo":
        return [[together], ["*"]]
    return [[together], features, ["*"]]


def _steps_by_feature(script: Path, pair: Pair, setting: Setting, content: Any) -> JsonObject:
    """Return the steps of one task and setting. A team plays those of coop if it has none."""
    repos = content.get("repos") if isinstance(content, dict) else None
    if not isinstance(repos, dict):
        expected = "a mapping of repository, task, setting and feature to steps"
        raise UserError(f"{script}: 'repos' is missing, {expected}")
    settings = (repos.get(pair.task.repo) or {}).get(pair.task.task_id) or {}
    by_feature = settings.get(setting)
    if not by_feature and setting == "team":
        by_feature = settings.get("coop")
    return by_feature or {}


def _check_steps(steps: Any, location: str, folder: Path) -> None:
    if not isinstance(steps, list):
        raise UserError(f"{location} is not a list of steps")
    for number, step in enumerate(steps, 1):
        _check_step(step, f"{location}, step {number}", folder)


def _check_step(step: Any, location: str, folder: Path) -> None:
    if not isinstance(step, dict) or len(step) != 1 or next(iter(step)) not in _STEP_KINDS:
        kinds = ", ".join(_STEP_KINDS)
        raise UserError(f"{location} is not a mapping with exactly one of {kinds}")
    name, value = next(iter(step.items()))
    kind = _STEP_KINDS[name]
    if not kind.accepts(value):
        raise UserError(f"{location}: {name} takes {kind.description}")
    if name == "apply" and not (folder / str(value)).is_file():
        raise UserError(f"{location}: no such patch: {folder / str(value)}")
    if isinstance(value, dict):
        _check_pattern(str(value.get("for") or value.get("said") or ""), location)
        for branch in ("then", "else"):
            _check_steps(value.get(branch) or [], f"{location}, {branch}", folder)


def _check_pattern(pattern: str, location: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        problem = f"{location}: {pattern!r} is not a regular expression: {error}"
        raise UserError(problem) from error


@dataclass
class _Player:
    """Plays steps in one session."""

    session: AgentSession
    folder: Path
    """Folder of the script, which patches are relative to."""
    received: list[str] = field(default_factory=list)
    """Texts of all messages so far."""

    def play(self, steps: Sequence[JsonObject]) -> None:
        """Take one step after the other."""
        players: dict[str, Callable[[Any], object]] = {
            "think": self.session.think,
            "run": self.session.execute,
            "write": self._write,
            "apply": self._apply,
            "send": self._send,
            "wait": self._wait,
            "when": self._play_branch,
            "give_up": self._give_up,
        }
        for step in steps:
            self._receive()
            name, value = next(iter(step.items()))
            players[name](value)

    def _receive(self) -> None:
        self.received += [message.text for message in self.session.incoming()]

    def _has_received(self, pattern: str) -> bool:
        return any(re.search(pattern, text) for text in self.received)

    def _write(self, value: JsonObject) -> None:
        self.session.write_file(str(value["path"]), str(value["content"]).encode())

    def _apply(self, name: str) -> None:
        self.session.apply_patch((self.folder / name).read_bytes(), name)

    def _send(self, value: str | JsonObject) -> None:
        if not self.session.teammates:
            return
        message = {"text": value} if isinstance(value, str) else value
        self.session.send(str(message["text"]), message.get("to"))

    def _wait(self, value: float | JsonObject | None) -> None:
        options = value if isinstance(value, dict) else {"seconds": value}
        deadline = time.monotonic() + float(options.get("seconds") or _DEFAULT_WAIT_SECONDS)
        while not self._has_received(str(options.get("for", ""))):
            if not self.session.wait_for_message(deadline - time.monotonic()):
                return
            self._receive()

    def _play_branch(self, value: JsonObject) -> None:
        branch = "then" if self._has_received(str(value["said"])) else "else"
        self.play(value.get(branch) or [])

    def _give_up(self, reason: str) -> None:
        raise AgentFailure("gave_up", reason)


class ReplayAgent(Agent):
    """An agent that repeats its commands, files and messages of an earlier run, in their order.

    The folder of that run is `--agent-config`. Before a step that followed a message, the replay
    waits for that message. A run that was killed is played as far as it came.
    """

    uses_model = False

    def check(self, config_path: Path | None, pairs: Sequence[Pair], setting: Setting) -> None:
        """Check that there is a record of every agent."""
        if config_path is None:
            raise UserError(
                "agent 'replay' needs the folder of an earlier run: --agent-config logs/NAME"
            )
        for pair in pairs:
            for slot in agent_slots(pair, setting):
                _recorded_steps(config_path, pair, setting, slot.agent_id)

    def run(self, session: AgentSession) -> None:
        """Repeat the steps."""
        assert session.config_path is not None
        expected = 0
        received = 0
        agent_id = session.slot.agent_id
        for step in _recorded_steps(session.config_path, session.pair, session.setting, agent_id):
            if step.get("action") != "receive_message":
                _repeat(step, session)
                continue
            expected += 1
            while received < expected:
                if not session.wait_for_message(REPLAYED_MESSAGE_SECONDS):
                    problem = f"message {expected} of the earlier run did not come"
                    raise AgentFailure("gave_up", problem)
                # Messages without a sequence number come from the team's tools.
                received += len([message for message in session.incoming() if message.sequence])


def _recorded_steps(
    run_folder: Path, pair: Pair, setting: Setting, agent_id: str
) -> list[JsonObject]:
    agent = ExperimentPaths(run_folder.parent, run_folder.name).pair(pair, setting).agent(agent_id)
    trajectory = read_trajectory(agent)
    if trajectory is None:
        raise UserError(
            f"nothing to replay for {pair.label}: {agent.trajectory} is missing or incomplete"
        )
    return [step_object(step) for step in trajectory.steps]


def _repeat(step: JsonObject, session: AgentSession) -> None:
    args = step.get("args") or {}
    match step.get("action"):
        case "run" | "send_message" if "command" in args:
            session.execute(
                step.get("executed") or args["command"],
                timeout_seconds=args["timeout_seconds"],
                stdin=base64.b64decode(args.get("stdin_base64", "")),
                shown=args["command"],
            )
        case "write_file" if "path" in args:
            session.write_file(args["path"], _recorded_content(args))
        case "apply_patch":
            session.apply_patch(args["patch"].encode("utf-8", "surrogateescape"), args["name"])
        case "send_message":
            session.send(args["content"], None if args["to"] == "all" else args["to"])
        case "think":
            session.think(args["content"])
        case _:
            _repeat_tool_of_program(args, session)


def _recorded_content(args: JsonObject) -> bytes:
    if "content_base64" in args:
        return base64.b64decode(args["content_base64"])
    return str(args["content"]).encode()


def _repeat_tool_of_program(args: JsonObject, session: AgentSession) -> None:
    """Repeat a tool call of a command-line agent that writes or edits a file.

    A call that failed in the earlier run changes nothing.
    """
    path = args.get("file_path", args.get("filePath"))
    if not isinstance(path, str):
        return
    old = args.get("old_string", args.get("oldString"))
    new = args.get("new_string", args.get("newString"))
    content = args.get("content")
    if isinstance(old, str) and isinstance(new, str):
        try:
            before = session.read_file(path).decode("utf-8", "surrogateescape")
        except FileNotFoundError:
            before = ""
        if old not in before:
            return
        replaces_all = args.get("replace_all") or args.get("replaceAll")
        content = before.replace(old, new, -1 if replaces_all else 1)
    if isinstance(content, str):
        session.write_file(path, content.encode("utf-8", "surrogateescape"))
