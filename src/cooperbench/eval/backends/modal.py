"""The `modal` backend under its documented name."""

from __future__ import annotations

from cooperbench.backends.modal import ModalBackend

__all__ = ["ModalBackend"]
