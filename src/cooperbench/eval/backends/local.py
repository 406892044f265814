"""The `local` backend under its documented name."""

from __future__ import annotations

from cooperbench.backends.local import LocalBackend

__all__ = ["LocalBackend"]
