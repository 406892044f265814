"""A local backend whose cache lasts for the session of one worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.eval.backends.local import LocalBackend

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def local(cache_dir: Path) -> Iterator[LocalBackend]:
    backend = LocalBackend(cache_dir=cache_dir)
    yield backend
    backend.close()
