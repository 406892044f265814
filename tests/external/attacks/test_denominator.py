"""In containers agents are root. Whatever they destroy there is still their outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.attacks.outcome import check_outcome
from tests.support.docker.tasks import write_buildable

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.backends.docker import DockerBackend

IN_CONTAINERS = {
    "KillsEverything": {"sandbox_destroyed", "submitted"},
    "KillsEverythingLater": {"sandbox_destroyed", "submitted"},
    "StopsEverything": {"sandbox_destroyed", "submitted", "time_limit"},
    "HandsInTooMuch": {"patch_lost"},
    "BreaksGit": {"submitted"},
    "ReplacesGit": {"submitted"},
    "RemovesBash": {"sandbox_destroyed", "submitted"},
    "HidesItsPatch": {"submitted"},
    "ReplacesItsPatch": {"submitted", "patch_lost"},
}
"""There agents are root and can replace what they like."""


@pytest.mark.parametrize("attacker", IN_CONTAINERS)
def test_an_agent_in_a_container_stays_in_the_denominator(
    docker: DockerBackend,
    base_image: str,
    engine_kind: str,
    tmp_path: Path,
    attacker: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if engine_kind != "docker":
        pytest.skip("once is enough: to agents both engines are the same sandbox")
    monkeypatch.setenv("COOPERBENCH_BUILD_ARGS", f"BASE_IMAGE={base_image}")
    monkeypatch.setattr("cooperbench.runner.repository.SNAPSHOT_SECONDS", 5)
    write_buildable(tmp_path / "data")
    patch = check_outcome(tmp_path, attacker, IN_CONTAINERS[attacker], "docker")
    if attacker in ("BreaksGit", "ReplacesGit"):
        assert "+line 6 honest\n" in patch, "its work is taken by the tools of another container"
