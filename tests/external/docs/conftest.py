"""Runs of the commands of pages, which several tests look at."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.external.docs.blocks import runnable_commands
from tests.support.agents.mini_swe import KEY, SUBMIT
from tests.support.modelserver import ModelServer, say
from tests.support.paths import ROOT
from tests.support.requirements import require_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.modelserver import Answer, Request

SAVED_FILE = re.compile(
    r"Save this as `(?P<name>[\w.]+)`:\n\n```python\n(?P<text>.*?)```", re.DOTALL
)

DEMO_PAGE = "docs/tutorial-first-experiment.md"
DEMO_RESULTS = re.compile(r"demo-coop|demo-solo")


@dataclass(frozen=True)
class PageRun:
    """What the commands of a page have printed and left."""

    folder: Path
    output: str


def script_of(page: Path) -> str:
    """Return the commands of a page that need nothing but this machine."""
    return "\n".join(["set -euo pipefail", *runnable_commands(page)])


def submit(_: Request) -> Answer:
    """Answer as a model that submits at once: unchanged work, a verdict all the same."""
    return say(f"THOUGHT: I submit.\n\n```bash\n{SUBMIT}\n```")


@pytest.fixture(scope="session")
def run_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], PageRun]]:
    """Run the commands of a page in a folder, with the files that the page has; once per page.

    Commands without a dataset or a backend use the demo on this machine, and models are a server
    on loopback. Pages about results find those of the demo.
    """
    server = ModelServer()
    server.script("", submit)

    @cache
    def run(name: str) -> PageRun:
        require_program("node", package="nodejs")
        page = ROOT / name
        folder = tmp_path_factory.mktemp(page.stem)
        text = page.read_text()
        for saved in SAVED_FILE.finditer(text):
            (folder / saved["name"]).write_text(saved["text"])
        if DEMO_RESULTS.search(script_of(page)) and name != DEMO_PAGE:
            shutil.copytree(run(DEMO_PAGE).folder / "logs", folder / "logs")
        if "examples/" in script_of(page):
            (folder / "examples").symlink_to(ROOT / "examples")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        defaults = {
            "COOPERBENCH_BACKEND": "local",
            "COOPERBENCH_DATASET_DIR": "demo",
            "OPENAI_BASE_URL": server.openai_url,
            "OPENAI_API_KEY": KEY,
        }
        if "cooperbench author" in script_of(page):
            del defaults["COOPERBENCH_DATASET_DIR"]  # the page makes its own
        done = subprocess.run(
            ("bash", "-c", script_of(page)),
            cwd=folder,
            env={**os.environ, **defaults, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return PageRun(folder, done.stdout + done.stderr)

    with server:
        yield run
