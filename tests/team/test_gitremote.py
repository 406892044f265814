"""Who makes the remote of a pair: the backend, if it has a way of its own to share; else the harness carries commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.backends.local import LocalBackend
from cooperbench.eval import backends
from cooperbench.team.carriedremote import CarriedRemote
from tests.runner.helpers import run_tiny
from tests.tiny import write_script

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cooperbench.team.gitremote import GitRemote


class StingyBackend(LocalBackend):
    """Its own remote takes little."""

    def make_git_remote(self, folder: Path, agent_ids: Sequence[str]) -> GitRemote:
        return CarriedRemote(folder, agent_ids, quota_bytes=50_000)


def test_a_backend_can_bring_a_remote_of_its_own(tmp_path: Path) -> None:
    backends.register("stingy", StingyBackend)
    push = "head -c 60000 /dev/urandom >new; git add new; git commit -qm new; git push team HEAD:agent1 2>&1; echo code $?"
    script = write_script(tmp_path / "script.yaml", {1: [{"run": push}], 2: []})
    seen = {
        backend: run_tiny(
            tmp_path, "scripted", agent_config=str(script), backend=backend, run_name=backend,
            git_enabled=True, auto_eval=False,
        ).observations()[0]
        for backend in ("local", "stingy")
    }  # fmt: skip
    assert "code 0" in seen["local"]
    assert "only 50000 more bytes" in seen["stingy"]
