"""Agents by name: built-in agents, entry points, named modules, dotted paths, programs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from cooperbench.agents.base import Agent
from cooperbench.errors import UserError, is_interrupt
from cooperbench.settings import import_user_module
from cooperbench.text import describe_error

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
_OPTIONAL_METHODS = ("check", "check_model", "warm_up", "programs")
_registered: dict[str, type[Agent]] = {}


def register(name: str, factory: Callable[[], Any]) -> None:
    """Register an agent. Modules in COOPERBENCH_EXTERNAL_AGENTS call this when they are imported.

    `factory` is a class with a method `run(session)`, or a function that returns such an object.
    """
    _registered[name] = _as_agent_class(factory)


def get_agent(name: str) -> type[Agent]:
    """Return the class of an agent.

    `name` is a known name, `module:Class`, or the path of a program (`./my_agent`).

    Raises:
        UserError: There is no such agent, or it cannot be imported.
    """
    if "/" in name:
        from cooperbench.agents.worker import program_agent

        return program_agent(Path(name).expanduser())
    _import_external_modules()
    if name in _registered:
        return _registered[name]
    target = _BUILT_IN.get(name) or _entry_points().get(name)
    if target is None and ":" in name:
        target = name
    if target is None:
        names = ", ".join(agent_names())
        raise UserError(
            f"no agent {name!r}; available: {names}, module:Class, or a program (./my_agent)"
        )
    return _import_agent(name, target)


def _import_external_modules() -> None:
    for entry in os.environ.get(MODULES_VARIABLE, "").split(","):
        module = entry.strip()
        if not module:
            continue
        try:
            import_user_module(module)
        except (Exception, SystemExit) as error:
            if is_interrupt(error):
                raise
            problem = f"{MODULES_VARIABLE} names {module!r}, which cannot be imported: {error}"
            raise UserError(problem) from error


def _import_agent(name: str, target: str) -> type[Agent]:
    module, _, attribute = target.partition(":")
    try:
        factory = getattr(import_user_module(module), attribute)
    except (Exception, SystemExit) as error:
        if is_interrupt(error):
            raise
        problem = describe_error(error)
        source = "" if name == target else f" ({target})"
        raise UserError(f"agent {name!r}{source} cannot be loaded: {problem}") from error
    if not callable(factory) or not hasattr(factory, "run"):
        raise UserError(f"{name!r} ({target}) is not an agent: it needs a method run(session)")
    return _as_agent_class(factory)


def _as_agent_class(factory: Callable[[], Any]) -> type[Agent]:
    """Return a class with all methods of `Agent` for whatever another package provides."""
    if isinstance(factory, type):
        if issubclass(factory, Agent):
            return factory
        # The other package's methods come first, the defaults second.
        members = {"__module__": factory.__module__, "__doc__": factory.__doc__}
        return cast("type[Agent]", type(factory.__name__, (factory, Agent), members))
    return _class_for_function(factory)


def _class_for_function(function: Callable[[], Any]) -> type[Agent]:
    """Return an agent class whose objects pass everything on to what `function` returns."""

    class FunctionAgent(Agent):
        def __init__(self) -> None:
            self._agent = function()
            for method in _OPTIONAL_METHODS:
                if hasattr(self._agent, method):
                    setattr(self, method, getattr(self._agent, method))

        def run(self, session: Any) -> None:
            """Run the agent that the function returned."""
            self._agent.run(session)

    return FunctionAgent


def agent_names() -> list[str]:
    """Return the names of all agents that are known."""
    return sorted({*_BUILT_IN, *_registered, *_entry_points()})


def is_registered(name: str) -> bool:
    """Return whether an agent is known by name. No code that the name itself names is loaded."""
    _import_external_modules()
    return name in agent_names()


def short_name(name: str) -> str:
    """Return the name that is used in names of experiments."""
    if "/" in name:
        return Path(name).stem
    return _SHORT_NAMES.get(name, name.rpartition(":")[2])


def version_of(agent: type[Agent]) -> str | None:
    """Return the version of the framework behind an agent."""
    version = agent.version
    if version is None or isinstance(version, str):
        return version
    return version()


def uses_model(name: str) -> bool:
    """Return whether an agent calls a model."""
    return get_agent(name).uses_model


def _entry_points() -> dict[str, str]:
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
