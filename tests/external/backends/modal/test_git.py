"""Agents at Modal that share with git: the harness carries their commits, and their sandboxes have no network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml
from modal_proto import api_pb2

from cooperbench import run
from cooperbench.dataset.discovery import demo_dir
from tests.support.runner.helpers import Left
from tests.support.sandbox.sharing import (
    check_that_they_talked_and_shared,
    lower_quota,
    talk_and_share,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.modal.plane import Plane


def golden(feature_id: int) -> str:
    return str(demo_dir() / f"coinage_task/task3/feature{feature_id}/feature.patch")


@pytest.mark.timeout(300)
def test_a_pair_of_the_demo_talks_and_shares(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower_quota(monkeypatch)
    plane.add_dataset(demo_dir())
    first, second = talk_and_share({"apply": golden(1)}, {"apply": golden(3)})
    second.insert(-1, {"run": "git fetch -q team; git log --format=%an -1 team/agent1"})
    script = tmp_path / "script.yaml"
    script.write_text(
        yaml.safe_dump({"repos": {"coinage_task": {3: {"coop": {1: first, 3: second}}}}})
    )
    known = set(plane.guests)
    run(
        "shared", agent="scripted", agent_config=str(script), backend="modal", dataset_dir=demo_dir(), repo="coinage_task",
        task_id=3, features=[1, 3], logs_dir=tmp_path / "logs", git_enabled=True,
    )  # fmt: skip
    left = Left(tmp_path / "logs/shared/coop/coinage_task/3/f1_f3")
    assert plane.running() == []
    check_that_they_talked_and_shared(left)
    assert left.observations("agent2")[2] == "agent1\n"
    assert left.result["image_digest"].startswith("im-")
    assert left.evaluation["overall_success"] is True
    guests = [guest for name, guest in plane.guests.items() if name not in known]
    assert sum(guest.tags["cooperbench-purpose"] == "agent" for guest in guests) == 2
    for guest in guests:
        assert guest.definition.network_access.network_access_type == api_pb2.NetworkAccess.BLOCKED
