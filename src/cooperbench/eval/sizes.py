"""How large a patch may be, as text and unpacked: a kilobyte of it can stand for a gigabyte."""

from __future__ import annotations

import re
import zlib
from base64 import b85decode
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_PATCH_BYTES = 64 * 1024**2
MOST_UNPACKED_BYTES = 128 * 1024**2

_BINARY = re.compile(rb"^(literal|delta) (\d{1,18})\r?\n([A-Za-z][^\s]{5,}|)", re.MULTILINE)


def too_large(patch: bytes) -> str:
    """Why it is too large to be looked at; empty if it is not."""
    if len(patch) > MOST_PATCH_BYTES:
        return f"the patch has {len(patch)} bytes, more than {MOST_PATCH_BYTES}"
    unpacked = sum(_unpacked_sizes(patch))
    if unpacked > MOST_UNPACKED_BYTES:
        return f"the patch unpacks to {unpacked} bytes, more than {MOST_UNPACKED_BYTES}"
    return ""


def _unpacked_sizes(patch: bytes) -> Iterator[int]:
    """Of what binary sections hold; text is as long as the patch says it."""
    for kind, size, first_line in _BINARY.findall(patch):
        yield int(size) if kind == b"literal" else max(int(size), _delta_target(first_line))


def _delta_target(line: bytes) -> int:
    """The size that a delta makes: the second number at its beginning. 0 where git, too, will not understand it."""
    try:
        begin = zlib.decompressobj().decompress(b85decode(line[1:]), 64)
    except (ValueError, zlib.error):
        return 0
    sizes, shift = [0], 0
    for byte in begin:
        sizes[-1] |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            sizes.append(0)
            shift = 0
    return sizes[1] if len(sizes) > 2 else 0
