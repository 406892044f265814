"""Sandboxes.

The contract with backends, opening and ending sandboxes, and the channel that commands go through.
"""

from __future__ import annotations


def sandbox_script(name: str) -> str:
    """Return a shell script of this package that runs inside sandboxes.

    Its first lines explain its use.
    """
    from importlib import resources

    return resources.files(__package__).joinpath(name).read_text("utf-8")
