"""Patches that attack the tests of tasks like the published ones: pytest, node, go and cargo score none of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cooperbench.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.published.conftest import Published


@pytest.mark.timeout(600)
@pytest.mark.parametrize("repo", ["uv_task", "pnpm_task", "go_task", "rust_task"])
def test_no_attack_is_scored(
    engine_kind: str,
    repo: str,
    published: Callable[..., Published],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if engine_kind != "docker":
        pytest.skip("once is enough: to the tests both engines are the same sandbox")
    monkeypatch.setenv("COOPERBENCH_CACHE_DIR", str(tmp_path / "cache"))
    dataset = str(published(repo).dataset_dir)
    code = main(["validate", "--attacks", "--backend", "docker", "--dataset-dir", dataset, "--json"])
    (report,) = json.loads(capsys.readouterr().out)["tasks"]
    assert (code, report["problems"]) == (0, [])
    assert report["checks"] > 2 * 3, "attacks were tried"
