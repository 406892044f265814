"""Agents by name: ours, those of installed packages (entry points), of named modules, dotted paths, programs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from cooperbench.agents.base import Agent
from cooperbench.errors import UserError
from cooperbench.settings import import_user_module

ENTRY_POINT_GROUP = "cooperbench.agents"
MODULES_VARIABLE = "COOPERBENCH_EXTERNAL_AGENTS"
_BUILT_IN = {
    "claude_code": "cooperbench.agents.cli_agents:ClaudeCodeAgent",
    "codex": "cooperbench.agents.cli_agents:CodexAgent",
    "gemini_cli": "cooperbench.agents.cli_agents:GeminiCliAgent",
    "mini_swe_agent": "cooperbench.agents.mini_swe:MiniSweAgent",
    "mini_swe_agent_v2": "cooperbench.agents.mini_swe:MiniSweAgentV2",
    "nop": "cooperbench.agents.base:NopAgent",
    "opencode": "cooperbench.agents.cli_agents:OpenCodeAgent",
    "openhands": "cooperbench.agents.worker:OpenHandsAgent",
    "oracle": "cooperbench.agents.base:OracleAgent",
    "replay": "cooperbench.agents.scripted:ReplayAgent",
    "scripted": "cooperbench.agents.scripted:ScriptedAgent",
    "swe_agent": "cooperbench.agents.worker:SweAgent",
}
_SHORT_NAMES = {
    "claude_code": "cc",
    "gemini_cli": "gemini",
    "mini_swe_agent": "msa",
    "mini_swe_agent_v2": "msa2",
    "openhands": "oh",
    "swe_agent": "swe",
}
_registered: dict[str, Callable[[], Agent]] = {}


def register(name: str, factory: Callable[[], Agent]) -> None:
    """Make an agent known under a name; a module named in COOPERBENCH_EXTERNAL_AGENTS calls this on import."""
    _registered[name] = factory


def get_agent(name: str) -> Callable[[], Agent]:
    """The factory of an agent: a known name, `module:Class`, or the path of a program (`./my_agent`)."""
    if "/" in name:
        from cooperbench.agents.worker import program_agent

        return program_agent(Path(name).expanduser())
    for module in filter(None, map(str.strip, os.environ.get(MODULES_VARIABLE, "").split(","))):
        try:
            import_user_module(module)
        except Exception as error:
            problem = f"{MODULES_VARIABLE} names {module!r}, which cannot be imported: {error}"
            raise UserError(problem) from error
    if name in _registered:
        return _registered[name]
    target = _BUILT_IN.get(name) or _entry_points().get(name) or (name if ":" in name else None)
    if target is None:
        known = ", ".join(agent_names())
        raise UserError(
            f"no agent {name!r}; there are: {known}, module:Class, or a program (./my_agent)"
        )
    module, _, attribute = target.partition(":")
    try:
        factory: Callable[[], Agent] = getattr(import_user_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"agent {name!r} ({target}) cannot be loaded: {error}") from error
    if not callable(factory) or not hasattr(factory, "run"):
        raise UserError(f"agent {name!r} ({target}) is no agent: it needs a method run(session)")
    return factory


def agent_names() -> list[str]:
    return sorted({*_BUILT_IN, *_registered, *_entry_points()})


def short_name(name: str) -> str:
    """As it stands in the names of experiments."""
    return Path(name).stem if "/" in name else _SHORT_NAMES.get(name, name.rpartition(":")[2])


def version_of(factory: Callable[[], Agent]) -> str | None:
    """Of the framework behind an agent; its class says it, or knows how to find out."""
    version = getattr(factory, "version", None)
    return version() if callable(version) else version


def programs_of(factory: Callable[[], Agent]) -> Path | None:
    """A folder with programs that an agent runs in its sandbox."""
    programs: Callable[[], Path] | None = getattr(factory, "programs", None)
    return programs() if programs else None


def uses_model(name: str) -> bool:
    """Whether an agent asks a model; ours that do not say so with `uses_model = False`."""
    return bool(getattr(get_agent(name), "uses_model", True))


def _entry_points() -> dict[str, str]:
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
