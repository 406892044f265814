"""`.env` is read by the command line, and no sandbox sees what is in it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cooperbench import secrets
from tests.support.runner.helpers import run_tiny
from tests.support.tiny import write_script

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_remembered", {})


def test_the_command_line_reads_it_and_the_environment_wins(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("COOPERBENCH_BACKEND=nowhere\nbroken line\n")
    environment = {key: value for key, value in os.environ.items() if key != "COOPERBENCH_BACKEND"}

    def said(**more: str) -> str:
        words = ["run", "-n", "x", "-a", "nop", "--dataset-dir", "demo"]
        command = [sys.executable, "-m", "cooperbench", *words]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment | more,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        return done.stderr

    assert "unknown backend 'nowhere'" in said()
    assert "cooperbench: .env, line 2: not NAME=VALUE, ignored\n" in said()
    assert "unknown backend 'elsewhere'" in said(COOPERBENCH_BACKEND="elsewhere")


def test_keys_do_not_reach_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_ENV_FILE_API_KEY", "")
    monkeypatch.delenv("OF_ENV_FILE_API_KEY")
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("OF_ENV_FILE_API_KEY=key-number-12345\n")
    look = "env; cat /proc/*/environ | tr '\\0' '\\n'"
    script = write_script(
        tmp_path / "s.yaml", {}, solo=[{"run": look}, {"run": "echo key-number-12345"}]
    )
    left = run_tiny(tmp_path, "scripted", setting="solo", agent_config=str(script), auto_eval=False)
    assert os.environ["OF_ENV_FILE_API_KEY"] == "key-number-12345"
    seen, echoed = left.observations("solo")
    assert "PATH=" in seen
    assert "OF_ENV_FILE" not in seen
    assert echoed == "[redacted OF_ENV_FILE_API_KEY]\n"
