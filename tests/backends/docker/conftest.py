"""Making images that only the tests of the Docker backend need."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.backends.docker import DockerBackend


def build_image(backend: DockerBackend, folder: Path, name: str, dockerfile: str) -> str:
    (folder / "Dockerfile").write_text(dockerfile)
    tag = f"cooperbench-test-{name}:1"
    events = list(backend.engine.api.build(path=str(folder), tag=tag, rm=True, forcerm=True, decode=True))
    assert not any("error" in event for event in events), events[-3:]
    return tag
