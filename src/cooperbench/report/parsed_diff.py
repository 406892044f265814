"""A git diff taken apart into files, hunks and changes, for people who read about it: reports, pages, statistics.

Lines of hunks are counted, so none of them is ever taken for a header. Text around the files (mail headers, signatures)
belongs to none of them. What is judged is decided on git's trees, not here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from cooperbench.diff import HUNK
from cooperbench.errors import UserError
from cooperbench.git import decode_path


class PatchError(UserError):
    """The text is not a diff, or not a whole one."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"patch line {line}: {reason}")


@dataclass(frozen=True)
class Change:
    """Removed and added lines that stand together; its place is a range of base lines, which all patches share."""

    old_start: int
    """First base line that is replaced; for an insertion the one that it goes in front of."""
    old_end: int
    """The base line after the last one that is replaced."""
    lines: tuple[str, ...]
    """With the sign in front."""
    patch_line: int
    """Where it begins in the patch file, from 1."""

    def meets(self, other: Change) -> bool:
        """Whether they change or insert at a common place or side by side, which git does not merge; the same change
        on both sides, e.g. shared over git, is none."""
        touches = self.old_start <= other.old_end and other.old_start <= self.old_end
        return touches and (self.old_start, self.lines) != (other.old_start, other.lines)


@dataclass(frozen=True)
class Hunk:
    heading: str
    """What git found above the hunk: a function or class, as a rule."""
    old_start: int
    """The base line at which it begins, from 1."""
    lines: tuple[str, ...]
    """With the sign in front."""
    patch_line: int
    """Of the first of them in the patch file, from 1."""

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        found = []
        base_line, together = self.old_start, list[str]()
        for place, line in enumerate((*self.lines, " "), self.patch_line):
            if line.startswith(("+", "-")):
                together.append(line)
            elif not line.startswith("\\"):
                end = base_line + sum(one.startswith("-") for one in together)
                if together:
                    found.append(Change(base_line, end, tuple(together), place - len(together)))
                base_line, together = end + 1, []
        return tuple(found)


@dataclass(frozen=True)
class ChangedFile:
    """What a diff says about one file. Bytes that are not UTF-8 are surrogate-escaped."""

    old_path: str | None
    """None: the file is created."""
    new_path: str | None
    """None: the file is deleted."""
    patch_line: int
    """Where it begins in the patch file, from 1."""
    is_binary: bool
    hunks: tuple[Hunk, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """The new one first; both of a rename or a copy, no path twice."""
        return tuple(dict.fromkeys(path for path in (self.new_path, self.old_path) if path is not None))

    @property
    def path(self) -> str:
        return self.paths[0]

    @property
    def changes(self) -> list[Change]:
        return [change for hunk in self.hunks for change in hunk.changes]


_START = b"diff --git "
_FIELD = re.compile(
    rb"(---|\+\+\+|index|old mode|new mode|deleted file mode|new file mode|(?:copy|rename) (?:from|to)"
    rb"|(?:dis)?similarity index) (.*)"
)
_BINARY = re.compile(rb"GIT binary patch$|Binary files .* differ$")
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2}|.)", re.DOTALL)
_ESCAPED = dict(zip(b'abtnvfr"\\', b'\a\b\t\n\v\f\r"\\', strict=True))


def parse_diff(data: bytes) -> tuple[ChangedFile, ...]:
    """The files of a diff; text without any is a PatchError unless it is blank."""
    lines = data.removesuffix(b"\n").split(b"\n")
    files = []
    at = 0
    while at < len(lines):
        start, at = at, at + 1
        if not lines[start].startswith(_START):
            continue
        fields: dict[bytes, bytes] = {}
        while at < len(lines) and (field := _FIELD.fullmatch(lines[at])):
            fields[field[1]] = field[2]
            at += 1
        is_binary = at < len(lines) and _BINARY.match(lines[at]) is not None
        if not fields and not is_binary:
            continue
        hunks = []
        while at < len(lines) and (header := HUNK.match(lines[at])):
            hunks.append(_hunk(lines, at, header))
            at += 1 + len(hunks[-1].lines)
        if b"+++" in fields and not hunks:
            raise PatchError(at, "the diff ends before the hunks of this file")
        paths = _paths(lines[start].removeprefix(_START), fields, start + 1)
        files.append(ChangedFile(*paths, start + 1, is_binary, tuple(hunks)))
    if data.strip() and not files:
        raise PatchError(1, f"not a diff: no file header in its {len(lines)} lines")
    return tuple(files)


def _hunk(lines: Sequence[bytes], start: int, header: re.Match[bytes]) -> Hunk:
    first, old_count, _, new_count = (1 if number is None else int(number) for number in header.groups()[:4])
    old_left, new_left = old_count, new_count
    end = start + 1
    while end < len(lines) and (old_left > 0 or new_left > 0 or lines[end].startswith(b"\\ ")):
        # Some programs strip the space of an empty line.
        kind = lines[end][:1].strip(b"\r") or b" "
        if kind not in b" +-\\":
            break
        old_left -= kind in b" -"
        new_left -= kind in b" +"
        end += 1
    if old_left or new_left:
        raise PatchError(start + 1, "the hunk does not have the lines that its header says")
    heading, *body = (
        line.decode("utf-8", "surrogateescape").removesuffix("\r")
        for line in (header[5].strip(), *lines[start + 1 : end])
    )
    # A hunk without base lines names the one after which it goes.
    return Hunk(heading, first + (old_count == 0), tuple(body), start + 2)


def _paths(header: bytes, fields: dict[bytes, bytes], line: int) -> tuple[str | None, str | None]:
    """Old and new path of a file, None where it is created or deleted."""
    for verb in (b"rename", b"copy"):
        if verb + b" from" in fields and verb + b" to" in fields:
            return _unquoted(fields[verb + b" from"], line), _unquoted(fields[verb + b" to"], line)
    if b"---" in fields and b"+++" in fields:
        # Git puts a tab after a name that has spaces.
        old, new = fields[b"---"].partition(b"\t")[0], fields[b"+++"].partition(b"\t")[0]
    else:
        # Two names, quoted or of the same length.
        quoted = _QUOTED.match(header)
        middle = quoted.end() if quoted else len(header) // 2
        old, new = header[:middle], header[middle + 1 :]
    created = b"new file mode" in fields or old == b"/dev/null"
    deleted = b"deleted file mode" in fields or new == b"/dev/null"
    if created and deleted:
        raise PatchError(line, "both sides are /dev/null")
    return None if created else _unquoted(old, line)[2:], None if deleted else _unquoted(new, line)[2:]


def _unquoted(name: bytes, line: int) -> str:
    """A path as git means it: C-quoting undone where the name stands in double quotes."""
    if quoted := _QUOTED.fullmatch(name):
        name = _ESCAPE.sub(_unescaped, quoted[1])
    if not name or name.startswith(b'"'):
        raise PatchError(line, "a path that is empty, or a quoted one without its closing quote")
    return decode_path(name)


def _unescaped(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    return bytes([int(code, 8)]) if len(code) == 3 else bytes([_ESCAPED.get(code[0], code[0])])
