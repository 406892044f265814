"""Where the dataset is that ships with the package. Not what is in it."""

from __future__ import annotations

from pathlib import Path

from cooperbench.errors import UserError

DEMO = "demo"
"""The name that stands for it wherever a dataset folder is asked for; `./demo` is a folder of that name."""


def demo_dir() -> Path:
    """The packaged dataset as a folder on disk."""
    from importlib.resources import files

    folder = files("cooperbench.dataset").joinpath(DEMO)
    if isinstance(folder, Path) and folder.is_dir():
        return folder
    raise UserError("the demo dataset is missing from this installation; install cooperbench again, unzipped")
