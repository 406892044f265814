"""Patches that implement nothing and attack the tests that judge them: none is scored."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cooperbench.cli import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("repo", "features", "attacks"), [("stencil_task", "1,2", 42)])
def test_no_attack_is_scored(
    repo: str, features: str, attacks: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [
        "validate",
        "--attacks",
        "-r",
        repo,
        "-f",
        features,
        "--backend",
        "local",
        "--dataset-dir",
        "demo",
    ]
    code = main([*words, "-c", "2", "--json"])
    (report,) = json.loads(capsys.readouterr().out)["tasks"]
    assert (code, report["problems"]) == (0, [])
    golden_base_and_combined = 2 * 3
    assert report["checks"] == golden_base_and_combined + attacks
