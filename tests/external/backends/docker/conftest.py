"""Images and backends that only the tests of the Docker backend need."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.docker import DockerBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def another(docker: DockerBackend) -> Iterator[Callable[..., DockerBackend]]:
    """Makes backends on the same engine, with settings of their own."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(
            closing(DockerBackend(cache_dir=docker._cache_dir, **settings))
        )


def build_image(backend: DockerBackend, folder: Path, name: str, dockerfile: str) -> str:
    (folder / "Dockerfile").write_text(dockerfile)
    tag = f"cooperbench-test-{name}:1"
    events = list(
        backend.engine.api.build(path=str(folder), tag=tag, rm=True, forcerm=True, decode=True)
    )
    assert not any("error" in event for event in events), events[-3:]
    return tag
