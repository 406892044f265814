"""What cannot work is said in one line before anything is made."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cooperbench.agents import llm
from cooperbench.agents.mini_swe import MiniSweAgent, MiniSweAgentV2
from cooperbench.errors import UserError
from tests.support.agents.mini_swe import TOOLS, run_solo
from tests.support.runner.helpers import run_tiny

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.modelserver import ModelServer


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"agent": {"step_limt": 3}}, r"agent\.step_limt: Extra inputs are not permitted"),
        ({"agents": {}}, "agents: Extra inputs are not permitted"),
        ({"agent": {"step_limit": "many"}}, "step_limit: Input should be a valid integer"),
        ({"agent": ["x"]}, "agent: Input should be a valid dictionary"),
        ({"agent": {"output_path": "x.json"}}, r"agent\.output_path cannot be set"),
        (
            {"agent": {"system_template": "{{nobody}}"}},
            r"agent\.system_template: 'nobody' is undefined",
        ),
        ({"agent": {"instance_template": "{% if %}"}}, r"agent\.instance_template: "),
        ({"model": {"model_name": "gpt-4o"}}, "names the model"),
        ({"model": {"model_kwargs": {"stream": True}}}, "stream cannot be set"),
        ({"model": {"litellm_model_registry": "nowhere.json"}}, "no such file"),
        (
            {"model": {"observation_template": "{{output.nothing.x}}"}},
            r"model\.observation_template",
        ),
        (
            {"model": {"action_regex": "("}},
            "model.action_regex: Extra inputs|not a regular expression",
        ),
        ({"model": {"model_kwargs": {"timeout": "long"}}}, "timeout is not a number of seconds"),
        ({"environment": {"env": {"A B": "x"}}}, r"environment\.env\.A B\."),
        ({"environment": {"image": "x"}}, r"environment\.image: Extra inputs are not permitted"),
        (["agent"], "not a mapping of agent, environment and model"),
    ],
)
@pytest.mark.parametrize("agent", [MiniSweAgent, MiniSweAgentV2])
def test_a_wrong_file_is_refused(
    tmp_path: Path, agent: type[MiniSweAgent], content: Any, said: str
) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match=said) as caught:
        agent().check(path, [], "coop")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["a: [", "\x00", "- \t: {"])
def test_what_is_no_yaml_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match="cannot be read as YAML") as caught:
        MiniSweAgent().check(path, [], "coop")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["mini.yaml", "mini_textbased.yaml"])
def test_a_copy_of_the_frameworks_own_file_works(tmp_path: Path, name: str) -> None:
    agent = MiniSweAgent() if "text" in name else MiniSweAgentV2()
    agent.check(None, [], "coop")
    from minisweagent.config import builtin_config_dir

    path = tmp_path / name
    path.write_text((builtin_config_dir / name).read_text())
    agent.check(path, [], "coop")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("no-such-model", "does not know its provider.*openai/no-such-model"),
        ("gpt-4o", "needs OPENAI_API_KEY"),
        ("anthropic/claude-sonnet-4-5", "needs ANTHROPIC_API_KEY"),
        ("vertex_ai/gemini-3-flash-preview", "gcloud auth application-default login"),
    ],
)
def test_unusable_model_is_rejected_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, said: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "VERTEXAI_PROJECT", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=said) as caught:
        run_tiny(tmp_path, TOOLS, model_name=model)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("key", ["OPENAI_API_KEY", None])
def test_a_key_may_be_in_the_environment_or_in_the_config(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str | None
) -> None:
    path = None
    if key:
        monkeypatch.setenv(key, "sk-1234567890")
    else:
        path = tmp_path / "agent.yaml"
        path.write_text("model: {model_kwargs: {api_key: sk-1234567890}}")
    MiniSweAgent().check_model("gpt-4o", path)


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litellm", None)
    llm.load_litellm.cache_clear()
    with pytest.raises(UserError, match=r"pip install 'cooperbench\[agents\]'"):
        llm.load_litellm()


def test_retry_timeout_is_a_number(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOPERBENCH_MODEL_RETRY_TIMEOUT", "long")
    with pytest.raises(UserError, match="COOPERBENCH_MODEL_RETRY_TIMEOUT is 'long'"):
        run_solo(tmp_path, server, [])
