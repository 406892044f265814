"""The `gcp` backend under its documented name."""

from __future__ import annotations

from cooperbench.backends.gcp import GCPBatchBackend

__all__ = ["GCPBatchBackend"]
