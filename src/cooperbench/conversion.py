"""Conversion of plain data to types, safe in threads.

msgspec looks at a type when it converts to it for the first time. If two threads do that at the
same time, a garbage collection between them can crash the process (seen with msgspec 0.22 and
Python 3.11.2). So the first conversion to each type has a lock.
"""

from __future__ import annotations

import threading
from typing import Any

import msgspec

_lock = threading.RLock()
_known_types: set[Any] = set()


def convert(content: Any, kind: Any, **options: Any) -> Any:
    """Return `msgspec.convert(content, kind, **options)`."""
    if kind in _known_types:
        return msgspec.convert(content, kind, **options)
    with _lock:
        result = msgspec.convert(content, kind, **options)
        _known_types.add(kind)
    return result
