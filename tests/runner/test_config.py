"""An experiment keeps its configuration; what differs is refused with its name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cooperbench.agents.base import Limits
from cooperbench.errors import UserError
from cooperbench.runner.config import RunConfig
from cooperbench.storage import read_json

if TYPE_CHECKING:
    from pathlib import Path


def make_config(tmp_path: Path) -> RunConfig:
    return RunConfig(
        run_name="r", dataset_dir=tmp_path / "data", logs_dir=tmp_path / "logs", setting="coop", agent="nop",
        model=None, backend="local",
    )  # fmt: skip


def test_what_differs_is_named_with_both_values(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    config.save()
    config.check_against_disk()
    other = replace(config, agent="oracle", limits=Limits(steps=5))
    with pytest.raises(UserError, match=r"agent: 'nop' → 'oracle'; step_limit: None → 5"):
        other.check_against_disk()


def test_selection_and_concurrency_may_change(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    config.save()
    later = replace(config, concurrency=1, repo="x", task_id=0, features=(1, 2), force=True, setting="solo")
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
    config.save()
    replace(config, agent_config=second).check_against_disk()
    second.write_text("x: 2")
    with pytest.raises(UserError, match="agent_config_sha256"):
        replace(config, agent_config=second).check_against_disk()


def test_a_foreign_config_file_is_not_overwritten(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    config.paths.root.mkdir(parents=True)
    config.paths.config.write_text("{broken")
    with pytest.raises(UserError, match=r"config\.json is no configuration of this version"):
        config.check_against_disk()
    with pytest.raises(UserError, match="no configuration"):
        config.save()
    assert config.paths.config.read_text() == "{broken"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"setting": "duo"}, "setting is 'duo'"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"eval_concurrency": -1}, "eval_concurrency is -1"),
        ({"limits": Limits(steps=0)}, "limit on steps is 0"),
        ({"limits": Limits(cost=-1.0)}, "limit on cost is -1.0"),
    ],
)
def test_values_that_cannot_work_are_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        replace(make_config(tmp_path), **change)  # type: ignore[arg-type]
