"""Images as files: archives of `docker save` and OCI layouts, also damaged and hostile ones."""

from __future__ import annotations

import json
import os
import tarfile
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.images.archives import import_images
from cooperbench.backends.images.model import DamagedImage
from cooperbench.backends.images.pull import NoProgress
from cooperbench.backends.images.store import ImageStore
from cooperbench.errors import CooperBenchError, UserError
from tests.support.images.built import ARCHITECTURE, Layout, digest
from tests.support.images.tarballs import Tarball

if TYPE_CHECKING:
    from pathlib import Path

NAME = "cooperbench/tiny_task:task7"
LAYER = Tarball().add("file", b"content").data


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "store", 10**8)


def import_from(store: ImageStore, path: Path, name: str | None = None) -> list[str]:
    """Import images; return their names and the content of `file` in each."""
    images = import_images(store, path, name, NoProgress())
    contents = [(store.layer_folders(image)[0] / "file").read_text() for image in images]
    return [f"{image.name} {text}" for image, text in zip(images, contents, strict=True)]


def saved(folder: Path, manifest: object, **files: bytes) -> Path:
    """Return an archive as `docker save` writes it."""
    files["manifest.json"] = json.dumps(manifest).encode()
    tarball = Tarball()
    for name, content in files.items():
        tarball.add(name, content)
    path = folder / "saved.tar"
    path.write_bytes(tarball.data)
    return path


def config_of(*layers: bytes) -> bytes:
    diff_ids = [digest(layer) for layer in layers]
    document = {"architecture": ARCHITECTURE, "os": "linux", "rootfs": {"diff_ids": diff_ids}}
    return json.dumps(document).encode()


def test_docker_save_with_two_names(tmp_path: Path, store: ImageStore) -> None:
    manifest = [{"Config": "config", "Layers": ["layer"], "RepoTags": [NAME, "other/image:1"]}]
    path = saved(tmp_path, manifest, config=config_of(LAYER), layer=LAYER)
    assert import_from(store, path) == [f"{NAME} content", "other/image:1 content"]


def test_docker_save_without_a_name(tmp_path: Path, store: ImageStore) -> None:
    manifest = [{"Config": "config", "Layers": ["layer"], "RepoTags": None}]
    path = saved(tmp_path, manifest, config=config_of(LAYER), layer=LAYER)
    with pytest.raises(UserError, match="use --name NAME"):
        import_images(store, path, None, NoProgress())
    assert import_from(store, path, NAME) == [f"{NAME} content"]


def test_the_folder_of_a_layout(tmp_path: Path, store: ImageStore) -> None:
    layout = Layout(tmp_path / "layout")
    layout.add_image(NAME, [LAYER])
    assert import_from(store, layout.folder) == [f"{NAME} content"]
    assert import_from(store, layout.packed(tmp_path / "layout.tar")) == [f"{NAME} content"]


def test_one_name_for_several_images(tmp_path: Path, store: ImageStore) -> None:
    layout = Layout(tmp_path / "layout")
    layout.add_image("a/a:1", [LAYER])
    layout.add_image("b/b:1", [LAYER, LAYER])
    with pytest.raises(UserError, match="several images, so --name does not fit"):
        import_images(store, layout.folder, NAME, NoProgress())


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (None, "cannot be read"),
        ("text", "cannot be read"),
        ([1], "cannot be read"),
        ([{"Config": "config", "Layers": None}], "cannot be read"),
        ([{"Config": "config", "Layers": ["layer"], "RepoTags": [NAME]}], "has no file layer"),
        ([{"Config": "config", "Layers": [], "RepoTags": [NAME]}], "0 layers, not 1"),
        ([{"Config": "../../etc/passwd", "Layers": [], "RepoTags": [NAME]}], "cannot be read"),
        ([{"Config": "config", "Layers": ["wrong"], "RepoTags": [NAME]}], "digest"),
    ],
)
def test_a_damaged_archive(
    manifest: object, reason: str, tmp_path: Path, store: ImageStore
) -> None:
    wrong = Tarball().add("file", b"something else").data
    path = saved(tmp_path, manifest, config=config_of(LAYER), wrong=wrong)
    assert_rejected(store, path, reason)


def test_a_document_that_is_nested_deeply(tmp_path: Path, store: ImageStore) -> None:
    deep = b'{"schemaVersion": 2, "x": ' + b"[" * 10**5
    path = tmp_path / "deep.tar"
    path.write_bytes(Tarball().add("index.json", deep).data)
    assert_rejected(store, path, "recursion depth")


def test_links_in_a_circle(tmp_path: Path, store: ImageStore) -> None:
    path = tmp_path / "circle.tar"
    path.write_bytes(Tarball().symlink("index.json", "index.json").data)
    assert_rejected(store, path, "links in a circle at index.json")


def test_files_of_a_layout_that_are_none(tmp_path: Path, store: ImageStore) -> None:
    os.mkfifo(tmp_path / "index.json")
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(UserError, match="has no images"):
        import_images(store, tmp_path, None, NoProgress())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"junk", r"file could not be opened successfully$"),
        (b"", r"empty file$|could not be opened successfully$"),
        (Tarball().add("a", b"1").data, "neither an archive of `docker save` nor an OCI layout"),
    ],
)
def test_not_an_archive_of_images(
    content: bytes, reason: str, tmp_path: Path, store: ImageStore
) -> None:
    path = tmp_path / "junk.tar"
    path.write_bytes(content)
    with pytest.raises(UserError, match=reason):
        import_images(store, path, None, NoProgress())


def test_an_archive_that_is_cut_off(tmp_path: Path, store: ImageStore) -> None:
    layout = Layout(tmp_path / "layout")
    layout.add_image(NAME, [Tarball().add("file", b"x" * 10**5).data])
    path = layout.packed(tmp_path / "layout.tar")
    os.truncate(path, path.stat().st_size - 60_000)
    with pytest.raises((CooperBenchError, tarfile.TarError)) as caught:
        import_images(store, path, None, NoProgress())
    assert isinstance(caught.value, CooperBenchError)
    assert store.images() == []


def assert_rejected(store: ImageStore, path: Path, reason: str) -> None:
    """Assert that an import ends in one line, and that nothing of it is left."""
    with pytest.raises(DamagedImage, match=reason) as caught:
        import_images(store, path, None, NoProgress())
    assert "\n" not in str(caught.value)
    assert store.images() == []
    assert store.layers() == []
    assert [path for path in (store.folder / "downloads").glob("*") if path.is_file()] == []
