"""Runs of the tutorials, which several tests look at."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.external.docs.blocks import blocks_of
from tests.support.paths import ROOT
from tests.support.requirements import require_program

if TYPE_CHECKING:
    from collections.abc import Callable

SAVED_FILE = re.compile(
    r"Save this as `(?P<name>[\w.]+)`:\n\n```python\n(?P<text>.*?)```", re.DOTALL
)


@dataclass(frozen=True)
class PageRun:
    """What the commands of a page have printed and left."""

    folder: Path
    output: str


def script_of(page: Path) -> str:
    """Return the commands of a page that need neither a model nor an installation."""
    lines = ["set -euo pipefail"]
    for block in blocks_of(page):
        needs_model = any(" -m " in command for command in block.commands)
        if block.language == "console" and not needs_model:
            lines += [
                command
                for command in block.commands
                if command.startswith(("cooperbench ", "options=", "script="))
            ]
    return "\n".join(lines)


@pytest.fixture(scope="session")
def run_page(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], PageRun]:
    """Run the commands of a page in a folder, with the files that the page has; once per page."""

    @cache
    def run(name: str) -> PageRun:
        require_program("node", package="nodejs")
        page = ROOT / name
        folder = tmp_path_factory.mktemp(page.stem)
        for saved in SAVED_FILE.finditer(page.read_text()):
            (folder / saved["name"]).write_text(saved["text"])
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ("bash", "-c", script_of(page)),
            cwd=folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return PageRun(folder, done.stdout + done.stderr)

    return run
