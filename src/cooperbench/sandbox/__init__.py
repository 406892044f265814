"""Sandboxes: the contract with backends, opening and ending sandboxes, and the channel that commands go through.

The functions here read the shell scripts of this package that run inside sandboxes.
"""

from __future__ import annotations


def channel_script() -> str:
    """The inside end of a channel, run as `bash -c SCRIPT channel SCRATCH_DIR` or from a file."""
    return _script("channel.sh").decode()


def kill_script() -> str:
    """For `sh -c SCRIPT kill MARK`: kills every process that has the mark in its environment."""
    return _script("kill_marked.sh").decode()


def scrub_script() -> bytes:
    """For `bash SCRIPT REPO BASE_GIT_DIR`: replaces a repository's history by one commit and prints its id."""
    return _script("scrub.sh")


def _script(name: str) -> bytes:
    from importlib import resources

    return resources.files(__package__).joinpath(name).read_bytes()
