"""The demo is what a new user sees first: it must run on a machine with nothing but Python and git."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from cooperbench.cli import main

if TYPE_CHECKING:
    from pathlib import Path


def test_javascript_pairs_are_skipped_without_node(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in (
        "git",
        "bash",
        "sh",
        "python3",
        "rm",
        "cat",
        "sleep",
        "chmod",
        "cp",
        "mount",
        "unshare",
        "setpriv",
        "env",
        "find",
        "du",
    ):
        if place := shutil.which(name):
            (tools / name).symlink_to(place)
    monkeypatch.setenv("PATH", str(tools))
    assert main(["demo", "--log-dir", str(tmp_path / "logs"), "--setting", "coop"]) == 0
    out = capsys.readouterr().out
    assert "Node.js is not installed" in out
    assert "switchyard" not in out
    assert "coop: 7 pairs, 7 evaluated" in out
