"""Pulling from a registry that fails, hangs, cuts connections, or sends something else."""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.images import registry as registry_module
from cooperbench.backends.images import unpack
from cooperbench.backends.images.model import DamagedImage, NoSuchImage
from cooperbench.backends.images.pull import NoProgress, pull_image
from cooperbench.backends.images.registry import RateLimited, RegistryUnavailable
from cooperbench.backends.images.settings import read_settings
from cooperbench.backends.images.store import ImageStore
from cooperbench.backends.images.unpack import DiskFull
from tests.support.images.fake_registry import TOKEN, FakeRegistry, fake_registry
from tests.support.images.tarballs import Tarball

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LAYER = Tarball().add("file", os.urandom(300_000)).data


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeRegistry]:
    monkeypatch.setattr("cooperbench.retry.FIRST_PAUSE_SECONDS", 0.001)
    for name in ("http_proxy", "HTTP_PROXY", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with fake_registry() as registry:
        yield registry


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images", 10**8)


def pull(store: ImageStore, name: str, **settings: object) -> Path:
    image = pull_image(store, name, read_settings(**settings), NoProgress())
    return store.layer_folders(image)[0]


def assert_nothing_left(store: ImageStore) -> None:
    for kind in ("layers", "images", "downloads"):
        folder = store.folder / kind
        assert not folder.exists() or list(folder.iterdir()) == []


def test_a_cut_download_is_continued(registry: FakeRegistry, store: ImageStore) -> None:
    name = registry.add_image("a", [LAYER])
    registry.cut_after = 100_000
    assert (pull(store, name) / "file").stat().st_size == 300_000
    ranges = [header for _, header, _ in registry.requests if header]
    assert ranges == ["bytes=100000-"]


def test_a_registry_that_cannot_continue(registry: FakeRegistry, store: ImageStore) -> None:
    name = registry.add_image("a", [LAYER])
    registry.cut_after = 100_000
    registry.ranges = False
    assert (pull(store, name) / "file").stat().st_size == 300_000


def test_interrupted_download_is_resumed(registry: FakeRegistry, store: ImageStore) -> None:
    name = registry.add_image("a", [LAYER])
    (digest,) = [path for path in registry.files if registry.files[path] == LAYER]
    store.download_path(digest.rpartition("/")[2]).write_bytes(LAYER[:200_000])
    pull(store, name)
    assert [header for _, header, _ in registry.requests if header] == ["bytes=200000-"]


@pytest.mark.parametrize("changed", ["layer", "config"])
def test_something_else_than_the_digest_says(
    changed: str, registry: FakeRegistry, store: ImageStore
) -> None:
    name = registry.add_image("a", [LAYER])
    for path, data in list(registry.files.items()):
        if "/blobs/" in path and (data == LAYER) == (changed == "layer"):
            registry.files[path] = bytes([data[0] ^ 1]) + data[1:]
    with pytest.raises(DamagedImage, match=r"digest|something else"):
        pull(store, name)
    assert_nothing_left(store)


def test_a_manifest_by_digest_must_match_it(registry: FakeRegistry, store: ImageStore) -> None:
    wrong = "sha256:" + "0" * 64
    registry.add_image("a", [LAYER], wrong)
    with pytest.raises(DamagedImage, match="does not match its digest"):
        pull(store, f"{registry.address}/a@{wrong}")


def test_a_hanging_registry(
    registry: FakeRegistry, store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "MAX_ATTEMPTS", 1)
    registry.hangs = True
    with pytest.raises(RegistryUnavailable, match="did not answer within 1 s"):
        pull(store, registry.add_image("a", [LAYER]), timeout=1)


def test_nothing_listens(store: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cooperbench.retry.FIRST_PAUSE_SECONDS", 0.001)
    with pytest.raises(RegistryUnavailable, match=r"127\.0\.0\.1:1 cannot be reached"):
        pull(store, "127.0.0.1:1/a:1")


def test_an_outage_that_ends(registry: FakeRegistry, store: ImageStore) -> None:
    registry.failures = [(503, {}), (429, {"Retry-After": "0"})]
    assert pull(store, registry.add_image("a", [LAYER])).is_dir()


def test_a_rate_limit_with_its_end(registry: FakeRegistry, store: ImageStore) -> None:
    end = int(time.time()) + 7260
    registry.failures = [(429, {"X-RateLimit-Reset": str(end)})]
    clock = time.strftime("%H:%M", time.localtime(end))
    with pytest.raises(RateLimited, match=f"until {clock}, in 2h 0.*docker login") as failure:
        pull(store, registry.add_image("a", [LAYER]))
    assert "\n" not in str(failure.value)


def test_an_anonymous_token(registry: FakeRegistry, store: ImageStore) -> None:
    registry.wants_token = True
    name = registry.add_image("team/a", [LAYER])
    assert pull(store, name).is_dir()
    tokens = [path for path, _, _ in registry.requests if path.startswith("/token")]
    assert tokens == ["/token?service=fake&scope=repository%3Ateam%2Fa%3Apull"]


def test_a_redirect_gets_no_token(registry: FakeRegistry, store: ImageStore) -> None:
    """Storage servers refuse requests with a second kind of authorization, and must not see it."""
    with fake_registry() as storage:
        storage.add_image("a", [LAYER])
        registry.wants_token = True
        registry.redirects_to = storage.address
        pull(store, registry.add_image("a", [LAYER]))
        assert {authorization for _, _, authorization in storage.requests} == {""}
    assert f"Bearer {TOKEN}" in {authorization for _, _, authorization in registry.requests}


def test_a_mirror_comes_first_and_may_lack_an_image(
    registry: FakeRegistry, store: ImageStore
) -> None:
    with fake_registry() as mirror:
        mirror.add_image("team/a", [LAYER])
        registry.add_image("team/b", [LAYER])
        mirrors = {registry.address: f"http://{mirror.address}"}
        pull(store, f"{registry.address}/team/a:1", mirrors=mirrors)
        assert registry.requests == []
        pull(store, f"{registry.address}/team/b:1", mirrors=mirrors)


def test_no_such_image(registry: FakeRegistry, store: ImageStore) -> None:
    with pytest.raises(NoSuchImage, match="does not have team/a:"):
        pull(store, f"{registry.address}/team/a:1")


@pytest.mark.parametrize("manifest", [b"<html>", b"[]", b'{"schemaVersion": 1}', b"{}"])
def test_something_that_is_not_a_manifest(
    manifest: bytes, registry: FakeRegistry, store: ImageStore
) -> None:
    registry.files["/v2/a/manifests/1"] = manifest
    with pytest.raises(DamagedImage):
        pull(store, f"{registry.address}/a:1")


def test_a_digest_that_is_a_path(registry: FakeRegistry, store: ImageStore) -> None:
    name = registry.add_image("a", [LAYER])
    manifest = registry.files["/v2/a/manifests/1"]
    registry.files["/v2/a/manifests/1"] = manifest.replace(b"sha256:", b"../../../", 1)
    with pytest.raises(DamagedImage, match="not a SHA-256 digest"):
        pull(store, name)


def test_a_full_disk_leaves_nothing(
    registry: FakeRegistry, store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    name = registry.add_image("a", [LAYER])
    monkeypatch.setattr(unpack.LayerUnpacker, "_count_bytes", no_space)
    with pytest.raises(DiskFull, match="images clean"):
        pull(store, name)
    assert_nothing_left(store)
    monkeypatch.undo()


def test_a_layer_twice(registry: FakeRegistry, store: ImageStore) -> None:
    other = Tarball().add("file", b"other").data
    image = pull_image(
        store, registry.add_image("a", [LAYER, other, LAYER]), read_settings(), NoProgress()
    )
    top, below = store.layer_folders(image)
    assert (top / "file").stat().st_size == 300_000
    assert (below / "file").read_bytes() == b"other"
