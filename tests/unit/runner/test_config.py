"""An experiment keeps its configuration; what differs is refused with its name."""

from __future__ import annotations

import argparse
import inspect
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench import evaluate, run
from cooperbench.cli.run import add_arguments
from cooperbench.errors import UserError
from cooperbench.runner.config import RunConfig
from cooperbench.runner.options import OPTIONS, RunOptions
from cooperbench.storage import read_json, write_json

if TYPE_CHECKING:
    from pathlib import Path


def make_config(tmp_path: Path) -> RunConfig:
    return RunConfig(
        run_name="r", dataset_dir=tmp_path / "data", logs_dir=tmp_path / "logs", setting="coop", agent="nop",
        model=None, backend="local",
    )  # fmt: skip


def begin(config: RunConfig) -> None:
    """Leave what the first complete pair leaves."""
    config.save()
    result = {"schema": "cooperbench.result/1", "status": "completed"}
    write_json(config.paths.root / config.setting / "repo/1/f1_f2/result.json", result)


def test_what_differs_is_named_with_both_values(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    begin(config)
    config.check_against_disk()
    other = replace(config, agent="oracle", step_limit=5)
    with pytest.raises(UserError, match=r"agent: 'nop' → 'oracle'; step_limit: None → 5"):
        other.check_against_disk()


def test_an_experiment_that_never_began_takes_other_settings(tmp_path: Path) -> None:
    """A backend that is not set up ends the first call; the advice is to take another one."""
    config = make_config(tmp_path)
    config.save()
    other = replace(config, backend="docker")
    other.check_against_disk()
    other.save()
    assert (read_json(config.paths.config) or {})["backend"] == "docker"
    config.paths.jobs_record.touch()
    with pytest.raises(UserError, match="backend: 'docker' → 'local'"):
        config.check_against_disk()


def test_incomplete_result_does_not_fix_the_config(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    config.save()
    pair = config.paths.root / "coop/repo/1/f1_f2"
    (pair / "agent1").mkdir(parents=True)
    other = replace(config, agent="oracle")
    other.check_against_disk()
    write_json(pair / "result.json", {"schema": "cooperbench.result/1", "status": "error"})
    other.check_against_disk()


def test_selection_and_concurrency_may_change(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    config.save()
    later = replace(
        config, concurrency=1, repo="x", task_id=0, features=(1, 2), force=True, setting="solo"
    )
    later.check_against_disk()
    later.save()
    stored = read_json(config.paths.config)
    assert stored is not None
    assert [one["setting"] for one in stored["invocations"]] == ["coop", "solo"]


def test_the_content_of_the_agent_config_counts_not_its_name(tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text("x: 1")
    second.write_text("x: 1")
    config = replace(make_config(tmp_path), agent_config=first)
    begin(config)
    replace(config, agent_config=second).check_against_disk()
    second.write_text("x: 2")
    with pytest.raises(UserError, match="agent_config_sha256"):
        replace(config, agent_config=second).check_against_disk()


def test_a_foreign_config_file_is_not_overwritten(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    config.paths.root.mkdir(parents=True)
    config.paths.config.write_text("{broken")
    with pytest.raises(UserError, match=r"config\.json is not a configuration of this version"):
        config.check_against_disk()
    with pytest.raises(UserError, match="not a configuration"):
        config.save()
    assert config.paths.config.read_text() == "{broken"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"setting": "duo"}, "setting is 'duo'"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"eval_concurrency": -1}, "eval_concurrency is -1"),
        ({"step_limit": 0}, "step_limit is 0; it must be above 0"),
        ({"cost_limit": -1.0}, "cost_limit is -1.0"),
        ({"task_id": "0"}, "task_id is '0'; it must be a whole number"),
        ({"backend": object()}, "backend is <object.*>; it must be a name"),
        ({"backend": None}, "backend is None; it must be a name"),
        ({"agent": None}, "agent is None; it must be a name"),
        ({"setting": None}, "setting is None; it must be one of coop, solo, team"),
        ({"concurrency": "4"}, "concurrency is '4'; it must be a whole number"),
        ({"concurrency": None}, "concurrency is None; it must be a whole number"),
        ({"step_limit": True}, "step_limit is True; it must be a whole number"),
        ({"max_cost": "1"}, "max_cost is '1'; it must be a number"),
        ({"force": "no"}, "force is 'no'; it must be True or False"),
        ({"agent_config": 5}, "agent_config is 5; it must be a path"),
    ],
)
def test_values_that_cannot_work_are_refused(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        replace(make_config(tmp_path), **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"run_name": None}, "None is not a valid experiment name"),
        (
            {"run_name": "r", "features": "1,2"},
            "features is '1,2'; it must be a list of whole numbers",
        ),
        ({"run_name": "r", "features": ["1"]}, r"features is \['1'\]"),
        ({"run_name": "r", "features": 1}, "features is 1; it must be a list of whole numbers"),
        (
            {"run_name": "r", "agent": "mini_swe_agent", "backend": "nosuch"},
            "unknown backend 'nosuch'",
        ),
    ],
)
def test_the_function_refuses_in_one_line(
    tmp_path: Path, arguments: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before it looks for the key of a model."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UserError, match=said):
        run(**arguments, model_name="openai/gpt-4o", dataset_dir="demo", logs_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_option_is_the_same_for_the_function_and_the_command() -> None:
    """Declared once, in RunOptions: neither `run` nor the command line may lack one or have another default."""
    parameters = inspect.signature(run).parameters
    documented = [
        "run_name", "subset", "repo", "task_id", "features", "model_name", "agent", "concurrency", "force", "redis_url",
        "setting", "git_enabled", "messaging_enabled", "auto_eval", "eval_concurrency", "backend", "agent_config",
    ]  # fmt: skip
    assert list(parameters)[:17] == documented
    assert parameters["git_enabled"].default is False, (
        "as documented; on the command line the setting decides"
    )
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = vars(parser.parse_args([]))
    for one in fields(RunOptions):
        if one.name not in OPTIONS:
            continue
        parameter = parameters.get("model_name" if one.name == "model" else one.name)
        own_default = OPTIONS[one.name].cli_default
        if one.name not in ("backend", "eval_network"):
            # These two have no default of their own on the command line: variables and the config file decide.
            expected = one.default if own_default is None else own_default
            assert (given[one.name] or None) == (expected or None), one.name
        if parameter is not None and one.name != "git_enabled":
            assert parameter.default == one.default, one.name


def test_a_keyword_that_is_no_option_is_named() -> None:
    with pytest.raises(
        TypeError, match=r"run\(\) got an unexpected keyword argument 'step_limits'"
    ):
        run("r", step_limits=3)


def test_every_option_is_a_keyword_of_the_function(tmp_path: Path) -> None:
    """All at once, in a call that is refused for the last of them; another keyword is a mistake of the caller."""
    others = {
        "model": "model_name",
        "test_timeout_seconds": "test_timeout",
        "time_limit_seconds": "time_limit",
    }
    every = {
        others.get(one.name, one.name): one.default
        for one in fields(RunOptions)
        if one.name in OPTIONS
    }
    places: dict[str, Any] = {"run_name": "r", "dataset_dir": "demo", "logs_dir": tmp_path}
    with pytest.raises(UserError, match="step_limit is 0"):
        run(**{**every, **places, "step_limit": 0})
    with pytest.raises(TypeError, match="nosuch"):
        run(**places, nosuch=1)
    with pytest.raises(TypeError, match="step_limit"):
        evaluate("r", step_limit=1)
