"""Replacing a repository's history by one commit, in any sandbox that has git: `scrub.sh REPO BASE_GIT_DIR`."""

from __future__ import annotations

from importlib import resources


def scrub_script() -> bytes:
    """A bash script; it prints the commit id."""
    return resources.files(__package__).joinpath("scrub.sh").read_bytes()
