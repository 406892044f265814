"""CooperBench measures whether coding agents can work together.

This is the public API. Its modules are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cooperbench._version import __version__

if TYPE_CHECKING:
    from cooperbench.lab.api import ablate, sweep
    from cooperbench.runner.api import run
    from cooperbench.runner.evaluate import evaluate, run_patch_test

__all__ = ["__version__", "ablate", "evaluate", "run", "run_patch_test", "sweep"]

_MODULES = {
    "ablate": "cooperbench.lab.api",
    "sweep": "cooperbench.lab.api",
    "run": "cooperbench.runner.api",
    "evaluate": "cooperbench.runner.evaluate",
    "run_patch_test": "cooperbench.runner.evaluate",
}
"""The module of each function in the public API."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
