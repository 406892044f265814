"""The arms of a study: which levels they have, their names, and their configurations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cooperbench.lab.factors import level_slugs, make_factors, sort_levels
from cooperbench.lab.registration import Hypothesis
from cooperbench.lab.study import Study, StudyOptions, make_study
from tests.unit.runner.test_config import make_config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cooperbench.runner.config import RunConfig


def study_of(
    config: RunConfig, levels: Mapping[str, Sequence[Any]], off: Sequence[str] = (), **options: Any
) -> Study:
    factors = make_factors(config, levels, off)
    return make_study(config, factors, StudyOptions(Hypothesis(), **options))


def names_of(study: Study) -> list[str]:
    return [arm.name for arm in study.arms]


def test_factors_are_crossed(tmp_path: Path) -> None:
    study = study_of(make_config(tmp_path), {"messages": [3, None], "loss": [0.5, 0]}, ["git"])
    assert names_of(study) == [
        "messages=3+loss=0.5",
        "messages=3+loss=0.5+no-git",
        "messages=3+loss=0",
        "messages=3+loss=0+no-git",
        "messages=unlimited+loss=0.5",
        "messages=unlimited+loss=0.5+no-git",
        "messages=unlimited+loss=0",
        "messages=unlimited+loss=0+no-git",
    ]
    config = study.arms[1].config
    assert (config.message_budget, config.message_loss, config.git_enabled) == (3, 0.5, False)
    assert config.run_name.endswith("/messages=3+loss=0.5+no-git")


def test_one_factor_at_a_time(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    study = study_of(config, {"delay": [0, 2, 5]}, ["git"], is_crossed=False, repeat=2)
    first = ["delay=0", "delay=2", "delay=5", "delay=0+no-git"]
    assert names_of(study) == first + [f"{name}@2" for name in first]
    assert study.arms[3].levels == {"delay": "0", "git": "off"}


def test_parts_alone_have_the_names_of_ablations(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    assert names_of(study_of(config, {}, ["git", "messages"])) == [
        "all", "no-messages", "no-git", "no-messages+git"
    ]  # fmt: skip
    single = study_of(config, {}, ["git", "messages"], is_crossed=False)
    assert names_of(single) == ["all", "no-messages", "no-git"]


def test_single_agent_has_no_rules_for_messages(tmp_path: Path) -> None:
    config = replace(
        make_config(tmp_path),
        features=(1, 2, 3),
        message_budget=3,
        git_enabled=True,
        setting="team",
    )
    configs = [arm.config for arm in study_of(config, {"agents": [1, 2, 3]}).arms]
    assert [config.setting for config in configs] == ["solo", "team", "team"]
    # As many agents as features are the default.
    assert [config.agent_count for config in configs] == [None, 2, None]
    assert [config.message_budget for config in configs] == [None, 3, 3]
    assert [config.shares_git for config in configs] == [False, True, True]


def test_levels_in_their_order() -> None:
    assert sort_levels("messages", ["unlimited", "10", "3"]) == ["3", "10", "unlimited"]
    assert sort_levels("loss", ["0.5", "0", "0.25"]) == ["0", "0.25", "0.5"]
    assert sort_levels("knows", ["descriptions", "nothing"]) == ["nothing", "descriptions"]
    assert sort_levels("git", ["on", "off"]) == ["off", "on"]
    assert sort_levels("model", ["z", "a"]) == ["z", "a"]


def test_names_of_levels_that_folders_cannot_have(tmp_path: Path) -> None:
    models = ["openai/gpt-4o", "openai:gpt-4o", "x"]
    (factor,) = make_factors(make_config(tmp_path), {"model": models}, [])
    slugs = level_slugs(factor)
    assert slugs["x"] == "x"
    assert slugs["openai/gpt-4o"].startswith("openai_gpt-4o-")
    assert len(set(slugs.values())) == 3
