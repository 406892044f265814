"""Patches that attack the tests of tasks like the published ones: pytest, node, go and cargo score none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.eval import backends
from cooperbench.eval.patch_tester import PatchTester
from cooperbench.eval.references import References
from cooperbench.eval.validate import validate_features
from cooperbench.sandbox.manager import SandboxManager

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.external.published.conftest import Published


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("repo", "attacks"), [("uv_task", 21), ("pnpm_task", 14), ("go_task", 4), ("rust_task", 6)]
)
def test_no_attack_is_scored(
    engine_kind: str,
    repo: str,
    attacks: int,
    published: Callable[..., Published],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if engine_kind != "docker":
        pytest.skip("once is enough: to the tests both engines are the same sandbox")
    monkeypatch.setenv("COOPERBENCH_CACHE_DIR", str(tmp_path / "cache"))
    task = published(repo).tasks[repo]
    # Both features are in the same file and tested alike: attacks on the tests of the other would be the same ones.
    attacked = {task: task.features[:1]}
    with SandboxManager(backends.get_backend("docker")) as sandboxes:
        references = References(PatchTester(sandboxes, 600), "auto")
        (report,) = validate_features(
            attacked, sandboxes, references, concurrency=1, repeat=1, attacks=True, progress=print
        )
    # The feature has one assertion: among its copies, one guess in 29 is right.
    assert [problem for problem in report.problems if "guess" not in problem] == []
    assert report.checks == 3 + attacks, "golden patch, base, combined.patch, and every attack"
