"""Removing images: those that nobody uses, with the layers that no other image has."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.images.archives import import_images
from cooperbench.backends.images.clean import Selection, remove_images, total_size
from cooperbench.backends.images.pull import NoProgress
from cooperbench.backends.images.store import ImageStore, shared_lock
from cooperbench.errors import UserError
from tests.support.images.built import Layout
from tests.support.images.tarballs import Tarball

if TYPE_CHECKING:
    from pathlib import Path

SHARED = Tarball().add("shared", b"x" * 10_000).data


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    """A store with the images a/a:1, b/b:1 and c/c:1, unused for 3, 2 and 1 hours."""
    store = ImageStore(tmp_path / "store", 10**8)
    layout = Layout(tmp_path / "layout")
    for name in "abc":
        layout.add_image(f"{name}/{name}:1", [SHARED, Tarball().add(name, b"y" * 1000).data])
    import_images(store, layout.folder, None, NoProgress())
    for hours, name in enumerate("cba", 1):
        used_at = time.time() - 3600 * hours
        os.utime(store.use_lock(f"{name}/{name}:1"), (used_at, used_at))
    return store


def names(store: ImageStore) -> list[str]:
    return [image.name for image in store.images()]


def test_everything(store: ImageStore) -> None:
    removed = remove_images(store, Selection())
    assert removed.images == ["a/a:1", "b/b:1", "c/c:1"]
    assert removed.freed_bytes == 13_000
    assert (names(store), store.layers()) == ([], [])


def test_a_layer_that_another_image_has_stays(store: ImageStore) -> None:
    assert remove_images(store, Selection(names=["b/b:1"])).images == ["b/b:1"]
    assert names(store) == ["a/a:1", "c/c:1"]
    assert len(store.layers()) == 3


def test_by_age(store: ImageStore) -> None:
    remove_images(store, Selection(unused_seconds=5400))
    assert names(store) == ["c/c:1"]


def test_by_size_the_oldest_first(store: ImageStore) -> None:
    before = total_size(store)
    assert remove_images(store, Selection(max_bytes=before)).images == []
    assert remove_images(store, Selection(max_bytes=before - 1)).images == ["a/a:1"]


def test_an_image_in_use_stays(store: ImageStore) -> None:
    with shared_lock(store.use_lock("a/a:1")):
        removed = remove_images(store, Selection())
    assert removed.in_use == ["a/a:1"]
    assert names(store) == ["a/a:1"]
    assert len(store.layers()) == 2


def test_while_another_process_adds_images(store: ImageStore) -> None:
    with store.adding(), pytest.raises(UserError, match="another process is adding images"):
        remove_images(store, Selection())
    assert len(names(store)) == 3


def test_a_store_that_does_not_exist(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "none", 10**8)
    assert remove_images(store, Selection()).images == []
    assert not store.folder.exists()


def test_files_that_a_crash_left_damaged(store: ImageStore) -> None:
    """The power may fail between writing a file and its arrival on the disk."""
    (store.task_folder("task")).mkdir()
    (store.task_folder("task") / "prepared.json").write_bytes(b"")
    for pattern in ("layers/*/layer.json", "images/*.json"):
        next(store.folder.glob(pattern)).write_bytes(b"\0\0")
    assert len(names(store)) == 2
    remove_images(store, Selection())
    assert (names(store), store.layers(), store.task_folders()) == ([], [], [])
