"""Layers as folders: what an overlay needs of them, and that nothing gets out of them."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import stat
import subprocess
import tarfile
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.images import unpack
from cooperbench.backends.images.model import DamagedImage
from cooperbench.backends.images.unpack import (
    OPAQUE_ATTRIBUTE,
    DiskFull,
    UnpackedLayer,
    unpack_layer,
)
from cooperbench.errors import UserError
from tests.support.images.tarballs import TIME, Tarball
from tests.support.requirements import require_program

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 10**8


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    return tmp_path / "cache/layer"


def unpacked(data: bytes, layer: Path, limit: int = LIMIT) -> UnpackedLayer:
    layer.parent.mkdir(exist_ok=True)
    archive = layer.parent / "archive"
    archive.write_bytes(data)
    return unpack_layer(archive, layer, limit)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def is_whiteout(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def is_opaque(path: Path) -> bool:
    try:
        return os.getxattr(path, OPAQUE_ATTRIBUTE) == b"y"
    except OSError:
        return False


def test_files_folders_and_links(layer: Path) -> None:
    tarball = (
        Tarball().folder("./").folder("etc/", 0o750).add("./etc/passwd", b"root\n", mode=0o640)
    )
    tarball.symlink("etc/link", "/etc/passwd").hard_link("etc/hard", "./etc/passwd")
    facts = unpacked(tarball.gzipped, layer)
    assert (layer / "etc/passwd").read_bytes() == b"root\n"
    assert (layer / "etc/link").readlink().as_posix() == "/etc/passwd"
    assert (layer / "etc/hard").samefile(layer / "etc/passwd")
    assert stat.S_IMODE((layer / "etc/passwd").stat().st_mode) == 0o640
    assert (layer / "etc").stat().st_mtime == TIME
    assert (layer / "etc/link").lstat().st_mtime == TIME
    assert (layer / "etc/passwd").stat().st_uid == os.geteuid()
    assert facts.size == 5
    assert facts.diff_id == f"sha256:{hashlib.sha256(tarball.data).hexdigest()}"


def test_a_plain_tar_file_and_one_of_two_gzip_members(tmp_path: Path) -> None:
    data = Tarball().add("file", b"x" * 5000).data
    half = len(data) // 2
    members = gzip.compress(data[:half]) + gzip.compress(data[half:])
    assert unpacked(data, tmp_path / "1/plain") == unpacked(members, tmp_path / "2/members")


def test_zstd(layer: Path) -> None:
    zstd = require_program("zstd")
    data = Tarball().add("file", b"content").data
    packed = subprocess.run([zstd, "-cq"], input=data, capture_output=True, check=True).stdout
    assert unpacked(packed, layer).diff_id == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert (layer / "file").read_bytes() == b"content"


def test_zstd_without_the_program(layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UserError, match="install the program zstd"):
        unpacked(b"\x28\xb5\x2f\xfd rest", layer)


@pytest.mark.parametrize("archive_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names(layer: Path, archive_format: int) -> None:
    name = "/".join(["long" * 20] * 20)
    unpacked(Tarball(archive_format).add(name, b"1").symlink("link", name).data, layer)
    assert (layer / "link").read_bytes() == b"1"


def test_names_that_are_not_utf8(layer: Path) -> None:
    unpacked(Tarball().add("caf\udce9", b"1").data, layer)
    assert [os.fsencode(path.name) for path in layer.iterdir()] == [b"caf\xe9"]


def test_a_sparse_file_stays_sparse(layer: Path, tmp_path: Path) -> None:
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.seek(50 * 2**20)
        file.write(b"end")
    tar = ["tar", "--sparse", "-C", str(tmp_path), "-c", "sparse"]
    facts = unpacked(subprocess.run(tar, capture_output=True, check=True).stdout, layer)
    status = (layer / "sparse").stat()
    assert (status.st_size, status.st_blocks * 512 < 2**21) == (50 * 2**20 + 3, True)
    assert (layer / "sparse").read_bytes() == sparse.read_bytes()
    assert facts.size < 2**21


def test_attributes_but_not_those_of_overlays(layer: Path) -> None:
    attributes = {"user.mine": "value", OPAQUE_ATTRIBUTE: "y", "trusted.overlay.redirect": "/etc"}
    unpacked(Tarball().add("file", attributes=attributes).data, layer)
    assert os.listxattr(layer / "file") == ["user.mine"]
    assert os.getxattr(layer / "file", "user.mine") == b"value"


def test_the_owner_can_always_read(layer: Path) -> None:
    unpacked(Tarball().folder("d", 0o000).add("d/shadow", b"1", mode=0).data, layer)
    assert stat.S_IMODE((layer / "d").stat().st_mode) == 0o700
    assert (layer / "d/shadow").stat().st_mode & 0o400


def test_devices_are_skipped(layer: Path) -> None:
    tarball = Tarball().add("dev/null", kind=tarfile.CHRTYPE).add("dev/sda", kind=tarfile.BLKTYPE)
    unpacked(tarball.add("dev/pipe", kind=tarfile.FIFOTYPE).data, layer)
    assert names(layer / "dev") == ["pipe"]


# Deletions.


def test_a_deleted_file(layer: Path) -> None:
    unpacked(Tarball().add("etc/.wh.motd").data, layer)
    assert is_whiteout(layer / "etc/motd")
    assert names(layer / "etc") == ["motd"]


def test_a_folder_that_hides_the_lower_one(layer: Path) -> None:
    unpacked(Tarball().folder("opt").add("opt/new").add("opt/.wh..wh..opq").data, layer)
    assert is_opaque(layer / "opt")
    assert names(layer / "opt") == ["new"]


@pytest.mark.parametrize("deleted_first", [True, False])
def test_a_folder_that_replaces_a_deleted_one(layer: Path, deleted_first: bool) -> None:
    tarball = Tarball()
    if deleted_first:
        tarball.add(".wh.opt").folder("opt").add("opt/new")
    else:
        tarball.folder("opt").add("opt/new").add(".wh.opt")
    unpacked(tarball.data, layer)
    assert is_opaque(layer / "opt")
    assert (layer / "opt/new").exists()


def test_files_below_a_deleted_folder_without_an_entry(layer: Path) -> None:
    unpacked(Tarball().add(".wh.opt").add("opt/sub/new").data, layer)
    assert is_opaque(layer / "opt")
    assert (layer / "opt/sub/new").exists()


def test_a_file_that_replaces_a_deleted_one(layer: Path) -> None:
    unpacked(Tarball().add(".wh.file").add("file", b"new").add(".wh.file").data, layer)
    assert (layer / "file").read_bytes() == b"new"


def test_marks_of_an_old_storage_driver(layer: Path) -> None:
    unpacked(Tarball().folder(".wh..wh.plnk").add(".wh..wh.aufs").data, layer)
    assert names(layer) == []


# Entries that come twice.


def test_later_entries_replace_earlier_ones(layer: Path) -> None:
    tarball = Tarball().add("a", b"1").add("a", b"2").folder("b").add("b/c").add("b", b"file")
    unpacked(tarball.symlink("c", "a").folder("c").add("c/d", b"3").data, layer)
    assert (layer / "a").read_bytes() == b"2"
    assert (layer / "b").read_bytes() == b"file"
    assert (layer / "c/d").read_bytes() == b"3"


def test_a_later_entry_does_not_change_what_it_was_linked_with(layer: Path) -> None:
    unpacked(Tarball().add("a", b"1").hard_link("b", "a").add("a", b"2").data, layer)
    assert (layer / "b").read_bytes() == b"1"


# Hostile archives.


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    path.mkdir()
    (path / "file").write_text("mine")
    return path


def assert_untouched(outside: Path) -> None:
    assert names(outside) == ["file"]
    assert (outside / "file").read_text() == "mine"
    assert (outside / "file").stat().st_nlink == 1


@pytest.mark.parametrize(
    "name", ["../outside/file", "a/../../../outside/file", "a/..", "..", "x/../y"]
)
def test_names_that_lead_upward(layer: Path, outside: Path, name: str) -> None:
    with pytest.raises(DamagedImage, match="leads out of it"):
        unpacked(Tarball().add(name, b"theirs").data, layer)
    assert_untouched(outside)


def test_an_absolute_name_is_below_the_layer(layer: Path, outside: Path) -> None:
    unpacked(Tarball().add(f"{outside}/file", b"theirs").data, layer)
    assert (layer / f".{outside}/file").read_bytes() == b"theirs"
    assert_untouched(outside)


@pytest.mark.parametrize("target", ["{outside}", "../../outside", "x/../../../../outside"])
def test_links_that_lead_out(layer: Path, outside: Path, target: str) -> None:
    tarball = Tarball().symlink("link", target.format(outside=outside)).add("link/new", b"theirs")
    tarball.add("link/.wh.file").add("link/.wh..wh..opq").folder("link/sub").hard_link(
        "h", "link/new"
    )
    unpacked(tarball.data, layer)
    assert_untouched(outside)
    assert (layer / "link").is_symlink()
    assert (layer / "h").read_bytes() == b"theirs"


def test_a_link_that_becomes_a_parent_later(layer: Path, outside: Path) -> None:
    """What was checked as a folder may be replaced by a link."""
    tarball = Tarball().add("d/first", b"1").add("d", b"").symlink("d", str(outside))
    unpacked(tarball.add("d/file", b"theirs").data, layer)
    assert_untouched(outside)


def test_a_folder_over_a_link_does_not_change_its_target(layer: Path, outside: Path) -> None:
    mode = outside.stat().st_mode
    unpacked(Tarball().symlink("link", str(outside)).folder("link", 0o777).data, layer)
    assert outside.stat().st_mode == mode
    assert not (layer / "link").is_symlink()


def test_a_file_over_a_link_does_not_change_its_target(layer: Path, outside: Path) -> None:
    unpacked(Tarball().symlink("link", f"{outside}/file").add("link", b"theirs").data, layer)
    assert_untouched(outside)


@pytest.mark.parametrize("target", ["{outside}/file", "link", "../outside/file", "missing", "."])
def test_a_hard_link_to_something_else(layer: Path, outside: Path, target: str) -> None:
    """A hard link to a symbolic link is one more name of the link, not of its target."""
    tarball = Tarball().symlink("link", f"{outside}/file")
    tarball.hard_link("hard", target.format(outside=outside))
    try:
        unpacked(tarball.data, layer)
    except DamagedImage:
        assert target != "link"
    else:
        assert (layer / "hard").is_symlink()
    assert_untouched(outside)


def test_links_in_a_circle(layer: Path) -> None:
    with pytest.raises(DamagedImage, match="circle"):
        unpacked(Tarball().symlink("a", "b").symlink("b", "a").add("a/file").data, layer)


def test_files_below_a_file(layer: Path) -> None:
    with pytest.raises(DamagedImage, match="not a folder"):
        unpacked(Tarball().add("a").add("a/b").data, layer)


@pytest.mark.parametrize("name", [".wh.", ".wh...", ".wh.."])
def test_deletions_of_nothing(layer: Path, name: str) -> None:
    with pytest.raises(DamagedImage, match="deletes"):
        unpacked(Tarball().add(f"d/{name}").data, layer)


def test_a_layer_that_is_too_large(layer: Path) -> None:
    """10 MB of zeros are 10 kB when compressed."""
    with pytest.raises(DamagedImage, match=r"more than 0\.001 GB"):
        unpacked(Tarball().add("zeros", bytes(10**7)).gzipped, layer, limit=10**6)


def test_too_many_entries(layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "MAX_ENTRIES", 3)
    with pytest.raises(DamagedImage, match="more than 3 entries"):
        unpacked(Tarball().add("1").add("2").add("3").add("4").data, layer)


def test_a_name_that_is_too_long(layer: Path) -> None:
    with pytest.raises(DamagedImage, match="too long"):
        unpacked(Tarball().add("x" * 300).data, layer)


# Damage.


@pytest.mark.parametrize("part", [0.3, 0.9])
def test_an_archive_that_ends_too_early(layer: Path, part: float) -> None:
    data = Tarball().add("file", os.urandom(10**5)).gzipped
    with pytest.raises(DamagedImage):
        unpacked(data[: int(len(data) * part)], layer)


def test_a_tar_file_that_ends_too_early(layer: Path) -> None:
    with pytest.raises(DamagedImage):
        unpacked(Tarball().add("file", b"x" * 10**5).data[:50_000], layer)


def test_a_gzip_file_with_a_wrong_checksum(layer: Path) -> None:
    data = bytearray(Tarball().add("file", os.urandom(10**5)).gzipped)
    data[-6] ^= 1
    with pytest.raises(DamagedImage, match="decompressed"):
        unpacked(bytes(data), layer)


def test_something_that_is_not_a_tar_file(layer: Path) -> None:
    with pytest.raises(DamagedImage):
        unpacked(b"<html>not found</html>" * 100, layer)


def test_a_full_disk(layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fchmod", no_space)
    with pytest.raises(DiskFull, match="images clean"):
        unpacked(Tarball().add("file", b"1").data, layer)


def test_a_file_system_without_device_nodes(layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "mknod", refuse)
    with pytest.raises(UserError, match="cannot hold layers"):
        unpacked(Tarball().add(".wh.file").data, layer)


def test_bytes_after_the_end_count_for_the_digest(layer: Path) -> None:
    data = Tarball().add("file", b"1").data + bytes(30_000)
    assert unpacked(data, layer).diff_id == f"sha256:{hashlib.sha256(data).hexdigest()}"
