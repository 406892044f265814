"""The result of detection: the language of a repository, how it is installed and tested."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Project:
    """How a repository, or a part of it, is installed and tested."""

    language: str
    """`python`, `javascript`, `go` or `rust`."""
    framework: str
    """`pytest`, `unittest`, `jest`, `vitest`, `node`, `go` or `cargo`."""
    install: tuple[str, ...]
    """Commands of setup.sh, which installs what the tests need."""
    test_command: str
    """The command that runs all tests, for people."""
    test_options: str = ""
    """Arguments that the project's own test command has."""
    constraints: tuple[str, ...] = ()
    """Versions in the lock file of a Python project, as lines for pip."""
    subfolder: str = ""
    """The part of a monorepo; empty: the whole repository."""
    base_image: str = ""
    """The image that the Dockerfile starts from."""
    license: str = ""
    """Name or file of the license; empty if there is none."""
    parts: tuple[str, ...] = ()
    """Folders with manifests of their own, as in a monorepo."""
    sources: dict[str, str] = field(default_factory=dict)
    """The file from which each of these facts was read."""
