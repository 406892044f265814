"""Pulling from a real registry, and unpacking, compared with umoci."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.images.archives import export_images, import_images
from cooperbench.backends.images.model import NoSuchImage
from cooperbench.backends.images.pull import NoProgress, pull_image
from cooperbench.backends.images.settings import read_settings
from cooperbench.backends.images.store import ImageStore
from cooperbench.cli import main
from tests.support.images.built import ARCHITECTURE, Layout, base_layer, task_layer
from tests.support.images.odd import odd_layers
from tests.support.images.registry import PASSWORD, USER, RealRegistry, running_registry
from tests.support.images.tarballs import Tarball
from tests.support.requirements import require_program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cooperbench.models import Task


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRegistry]:
    with running_registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "cache/images", 10**9)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "layout")


class Counter(NoProgress):
    """Counts what is downloaded."""

    total = 0
    arrived = 0

    def start(self, image: str, total_bytes: int) -> None:
        self.total += total_bytes

    def add_bytes(self, count: int) -> None:
        self.arrived += count


def small(text: bytes, name: str = "file") -> bytes:
    return Tarball().add(name, text).data


def test_a_shared_layer_is_downloaded_once(
    registry: RealRegistry, store: ImageStore, layout: Layout
) -> None:
    shared = small(os.urandom(10**6), "shared")
    layout.add_image("a", [shared, small(b"a")])
    layout.add_image("b", [shared, small(b"b")])
    names = [registry.push(layout.folder, name, f"team/{name}:1") for name in "ab"]
    first, second = Counter(), Counter()
    images = [
        pull_image(store, name, read_settings(), counter)
        for name, counter in zip(names, (first, second), strict=True)
    ]
    assert first.total == first.arrived > 10**6
    assert second.total == second.arrived < 10**4
    assert images[0].layers[0] == images[1].layers[0]
    folders = [store.layer_folders(image) for image in images]
    assert [(top / "file").read_bytes() for top, _ in folders] == [b"a", b"b"]
    assert [path.name for path in (store.folder / "downloads").iterdir()] == []


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_compressed_layers(
    registry: RealRegistry, store: ImageStore, layout: Layout, compression: str
) -> None:
    require_program("zstd")
    layout.add_image("a", [small(b"x" * 10**5)])
    options = [f"--dest-compress-format={compression}", "--dest-compress"]
    name = registry.push(layout.folder, "a", f"team/{compression}:1", *options)
    image = pull_image(store, name, read_settings(), NoProgress())
    assert (store.layer_folders(image)[0] / "file").stat().st_size == 10**5


def test_an_index_leads_to_the_image_for_this_machine(
    registry: RealRegistry, store: ImageStore, layout: Layout
) -> None:
    layout.add_image("other", [small(b"other")], architecture="riscv64")
    layout.add_image("own", [small(b"own")])
    layout.add_index("all")
    name = registry.push(layout.folder, "all", "team/all:1")
    digest = registry.digest("team/all", "1")
    image = pull_image(store, name, read_settings(), NoProgress())
    assert (store.layer_folders(image)[0] / "file").read_bytes() == b"own"
    assert image.digest == digest
    assert image.architecture == ARCHITECTURE


def test_no_image_for_this_machine(
    registry: RealRegistry, store: ImageStore, layout: Layout
) -> None:
    layout.add_image("alone", [small(b"1")], architecture="riscv64")
    alone = registry.push(layout.folder, "alone", "team/alone:1")
    layout.add_index("index")
    index = registry.push(layout.folder, "index", "team/index:1")
    with pytest.raises(NoSuchImage, match="is for linux/riscv64, and this machine is linux/"):
        pull_image(store, alone, read_settings(), NoProgress())
    with pytest.raises(NoSuchImage, match=r"no manifest for linux/.*; it has: linux/riscv64"):
        pull_image(store, index, read_settings(), NoProgress())


def test_no_such_image(registry: RealRegistry, store: ImageStore) -> None:
    with pytest.raises(NoSuchImage, match=r"127\.0\.0\.1.* does not have no/such:1"):
        pull_image(store, f"{registry.address}/no/such:1", read_settings(), NoProgress())


@pytest.mark.parametrize("source", ["file", "helper", "wrong", "none"])
def test_a_registry_with_passwords(
    source: str,
    store: ImageStore,
    layout: Layout,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "registry").mkdir()
    layout.add_image("a", [small(b"1")])
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with running_registry(tmp_path / "registry", with_auth=True) as registry:
        name = registry.push(layout.folder, "a", "team/a:1")
        password = "wrong" if source == "wrong" else PASSWORD
        content: dict[str, object] = {}
        if source in ("file", "wrong"):
            auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
            content = {"auths": {registry.address: {"auth": auth}}}
        if source == "helper":
            content = {"credHelpers": {registry.address: "test"}}
            helper = tmp_path / "docker-credential-test"
            answer = json.dumps({"Username": USER, "Secret": PASSWORD})
            helper.write_text(f"#!/bin/sh\n[ $1 = get ] && echo '{answer}'\n")
            helper.chmod(0o755)
            monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        (tmp_path / "config.json").write_text(json.dumps(content))
        if source in ("file", "helper"):
            assert pull_image(store, name, read_settings(), NoProgress()).layers
            return
        with pytest.raises(NoSuchImage, match="or you may not read it \\(docker login"):
            pull_image(store, name, read_settings(), NoProgress())


# umoci as the oracle.


def tree(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return every file of a folder: type, mode, size or target, content, links, attributes."""
    files: dict[str, tuple[object, ...]] = {}
    links: dict[int, str] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        kind = stat.S_IFMT(status.st_mode)
        if kind in (stat.S_IFCHR, stat.S_IFBLK):
            continue
        name = os.fsencode(path.relative_to(folder)).decode("latin-1")
        mode = stat.S_IMODE(status.st_mode) | (0o700 if stat.S_ISDIR(kind) else 0o400)
        content = ""
        if stat.S_ISLNK(kind):
            mode, content = 0, str(path.readlink())
        elif stat.S_ISREG(kind):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        first = links.setdefault(status.st_ino, name) if not stat.S_ISDIR(kind) else name
        attributes = sorted(
            key for key in os.listxattr(path, follow_symlinks=False) if key.startswith("user.")
        )
        own = [key for key in attributes if not key.startswith("user.overlay")]
        # A layer that has no entry for a folder of its files does not say its time.
        time = 0 if stat.S_ISDIR(kind) else int(status.st_mtime)
        files[name] = (kind, mode, time, content, first, tuple(own))
    return files


