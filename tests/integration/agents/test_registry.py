"""Agents of the working directory are found by the installed command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_agent_class_in_the_working_directory(
    tmp_path: Path,
) -> None:
    (tmp_path / "my_agents.py").write_text(
        "class Mine:\n    uses_model = False\n    def run(self, session): ...\n"
    )
    command = Path(sys.executable).with_name("cooperbench")

    def dry_run(agent: str) -> subprocess.CompletedProcess[str]:
        words = [
            "run",
            "-n",
            "x",
            "-a",
            agent,
            "--dataset-dir",
            "demo",
            "--backend",
            "local",
            "--dry-run",
        ]
        return subprocess.run(
            [command, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    found = dry_run("my_agents:Mine")
    assert (found.returncode, found.stderr) == (0, "")
    missing = dry_run("not_there:Mine")
    assert missing.returncode == 2
    assert "No module named 'not_there'" in missing.stderr
    assert dry_run("my_agents:Other").returncode == 2
