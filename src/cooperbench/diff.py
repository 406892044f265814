"""A git diff taken apart into its files, for reports and statistics; verdicts are made from git's trees.

Lines of hunks are counted: one that looks like a header is never taken for one. Text around sections belongs to none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cooperbench.errors import UserError
from cooperbench.git import decode_path


class PatchError(UserError):
    """The text is not a diff, or not a whole one."""


@dataclass(frozen=True)
class FilePatch:
    """What a diff says about one file. Bytes of paths that are not UTF-8 are surrogate-escaped."""

    old_path: str | None
    """None: the file is created."""
    new_path: str | None
    """None: the file is deleted."""
    data: bytes
    """Exactly the bytes of this file's section; a binary one goes on until the next."""
    patch_line: int
    """Where the section begins, from 1."""
    is_binary: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path that is touched: both of a rename or a copy, no path twice."""
        return tuple(dict.fromkeys(path for path in (self.old_path, self.new_path) if path is not None))


_START = b"diff --git "
_FIELD = re.compile(
    rb"(---|\+\+\+|index|old mode|new mode|deleted file mode|new file mode|(?:copy|rename) (?:from|to)"
    rb"|(?:dis)?similarity index) (.*)\n?"
)
_BINARY = re.compile(rb"GIT binary patch$|Binary files .* differ$")
_HUNK = re.compile(rb"@@ -\d{1,10}(?:,(\d{1,10}))? \+\d{1,10}(?:,(\d{1,10}))? @@")
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2}|.)", re.DOTALL)
_ESCAPED = dict(zip(b'abtnvfr"\\', b'\a\b\t\n\v\f\r"\\', strict=True))


def parse_diff(data: bytes) -> tuple[FilePatch, ...]:
    """The files of a diff; text without any is a PatchError unless it is blank."""
    lines = [line for line in re.split(rb"(?<=\n)", data) if line]
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
        while is_binary and at < len(lines) and not lines[at].startswith(_START):
            at += 1
        first_hunk = at
        while at < len(lines) and lines[at].startswith(b"@@ -"):
            at = _end_of_hunk(lines, at)
        if b"+++" in fields and at == first_hunk:
            raise PatchError("the diff ends before the hunks of a file")
        names = _names(lines[start].removeprefix(_START).rstrip(b"\n"), fields)
        files.append(FilePatch(*names, b"".join(lines[start:at]), start + 1, is_binary))
    if data.strip() and not files:
        raise PatchError("not a diff: no file header")
    return tuple(files)


def _end_of_hunk(lines: list[bytes], at: int) -> int:
    header = _HUNK.match(lines[at])
    old_left, new_left = (
        (1 if number is None else int(number) for number in header.groups()) if header else (1, 1)
    )
    while header and (old_left > 0 or new_left > 0):
        at += 1
        kind = lines[at][:1] if at < len(lines) else b"?"
        if kind not in b"\n\r +-\\":
            break
        old_left -= kind not in b"+\\"
        new_left -= kind not in b"-\\"
    if old_left or new_left:
        raise PatchError(f"patch line {at + 1}: no hunk, or not as many lines as its header says")
    at += 1
    return at + 1 if at < len(lines) and lines[at].startswith(b"\\ ") else at


def _names(header: bytes, fields: dict[bytes, bytes]) -> tuple[str | None, str | None]:
    """Old and new path of a section, None where the file is created or deleted."""
    for verb in (b"rename", b"copy"):
        if verb + b" from" in fields and verb + b" to" in fields:
            return _unquoted(fields[verb + b" from"]), _unquoted(fields[verb + b" to"])
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
        raise PatchError("both sides of a file are /dev/null")
    return None if created else _unquoted(old)[2:], None if deleted else _unquoted(new)[2:]


def _unquoted(name: bytes) -> str:
    """A path as git means it: C-quoting undone where the name stands in double quotes."""
    if quoted := _QUOTED.fullmatch(name):
        name = _ESCAPE.sub(_unescaped, quoted[1])
    if not name or name.startswith(b'"'):
        raise PatchError("a path that is empty, or a quoted one without its closing quote")
    return decode_path(name)


def _unescaped(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    return bytes([int(code, 8)]) if len(code) == 3 else bytes([_ESCAPED.get(code[0], code[0])])
