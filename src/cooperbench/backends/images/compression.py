"""Reading a layer's tar file out of its compressed form, and what is known about it at the end."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cooperbench.backends.images.model import DamagedImage
from cooperbench.errors import UserError

_CHUNK_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
"""Tells zlib to read the header and the checksum of gzip."""

ReadChunk = Callable[[], bytes]
"""A function that returns some next bytes, and none at the end."""


class LayerReader:
    """The uncompressed content of a layer, read once from start to end.

    It counts what it yields and keeps its digest, which has to be the layer's `diff_id`.
    """

    def __init__(self, read_chunk: ReadChunk, max_bytes: int) -> None:
        self._read_chunk = read_chunk
        self._max_bytes = max_bytes
        self._hash = hashlib.sha256()
        self._rest = b""
        self.size = 0
        """Bytes that were read so far."""

    @property
    def diff_id(self) -> str:
        """The digest of what was read so far."""
        return f"sha256:{self._hash.hexdigest()}"

    def read(self, size: int) -> bytes:
        """Return the next bytes, fewer only at the end."""
        pieces = [self._rest]
        count = len(self._rest)
        while count < size:
            piece = self._next_chunk()
            if not piece:
                break
            pieces.append(piece)
            count += len(piece)
        data = b"".join(pieces)
        self._rest = data[size:]
        return data[:size]

    def drain(self) -> None:
        """Read the rest, which counts for the digest."""
        self._rest = b""
        while self._next_chunk():
            pass

    def _next_chunk(self) -> bytes:
        try:
            chunk = self._read_chunk()
        except (zlib.error, EOFError) as error:
            raise DamagedImage(f"a layer cannot be decompressed: {error}") from None
        self._hash.update(chunk)
        self.size += len(chunk)
        if self.size > self._max_bytes:
            raise DamagedImage(
                f"a layer has more than {self._max_bytes / 1e9:g} GB"
                " (COOPERBENCH_IMAGES_MAX_LAYER_GB)"
            )
        return chunk


@contextmanager
def open_layer(path: Path, max_bytes: int) -> Iterator[LayerReader]:
    """Open a layer: a tar file, plain or compressed by gzip or zstd.

    Raises:
        UserError: It is compressed by zstd, and nothing here can decompress that.
        DamagedImage: While reading: the file is damaged, or larger than `max_bytes`.
    """
    # Unbuffered: a program may go on reading where this process has stopped.
    with path.open("rb", buffering=0) as file:
        magic = file.read(len(_ZSTD_MAGIC))
        file.seek(0)
        if magic.startswith(_GZIP_MAGIC):
            yield LayerReader(_gunzip(file), max_bytes)
        elif magic != _ZSTD_MAGIC:
            yield LayerReader(lambda: file.read(_CHUNK_BYTES), max_bytes)
        else:
            with _zstd_program(file) as read_chunk:
                yield LayerReader(read_chunk, max_bytes)


def _gunzip(file: IO[bytes]) -> ReadChunk:
    """Return a reader of a gzip file, which may have several members."""
    decompressor = zlib.decompressobj(_GZIP_WINDOW)
    pending = b""

    def read_chunk() -> bytes:
        nonlocal decompressor, pending
        while True:
            data = pending or file.read(_CHUNK_BYTES)
            if not data:
                if not decompressor.eof:
                    raise EOFError("it ends too early")
                return b""
            if decompressor.eof:
                data = data.lstrip(b"\0")
                pending = b""
                if not data:
                    continue
                decompressor = zlib.decompressobj(_GZIP_WINDOW)
            chunk = decompressor.decompress(data, 4 * _CHUNK_BYTES)
            pending = decompressor.unused_data or decompressor.unconsumed_tail
            if chunk:
                return chunk

    return read_chunk


@contextmanager
def _zstd_program(file: IO[bytes]) -> Iterator[ReadChunk]:
    """Decompress by the program zstd, which is rarely needed: most images use gzip."""
    program = shutil.which("zstd")
    if program is None:
        raise UserError(
            "a layer of this image is compressed with zstd: install the program zstd"
            " (apt install zstd)"
        )
    process = subprocess.Popen(
        [program, "-dcq"], stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    stdout = process.stdout

    def read_chunk() -> bytes:
        chunk = stdout.read(_CHUNK_BYTES)
        if not chunk and process.wait() != 0:
            raise EOFError("zstd reports damage")
        return chunk

    try:
        yield read_chunk
    finally:
        process.kill()
        process.wait()
        stdout.close()
