"""Imports mini-swe-agent without what it does on import: a banner, a folder in the user's home, limits of its own."""

from __future__ import annotations

import logging
import threading
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from tempfile import TemporaryDirectory

from cooperbench.agents.models import library

_lock = threading.Lock()
_loaded = False


def load(agent: str) -> None:
    """Make `minisweagent` and what of it we use importable; a UserError that names the extra where it is missing."""
    global _loaded
    with _lock:
        if _loaded:
            return
        library.load()
        with TemporaryDirectory(prefix="cooperbench-") as nowhere:
            settings = {"MSWEA_SILENT_STARTUP": "1", "MSWEA_GLOBAL_CONFIG_DIR": nowhere}
            with library.environment(settings):
                try:
                    models = import_module("minisweagent.models")
                    import_module("minisweagent.agents.default")
                    import_module("minisweagent.models.litellm_textbased_model")
                except ModuleNotFoundError as error:
                    raise library.missing(error, f"agent {agent!r}") from error
        # Limits over all agents of a process, from MSWEA_GLOBAL_*: ours are --cost-limit and --max-cost.
        models.GLOBAL_MODEL_STATS.cost_limit = 0.0
        models.GLOBAL_MODEL_STATS.call_limit = 0
        logging.getLogger("minisweagent").setLevel(logging.CRITICAL)
        _loaded = True


def installed_version() -> str | None:
    """As it is recorded with results."""
    try:
        return f"{version('mini-swe-agent')} (litellm {version('litellm')})"
    except PackageNotFoundError:
        return None
