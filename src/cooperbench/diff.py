"""The parser of git diffs: files, hunks and lines.

Lines of hunks are counted, so none of them is ever taken for a header. Text around the files (mail
headers, signatures) belongs to none of them. Verdicts are decided on git's trees, not here.

`parse_diff` is strict and returns whole files; `new_lines` never fails and returns lines with their
byte offsets, for code that edits or searches a patch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from cooperbench.git import decode_path

_FILE_HEADER = b"diff --git "
_NAME_IN_HEADER = re.compile(rb'^diff --git "?a/.* "?b/(.*?)"?$', re.MULTILINE)
_FIELD = re.compile(
    rb"""
    (   --- | \+\+\+                            # paths
      | index
      | (?:old|new|deleted\ file|new\ file)\ mode
      | (?:copy|rename)\ (?:from|to)
      | (?:dis)?similarity\ index
    )
    \ (.*)
    """,
    re.VERBOSE,
)
_BINARY = re.compile(rb"GIT binary patch$|Binary files .* differ$")
_HUNK_HEADER = re.compile(
    rb"""
    @@
    \ -(?P<old_start>\d{1,10})(?:,(?P<old_count>\d{1,10}))?
    \ \+(?P<new_start>\d{1,10})(?:,(?P<new_count>\d{1,10}))?
    \ @@\ ?
    (?P<heading>.*)
    """,
    re.VERBOSE,
)
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2}|.)", re.DOTALL)
_ESCAPED_CHARACTERS = dict(zip(b'abtnvfr"\\', b'\a\b\t\n\v\f\r"\\', strict=True))
_NO_FILE = b"/dev/null"


class NewLine(NamedTuple):
    """A line of the new version of a file, as far as the patch shows it."""

    path: str
    number: int
    offset: int
    """Position of its content in the patch, in bytes."""
    added: bool
    content: bytes


@dataclass(frozen=True)
class Change:
    """Consecutive removed and added lines.

    Its position is a range of base lines, so that changes of several patches can be compared.
    """

    old_start: int
    """First base line that is replaced; for an insertion the line that follows it."""
    old_end: int
    """The base line after the last one that is replaced."""
    lines: tuple[str, ...]
    """The lines with their signs."""
    patch_line: int
    """Line of the patch file where it begins, from 1."""

    def meets(self, other: Change) -> bool:
        """Whether git cannot merge the two: they change common or neighboring base lines.

        The same change in both patches, for example one that was shared over git, merges.
        """
        touches = self.old_start <= other.old_end and other.old_start <= self.old_end
        is_same = self.old_start == other.old_start and self.lines == other.lines
        return touches and not is_same


@dataclass(frozen=True)
class Hunk:
    """A part of a file with changes, and the lines around them."""

    heading: str
    """The line that git shows above the hunk, usually a function or class."""
    old_start: int
    """First base line, from 1."""
    lines: tuple[str, ...]
    """The lines with their signs."""
    patch_line: int
    """Line of the patch file that has the first of them, from 1."""

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """The changes in order; lines without a sign separate them."""
        changes = []
        base_line = self.old_start
        pending: list[str] = []
        end_marker = " "
        for patch_line, line in enumerate((*self.lines, end_marker), self.patch_line):
            if line.startswith(("+", "-")):
                pending.append(line)
                continue
            if line.startswith("\\"):  # "No newline at end of file"
                continue
            if pending:
                removed = [changed for changed in pending if changed.startswith("-")]
                old_end = base_line + len(removed)
                start_line = patch_line - len(pending)
                changes.append(Change(base_line, old_end, tuple(pending), start_line))
                base_line = old_end
                pending = []
            base_line += 1
        return tuple(changes)


@dataclass(frozen=True)
class ChangedFile:
    """One file of a diff. Bytes that are not UTF-8 are surrogate-escaped."""

    old_path: str | None
    """None if the file is created."""
    new_path: str | None
    """None if the file is deleted."""
    patch_line: int
    """Line of the patch file where it begins, from 1."""
    is_binary: bool
    hunks: tuple[Hunk, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """The new path first; both paths of a rename or copy, no path twice."""
        both_paths = [path for path in (self.new_path, self.old_path) if path is not None]
        return tuple(dict.fromkeys(both_paths))

    @property
    def path(self) -> str:
        """The new path; the old one of a deleted file."""
        return self.paths[0]

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """The changes of all hunks, in order."""
        changes: list[Change] = []
        for hunk in self.hunks:
            changes += hunk.changes
        return tuple(changes)


class _RawHunk(NamedTuple):
    """A hunk as bytes, and whether it has all lines that its header announces."""

    header: re.Match[bytes]
    lines: list[bytes]
    is_complete: bool


def parse_diff(data: bytes) -> tuple[ChangedFile, ...]:
    """Return the files of a diff. Blank text has none.

    Raises:
        ValueError: The text is not a diff, or not a complete one.
    """
    lines = data.removesuffix(b"\n").split(b"\n")
    files = []
    index = 0
    while index < len(lines):
        if not lines[index].startswith(_FILE_HEADER):
            index += 1
            continue
        file, index = _parse_file(lines, index)
        if file is not None:
            files.append(file)
    if data.strip() and not files:
        raise ValueError("no file header")
    return tuple(files)


def _parse_file(lines: Sequence[bytes], start: int) -> tuple[ChangedFile | None, int]:
    """Return the file whose header is at `start`, and the index of the line after it.

    The file is None if nothing follows the header that belongs to a diff.
    """
    fields: dict[bytes, bytes] = {}
    index = start + 1
    while index < len(lines) and (field := _FIELD.fullmatch(lines[index])):
        fields[field[1]] = field[2]
        index += 1
    is_binary = index < len(lines) and _BINARY.match(lines[index]) is not None
    if not fields and not is_binary:
        return None, index
    hunks = []
    while index < len(lines) and (header := _HUNK_HEADER.match(lines[index])):
        raw_hunk = _read_hunk(lines, index, header)
        hunks.append(_decode_hunk(raw_hunk, patch_line=index + 2))
        index += 1 + len(raw_hunk.lines)
    if b"+++" in fields and not hunks:
        raise ValueError("the diff ends before the hunks of this file")
    old_path, new_path = _paths(lines[start].removeprefix(_FILE_HEADER), fields)
    file = ChangedFile(old_path, new_path, start + 1, is_binary, tuple(hunks))
    return file, index


def _read_hunk(lines: Sequence[bytes], start: int, header: re.Match[bytes]) -> _RawHunk:
    """Read as many lines as the header at `start` announces."""
    old_left = _line_count(header["old_count"])
    new_left = _line_count(header["new_count"])
    index = start + 1
    while index < len(lines):
        line = lines[index]
        if old_left <= 0 and new_left <= 0 and not line.startswith(b"\\ "):
            break
        # Some programs strip the space of an empty line.
        sign = line[:1].strip(b"\r") or b" "
        if sign not in b" +-\\":
            break
        if sign in b" -":
            old_left -= 1
        if sign in b" +":
            new_left -= 1
        index += 1
    is_complete = old_left == 0 and new_left == 0
    return _RawHunk(header, list(lines[start + 1 : index]), is_complete)


def _line_count(text: bytes | None) -> int:
    """Return a count of a hunk header; 1 is left out there."""
    return 1 if text is None else int(text)


def _decode_hunk(raw_hunk: _RawHunk, patch_line: int) -> Hunk:
    if not raw_hunk.is_complete:
        raise ValueError("the hunk does not have the lines that its header announces")
    header = raw_hunk.header
    old_start = int(header["old_start"])
    if _line_count(header["old_count"]) == 0:
        # A hunk without base lines names the line after which it is inserted.
        old_start += 1
    return Hunk(
        heading=_decode_line(header["heading"].strip()),
        old_start=old_start,
        lines=tuple(_decode_line(line) for line in raw_hunk.lines),
        patch_line=patch_line,
    )


def _decode_line(line: bytes) -> str:
    return line.decode("utf-8", "surrogateescape").removesuffix("\r")


def _paths(header: bytes, fields: dict[bytes, bytes]) -> tuple[str | None, str | None]:
    """Return the old and the new path of a file; None where it is created or deleted."""
    for verb in (b"rename", b"copy"):
        source, target = fields.get(verb + b" from"), fields.get(verb + b" to")
        if source is not None and target is not None:
            return _unquote(source), _unquote(target)
    if b"---" in fields and b"+++" in fields:
        old, new = _strip_tab(fields[b"---"]), _strip_tab(fields[b"+++"])
    else:
        # The header has two names, which are quoted or of the same length.
        quoted = _QUOTED.match(header)
        middle = quoted.end() if quoted else len(header) // 2
        old, new = header[:middle], header[middle + 1 :]
    is_created = b"new file mode" in fields or old == _NO_FILE
    is_deleted = b"deleted file mode" in fields or new == _NO_FILE
    if is_created and is_deleted:
        raise ValueError("both sides are /dev/null")
    old_path = None if is_created else _unquote(old)[2:]
    new_path = None if is_deleted else _unquote(new)[2:]
    return old_path, new_path


def _strip_tab(name: bytes) -> bytes:
    """Return a name without the tab that git puts after a name with spaces."""
    return name.partition(b"\t")[0]


def _unquote(name: bytes) -> str:
    """Return a path without git's quotes and escapes."""
    if quoted := _QUOTED.fullmatch(name):
        name = _ESCAPE.sub(_unescape, quoted[1])
    if not name or name.startswith(b'"'):
        raise ValueError("a path that is empty, or a quoted one without its closing quote")
    return decode_path(name)


