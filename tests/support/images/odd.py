"""Layers with what is rare in images, valid all the same: links, long names, deletions, holes."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.images.tarballs import Tarball


def odd_layers() -> list[bytes]:
    """Return layers, the lowest first, each of which changes what is in those below."""
    lower = Tarball().folder("etc").add("etc/passwd", b"root\n").add("etc/motd", b"hello\n")
    lower.folder("opt").folder("opt/old").add("opt/old/file", b"old").add("opt/old/other", b"old")
    lower.folder("srv").add("srv/kept", b"1").add("srv/gone", b"2").symlink("srv/link", "/etc/motd")
    lower.folder("var").folder("var/tree").add("var/tree/a").add("var/tree/b")
    lower.folder("usr").folder("usr/lib").symlink("lib", "usr/lib").add("usr/lib/x.so", b"x")
    lower.add("changes-kind", b"file").folder("was-folder").add("was-folder/file")
    upper = Tarball().add("srv/.wh.gone").add("srv/.wh.link").add("opt/old/.wh..wh..opq")
    upper.add("opt/old/new", b"new").add("var/.wh.tree").add("etc/motd", b"changed\n", mode=0o600)
    upper.add(".wh.changes-kind").folder("changes-kind").add("changes-kind/file", b"1")
    upper.add("was-folder", b"now a file")
    names = Tarball(tarfile.GNU_FORMAT).folder("long").add("long/" + "n" * 250, b"1")
    names.add("long/" + "/".join(["deep" * 10] * 20) + "/file", b"2").add("caf\udce9", b"latin-1")
    names.add("with space\n and newline", b"3").add("-rf", b"4").add("long/.hidden", b"5")
    modes = Tarball().folder("modes").add("modes/setuid", b"1", mode=0o4755)
    modes.add("modes/none", b"2", mode=0).folder("modes/sticky", 0o1777)
    modes.add("modes/attribute", b"3", attributes={"user.origin": "test"})
    modes.add("modes/a", b"4").hard_link("modes/b", "modes/a").hard_link("modes/c", "modes/b")
    modes.symlink("modes/loop", "loop").symlink("modes/dangling", "/no/such")
    modes.hard_link("modes/second", "modes/dangling").add("modes/pipe", kind=tarfile.FIFOTYPE)
    modes.add("modes/null", kind=tarfile.CHRTYPE)
    again = Tarball().folder("var/tree").add("var/tree/c", b"c").add("srv/gone", b"back")
    return [lower.data, upper.data, names.data, modes.data, _sparse_layer(), again.data]


def _sparse_layer() -> bytes:
    with TemporaryDirectory() as folder:
        with Path(folder, "sparse").open("wb") as file:
            for position in (5_000_000, 20_000_000):
                file.seek(position)
                file.write(b"data")
            file.truncate(30_000_000)
        command = ["tar", "--format=posix", "--sparse", "-C", folder, "-c", "sparse"]
        return subprocess.run(command, capture_output=True, check=True).stdout
