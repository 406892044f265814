"""Agents in the image of their task without a container engine: git, messages, team tools, programs,
and the conformance suite for agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.agents.conformance import AgentConformance, AgentUnderTest
from cooperbench.agents.environments import DATA_VARIABLE
from cooperbench.backends.images.archives import import_images
from cooperbench.backends.images.pull import NoProgress
from cooperbench.backends.local import LocalBackend
from cooperbench.dataset.discovery import demo_dir, load_tasks
from cooperbench.dataset.image_names import image_name
from tests.support.agents.builders import builders
from tests.support.agents.frameworks import DATA, MODEL, provide, settings, write_config
from tests.support.images.built import Layout, base_layer, task_layer
from tests.support.modelserver import ModelServer
from tests.support.runner.helpers import Left, run_tiny
from tests.support.tiny import golden, write_script

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def cache(image_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COOPERBENCH_CACHE_DIR", str(image_cache))
    return image_cache


def ran_in_the_image(left: Left) -> bool:
    """Return whether the pair has the digest of an image; tasks with a setup.sh have none."""
    return str(left.result["image_digest"]).startswith("sha256:")


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("network", ["none", "public"])
def test_a_team_shares_git_messages_and_tools(
    network: str, image_dataset: Path, tmp_path: Path
) -> None:
    for feature in (1, 2):
        (tmp_path / f"{feature}.patch").write_text(golden(feature))
    commit = "git -c user.name=a -c user.email=a@a.invalid commit -qam work"
    merge = "git -c user.name=a -c user.email=a@a.invalid merge -q team/agent2"
    lead = [
        {"apply": "1.patch"},
        {"run": f"{commit} && coop-task-create 'Look at line 5'"},
        {"wait": {"seconds": 60, "for": "pushed"}},
        {"run": f"git fetch -q team && {merge} && grep -c feature app.txt"},
        {"run": "cat /workspace/shared/note"},
    ]
    member = [
        {"apply": "2.patch"},
        {"run": f"{commit} && git push -q team HEAD:agent2 && echo hello >/workspace/shared/note"},
        {"send": "pushed"},
        {"run": "coop-task-list"},
    ]
    script = write_script(tmp_path / "script.yaml", {1: lead, 2: member})
    left = run_tiny(
        tmp_path,
        "scripted",
        setting="team",
        dataset_dir=image_dataset,
        agent_config=str(script),
        eval_network=network,
    )
    assert ran_in_the_image(left)
    assert left.evaluation["overall_success"] is True
    assert left.evaluation["integrated_by_lead"] is True
    assert left.evaluation["network"] == network
    observations = left.observations()
    assert "Auto-merging app.txt\n2\n" in observations
    assert "hello\n" in observations
    assert left.result["git"]["pushes"] == {"agent1": 0, "agent2": 1}


@pytest.mark.usefixtures("cache")
def test_command_line_agents_bring_their_programs(
    image_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(DATA))
    names = ("claude_code", "codex")
    for name in names:
        provide(name)
    with ModelServer() as server:
        server.script("", builders(*names))
        config = write_config(tmp_path / "agent.yaml", settings("codex", server.openai_url))
        left = run_tiny(
            tmp_path,
            ",".join(names),
            dataset_dir=image_dataset,
            model_name=MODEL,
            agent_config=config,
            git_enabled=True,
        )
    assert ran_in_the_image(left)
    assert left.evaluation["overall_success"] is True
    statuses = [agent["status"] for agent in left.result["agents"].values()]
    assert statuses == ["submitted", "submitted"]
    assert len(left.json("conversation.json")["messages"]) >= 2


@pytest.fixture(scope="module")
def demo_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with an image of the demo's task that the conformance suite uses."""
    folder = tmp_path_factory.mktemp("demo")
    (task,) = load_tasks(demo_dir(), "stencil_task")
    layout = Layout(folder / "layout")
    layout.add_image(image_name(task), [base_layer(), task_layer(task)])
    backend = LocalBackend(cache_dir=folder / "cache")
    import_images(backend.images.store, layout.folder, None, NoProgress())
    backend.close()
    return folder / "cache"


class TestAgent(AgentConformance):
    @pytest.fixture
    def agent(self, demo_cache: Path, monkeypatch: pytest.MonkeyPatch) -> AgentUnderTest:
        monkeypatch.setenv("COOPERBENCH_CACHE_DIR", str(demo_cache))
        return AgentUnderTest("oracle")
