"""`prepare --from`: datasets from folders, archives and URLs are verified before they are installed."""

from __future__ import annotations

import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from cooperbench.dataset.install import install_dataset
from cooperbench.dataset.manifest import write_manifest
from cooperbench.errors import InfraError, UserError
from tests.support.tiny import write_tiny

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = write_tiny(tmp_path / "shared")
    write_manifest(folder, "tiny", "1.0")
    return folder


def archive_of(folder: Path) -> Path:
    path = folder.with_suffix(".tar.gz")
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder, arcname="tiny")
    return path


@pytest.fixture
def url(shared: Path) -> Iterator[str]:
    archive_of(shared)
    handler = partial(SimpleHTTPRequestHandler, directory=str(shared.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/shared.tar.gz"
        server.shutdown()


def test_a_folder_is_installed_once(shared: Path, tmp_path: Path) -> None:
    first = install_dataset(str(shared), tmp_path / "data")
    assert (first.tasks, first.downloaded, first.dataset_id) == (1, True, "tiny")
    assert (tmp_path / "data/tiny_task/task7/setup.sh").stat().st_mode & 0o111
    second = install_dataset(str(shared), tmp_path / "data")
    assert not second.downloaded
    assert second.revision == first.revision


def test_an_archive_is_installed(shared: Path, tmp_path: Path) -> None:
    assert install_dataset(str(archive_of(shared)), tmp_path / "data").downloaded


def test_a_url_is_downloaded_and_its_checksum_verified(url: str, tmp_path: Path) -> None:
    installed = install_dataset(url, tmp_path / "data")
    assert install_dataset(f"{url}#sha256={installed.revision}", tmp_path / "other").downloaded
    with pytest.raises(UserError, match="has the checksum"):
        install_dataset(f"{url}#sha256={'0' * 64}", tmp_path / "third")
    assert not (tmp_path / "third").exists()


def test_a_url_that_does_not_exist_is_an_outage(url: str, tmp_path: Path) -> None:
    with pytest.raises(InfraError, match="cannot be downloaded"):
        install_dataset(f"{url}.missing", tmp_path / "data")


@pytest.mark.parametrize("damage", ["changed", "added", "removed", "link"])
def test_a_damaged_dataset_is_not_installed(shared: Path, tmp_path: Path, damage: str) -> None:
    script = shared / "tiny_task/task7/run_tests.sh"
    if damage == "changed":
        script.write_text("exit 1\n")
    elif damage == "added":
        (shared / "tiny_task/task7/more.sh").write_text("")
    elif damage == "link":
        script.unlink()
        script.symlink_to("/etc/hostname")
    else:
        script.unlink()
    with pytest.raises(UserError, match=r"run_tests\.sh|more\.sh"):
        install_dataset(str(shared), tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_another_dataset_is_replaced_only_with_force(shared: Path, tmp_path: Path) -> None:
    other = write_tiny(tmp_path / "data")
    with pytest.raises(UserError, match="--force"):
        install_dataset(str(shared), other)
    installed = install_dataset(str(shared), other, force=True)
    assert installed.kept is not None
    assert (installed.kept / "tiny_task").is_dir()


def test_an_archive_cannot_write_outside(tmp_path: Path) -> None:
    path = tmp_path / "evil.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../evil.txt"))
    with pytest.raises(UserError, match="not a regular file inside it"):
        install_dataset(str(path), tmp_path / "data")


def test_folders_without_a_manifest_are_not_datasets(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="author pack"):
        install_dataset(str(write_tiny(tmp_path / "plain")), tmp_path / "data")
    with pytest.raises(UserError, match="neither a folder"):
        install_dataset(str(tmp_path / "nothing"), tmp_path / "data")