@pytest.mark.parametrize("odd", [True, False])
def test_the_same_tree_as_umoci(
    odd: bool, registry: RealRegistry, store: ImageStore, layout: Layout, tmp_path: Path
) -> None:
    """The merged layers: mounted by us, unpacked on top of each other by umoci."""
    umoci = require_program("umoci")
    layers = odd_layers() if odd else [base_layer()]
    layout.add_image("a", layers)
    name = registry.push(layout.folder, "a", f"team/tree-{int(odd)}:1")
    image = pull_image(store, name, read_settings(), NoProgress())
    unpacked = tmp_path / "umoci"
    command = [umoci, "unpack", "--image", f"{layout.folder}:a", str(unpacked)]
    if os.geteuid() != 0:
        command.insert(2, "--rootless")
    subprocess.run(command, check=True, capture_output=True)
    merged = tmp_path / "merged"
    lower = ":".join(str(folder) for folder in store.layer_folders(image))
    (tmp_path / "empty").mkdir()
    copy = f"mount -t overlay -o userxattr,lowerdir={lower}:{tmp_path}/empty none /mnt && cp -a /mnt/. {merged}"
    merged.mkdir()
    subprocess.run(["unshare", "-Urm", "sh", "-c", copy], check=True)
    mine, oracle = tree(merged), tree(unpacked / "rootfs")
    assert mine == oracle
    assert len(mine) > 20


# From one machine to another.


def test_export_and_import(
    registry: RealRegistry, layout: Layout, store: ImageStore, tmp_path: Path
) -> None:
    layout.add_image("other", [small(b"other")], architecture="riscv64")
    layout.add_image("own", [small(b"own"), small(b"2", "more")])
    layout.add_index("all")
    name = registry.push(layout.folder, "all", "team/export:1")
    digest = registry.digest("team/export", "1")
    archive = tmp_path / "images.tar"
    export_images([name], archive, read_settings(), NoProgress())
    (image,) = import_images(store, archive, None, NoProgress())
    assert (image.name, image.digest) == (name, digest)
    assert (store.layer_folders(image)[1] / "file").read_bytes() == b"own"
    assert sorted(path.name for path in tmp_path.glob("*export*")) == []


def test_an_archive_of_docker_save(layout: Layout, store: ImageStore, tmp_path: Path) -> None:
    skopeo = require_program("skopeo")
    layout.add_image("a", [small(b"1"), small(b"2", "more")])
    archive = tmp_path / "saved.tar"
    target = f"docker-archive:{archive}:cooperbench/tiny_task:task7"
    subprocess.run([skopeo, "copy", "-q", f"oci:{layout.folder}:a", target], check=True)
    (image,) = import_images(store, archive, None, NoProgress())
    assert image.name == "cooperbench/tiny_task:task7"
    assert image.digest == image.image_id
    assert [path.name for path in store.layer_folders(image)[0].iterdir()] == ["more"]


# The command.


def test_the_command_pulls_lists_and_cleans(
    registry: RealRegistry,
    layout: Layout,
    image_task: Task,
    image_dataset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    layer = task_layer(image_task, image_dataset.parent / "setup.sh")
    layout.add_image("a", [base_layer(), layer])
    registry.push(layout.folder, "a", "sets/tiny:task7")
    monkeypatch.setenv("COOPERBENCH_CACHE_DIR", str(tmp_path / "cache"))
    template = f"{registry.address}/sets/{{short}}:task{{task_id}}"
    local = ["--backend", "local", "--image-template", template]
    dataset = ["--dataset-dir", str(image_dataset)]
    assert main(["images", "pull", *local, *dataset]) == 0
    assert "1 of 1 image ready" in capsys.readouterr().out
    assert main(["images", "list", "--json", *local, *dataset]) == 0
    (row,) = json.loads(capsys.readouterr().out)["images"]
    assert (row["task"], row["present"]) == ("tiny_task/task7", True)
    assert row["bytes"] > 10**8
    assert main(["images", "clean", "--older-than", "1", *local]) == 0
    assert "removed 0 images" in capsys.readouterr().out
    assert main(["images", "clean", "--max-size", "1k", *local]) == 0
    assert "removed 1 image" in capsys.readouterr().out
    kept = [path for path in (tmp_path / "cache/images").rglob("*") if "locks" not in path.parts]
    assert {path.name for path in kept} == {"layers", "images", "tasks", "downloads"}
