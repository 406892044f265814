"""Layers of images made by hand, with whatever a hostile or odd image may contain."""

from __future__ import annotations

import gzip
import io
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TIME = 1_700_000_000


class Tarball:
    """A tar file that is put together entry by entry."""

    def __init__(self, archive_format: int = tarfile.PAX_FORMAT) -> None:
        self._buffer = io.BytesIO()
        self._archive = tarfile.TarFile(fileobj=self._buffer, mode="w", format=archive_format)

    def add(
        self,
        name: str,
        data: bytes = b"",
        *,
        kind: bytes = tarfile.REGTYPE,
        mode: int = 0o644,
        link: str = "",
        attributes: Mapping[str, str] | None = None,
        change: Callable[[tarfile.TarInfo], None] = lambda _: None,
    ) -> Tarball:
        entry = tarfile.TarInfo(name)
        entry.type = kind
        entry.mode = mode
        entry.linkname = link
        entry.size = len(data)
        entry.mtime = TIME
        entry.uid = entry.gid = 1234
        entry.pax_headers = {
            f"SCHILY.xattr.{key}": value for key, value in (attributes or {}).items()
        }
        change(entry)
        self._archive.addfile(entry, io.BytesIO(data))
        return self

    def folder(self, name: str, mode: int = 0o755) -> Tarball:
        return self.add(name, kind=tarfile.DIRTYPE, mode=mode)

    def symlink(self, name: str, target: str) -> Tarball:
        return self.add(name, kind=tarfile.SYMTYPE, link=target, mode=0o777)

    def hard_link(self, name: str, target: str) -> Tarball:
        return self.add(name, kind=tarfile.LNKTYPE, link=target)

    @property
    def data(self) -> bytes:
        self._archive.close()
        return self._buffer.getvalue()

    @property
    def gzipped(self) -> bytes:
        return gzip.compress(self.data, mtime=0)