def _unescape(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    if len(code) == 3:
        return bytes([int(code, 8)])
    return bytes([_ESCAPED_CHARACTERS.get(code[0], code[0])])


def new_lines(patch: bytes) -> Iterator[NewLine]:
    """Yield the lines of the new version of every file. Whatever cannot be read is skipped."""
    lines = patch.split(b"\n")
    path = ""
    offset = 0
    index = 0
    while index < len(lines):
        line = lines[index]
        header = _HUNK_HEADER.match(line)
        if line.startswith(b"+++ "):
            path = _new_path(line.removeprefix(b"+++ "))
        offset += len(line) + 1
        index += 1
        if header is None:
            continue
        hunk = _read_hunk(lines, index - 1, header)
        number = int(header["new_start"])
        for hunk_line in hunk.lines:
            sign = hunk_line[:1]
            if sign not in (b"-", b"\\"):
                yield NewLine(path, number, offset + 1, sign == b"+", hunk_line[1:])
                number += 1
            offset += len(hunk_line) + 1
        index += len(hunk.lines)


def _new_path(name: bytes) -> str:
    try:
        return _unquote(_strip_tab(name)).removeprefix("b/")
    except ValueError:
        return name.decode("utf-8", "surrogateescape")


def changed_files(patch: bytes) -> list[str]:
    """Return the files that a patch changes, as its headers name them."""
    names = [name.decode("utf-8", "replace") for name in _NAME_IN_HEADER.findall(patch)]
    return list(dict.fromkeys(names))
