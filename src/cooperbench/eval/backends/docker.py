"""The `docker` backend under its documented name."""

from __future__ import annotations

from cooperbench.backends.docker import DockerBackend

__all__ = ["DockerBackend"]
