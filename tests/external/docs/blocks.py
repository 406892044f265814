"""Code blocks and commands of the documentation."""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(
    r"^(?P<indentation> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indentation)```$",
    re.MULTILINE | re.DOTALL,
)
INLINE_COMMAND = re.compile(r"`(cooperbench [^`]+)`")
PLACEHOLDERS = {"DAYS": "7", "ID": "1", "K": "2", "N": "2", "X": "0.5"}
"""Numbers for the names that the documentation gives them."""
SHELL_LANGUAGES = ("", "bash", "console")
REASONS_NOT_TO_RUN = {
    r"^(pip|make|export|echo) ": "changes the machine, or is a job of its own in CI",
    r"^cooperbench (prepare(?! --from)|agents install|config gcp|doctor)|^modal ": "needs accounts or downloads",
    r"--backend (docker|modal|gcp)|--executor|^docker ": "needs engines, clusters or accounts",
    r"llama_index|-s lite|my-experiment": "needs the public dataset",
    r"…|\[-|\b(NAME|RUN|PATH)\b": "is a pattern, not a command",
}
"""Patterns of commands that the tests only give to the parser, and why."""


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The commands of a console block, or of another block all lines that call cooperbench."""
        lines = self.text.splitlines()
        if self.language == "console":
            return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [line for line in lines if re.match(r"([A-Z_]+=\S+ )*cooperbench ", line)]

    @property
    def output(self) -> list[str]:
        """The lines of a text or console block that a command has printed."""
        return [line for line in self.text.splitlines() if line and not line.startswith("$ ")]


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            page,
            text.count("\n", 0, match.start()) + 1,
            match["language"],
            textwrap.dedent(match["text"]),
        )
        for match in BLOCK.finditer(text)
    ]


def runnable_commands(page: Path) -> list[str]:
    """Return the commands in console blocks that need nothing but this machine.

    Commands about a run that would need more are left out with it.
    """
    runnable: list[str] = []
    missing_runs: set[str] = set()
    for block in blocks_of(page):
        if block.language != "console":
            continue
        for command in block.commands:
            is_runnable = not any(re.search(pattern, command) for pattern in REASONS_NOT_TO_RUN)
            if is_runnable and missing_runs.isdisjoint(command.split()):
                runnable.append(command)
            else:
                missing_runs.update(re.findall(r" -n (\S+)", command))
    return runnable


def inline_commands(page: Path) -> list[str]:
    """Return the commands in the running text of a page, without those of its blocks."""
    text = BLOCK.sub("", page.read_text())
    return [" ".join(command.split()) for command in INLINE_COMMAND.findall(text)]


def to_argv(command: str, options: str = "") -> list[str]:
    """Return the arguments of a call of cooperbench as the documentation writes it.

    Of `[--format csv|parquet]` the first alternative is taken. Placeholders of numbers are replaced.
    """
    command = command.replace('"${options[@]}"', options)
    command = re.sub(r"\[([^][]*)\]", r"\1", command)
    command = re.sub(r" *(?<!\\)\|+ *[^ |]+", "", command)
    words = shlex.split(command, comments=True)
    words = words[words.index("cooperbench") + 1 :]
    return [PLACEHOLDERS.get(word, word) for word in words if word != "…"]
