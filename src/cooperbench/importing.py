"""Modules that users name: agents and backends of their own, installed or in the working directory."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


def import_named(name: str) -> ModuleType:
    """As `import_module`; one that is not installed may lie in the working directory, as with `python -m`."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        first = name.partition(".")[0]
        here = Path.cwd()
        lies_here = (here / f"{first}.py").is_file() or (here / first / "__init__.py").is_file()
        if error.name != first or not lies_here or str(here) in sys.path:
            raise
    # Last, and only now: a folder here must not pass for a library that is not installed.
    sys.path.append(str(here))
    return import_module(name)
