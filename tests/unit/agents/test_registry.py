"""Agents are found by name, by module, by dotted path; what cannot be loaded is said in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from cooperbench.agents import registry
from cooperbench.agents.base import NopAgent
from cooperbench.errors import UserError


@pytest.mark.parametrize("name", ["oracle", "nop", "scripted", "replay"])
def test_agents_without_a_model_are_there(name: str) -> None:
    assert hasattr(registry.get_agent(name)(), "run")
    assert not registry.uses_model(name)


@pytest.mark.parametrize("name", ["mini_swe_agent", "mini_swe_agent_v2"])
def test_agents_with_a_model_are_there(name: str) -> None:
    assert hasattr(registry.get_agent(name)(), "check")
    assert registry.uses_model(name)


def test_a_dotted_path_is_an_agent_too() -> None:
    assert registry.get_agent("cooperbench.agents.base:NopAgent") is NopAgent


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nope", "available: claude_code, .*mini_swe_agent, mini_swe_agent_v2, nop, .*scripted"),
        ("no_such_module:Agent", "No module named"),
        ("cooperbench.agents.base:Missing", "Missing"),
        ("cooperbench.models:Usage", "needs a method run"),
    ],
)
def test_what_is_no_agent_is_said_in_one_line(name: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        registry.get_agent(name)
    assert "\n" not in str(caught.value)


def test_modules_of_the_environment_register_their_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_agents.py").write_text(
        "from cooperbench.agents.registry import register\n"
        "class Quiet:\n    def run(self, session): pass\n"
        "register('quiet', Quiet)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COOPERBENCH_EXTERNAL_AGENTS", "their_agents")
    monkeypatch.setattr(registry, "_registered", {})
    assert registry.get_agent("quiet").__name__ == "Quiet"
    assert "quiet" in registry.agent_names()


def test_a_module_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COOPERBENCH_EXTERNAL_AGENTS", "no_such_module_here")
    with pytest.raises(UserError, match="COOPERBENCH_EXTERNAL_AGENTS names 'no_such_module_here'"):
        registry.get_agent("nop")


def test_plain_classes_get_default_methods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Agents of other packages need only `run`, and their other methods are used."""
    monkeypatch.setattr(registry, "_registered", {})
    calls: list[object] = []

    class Plain:
        version = "1.2"

        def run(self, session: object) -> None:
            calls.append(session)

        def check_model(self, model: str, config_path: object) -> None:
            calls.append(model)

    registry.register("plain", Plain)
    registry.register("made", lambda: Plain())
    for name in ("plain", "made"):
        agent_class = registry.get_agent(name)
        agent_class.warm_up()
        assert agent_class.programs() is None
        assert registry.uses_model(name)
        agent = agent_class()
        agent.check(None, [], "solo")
        agent.check_model("openai/m", None)
        agent.run("session")  # type: ignore[arg-type]
    assert calls == ["openai/m", "session"] * 2
    assert registry.version_of(registry.get_agent("plain")) == "1.2"
