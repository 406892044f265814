"""One value for all slots, or one for each; anything else is one clear line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cooperbench.cli import main
from cooperbench.errors import UserError
from cooperbench.models import Pair, Task
from cooperbench.runner.config import AgentSpec
from cooperbench.runner.display import header_lines
from cooperbench.runner.plan import Plan
from cooperbench.storage import read_json
from tests.support.runner.thinkers import THINKER
from tests.support.tiny import write_tiny
from tests.unit.runner.test_config import begin, make_config


def pair_of(*features: int) -> Pair:
    return Pair(Task("t", 1, Path("t"), features), features)


def test_agents_and_models_fill_slots_in_order(tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b,c.yaml"
    first.touch()
    second.touch()
    config = replace(
        make_config(tmp_path), agent=f"nop, {THINKER}", model="x, y", agent_config=f"{first},"
    )
    assert config.agent_specs(pair_of(1, 2)) == (
        AgentSpec("nop", None, first),
        AgentSpec(THINKER, "y", None),
    )
    for_all = replace(config, agent=THINKER, model="x", agent_config=str(second))
    assert for_all.agent_specs(pair_of(1, 2, 3)) == (AgentSpec(THINKER, "x", second),) * 3
    url = "http://localhost:8000/v1"
    one_server = replace(for_all, base_url=f"{url},")
    assert [one.base_url for one in one_server.agent_specs(pair_of(1, 2))] == [url, None]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"model": "x,y"},
            r"2 models \(x,y\) for 3 agent slots in t/task1 f1_f2_f3; give one for all or one for each",
        ),
        ({"agent": "nop,nop"}, r"2 agents \(nop,nop\) for 3 agent slots"),
        ({"model": "x,,y"}, r"'x,,y' is not a list of models"),
        ({"agent": ","}, r"',' is not a list of agents"),
        ({"agent": "nop,nope,nop"}, r"no agent 'nope'"),
        ({"agent_config": "nowhere.yaml,x.yaml"}, r"nowhere\.yaml: no such agent config"),
        (
            {"model": "x,y", "setting": "solo"},
            r"2 models \(x,y\) for 1 agent slot in setting solo; give one",
        ),
    ],
)
def test_a_wrong_assignment_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        replace(make_config(tmp_path), **change).agent_specs(pair_of(1, 2, 3))


def test_resume_rejects_other_configs(
    tmp_path: Path,
) -> None:
    config = replace(make_config(tmp_path), agent=THINKER, model="x")
    assert (config.identity()["agent"], config.identity()["model_name"]) == (THINKER, "x")
    assert config.identity()["agent_config_sha256"] is None
    (tmp_path / "a").touch()
    crossed = replace(config, model="x ,y", agent_config=f"{tmp_path / 'a'},")
    begin(crossed)
    replace(crossed, model="x,y").check_against_disk()
    with pytest.raises(UserError, match=r"agent_config_sha256: 'e3b0.*,none' → None"):
        replace(crossed, agent_config=None).check_against_disk()


@pytest.mark.parametrize(
    ("agent", "model", "asked"),
    [
        ("nop", "x", None),
        ("nop,oracle", "x,y", None),
        (f"oracle,{THINKER}", "x", "x"),
        (f"oracle,{THINKER}", "x,y", "y"),
        (f"{THINKER},nop,{THINKER}", "x,y,z", "x,z"),
        (THINKER, "x,y", "x,y"),
    ],
)
def test_only_models_that_are_asked_are_recorded(
    tmp_path: Path, agent: str, model: str, asked: str | None
) -> None:
    config = replace(make_config(tmp_path), agent=agent, model=model)
    config.save()
    stored = read_json(config.paths.config)
    assert stored is not None
    assert stored["model_name"] == asked
    shown = [line for line in header_lines([Plan(config, ())]) if line.startswith("Model:")]
    assert shown == ([f"Model: {asked}"] if asked else [])
    config.check_against_disk()


def test_an_automatic_name_tells_who_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_tiny(tmp_path / "data")
    words = [
        "run",
        "--dry-run",
        "--backend",
        "local",
        "--dataset-dir",
        str(data),
        "--log-dir",
        str(tmp_path),
    ]
    main([*words, "-a", f"nop,{THINKER}", "-m", "a/gpt-4o,b/claude-sonnet-4-5"])
    assert "coop-nop+Thinker-gpt-4o+claude-sonnet-4-5: 6 pairs" in capsys.readouterr().out
    assert main([*words, "-a", "nop,nop,nop"]) == 2
    assert (
        "3 agents (nop,nop,nop) for 2 agent slots in tiny_task/task7 f1_f2"
        in capsys.readouterr().err
    )
