"""The exact versions that a Python project was developed with, from its lock file.

Without them old commits get today's versions, with which their tests may fail. The functions run
in a worker process with limits.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from cooperbench.author.languages.snapshot import Snapshot, get_table

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


def read_lock(snapshot: Snapshot) -> Lock:
    """Return the versions of the first lock file that has any."""
    for path in LOCK_FILES:
        constraints = []
        for package in _packages_of(snapshot, path):
            constraints += _constraint_of(package)
        if constraints:
            return Lock(tuple(sorted(set(constraints))), path)
    return Lock()


def _packages_of(snapshot: Snapshot, path: str) -> list[dict[str, Any]]:
    packages = snapshot.toml(path).get("package")
    if not isinstance(packages, list):
        return []
    return [package for package in packages if isinstance(package, dict)]


def _constraint_of(package: dict[str, Any]) -> list[str]:
    """Return the constraint for a package; none for the project itself, and for git or paths."""
    source = get_table(package, "source")
    is_released = not source or "registry" in source
    name, version = package.get("name"), package.get("version")
    if not is_released or not isinstance(name, str) or not isinstance(version, str):
        return []
    if not _NAME.fullmatch(name) or not _VERSION.fullmatch(version):
        return []
    markers = package.get("resolution-markers")
    if not isinstance(markers, list) or not markers:
        return [f"{name}=={version}"]
    if not all(isinstance(marker, str) and _MARKER.fullmatch(marker) for marker in markers):
        return []
    # Another version of the same package is for other interpreters.
    alternatives = " or ".join(f"({' '.join(marker.split())})" for marker in markers)
    return [f"{name}=={version} ; {alternatives}"]
