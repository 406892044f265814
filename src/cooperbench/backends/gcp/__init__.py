"""Sandboxes on machines of Google Cloud, and evaluations as one Batch job. Importing this imports no client."""

from __future__ import annotations

from cooperbench.backends.gcp.backend import GCPBatchBackend

__all__ = ["GCPBatchBackend"]
