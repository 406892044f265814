"""Sandboxes in containers of Docker or Podman, spoken to over the engine's HTTP API."""

from __future__ import annotations

from cooperbench.backends.docker.backend import DockerBackend

__all__ = ["DockerBackend"]
