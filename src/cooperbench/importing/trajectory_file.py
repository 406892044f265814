"""Reading of one trajectory file, entry by entry: it may be large, cut off or not quite JSON.

The entries stay encoded until they are used, so that a file of 100 MB takes little more memory than
its own size.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from cooperbench.records import JsonObject
from cooperbench.storage import read_regular_file

_LISTS = ("messages", "steps", "history", "trajectory")
"""Names of the list of entries: in the public layout, in the quick start, and in others."""
_SPACE = re.compile(r"[\s,]*")
_LIST_START = re.compile(rf'"(?:{"|".join(_LISTS)})"\s*:\s*\[')


class UnreadableTrajectory(Exception):
    """A trajectory file of which nothing can be read. The message is one line."""


class TrajectoryFile(NamedTuple):
    """A trajectory file, as far as it can be read."""

    header: JsonObject
    """Everything but the entries."""
    list_name: str
    """Name of the list of entries; empty if the file has none."""
    entries: Iterator[object]
    problem: str | None
    """One line if only a part of the file can be read."""


def open_trajectory(path: Path) -> TrajectoryFile:
    """Return a trajectory file.

    Raises:
        FileNotFoundError: There is no file.
        UnreadableTrajectory: There is a file, and nothing in it can be read.
    """
    try:
        data = read_regular_file(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnreadableTrajectory(f"{path.name} cannot be read: {error.strerror}") from error
    try:
        encoded = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        list_name = _name_of_list(encoded)
        entries: list[msgspec.Raw] = []
        if list_name:
            entries = msgspec.json.decode(encoded.pop(list_name), type=list[msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _open_damaged(path.name, data.decode("utf-8", "replace"))
    header = {name: _decode(raw) for name, raw in encoded.items()}
    return _make_file(path.name, header, list_name, map(_decode, entries))


def _name_of_list(encoded: dict[str, msgspec.Raw]) -> str:
    """Return the name of the list of entries; empty if there is none. `steps` may be a number."""
    for name in _LISTS:
        content = encoded.get(name)
        if content is not None and bytes(memoryview(content)[:1]) == b"[":
            return name
    return ""


def _make_file(
    name: str, header: JsonObject, list_name: str, entries: Iterator[object]
) -> TrajectoryFile:
    problem = None if list_name else f"{name} has no messages"
    return TrajectoryFile(header, list_name, entries, problem)


def _decode(raw: msgspec.Raw) -> object:
    """Return a decoded value; None if it is not JSON."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # Python's parser also accepts NaN and unpaired surrogates.
        text = bytes(memoryview(raw)).decode("utf-8", "replace")
    try:
        content: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return content


def _open_damaged(name: str, text: str) -> TrajectoryFile:
    """Return what can be read of a file that is not JSON: it may be cut off, or have NaN in it."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return _open_cut_off(name, text)
    if isinstance(content, list):
        return TrajectoryFile({}, "messages", iter(content), None)
    if not isinstance(content, dict):
        raise UnreadableTrajectory(f"{name} does not contain a JSON object")
    for list_name in _LISTS:
        if isinstance(content.get(list_name), list):
            entries = content.pop(list_name)
            return _make_file(name, content, list_name, iter(entries))
    return _make_file(name, content, "", iter(()))


def _open_cut_off(name: str, text: str) -> TrajectoryFile:
    """Return the entries of a file up to the point where it breaks off."""
    start = _LIST_START.search(text)
    if start is None:
        raise UnreadableTrajectory(f"{name} is not complete JSON: not read")
    header_text = text[: start.start()].rstrip().removesuffix(",") + "}"
    try:
        header = json.loads(header_text)
    except (ValueError, RecursionError):
        header = {}
    list_name = start[0].split('"')[1]
    entries = _entries_until_error(text, start.end())
    problem = f"{name} is cut off: read as far as it goes"
    return TrajectoryFile(header if isinstance(header, dict) else {}, list_name, entries, problem)


def _entries_until_error(text: str, position: int) -> Iterator[object]:
    decoder = json.JSONDecoder()
    while True:
        space = _SPACE.match(text, position)
        position = space.end() if space else position
        try:
            entry, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            return
        yield entry
