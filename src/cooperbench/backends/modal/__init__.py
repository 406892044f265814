"""Sandboxes at Modal, through its own Python client. Importing this does not import the client."""

from __future__ import annotations

from cooperbench.backends.modal.backend import ModalBackend

__all__ = ["ModalBackend"]
