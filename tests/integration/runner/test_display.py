"""What people see in a terminal: a picture that moves and leaves the summary."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.tiny import write_script, write_tiny

if TYPE_CHECKING:
    from pathlib import Path


def test_a_terminal_gets_the_live_display_and_the_summary(tmp_path: Path) -> None:
    dataset = write_tiny(tmp_path / "data")
    script = write_script(
        tmp_path / "s.yaml",
        {1: [{"send": "[bold]hello[/bold] there"}, {"run": "sleep 1"}], 2: [{"wait": 5}]},
    )
    words = [
        sys.executable, "-m", "cooperbench", "run", "-n", "r", "-a", "scripted", "--agent-config", str(script), "-f", "1,2",
        "--backend", "local", "--dataset-dir", str(dataset), "--log-dir", str(tmp_path / "logs"),
    ]  # fmt: skip
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(words, stdout=follower, stderr=follower, env=environment) as process:
        os.close(follower)
        output = b""
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:
                break
            if not piece:
                break
            output += piece
    os.close(leader)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode())
    assert process.returncode == 0, text
    assert 'Agent 1 → Agent 2: "[bold]hello[/bold] there"' in text
    assert "pairs 0/1" in text
    assert "coop: 1 pair, 1 evaluated" in text
    assert text.rstrip().endswith(f"Logs: {tmp_path / 'logs/r'}")
