"""Removing images from the store: those that nobody uses, and the layers that no image has."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import NamedTuple

from cooperbench.backends.images.store import (
    ImageStore,
    StoredImage,
    exclusive_lock,
    read_prepared,
)
from cooperbench.errors import UserError
from cooperbench.temporary import remove_tree


class Selection(NamedTuple):
    """The images to remove: those that have one of the names and meet all conditions."""

    names: Collection[str] | None = None
    """None for all images."""
    unused_seconds: float = 0.0
    """Seconds since the last use."""
    max_bytes: int | None = None
    """Bytes that may stay: images are removed, those unused for longest first, until they fit."""


class Removed(NamedTuple):
    """The images that were removed, and those that were kept because they are in use."""

    images: list[str]
    in_use: list[str]
    freed_bytes: int


def remove_images(store: ImageStore, selection: Selection) -> Removed:
    """Remove images with everything that was made of them; an image in use stays.

    Raises:
        UserError: Another process is adding an image.
    """
    if not store.folder.is_dir():
        return Removed([], [], 0)
    store.remove_leftovers()
    with exclusive_lock(store.lock) as is_free:
        if not is_free:
            raise UserError("another process is adding images; try again when it is done")
        before = total_size(store)
        removed: list[str] = []
        in_use: list[str] = []
        for image in _candidates(store, selection):
            if selection.max_bytes is not None and total_size(store) <= selection.max_bytes:
                break
            with exclusive_lock(store.use_lock(image.name)) as is_unused:
                if is_unused:
                    store.forget(image.name)
                    _remove_unreferenced(store)
                    removed.append(image.name)
                else:
                    in_use.append(image.name)
        _remove_unreferenced(store)
        store.remove_downloads()
        return Removed(removed, in_use, before - total_size(store))


def total_size(store: ImageStore) -> int:
    """Return the bytes of all layers of images; a layer that several have counts once."""
    return sum(store.layer_size(diff_id) for diff_id in store.layers())


def _candidates(store: ImageStore, selection: Selection) -> list[StoredImage]:
    """Return the images to remove, those unused for longest first."""
    before = time.time() - selection.unused_seconds
    images = [
        image
        for image in store.images()
        if (selection.names is None or image.name in selection.names)
        and store.last_use(image) <= before
    ]
    return sorted(images, key=store.last_use)


def _remove_unreferenced(store: ImageStore) -> None:
    """Remove the layers that no image has, and what was made of images that are gone."""
    images = store.images()
    ids = {image.image_id for image in images}
    for folder in store.task_folders():
        prepared = read_prepared(folder)
        if prepared is None or prepared.image.image_id not in ids:
            remove_tree(folder)
    used: set[str] = set()
    for image in images:
        used.update(image.layers)
    for diff_id in store.layers():
        if diff_id not in used:
            store.remove_layer(diff_id)
