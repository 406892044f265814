"""Backends whose cache has images: a Debian, and tasks on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.images.archives import import_images
from cooperbench.backends.images.pull import NoProgress
from cooperbench.backends.local import LocalBackend
from cooperbench.dataset.discovery import load_tasks
from tests.support.images.built import Layout, base_layer, task_layer
from tests.support.tiny import write_tiny

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cooperbench.models import Task

SYSTEM = "cooperbench-test/system:1"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "external/backends/local/" in item.nodeid:
            # One process for all of them: unpacking the images takes longer than most tests.
            item.add_marker(pytest.mark.xdist_group("images"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def image_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny dataset, which can be prepared only by its image."""
    folder = write_tiny(tmp_path_factory.mktemp("images") / "dataset")
    (task,) = load_tasks(folder)
    task.setup_script.rename(folder.parent / "setup.sh")
    return folder


@pytest.fixture(scope="session")
def image_task(image_dataset: Path) -> Task:
    return load_tasks(image_dataset)[0]


@pytest.fixture(scope="session")
def image_cache(image_task: Task, image_dataset: Path) -> Path:
    """A cache with the images."""
    layout = Layout(image_dataset.parent / "layout")
    layout.add_image(SYSTEM, [base_layer()])
    runner = task_layer(image_task, image_dataset.parent / "setup.sh")
    layout.add_image("cooperbench/tiny_task:task7", [base_layer(), runner])
    cache = image_dataset.parent / "cache"
    backend = LocalBackend(cache_dir=cache)
    import_images(backend.images.store, layout.folder, None, NoProgress())
    backend.close()
    return cache


@pytest.fixture(scope="session")
def local_images(image_cache: Path) -> Iterator[LocalBackend]:
    backend = LocalBackend(cache_dir=image_cache)
    yield backend
    backend.close()
