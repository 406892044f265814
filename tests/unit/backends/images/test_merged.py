"""Files of an image, found in its layers without a mount."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.images.merged import find_file
from cooperbench.backends.images.unpack import unpack_layer
from cooperbench.backends.local.image_root import ImageUser, find_user
from cooperbench.errors import UserError
from tests.support.images.tarballs import Tarball

if TYPE_CHECKING:
    from pathlib import Path


def layers(tmp_path: Path, *tarballs: Tarball) -> list[Path]:
    """Unpack tarballs, the lowest first; return the folders, the top one first."""
    folders: list[Path] = []
    for number, tarball in enumerate(tarballs):
        archive = tmp_path / f"{number}.tar"
        archive.write_bytes(tarball.data)
        unpack_layer(archive, tmp_path / str(number), 10**6)
        folders.insert(0, tmp_path / str(number))
    return folders


def test_links_deletions_and_hidden_folders(tmp_path: Path) -> None:
    lower = Tarball().symlink("bin", "usr/bin").add("usr/bin/bash", b"lower")
    lower.add("etc/gone", b"1").add("opt/old", b"1").add("etc/passwd", b"lower")
    upper = Tarball().add("etc/.wh.gone").add("opt/.wh..wh..opq").add("opt/new", b"1")
    upper.symlink("etc/sh", "../bin/bash").symlink("a", "b").symlink("b", "a")
    folders = layers(tmp_path, lower, upper)
    bash = tmp_path / "0/usr/bin/bash"
    expected = {
        "/bin/bash": bash,
        "/etc/sh": bash,
        "/etc/../bin//bash": bash,
        "/etc/passwd": tmp_path / "0/etc/passwd",
        "/opt/new": tmp_path / "1/opt/new",
        "/etc/gone": None,
        "/opt/old": None,
        "/a": None,
        "/etc": None,
        "/bin/bash/x": None,
        "/no/such": None,
    }
    assert {path: find_file(folders, path) for path in expected} == expected


def test_links_stay_inside(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    links = Tarball().symlink("up", "../secret").symlink("absolute", str(tmp_path / "secret"))
    folders = layers(tmp_path, links)
    assert find_file(folders, "/up") is None
    assert find_file(folders, "/absolute") is None


@pytest.mark.parametrize(
    ("text", "user"),
    [
        ("", ImageUser(0, 0, "/root")),
        ("dev", ImageUser(1000, 1001, "/home/dev")),
        ("1000", ImageUser(1000, 1001, "/home/dev")),
        ("dev:tools", ImageUser(1000, 50, "/home/dev")),
        ("dev:7", ImageUser(1000, 7, "/home/dev")),
        ("4321", ImageUser(4321, 0, "/")),
    ],
)
def test_the_user_of_an_image(text: str, user: ImageUser, tmp_path: Path) -> None:
    passwd = b"root:x:0:0:root:/root:/bin/sh\ndev:x:1000:1001::/home/dev:/bin/sh\nbroken\n"
    tarball = Tarball().add("etc/passwd", passwd).add("etc/group", b"tools:x:50:\n")
    assert find_user(layers(tmp_path, tarball), text) == user


@pytest.mark.parametrize("text", ["nobody", "99999999999"])
def test_a_user_that_an_image_cannot_have(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the image (runs as|names the user)"):
        find_user(layers(tmp_path, Tarball().add("etc/passwd", b"")), text)
