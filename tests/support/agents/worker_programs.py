"""Workers for the tests, written on the spot."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from cooperbench.agents.worker import client

CLIENT_FOLDER = Path(client.__file__).parent


def program(folder: Path, body: str, name: str = "agent") -> str:
    """A worker in Python: connected, then the body."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"#!{sys.executable} -IB\nimport os, subprocess, sys, time\nsys.path.insert(0, {str(CLIENT_FOLDER)!r})\n"
        f"import client\nharness = client.connect()\n{textwrap.dedent(body)}\n"
    )
    path.chmod(0o755)
    return str(path)
