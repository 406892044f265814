"""The code blocks of the documentation: Python, commands, and what the pages say they print."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cooperbench.cli import make_parser
from tests.external.docs.blocks import (
    PAGES,
    SHELL_LANGUAGES,
    Block,
    blocks_of,
    inline_commands,
    runnable_commands,
    to_argv,
)
from tests.external.docs.conftest import DEMO_PAGE
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.external.docs.conftest import PageRun

pytestmark = [pytest.mark.xdist_group("tutorials"), pytest.mark.timeout(600)]

PYTHON_BLOCKS = [block for page in PAGES for block in blocks_of(page) if block.language == "python"]
NEEDS_MORE = {"workers.md": "a program that CooperBench starts, with the user's own model"}
"""Pages whose Python blocks are only compiled, and why."""
DEFINED_BEFORE = {"backends.md": "class MyBackend: ..."}
"""What the blocks of a page suppose."""
PAGES_THAT_RUN = [str(page.relative_to(ROOT)) for page in PAGES if runnable_commands(page)]
INCOMPLETE = re.compile("arguments are required|expected one argument")
"""Running text may leave out arguments: "`cooperbench validate --export` writes"."""
VARYING = re.compile(r"\b\d+(\.\d+)?s\b|(?<=\[Task )\d+")
"""Durations, and numbers of pairs, which start in any order."""


@pytest.mark.parametrize("block", PYTHON_BLOCKS, ids=lambda block: block.name)
def test_python_blocks_run(
    block: Block, tmp_path: Path, run_page: Callable[[str], PageRun]
) -> None:
    compile(block.text, block.name, "exec")
    if block.page.name in NEEDS_MORE:
        return
    script = tmp_path / "block.py"
    script.write_text(f"{DEFINED_BEFORE.get(block.page.name, '')}\n{block.text}")
    if "my-run" in block.text:
        demo = run_page(DEMO_PAGE)
        shutil.copytree(demo.folder / "logs/demo-coop", tmp_path / "logs/my-run")
    done = subprocess.run(
        (sys.executable, script), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"# .*: (\w+)$", block.text, re.MULTILINE)
    assert done.stdout.split()[-len(shown) :] == shown or not shown


def parse_error(argv: list[str]) -> str | None:
    """Return the error message of the parser; None if it accepts the arguments."""
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(io.StringIO()):
            make_parser(argv[0]).parse_args(argv)
    except SystemExit as error:
        return stderr.getvalue() if error.code else None
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_accepted_by_the_parser(page: Path) -> None:
    blocks = [block for block in blocks_of(page) if block.language in SHELL_LANGUAGES]
    commands = [command for block in blocks for command in block.commands]
    options = re.search(r"^options=\((.*)\)$", "\n".join(commands), re.MULTILINE)
    rejected = {}
    for command in commands:
        if "cooperbench " in command:
            error = parse_error(to_argv(command, options[1] if options else ""))
            if error:
                rejected[command] = error
    for command in inline_commands(page):
        error = parse_error(to_argv(command))
        if error and not INCOMPLETE.search(error):
            rejected[command] = error
    assert rejected == {}


@pytest.mark.parametrize("page", PAGES_THAT_RUN)
def test_commands_run_and_print_what_the_page_shows(
    page: str, run_page: Callable[[str], PageRun]
) -> None:
    printed = [VARYING.sub("N", line.rstrip()) for line in run_page(page).output.splitlines()]
    missing = []
    for line in shown_output(ROOT / page):
        # "…" stands for the rest of a long line.
        pattern = re.escape(VARYING.sub("N", line.rstrip())).replace("…", ".*")
        if not any(re.fullmatch(pattern, printed_line) for printed_line in printed):
            missing.append(line)
    assert missing == []


def shown_output(page: Path) -> list[str]:
    """Return the lines that a page shows as the output of its commands."""
    return [
        line
        for block in blocks_of(page)
        if block.language in {"console", "text"}
        for line in block.output
    ]


def test_blocks_with_output_are_run() -> None:
    """Output that no command of the page prints could be anything."""
    pages = {str(page.relative_to(ROOT)) for page in PAGES if shown_output(page)}
    assert pages - set(PAGES_THAT_RUN) == set()
