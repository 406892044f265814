"""Sandboxes on this machine, with nothing to set up: bubblewrap, a channel, and templates of the tasks."""

from __future__ import annotations

from cooperbench.backends.local.backend import LocalBackend
from cooperbench.backends.local.run_folder import remove_leftovers

__all__ = ["LocalBackend", "remove_leftovers"]
