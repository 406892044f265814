"""The agent config of `openhands`: the SDK's own settings, by section. Runs in OpenHands' environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_CONVERSATION = {
    "max_iteration_per_run",
    "stuck_detection",
    "stuck_detection_thresholds",
    "max_budget_per_run",
}
_DEFAULT_TOOLS = ("terminal", "file_editor", "task_tracker")
_OURS_IN_AGENT = {"llm", "tools"}
_DEFAULT_TERMINAL_SECONDS = 300.0


class BadSettings(Exception):
    """One line for the user."""


@dataclass(frozen=True)
class Settings:
    llm: dict[str, Any]
    agent: dict[str, Any]
    conversation: dict[str, Any]
    tools: tuple[str, ...]
    terminal_seconds: float


def read_settings(start: dict[str, Any], llm_class: Any, agent_class: Any) -> Settings:
    config = start["config"] or {}
    llm = _section(config, "llm", set(llm_class.model_fields))
    agent = _section(config, "agent", set(agent_class.model_fields) - _OURS_IN_AGENT)
    conversation = _section(config, "conversation", _CONVERSATION)
    terminal = _section(config, "terminal", {"timeout_seconds"})
    tools = config.get("tools", list(_DEFAULT_TOOLS))
    if not isinstance(tools, list) or not set(tools) <= set(_DEFAULT_TOOLS):
        raise BadSettings(f"agent config: tools is a list of {', '.join(_DEFAULT_TOOLS)}, not {tools!r}")
    steps = start["limits"]["steps"]
    if steps is not None:
        # The harness counts steps; this is only so that the SDK's own limit does not come first.
        conversation.setdefault("max_iteration_per_run", 2 * int(steps) + 50)
    return Settings(
        {"model": start["model"], "usage_id": "agent"} | llm,
        agent,
        conversation,
        tuple(tools),
        float(terminal.get("timeout_seconds", _DEFAULT_TERMINAL_SECONDS)),
    )


def _section(config: dict[str, Any], name: str, known: set[str]) -> dict[str, Any]:
    section = config.get(name) or {}
    if not isinstance(section, dict):
        raise BadSettings(f"agent config: {name} is no mapping")
    unknown = sorted(set(section) - known)
    if unknown:
        raise BadSettings(
            f"agent config: {name} has no setting {unknown[0]!r}; there are: {', '.join(sorted(known))}"
        )
    return dict(section)
