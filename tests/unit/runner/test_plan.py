"""The plan of a run: what is on disk decides what is left to do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.errors import UserError
from cooperbench.runner.plan import check_experiment_exists, label_pairs, make_plan
from cooperbench.storage import write_json
from tests.support.tiny import golden, write_tiny
from tests.unit.runner.test_config import make_config

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cooperbench.models import Pair
    from cooperbench.runner.config import RunConfig


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """A run of the pairs 1+2, 1+3 and 2+3."""
    write_tiny(tmp_path / "data", feature_ids=(1, 2, 3))
    return make_config(tmp_path)


def features_of(pairs: Sequence[Pair]) -> list[tuple[int, ...]]:
    return [pair.feature_ids for pair in pairs]


def finish(config: RunConfig, pair: Pair, **changes: Any) -> None:
    """Write what a completed pair leaves."""
    paths = config.paths.pair(pair, config.setting)
    agents = {}
    for number, feature_id in enumerate(pair.feature_ids, start=1):
        agent_id = f"agent{number}"
        patch = paths.agent(agent_id).patch
        patch.parent.mkdir(parents=True, exist_ok=True)
        patch.write_text(golden(feature_id))
        agents[agent_id] = {"status": "submitted", "feature_id": feature_id}
    result = {"schema": "cooperbench.result/1", "status": "completed", "agents": agents}
    write_json(paths.result, result | changes)


def test_new_run(config: RunConfig) -> None:
    plan = make_plan(config)
    assert features_of(plan.to_run) == features_of(plan.pairs) == [(1, 2), (1, 3), (2, 3)]
    assert plan.to_evaluate == ()


def test_finished_pairs_are_evaluated(config: RunConfig) -> None:
    finish(config, make_plan(config).pairs[0])
    plan = make_plan(config)
    assert features_of(plan.to_run) == [(1, 3), (2, 3)]
    assert features_of(plan.to_evaluate) == [(1, 2)]
    assert make_plan(replace(config, auto_eval=False)).to_evaluate == ()


def test_failed_pairs_are_run_again(config: RunConfig) -> None:
    finish(config, make_plan(config).pairs[0], status="error", error="no luck")
    assert features_of(make_plan(config).to_run) == [(1, 2), (1, 3), (2, 3)]


def test_force_runs_everything(config: RunConfig) -> None:
    finish(config, make_plan(config).pairs[0])
    plan = make_plan(replace(config, force=True))
    assert features_of(plan.to_run) == [(1, 2), (1, 3), (2, 3)]
    assert plan.to_evaluate == ()


def test_labels_name_the_plan(config: RunConfig) -> None:
    pairs = make_plan(config).pairs
    labels = [pair.label for pair in label_pairs(pairs, "without git")]
    assert labels == [f"{pair.label} (without git)" for pair in pairs]


def test_missing_experiment_names_others(config: RunConfig) -> None:
    other = replace(config, run_name="other")
    other.save()
    with pytest.raises(UserError, match="other"):
        check_experiment_exists(config.paths)
    check_experiment_exists(other.paths)
