"""The exact versions that a Python project was developed with, from its lock file.

Without them old commits get today's versions, with which their tests may fail. The functions run
in a worker process with limits.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import NamedTuple

import msgspec

from cooperbench.author.languages.snapshot import Snapshot

LOCK_FILES = ("uv.lock", "poetry.lock", "pdm.lock")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VERSION = re.compile(r"[0-9][A-Za-z0-9.!+]*")
_MARKER = re.compile(r"[\w\s.'\"<>=!()-]+")


class Lock(NamedTuple):
    """The versions in a lock file."""

    constraints: tuple[str, ...] = ()
    """Lines of a constraints file of pip."""
    path: str = ""
    """The lock file; empty if there is none."""


class _Package(msgspec.Struct, rename="kebab"):
    """An entry of a lock file."""

    name: str
    version: str = ""
    """Empty for a project whose version is computed."""
    source: dict[str, object] = {}
    resolution_markers: list[str] = []
    """The interpreters that this version is for, if another one is for others."""

    @property
    def is_released(self) -> bool:
        """Whether it is from an index: not the project itself, a path or a git repository."""
        return not self.source or "registry" in self.source

    @property
    def is_valid(self) -> bool:
        """Whether pip reads all of it as a name, a version and markers."""
        markers = all(_MARKER.fullmatch(marker) for marker in self.resolution_markers)
        return bool(_NAME.fullmatch(self.name) and _VERSION.fullmatch(self.version) and markers)

    @property
    def constraint(self) -> str:
        """The line of a constraints file."""
        line = f"{self.name}=={self.version}"
        if not self.resolution_markers:
            return line
        markers = [f"({' '.join(marker.split())})" for marker in self.resolution_markers]
        return f"{line} ; {' or '.join(markers)}"


def read_lock(snapshot: Snapshot) -> Lock:
    """Return the versions of the first lock file that has any."""
    for path in LOCK_FILES:
        packages = _packages_of(snapshot, path)
        constraints = {item.constraint for item in packages if item.is_released and item.is_valid}
        if constraints:
            return Lock(tuple(sorted(constraints)), path)
    return Lock()


def _packages_of(snapshot: Snapshot, path: str) -> list[_Package]:
    entries = snapshot.toml(path).get("package")
    packages = []
    for entry in entries if isinstance(entries, list) else []:
        with suppress(msgspec.ValidationError):
            packages.append(msgspec.convert(entry, _Package))
    return packages
