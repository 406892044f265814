"""An agent that follows a script: a YAML of steps per feature. No model, no judgement, but real commands and messages.

It shows and tests what cooperation does to outcomes without an API key. The format is described in docs/scripted.md.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from cooperbench.agents.base import read_yaml
from cooperbench.errors import AgentFailure, UserError
from cooperbench.models import seats_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cooperbench.agents.session import Session
    from cooperbench.models import Pair, Seat, Setting

Step = dict[str, Any]
_KINDS = ("think", "run", "write", "apply", "send", "wait", "when", "give_up")
_DEFAULT_WAIT_SECONDS = 10.0


class ScriptedAgent:
    uses_model = False

    def check(self, config_path: Path | None, pairs: Sequence[Pair], setting: Setting) -> None:
        if config_path is None:
            raise UserError("agent 'scripted' needs its script: --agent-config FILE.yaml")
        for pair in pairs:
            for seat in seats_of(pair, setting):
                steps_for(config_path, pair, seat, setting)

    def run(self, session: Session) -> None:
        assert session.config_path is not None
        heard: list[str] = []
        steps = steps_for(session.config_path, session.pair, session.seat, session.setting)
        _play(steps, session, heard, session.config_path.parent)


def steps_for(script: Path, pair: Pair, seat: Seat, setting: Setting) -> list[Step]:
    """The steps of one agent; a script that lacks them is a UserError that names the place."""
    repos = _load(script, _version(script))
    place = f"{script}: repos.{pair.task.repo}.{pair.task.task_id}.{setting}"
    tasks = repos.get(pair.task.repo) or {}
    chapters = (tasks.get(pair.task.task_id) or {}).get(setting) or {}
    keys: list[Any] = [pair.name, "*"] if setting == "solo" else [*seat.feature_ids, "*"]
    for key in keys:
        if key in chapters:
            return _checked(chapters[key], f"{place}.{key}", script.parent)
    raise UserError(f"{place} has no steps for {keys[0]}")


def _version(script: Path) -> tuple[int, int]:
    """What tells a changed file from the one read before."""
    try:
        status = script.stat()
    except OSError:
        raise UserError(f"{script}: no such script") from None
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=8)
def _load(script: Path, version: tuple[int, int]) -> dict[str, Any]:  # noqa: ARG001  # the cache's key
    content = read_yaml(script)
    repos = content.get("repos") if isinstance(content, dict) else None
    if not isinstance(repos, dict):
        raise UserError(
            f"{script}: 'repos' is missing, a mapping of repository, task, setting and feature to steps"
        )
    return repos


def _checked(steps: Any, place: str, folder: Path) -> list[Step]:
    if not isinstance(steps, list):
        raise UserError(f"{place} is no list of steps")
    for number, step in enumerate(steps, 1):
        where = f"{place}, step {number}"
        if not isinstance(step, dict) or len(step) != 1 or next(iter(step)) not in _KINDS:
            raise UserError(f"{where} is not a mapping with exactly one of {', '.join(_KINDS)}")
        kind, value = next(iter(step.items()))
        _check_step(kind, value, where, folder)
    return steps


def _check_step(kind: str, value: Any, where: str, folder: Path) -> None:
    needed = {"write": ("path", "content"), "when": ("said",)}.get(kind, ())
    if kind in ("think", "run", "apply", "give_up") and not isinstance(value, str):
        raise UserError(f"{where}: {kind} takes a text")
    if kind in ("write", "when") and not (isinstance(value, dict) and all(key in value for key in needed)):
        raise UserError(f"{where}: {kind} takes a mapping with {' and '.join(needed)}")
    if kind == "send" and not (isinstance(value, str) or (isinstance(value, dict) and "text" in value)):
        raise UserError(f"{where}: send takes a text, or a mapping with text and to")
    if kind == "wait" and not (value is None or isinstance(value, (int, float, dict))):
        raise UserError(f"{where}: wait takes seconds, or a mapping with seconds and for")
    if kind == "apply" and not (folder / value).is_file():
        raise UserError(f"{where}: no such patch: {folder / value}")
    if kind in ("wait", "when") and isinstance(value, dict):
        pattern = value.get("for" if kind == "wait" else "said", "")
        try:
            re.compile(str(pattern))
        except re.error as error:
            raise UserError(f"{where}: {pattern!r} is no regular expression: {error}") from error
    if kind == "when":
        for branch in ("then", "else"):
            _checked(value.get(branch) or [], f"{where}, {branch}", folder)


def _play(steps: list[Step], session: Session, heard: list[str], folder: Path) -> None:
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
            case "send" if session.colleagues:
                parts = {"text": value} if isinstance(value, str) else value
                session.send(str(parts["text"]), parts.get("to"))
            case "wait":
                _wait(value, session, heard)
            case "when":
                said = any(re.search(str(value["said"]), text) for text in heard)
                _play(value.get("then" if said else "else") or [], session, heard, folder)
            case "give_up":
                raise AgentFailure("gave_up", value)


def _wait(value: Any, session: Session, heard: list[str]) -> None:
    parts = value if isinstance(value, dict) else {"seconds": value}
    pattern = str(parts.get("for", ""))
    deadline = time.monotonic() + float(parts.get("seconds") or _DEFAULT_WAIT_SECONDS)
    while not any(re.search(pattern, text) for text in heard):
        if not session.wait_for_message(deadline - time.monotonic()):
            return
        heard += [message.text for message in session.incoming()]
