"""Unpacking a layer into a folder that an overlay file system can use as one of its layers.

Nothing outside of the folder is read or written, whatever the archive contains: every path is
resolved here, component by component, and links never lead out. All files belong to this user.
Device nodes are skipped. A deletion becomes what an overlay takes for one: a character device 0/0
for a file, an attribute for a folder whose lower content is hidden.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple, cast

from cooperbench.backends.images.compression import LayerReader, open_layer
from cooperbench.backends.images.model import DamagedImage
from cooperbench.errors import InfraError, UserError
from cooperbench.text import printable

MAX_ENTRIES = 1_000_000
OPAQUE_ATTRIBUTE = "user.overlay.opaque"
"""Attribute of a folder that hides the folder in lower layers."""
_OVERLAY_ATTRIBUTES = "user.overlay."
_USER_ATTRIBUTES = "user."
_WHITEOUT = ".wh."
_OPAQUE_WHITEOUT = ".wh..wh..opq"
_META_PREFIX = ".wh..wh."
"""Prefix of names that only one old storage driver of Docker used."""
_XATTR_HEADER = "SCHILY.xattr."
_PARENT_MODE = 0o755
"""Mode of a folder for which the archive has no entry."""
_MAX_LINKS = 40
_COPY_BYTES = 1 << 20
_ZEROS = bytes(_COPY_BYTES)
_MIN_FREE_BYTES = 256 * 1024**2
_CHECK_DISK_BYTES = 64 * 1024**2
"""Bytes after which the free space is checked again."""
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_BAD_NAMES = (errno.ENAMETOOLONG, errno.EILSEQ)


class UnpackedLayer(NamedTuple):
    """Facts about a layer that was unpacked."""

    diff_id: str
    size: int
    """Bytes of its files."""
    entries: int


class DiskFull(UserError):
    """The disk of the cache has no room for an image."""


def unpack_layer(archive: Path, target: Path, max_bytes: int) -> UnpackedLayer:
    """Unpack a layer's tar file, plain or compressed, into a folder that is created.

    The caller removes the folder if this fails.

    Raises:
        DamagedImage: The archive is damaged, hostile or too large.
        DiskFull: There is no room for it.
        UserError: The file system of the folder cannot hold layers.
        InfraError: The layer cannot be read or written for another reason.
    """
    try:
        target.mkdir(parents=True)
        with open_layer(archive, max_bytes) as reader:
            unpacker = LayerUnpacker(target)
            unpacker.unpack(reader)
            reader.drain()
            return UnpackedLayer(reader.diff_id, unpacker.size, unpacker.entries)
    except tarfile.TarError as error:
        raise DamagedImage(f"a layer is not a valid tar file: {printable(str(error))}") from None
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise DiskFull(disk_full_message(target)) from None
        if error.errno in _BAD_NAMES:
            raise DamagedImage(f"a layer has a file name that is too long: {error}") from None
        raise InfraError(f"a layer cannot be unpacked: {error}") from error


def disk_full_message(path: Path) -> str:
    """Say what to do about a full disk."""
    return (
        f"the disk of {path.parent} is full: cooperbench images clean --backend local,"
        " or set COOPERBENCH_CACHE_DIR to a folder with more room"
    )


class LayerUnpacker:
    """Writes the entries of one archive into an empty folder that nobody else can write to."""

    def __init__(self, target: Path) -> None:
        self._target = str(target)
        self.size = 0
        self.entries = 0
        self._unchecked_bytes = _CHECK_DISK_BYTES
        self._folders: dict[str, str] = {"": self._target}
        """Real paths of folders, by their names in the archive."""
        self._folder_times: dict[str, int] = {}
        """Times of change in nanoseconds, set last: writing into a folder changes its own."""
        self._whiteouts: set[str] = set()

    def unpack(self, reader: LayerReader) -> None:
        """Unpack all entries."""
        with tarfile.open(
            fileobj=cast("IO[bytes]", reader),  # only its `read` is used
            mode="r|",
            bufsize=_COPY_BYTES,
            errorlevel=2,
            errors="surrogateescape",
        ) as archive:
            for member in archive:
                self.entries += 1
                if self.entries > MAX_ENTRIES:
                    raise DamagedImage(f"a layer has more than {MAX_ENTRIES:,} entries")
                self._unpack_entry(archive, member)
        for path, nanoseconds in reversed(self._folder_times.items()):
            with suppress(FileNotFoundError, NotADirectoryError):
                os.utime(path, ns=(nanoseconds, nanoseconds), follow_symlinks=False)

    def _unpack_entry(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = _parts(member.name)
        if not parts:
            if member.isdir():
                self._set_attributes(self._target, member)
            return
        parent = self._resolve(parts[:-1])
        name = parts[-1]
        if name.startswith(_WHITEOUT):
            self._delete(parent, name)
            return
        path = f"{parent}/{name}"
        if member.isdir():
            self._make_folder(path, member)
        elif member.issym():
            self._make_room(path)
            os.symlink(member.linkname.replace("\0", "?") or ".", path)
            self._set_attributes(path, member)
        elif member.islnk():
            self._link(path, member)
        elif member.isfile():
            self._make_room(path)
            self._write_file(archive, member, path)
        elif member.isfifo():
            self._make_room(path)
            os.mkfifo(path)
            self._set_attributes(path, member)

    # Paths.

    def _resolve(self, parts: tuple[str, ...]) -> str:
        """Return the real path of a folder of the archive, created where it does not exist."""
        name = "/".join(parts)
        path = self._folders.get(name)
        if path is None:
            path = self._walk(parts)
            self._folders[name] = path
        return path

    def _walk(self, parts: tuple[str, ...]) -> str:
        remaining = list(reversed(parts))
        path: list[str] = []
        links = 0
        while remaining:
            part = remaining.pop()
            if part == "..":
                # Only links contain it. It does not lead above the folder of the layer.
                path = path[:-1]
                continue
            full_path = "/".join([self._target, *path, part])
            mode = _mode(full_path)
            if mode is not None and stat.S_ISLNK(mode):
                links += 1
                if links > _MAX_LINKS:
                    raise DamagedImage("a layer has symbolic links that lead in a circle")
                link = os.readlink(full_path)
                if link.startswith("/"):
                    path = []
                remaining += _reversed_steps(link)
                continue
            if mode is None or not stat.S_ISDIR(mode):
                self._make_parent(full_path, mode)
            path.append(part)
        return "/".join([self._target, *path])

    def _make_parent(self, path: str, mode: int | None) -> None:
        """Make a folder for which the archive has no entry, or only a deletion."""
        if mode is not None and path not in self._whiteouts:
            raise DamagedImage("a layer has files below something that is not a folder")
        was_deleted = mode is not None
        if was_deleted:
            self._make_room(path)
        os.mkdir(path)
        os.chmod(path, _PARENT_MODE)
        if was_deleted:
            self._set_opaque(path)

    def _make_room(self, path: str) -> None:
        """Remove what earlier entries have put at a path."""
        mode = _mode(path)
        if mode is None:
            return
        self._whiteouts.discard(path)
        if stat.S_ISDIR(mode):
            shutil.rmtree(path)
            # Names below it, and links to it, mean something else now.
            self._folders = {"": self._target}
            self._forget_times(path)
        else:
            os.unlink(path)
            if stat.S_ISLNK(mode):
                self._folders = {"": self._target}

    def _forget_times(self, path: str) -> None:
        """Forget the times of a folder that was removed, and of those that were in it."""
        for folder in list(self._folder_times):
            if folder == path or folder.startswith(f"{path}/"):
                del self._folder_times[folder]

    # Entries.

    def _make_folder(self, path: str, member: tarfile.TarInfo) -> None:
        mode = _mode(path)
        was_deleted = path in self._whiteouts
        if mode is None or not stat.S_ISDIR(mode):
            self._make_room(path)
            os.mkdir(path)
        if was_deleted:
            self._set_opaque(path)
        self._set_attributes(path, member)

    def _write_file(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        source = archive.extractfile(member)
        assert source is not None
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(path, flags, 0o600), "wb", buffering=0) as file:
            written = self._copy(source, file, skip_holes=member.issparse())
            if written != member.size:
                raise DamagedImage("a layer ends in the middle of a file")
            os.fchmod(file.fileno(), stat.S_IMODE(member.mode) | stat.S_IRUSR)
        self._set_extended_attributes(path, member)
        nanoseconds = _nanoseconds(member)
        os.utime(path, ns=(nanoseconds, nanoseconds))

    def _copy(self, source: IO[bytes], file: IO[bytes], *, skip_holes: bool) -> int:
        position = 0
        while chunk := source.read(_COPY_BYTES):
            if skip_holes and chunk == _ZEROS[: len(chunk)]:
                file.seek(len(chunk), os.SEEK_CUR)
            else:
                self._count_bytes(len(chunk))
                file.write(chunk)
            position += len(chunk)
        if skip_holes:
            file.truncate(position)
        return position

    def _count_bytes(self, count: int) -> None:
        """Stop before the disk is full: others need it too."""
        self.size += count
        self._unchecked_bytes += count
        if self._unchecked_bytes < _CHECK_DISK_BYTES:
            return
        self._unchecked_bytes = 0
        status = os.statvfs(self._target)
        if status.f_bavail * status.f_frsize < _MIN_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _link(self, path: str, member: tarfile.TarInfo) -> None:
        parts = _parts(member.linkname)
        original = f"{self._resolve(parts[:-1])}/{parts[-1]}" if parts else self._target
        mode = _mode(original)
        if mode is None or stat.S_ISDIR(mode) or original in self._whiteouts:
            raise DamagedImage(
                f"a layer has a hard link to {printable(member.linkname)[:200]!r},"
                " which is not a file in it"
            )
        if original != path:
            self._make_room(path)
            os.link(original, path, follow_symlinks=False)

    def _delete(self, parent: str, name: str) -> None:
        """Hide a file, or the whole content of the folder, of lower layers."""
        if name == _OPAQUE_WHITEOUT:
            self._set_opaque(parent)
            return
        hidden = name.removeprefix(_WHITEOUT)
        if name.startswith(_META_PREFIX):
            return
        if hidden in ("", ".", ".."):
            raise DamagedImage(f"a layer deletes {hidden!r}")
        path = f"{parent}/{hidden}"
        mode = _mode(path)
        if mode is None:
            self._make_whiteout(path)
        elif stat.S_ISDIR(mode):
            # The layer has a new folder of this name, which must not show the old content.
            self._set_opaque(path)

    def _make_whiteout(self, path: str) -> None:
        try:
            os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))
        except OSError as error:
            raise self._unsuitable(error) from None
        self._whiteouts.add(path)

    # Attributes.

    def _set_opaque(self, path: str) -> None:
        try:
            os.setxattr(path, OPAQUE_ATTRIBUTE, b"y", follow_symlinks=False)
        except OSError as error:
            raise self._unsuitable(error) from None

    def _unsuitable(self, error: OSError) -> Exception:
        if error.errno in _NO_SPACE:
            return error
        return UserError(
            f"the file system of {self._target} cannot hold layers of images ({error.strerror});"
            " set COOPERBENCH_CACHE_DIR to a folder on ext4, xfs, btrfs or a tmpfs"
        )

    def _set_attributes(self, path: str, member: tarfile.TarInfo) -> None:
        """Set mode, attributes and time. The owner may always read, and enter folders.

        Root of a sandbox has no capabilities, so these bits make up for what it could do in a
        container.
        """
        self._set_extended_attributes(path, member)
        nanoseconds = _nanoseconds(member)
        if member.isdir():
            os.chmod(path, stat.S_IMODE(member.mode) | stat.S_IRWXU)
            self._folder_times.pop(path, None)
            self._folder_times[path] = nanoseconds
            return
        if not member.issym():
            os.chmod(path, stat.S_IMODE(member.mode) | stat.S_IRUSR)
        os.utime(path, ns=(nanoseconds, nanoseconds), follow_symlinks=False)

    def _set_extended_attributes(self, path: str, member: tarfile.TarInfo) -> None:
        """Set the attributes that users may set, except those that mean something to overlays.

        Others, such as capabilities of programs, have no effect in a sandbox.
        """
        for header, value in member.pax_headers.items():
            name = header.removeprefix(_XATTR_HEADER)
            is_attribute = name != header and name.startswith(_USER_ATTRIBUTES)
            if is_attribute and not name.startswith(_OVERLAY_ATTRIBUTES):
                with suppress(OSError, ValueError):
                    data = value.encode("utf-8", "surrogateescape")
                    os.setxattr(path, name, data, follow_symlinks=False)


def _parts(name: str) -> tuple[str, ...]:
    """Return the components of a name in an archive; DamagedImage if it leads upward."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts or "\0" in name:
        raise DamagedImage(f"a layer has a path that leads out of it: {printable(name)[:200]!r}")
    return parts


def _reversed_steps(link: str) -> list[str]:
    """Return the components of a link's target, the last one first."""
    return [step for step in reversed(link.split("/")) if step not in ("", ".")]


def _mode(path: str) -> int | None:
    """Return the type and mode of what is at a path; None if nothing is."""
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return None


def _nanoseconds(member: tarfile.TarInfo) -> int:
    """Return the time of an entry, within what file systems can store."""
    return max(0, min(int(member.mtime * 10**9), 2**62))
