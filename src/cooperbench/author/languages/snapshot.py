"""The files of a repository that say how it is installed and tested, and common parts of readers.

These functions run in a worker process with limits.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from configparser import Error as IniError
from configparser import RawConfigParser
from dataclasses import dataclass
from typing import Any

PARSE_ERRORS = (ValueError, RecursionError, IniError, TypeError, AttributeError)
_LICENSE = re.compile(r"(?:LICEN[CS]E|COPYING|UNLICENSE)(?:[.-][\w.-]+)?", re.IGNORECASE)


@dataclass(frozen=True)
class Snapshot:
    """A commit of a repository, or of a part of it."""

    subfolder: str
    paths: list[str]
    """All files, relative to the subfolder."""
    files: dict[str, bytes]
    """Content of manifests, relative to the subfolder, and of CI files."""
    using_pytest: list[str]
    """Python files that contain the word pytest."""

    def text(self, name: str) -> str:
        """Return a file's text; empty if it does not exist."""
        return self.files.get(name, b"").decode("utf-8-sig", "replace")

    def toml(self, name: str) -> dict[str, Any]:
        """Return a TOML file; empty if it does not exist or is invalid."""
        try:
            return tomllib.loads(self.text(name))
        except PARSE_ERRORS:
            return {}

    def json(self, name: str) -> dict[str, Any]:
        """Return a JSON object; empty if it does not exist or is invalid."""
        try:
            return get_table(json.loads(self.text(name) or "{}"))
        except PARSE_ERRORS:
            return {}

    def ini(self, name: str) -> RawConfigParser:
        """Return an INI file; empty if it does not exist or is invalid."""
        parser = RawConfigParser(strict=False, default_section="\0", allow_no_value=True)
        try:
            # The parser takes time quadratic in the number of spaces inside a line.
            parser.read_string(re.sub(r"(?<=\S)[^\S\n]+", " ", self.text(name)))
        except PARSE_ERRORS:
            return RawConfigParser()
        return parser


def get_table(document: object, *keys: str) -> dict[str, Any]:
    """Return a table in a document by its keys; empty if it is not there."""
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def find_license(snapshot: Snapshot) -> str:
    """Return the name of the license, or that of its file; empty if there is none."""
    declared = (
        get_table(snapshot.toml("pyproject.toml"), "project").get("license"),
        get_table(snapshot.toml("Cargo.toml"), "package").get("license"),
        snapshot.json("package.json").get("license"),
    )
    for name in declared:
        text = name.get("text") if isinstance(name, dict) else name
        if isinstance(text, str) and text and "\n" not in text:
            return text
    for path in snapshot.paths:
        if _LICENSE.fullmatch(path):
            return path
    return ""


def test_commands(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield each command with which the project may run its tests, and the file it is from."""
    tox = snapshot.ini("tox.ini")
    for section in tox.sections():
        if section.startswith("testenv"):
            commands = tox.get(section, "commands", fallback="") or ""
            for line in commands.splitlines():
                yield line.strip(), "tox.ini"
    for name in ("Makefile", "makefile", "GNUmakefile"):
        for line in _make_commands(snapshot.text(name)):
            yield line, name
    for name in sorted(snapshot.files):
        if name.endswith((".yml", ".yaml")) and name.startswith("."):
            for line in _ci_commands(snapshot.text(name)):
                yield line, name


def _make_commands(text: str) -> Iterator[str]:
    """Yield the commands of the targets for tests in a Makefile."""
    is_test_target = False
    for line in text.splitlines():
        if line.startswith("\t"):
            if is_test_target:
                yield line.strip().lstrip("@-")
        elif match := re.match(r"([\w .-]+):(?!=)", line):
            is_test_target = bool(re.search(r"\b(?:tests?|unit|check)\b", match[1]))


def _ci_commands(text: str) -> Iterator[str]:
    """Yield the lines of all `run` and `script` values in a file of GitHub or GitLab."""
    import yaml

    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, *PARSE_ERRORS):
        return
    pending = [document]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending += value
        elif isinstance(value, dict):
            pending += value.values()
            for key in ("run", "script"):
                yield from _lines_of(value.get(key))


def _lines_of(value: object) -> list[str]:
    if isinstance(value, str):
        return [line.strip() for line in value.splitlines()]
    if isinstance(value, list):
        return [line.strip() for line in value if isinstance(line, str)]
    return []
