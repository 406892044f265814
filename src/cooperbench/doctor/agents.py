"""Checks of agents and of the keys of their models. Keys are named, never shown."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cooperbench.doctor.findings import Asked, Finding, Status, from_error, missing_extra
from cooperbench.errors import CooperBenchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_KEY = re.compile(r"[A-Z][A-Z0-9_]*_API_KEY")
_OTHER_KEYS = ("AWS_ACCESS_KEY_ID", "GOOGLE_APPLICATION_CREDENTIALS", "HF_TOKEN", "VERTEXAI_PROJECT")
"""Of providers that call them something else than …_API_KEY."""


def agents(asked: Asked) -> Iterator[Finding]:
    del asked
    from cooperbench.agents.registry import agent_names

    for name in agent_names():
        yield from OWN_CHECKS[name]() if name in OWN_CHECKS else _loads(name)


def _loads(name: str) -> Iterator[Finding]:
    from cooperbench.agents.registry import get_agent

    try:
        agent: Any = get_agent(name)
    except CooperBenchError as error:
        yield from_error(f"agent {name}", Status.MISSING, error)
    except Exception as error:  # somebody else's code: it must not hide the others
        detail = f"cannot be loaded: {type(error).__name__}: {error}"
        yield Finding(f"agent {name}", Status.BROKEN, detail, "see where it comes from: pip list")
    else:
        needs = "asks a model" if getattr(agent, "uses_model", True) else "needs no model"
        yield Finding(f"agent {name}", Status.OK, needs)


def _framework(name: str) -> Iterator[Finding]:
    """One that lives in an environment of its own: is it there, and does its Python still run?"""
    from cooperbench.agents.environments import find_environment, get_framework, works

    framework = get_framework(name)
    environment = find_environment(framework)
    if environment is None:
        yield Finding(
            f"agent {name}", Status.MISSING, "its framework is not installed", framework.install_command
        )
    elif not works(environment):
        yield Finding(
            f"agent {name}", Status.BROKEN, f"{environment.folder} does not work", framework.install_command
        )
    else:
        yield Finding(f"agent {name}", Status.OK, f"{framework.distribution} {environment.version}")


def _mini_swe(name: str) -> Iterator[Finding]:
    """Its class can be loaded without the packages that it runs on."""
    missing = missing_extra(f"agent {name}", "agents", "litellm", "minisweagent")
    if missing:
        yield missing
    else:
        yield from _loads(name)


OWN_CHECKS: dict[str, Callable[[], Iterator[Finding]]] = {
    "mini_swe_agent": lambda: _mini_swe("mini_swe_agent"),
    "mini_swe_agent_v2": lambda: _mini_swe("mini_swe_agent_v2"),
    "openhands": lambda: _framework("openhands"),
    "swe_agent": lambda: _framework("swe_agent"),
}
"""For a framework that needs more than to be loaded: an environment of its own, a program."""


def model_keys(asked: Asked) -> Iterator[Finding]:
    """Are there any? Whether a provider takes them is known when it is asked."""
    del asked
    found = sorted(name for name, value in os.environ.items() if _is_key(name) and value)
    filed = sorted(set(_names_in(Path(".env"))) - set(found))
    where = [*found, *(f"{name} (in .env)" for name in filed)]
    if where:
        yield Finding("model keys", Status.OK, ", ".join(where))
        return
    mend = "export OPENAI_API_KEY=… (or ANTHROPIC_API_KEY, GEMINI_API_KEY, …), or put it into .env"
    yield Finding("model keys", Status.MISSING, "none in the environment or .env", mend)


def _is_key(name: str) -> bool:
    return name in _OTHER_KEYS or _KEY.fullmatch(name) is not None


def _names_in(path: Path) -> Iterator[str]:
    """Of the keys that have a value there."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        name, _, value = line.strip().removeprefix("export ").partition("=")
        if _is_key(name.strip()) and value.strip().strip("\"'"):
            yield name.strip()
