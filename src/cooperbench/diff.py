"""A git diff taken apart into its files, for people who read about it: reports, pages, statistics.

Sections are found the way `git apply` finds them: a file header, then hunks of counted lines. A removed line `-- a/x`
or an added line `diff --git a/x b/x` inside a hunk is therefore never taken for a header. Text around the sections
(mail headers, signatures) belongs to none of them. What is judged is decided on git's trees, not here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cooperbench.errors import UserError


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
    """Exactly the bytes of this file's section."""
    patch_line: int
    """Where the section begins, from 1."""
    is_binary: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path that is touched: both of a rename or a copy, no path twice."""
        return tuple(dict.fromkeys(path for path in (self.old_path, self.new_path) if path is not None))


_HUNK = re.compile(rb"@@ -\d{1,10}(?:,(\d{1,10}))? \+\d{1,10}(?:,(\d{1,10}))? @@")
_BINARY_LINE = re.compile(rb"(?:literal|delta) \d+|[A-Za-z][0-9A-Za-z!#$%&()*+;<=>?@^_`{|}~-]{5,}|")
_HEADER = re.compile(
    rb"(---|\+\+\+|index|old mode|new mode|deleted file mode|new file mode|(?:copy|rename) (?:from|to)"
    rb"|(?:dis)?similarity index) (.*)"
)
_PREFIX = re.compile(r"[abciow]/")
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2}|.)", re.DOTALL)
_ESCAPED = dict(zip(b'abtnvfr"\\', b'\a\b\t\n\v\f\r"\\', strict=True))
_NO_FILE = "/dev/null"


def parse_diff(data: bytes) -> tuple[FilePatch, ...]:
    """The files of a diff; text without any is a PatchError unless it is blank."""
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    files = []
    at = 0
    while at < len(lines):
        if lines[at].startswith(b"diff --git ") or _is_plain_header(lines, at):
            end, names, is_binary = _read_section(lines, at)
            if names is not None:
                text = b"\n".join(lines[at:end]) + (
                    b"\n" if end < len(lines) or data.endswith(b"\n") else b""
                )
                files.append(FilePatch(*names, text, at + 1, is_binary))
            at = end
        elif _HUNK.match(lines[at]):
            raise _error(at, "a hunk without a file header before it")
        else:
            at += 1
    if data.strip() and not files:
        raise PatchError(f"patch line 1: not a diff: no file header in its {len(lines)} lines")
    return tuple(files)


def _error(at: int, reason: str) -> PatchError:
    return PatchError(f"patch line {at + 1}: {reason}")


def _is_plain_header(lines: list[bytes], at: int) -> bool:
    starts = (b"--- ", b"+++ ", b"@@ -")
    following = lines[at : at + 3]
    return len(following) == 3 and all(map(bytes.startswith, following, starts))


def _read_section(lines: list[bytes], start: int) -> tuple[int, tuple[str | None, str | None] | None, bool]:
    """The line after its end, its old and new path (None: a lone `diff --git` line), and whether it is binary."""
    is_git = lines[start].startswith(b"diff --git ")
    at = start + 1 if is_git else start
    fields: dict[bytes, bytes] = {}
    while at < len(lines) and (header := _HEADER.fullmatch(lines[at].rstrip(b"\r"))):
        fields[header[1]] = header[2]
        at += 1
    following = lines[at].rstrip(b"\r") if at < len(lines) else b""
    is_binary = following == b"GIT binary patch" or (
        following.startswith(b"Binary") and following.endswith(b" differ")
    )
    if not fields and not is_binary:
        return at, None, False
    names = _names(lines[start][11:].rstrip(b"\r") if is_git else b"", fields, start)
    if is_binary:
        at += 1
        while at < len(lines) and _BINARY_LINE.fullmatch(lines[at].rstrip(b"\r")):
            at += 1
        return at, names, True
    first_hunk = at
    while at < len(lines) and lines[at].startswith(b"@@ -"):
        at = _read_hunk(lines, at)
    if at == first_hunk and b"+++" in fields:
        raise _error(at - 1, "the diff ends before the hunks of this file")
    return at, names, False


def _read_hunk(lines: list[bytes], start: int) -> int:
    header = _HUNK.match(lines[start])
    if header is None:
        raise _error(start, "a hunk header that is not of the form @@ -1,2 +3,4 @@")
    old_left, new_left = (1 if number is None else int(number) for number in header.groups())
    at = start + 1
    while old_left > 0 or new_left > 0:
        if at == len(lines):
            raise _error(at - 1, f"the diff ends inside the hunk of line {start + 1}")
        kind = lines[at][:1]
        if kind not in (b"", b" ", b"\r", b"-", b"+", b"\\"):
            raise _error(at, f"the hunk of line {start + 1} is shorter than its header says")
        old_left -= kind not in (b"+", b"\\")
        new_left -= kind not in (b"-", b"\\")
        at += 1
    if old_left or new_left:
        raise _error(at - 1, f"the hunk of line {start + 1} does not have the lines that its header says")
    return at + 1 if at < len(lines) and lines[at].startswith(b"\\ ") else at


def _names(header: bytes, fields: dict[bytes, bytes], at: int) -> tuple[str | None, str | None]:
    """Old and new path of a section, None where the file is created or deleted."""
    for verb in (b"rename", b"copy"):
        if verb + b" from" in fields and verb + b" to" in fields:
            return _unquoted(fields[verb + b" from"], at), _unquoted(fields[verb + b" to"], at)
    if b"---" in fields and b"+++" in fields:
        old, new = _name(fields[b"---"], at), _name(fields[b"+++"], at)
        if old == new == _NO_FILE:
            raise _error(at, "both sides are /dev/null")
    else:
        old, new = _split_header(header, at)
    if all(_PREFIX.match(name) for name in (old, new) if name != _NO_FILE) and old != new:
        old, new = (name if name == _NO_FILE else name[2:] for name in (old, new))
    created = b"new file mode" in fields or old == _NO_FILE
    deleted = b"deleted file mode" in fields or new == _NO_FILE
    return None if created else old, None if deleted else new


def _split_header(header: bytes, at: int) -> tuple[str, str]:
    """The two names of a `diff --git` line: quoted, or of the same length."""
    quoted = _QUOTED.match(header)
    middle = quoted.end() if quoted else len(header) // 2
    if header[middle : middle + 1] != b" ":
        raise _error(at, "cannot tell the path from this file header")
    return _unquoted(header[:middle], at), _unquoted(header[middle + 1 :], at)


def _name(rest: bytes, at: int) -> str:
    """The name of a --- or +++ line: git puts a tab after it if it has spaces, diff a tab and the time."""
    quoted = _QUOTED.match(rest)
    return _unquoted(quoted[0] if quoted else rest.partition(b"\t")[0], at)


def _unquoted(name: bytes, at: int) -> str:
    """A path as git means it: C-quoting undone where the name stands in double quotes."""
    if quoted := _QUOTED.fullmatch(name):
        name = _ESCAPE.sub(_unescaped, quoted[1])
    if not name or name.startswith(b'"'):
        raise _error(at, "a path that is empty, or a quoted one without its closing quote")
    return name.decode("utf-8", "surrogateescape")


def _unescaped(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    return bytes([int(code, 8)]) if len(code) == 3 else bytes([_ESCAPED.get(code[0], code[0])])
