"""Reading and writing of records: the same three functions for every file kind.

A file is first decoded strictly into its type, which is fast. If that fails (an older version wrote
it, it was edited or damaged, somebody else wrote it), it is read leniently: a value that is missing
or has the wrong type becomes None, 0 or empty. Only a file that is not a JSON object has no record.
"""

from __future__ import annotations

import json
import typing
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec

from cooperbench import conversion
from cooperbench.storage import read_regular_file, write_bytes

JsonObject = dict[str, Any]
"""A decoded JSON object whose keys are not known in advance."""


class Record(msgspec.Struct, kw_only=True, frozen=True):
    """One JSON file. Subclasses list its fields in the order in which they are written."""

    SCHEMA: ClassVar[str] = ""
    """Name and version of the format that this class writes."""
    OMITTED_IF_NONE: ClassVar[frozenset[str]] = frozenset()
    """Fields that are written only if they have a value; all others are always written."""
    NOT_WRITTEN: ClassVar[frozenset[str]] = frozenset()
    """Fields that only readers need; `from_file` fills them in."""
    SPREAD: ClassVar[str] = ""
    """A field of dict type whose entries are written at the top level of the file."""

    schema: str = ""
    """Format of the file, e.g. `cooperbench.result/1`; empty if an older file does not name it."""

    @classmethod
    def from_file(cls, content: JsonObject) -> JsonObject:
        """Return the content of a file, of this or an older version, arranged as the fields are."""
        return gather(content, cls, cls.SPREAD) if cls.SPREAD else content

    @classmethod
    def to_file(cls, content: JsonObject) -> JsonObject:
        """Return the fields arranged as they are in the file."""
        return spread(content, cls.SPREAD) if cls.SPREAD else content


T = TypeVar("T", bound=Record)
S = TypeVar("S", bound=msgspec.Struct)


class Reading(NamedTuple, typing.Generic[T]):
    """The record in a file, or why the file cannot be read."""

    record: T | None
    """None if there is no such file, or if it cannot be read."""
    problem: str | None
    """One line that says why the file cannot be read; None if it can, or if there is no file."""


def read(path: Path, kind: type[T]) -> T | None:
    """Return the record in a file; None if there is no file or no complete JSON object in it."""
    return read_or_problem(path, kind).record


def read_or_problem(path: Path, kind: type[T]) -> Reading[T]:
    """Return the record in a file, or a line that says why it cannot be read."""
    try:
        data = read_regular_file(path)
    except FileNotFoundError:
        return Reading(None, None)
    except OSError as error:
        return Reading(None, f"{path.name} cannot be read: {error.strerror}")
    try:
        return Reading(decode(data, kind), None)
    except TypeError:
        return Reading(None, f"{path.name} does not contain a JSON object")
    except (ValueError, RecursionError):
        return Reading(None, f"{path.name} is not complete JSON")


def write(path: Path, record: Record) -> None:
    """Write a record: the file appears whole or not at all."""
    write_bytes(path, encode(record))


def decode(data: bytes, kind: type[T]) -> T:
    """Return the record in some JSON.

    Raises:
        ValueError: It is not complete JSON.
        TypeError: It is JSON, but not an object.
    """
    try:
        if _is_stored_as_declared(kind):
            return msgspec.json.decode(data, type=kind)
        content = msgspec.json.decode(data)
        if isinstance(content, dict):
            record: T = conversion.convert(kind.from_file(content), kind, str_keys=True)
            return record
    except msgspec.MsgspecError:
        # Python's parser also accepts NaN, unpaired surrogates and very large numbers.
        content = json.loads(data)
    if not isinstance(content, dict):
        raise TypeError("not a JSON object")
    return from_object(content, kind)


def from_object(content: JsonObject, kind: type[T]) -> T:
    """Return the record in a decoded JSON object, whatever is missing or wrong in it."""
    return convert(kind.from_file(content), kind)


def convert(content: JsonObject, kind: type[S]) -> S:
    """Return a struct with these fields; what is missing or wrong is None, 0 or empty."""
    from cooperbench.records.lenient import convert_struct

    try:
        struct: S = conversion.convert(content, kind, str_keys=True)
        return struct
    except msgspec.MsgspecError:
        return convert_struct(content, kind)


def to_object(record: Record) -> JsonObject:
    """Return a record as the JSON object that its file contains."""
    content: JsonObject = msgspec.to_builtins(record, str_keys=True)
    for name in record.OMITTED_IF_NONE:
        if content[name] is None:
            del content[name]
    for name in record.NOT_WRITTEN:
        del content[name]
    return record.to_file(content | {"schema": record.SCHEMA})


def encode(record: Record) -> bytes:
    """Return the content of a record's file: indented JSON in UTF-8, with a newline at the end.

    Unpaired surrogates (from bytes that were not UTF-8) are written as JSON escapes, which every
    JSON parser accepts.
    """
    content = to_object(record)
    try:
        data = msgspec.json.format(msgspec.json.encode(content), indent=2)
    except UnicodeEncodeError:
        data = json.dumps(content, indent=2).encode()
    return data + b"\n"


def gather(content: JsonObject, kind: type[msgspec.Struct], name: str) -> JsonObject:
    """Return an object with the keys that `kind` does not have moved into the dict field `name`."""
    unknown = content.keys() - _known_keys(kind)
    if not unknown and name not in content:
        return content
    fields = {key: value for key, value in content.items() if key not in unknown}
    fields[name] = {key: value for key, value in content.items() if key in unknown}
    return fields


@cache
def _known_keys(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(kind.__struct_encode_fields__)


def spread(content: JsonObject, name: str) -> JsonObject:
    """Undo `gather`: return an object with the entries of the dict field `name` in its place."""
    spread_out: JsonObject = {}
    for key, value in content.items():
        if key == name:
            spread_out |= value
        else:
            spread_out[key] = value
    return spread_out


def _is_stored_as_declared(kind: type[Record]) -> bool:
    """Whether files have exactly the declared fields, so that they can be decoded in one step."""
    return not kind.SPREAD and "from_file" not in vars(kind)
