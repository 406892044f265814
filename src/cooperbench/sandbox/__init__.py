"""Sandboxes: the contract with backends, opening and ending sandboxes, and the channel that commands go through."""

from __future__ import annotations


def sandbox_script(name: str) -> str:
    """A shell script of this package that runs inside sandboxes; its first lines say how it is called."""
    from importlib import resources

    return resources.files(__package__).joinpath(name).read_text("utf-8")
