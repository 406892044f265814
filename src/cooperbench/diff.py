"""A git diff taken apart into its files, without losing a byte.

Sections are found the way `git apply` finds them: a file header, then hunks of counted lines. A removed
line `-- a/x` or an added line `diff --git a/x b/x` inside a hunk is therefore never taken for a header. What
belongs to no file (mail headers, commit messages, the signature of format-patch) is kept where it stood.

Not for applying or merging: that is git's work. This module only says which bytes concern which paths.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from cooperbench.errors import UserError


class PatchError(UserError):
    """The text is not a diff, or not a whole one."""


@dataclass(frozen=True)
class FilePatch:
    """What a diff says about one file."""

    old_path: str | None
    """None: the file is created. Without `a/`, unquoted; bytes that are not UTF-8 are surrogate-escaped."""
    new_path: str | None
    """None: the file is deleted."""
    data: bytes
    """Exactly the bytes of this file's section."""
    trailer: bytes = b""
    """What follows the section and belongs to no file."""
    names: tuple[str, ...] = ()
    """The names as the header has them, prefixes included."""
    hunk_count: int = 0
    is_binary: bool = False
    is_rename: bool = False
    is_copy: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path that is touched: both of a rename or a copy, no path twice."""
        return tuple(dict.fromkeys(path for path in (self.old_path, self.new_path) if path is not None))

    @property
    def reachable_paths(self) -> tuple[str, ...]:
        """`paths`, and what else `git apply` may read in the names: it guesses how long prefixes are."""
        stripped = (name.partition("/")[2] for name in self.names)
        return tuple(dict.fromkeys((*self.paths, *filter(None, stripped), *self.names)))


@dataclass(frozen=True)
class Diff:
    """A whole diff. `render` gives back the bytes that it was parsed from."""

    preamble: bytes
    """Anything before the first file."""
    files: tuple[FilePatch, ...]


def parse_diff(data: bytes) -> Diff:
    """Take a diff apart; text without any file section is a PatchError unless it is blank."""
    lines: list[bytes] = _LINE.findall(data)
    sections: list[tuple[int, int, FilePatch]] = []
    at = 0
    while at < len(lines):
        section = _read_section(lines, at)
        if section is not None:
            end, patch = section
            sections.append((at, end, patch))
            at = end
        elif _HUNK.match(lines[at]):
            raise _error(at, "a hunk without a file header before it")
        else:
            at += 1
    if data.strip() and all(end - start == 1 for start, end, _ in sections):
        raise PatchError(f"patch line 1: not a diff: no file header in its {len(lines)} lines")
    starts = [start for start, _, _ in sections] + [len(lines)]
    files = (
        _located(patch, lines, start, end, next_start)
        for (start, end, patch), next_start in zip(sections, starts[1:], strict=True)
    )
    return Diff(b"".join(lines[: starts[0]]), tuple(files))


def render(diff: Diff) -> bytes:
    """The diff as bytes: for a parsed one, those that it was parsed from."""
    return diff.preamble + b"".join(patch.data + patch.trailer for patch in diff.files)


def paths_of(data: bytes) -> tuple[str, ...]:
    """All paths that a diff touches, in order, once."""
    return tuple(dict.fromkeys(path for patch in parse_diff(data).files for path in patch.paths))


def check_safe_paths(diff: Diff) -> None:
    """Refuse a diff that reaches outside of the repository or into its `.git`."""
    for patch in diff.files:
        for path in patch.reachable_paths:
            parts = path.split("/")
            if "\0" in path or {"", ".", ".."} & set(parts) or ".git" in (part.lower() for part in parts):
                raise PatchError(
                    f"patch touches {path!r}: only files inside the repository, outside .git, may change"
                )


# How a section is read

_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_HUNK = re.compile(rb"@@ -\d{1,10}(?:,(\d{1,10}))? \+\d{1,10}(?:,(\d{1,10}))? @@")
_BINARY_HUNK = re.compile(rb"(?:literal|delta) \d+\r?\n?")
_BASE85_LINE = re.compile(rb"[A-Za-z](?:[0-9A-Za-z!#$%&()*+;<=>?@^_`{|}~-]{5})+\r?\n?")
_TIMESTAMP = re.compile(rb" \d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?(?: [+-]\d{4})?$")
_HEADER_FIELDS = (
    *(b"--- ", b"+++ ", b"index ", b"old mode ", b"new mode ", b"deleted file mode ", b"new file mode "),
    *(b"copy from ", b"copy to ", b"rename from ", b"rename to ", b"rename old ", b"rename new "),
    *(b"similarity index ", b"dissimilarity index "),
)
# Git's own, and those of diff.mnemonicPrefix: commit, index, object, work tree.
_PREFIXES = frozenset({"a/", "b/", "c/", "i/", "o/", "w/"})
_NO_FILE = "/dev/null"
_LONGEST_HEADER = 16_384
"""Bytes of a `diff --git` line: two paths of 4 KiB, each byte quoted, hardly exceed it."""


class _Names(NamedTuple):
    old: str | None
    new: str | None
    written: tuple[str, ...]


def _error(at: int, reason: str) -> PatchError:
    return PatchError(f"patch line {at + 1}: {reason}")


def _located(patch: FilePatch, lines: list[bytes], start: int, end: int, next_start: int) -> FilePatch:
    values = {**vars(patch), "data": b"".join(lines[start:end]), "trailer": b"".join(lines[end:next_start])}
    return FilePatch(**values)


def _read_section(lines: list[bytes], at: int) -> tuple[int, FilePatch] | None:
    """The section that starts at a line, and the line after its end; None where none starts."""
    if lines[at].startswith(b"diff --git "):
        return _read_git_section(lines, at)
    if (
        lines[at].startswith(b"--- ")
        and at + 2 < len(lines)
        and lines[at + 1].startswith(b"+++ ")
        and lines[at + 2].startswith(b"@@ -")
    ):
        names = _plain_names(lines[at][4:], lines[at + 1][4:], at)
        end, hunk_count = _read_hunks(lines, at + 2)
        return end, FilePatch(names.old, names.new, b"", names=names.written, hunk_count=hunk_count)
    return None


def _read_git_section(lines: list[bytes], at: int) -> tuple[int, FilePatch] | None:
    fields: dict[bytes, bytes] = {}
    end = at + 1
    while end < len(lines):
        field = next((known for known in _HEADER_FIELDS if lines[end].startswith(known)), None)
        if field is None:
            break
        if field in fields:
            raise _error(end, f"a second {field.decode().strip()!r} in one file header")
        fields[field] = lines[end][len(field) :]
        end += 1
    following = lines[end] if end < len(lines) else b""
    is_binary = following.rstrip(b"\r\n") == b"GIT binary patch"
    says_differ = following.startswith((b"Binary files ", b"Files ")) and following.rstrip().endswith(
        b" differ"
    )
    if not fields and not says_differ:
        return _read_lone_header(lines[at], at)
    names = _git_names(lines[at][11:], fields, at)
    hunk_count = 0
    if is_binary:
        end = _read_binary(lines, end)
    elif says_differ:
        end += 1
    else:
        end, hunk_count = _read_hunks(lines, end)
        if not hunk_count and (b"--- " in fields or b"+++ " in fields):
            raise _error(end - 1, "the diff ends before the hunks of this file")
    return end, FilePatch(
        names.old,
        names.new,
        b"",
        names=names.written,
        hunk_count=hunk_count,
        is_binary=is_binary or says_differ,
        is_rename=b"rename to " in fields or b"rename new " in fields,
        is_copy=b"copy to " in fields,
    )


def _read_lone_header(header: bytes, at: int) -> tuple[int, FilePatch] | None:
    """A section of one line, where it names a file; else it is text.

    To git it is text in any case, except that git remembers the name, and applies a later section that has no
    --- and +++ lines to it. Whoever looks for changes of a file must see it.
    """
    pair = _split_header(header[11:].rstrip(b"\r\n"))
    if pair is None or not _same_file(*pair):
        return None
    old, new = _without_prefixes(*pair)
    return at + 1, FilePatch(old, new, b"", names=pair)


def _read_hunks(lines: list[bytes], at: int) -> tuple[int, int]:
    count = 0
    while at < len(lines) and lines[at].startswith(b"@@ -"):
        at = _read_hunk(lines, at)
        count += 1
    return at, count


def _read_hunk(lines: list[bytes], start: int) -> int:
    header = _HUNK.match(lines[start])
    if header is None:
        raise _error(start, "a hunk header that is not of the form @@ -1,2 +3,4 @@")
    old_left, new_left = (1 if number is None else int(number) for number in header.groups())
    at = start + 1
    while old_left or new_left:
        if at == len(lines):
            raise _error(at - 1, f"the diff ends inside the hunk of line {start + 1}")
        kind = lines[at][:1]
        if kind in b" \n" or lines[at] == b"\r\n":
            old_left, new_left = old_left - 1, new_left - 1
        elif kind == b"-":
            old_left -= 1
        elif kind == b"+":
            new_left -= 1
        elif not lines[at].startswith(b"\\ "):
            raise _error(at, f"the hunk of line {start + 1} is shorter than its header says")
        if old_left < 0 or new_left < 0:
            raise _error(at, f"the hunk of line {start + 1} does not have the lines that its header says")
        at += 1
    if at < len(lines) and lines[at].startswith(b"\\ "):
        at += 1
    return at


def _read_binary(lines: list[bytes], start: int) -> int:
    """The new content and, as git writes it, the old one too; each ends with an empty line."""
    at = start + 1
    for _ in range(2):
        if at == len(lines) or not _BINARY_HUNK.fullmatch(lines[at]):
            break
        at += 1
        while at < len(lines) and _BASE85_LINE.fullmatch(lines[at]):
            at += 1
        if at == len(lines) or lines[at].strip(b"\r\n"):
            raise _error(
                min(at, len(lines) - 1), f"the binary patch of line {start + 1} is cut off or damaged"
            )
        at += 1
    if at == start + 1:
        raise _error(start, "a binary patch without content")
    return at


# Which paths a header names


def _git_names(header: bytes, fields: dict[bytes, bytes], at: int) -> _Names:
    """Old and new path of a `diff --git` section; header lines at odds with each other are a PatchError."""
    pair = _split_header(header.rstrip(b"\r\n"))
    old_line, new_line = (
        _name(fields[field], at) if field in fields else None for field in (b"--- ", b"+++ ")
    )
    moved_from = next(
        (fields[key] for key in (b"rename from ", b"rename old ", b"copy from ") if key in fields), None
    )
    moved_to = next(
        (fields[key] for key in (b"rename to ", b"rename new ", b"copy to ") if key in fields), None
    )
    if moved_from is not None and moved_to is not None:
        old, new = _unquoted(moved_from.rstrip(b"\r\n"), at), _unquoted(moved_to.rstrip(b"\r\n"), at)
    elif moved_from is not None or moved_to is not None:
        raise _error(at, "a rename or copy with only one of its two paths")
    elif pair is not None and _same_file(*pair):
        old, new = _without_prefixes(*pair)
    elif old_line is not None and new_line is not None and (old_line, new_line) != (_NO_FILE, _NO_FILE):
        old, new = _without_prefixes(old_line, new_line)
        old, new = new if old == _NO_FILE else old, old if new == _NO_FILE else new
    elif pair is not None:
        old, new = _without_prefixes(*pair)
    else:
        raise _error(at, "cannot tell the path from this file header")
    named = [(line, path) for line, path in ((old_line, old), (new_line, new)) if line and line != _NO_FILE]
    for line, path in named:
        if path not in (line, line.partition("/")[2]):
            raise _error(at, f"the header is about {path!r}, but its --- and +++ lines name {line!r}")
    created = b"new file mode " in fields or old_line == _NO_FILE
    deleted = b"deleted file mode " in fields or new_line == _NO_FILE
    if created and deleted:
        raise _error(at, f"{new!r} is created and deleted at once")
    written = (*(pair or ()), *(line for line, _ in named))
    return _Names(None if created else old, None if deleted else new, written)


def _plain_names(old_line: bytes, new_line: bytes, at: int) -> _Names:
    """Paths of a section that has only its --- and +++ lines, with timestamps or without."""
    old, new = _name(old_line, at), _name(new_line, at)
    if old == new == _NO_FILE:
        raise _error(at, "both sides are /dev/null")
    bare_old, bare_new = _without_prefixes(old, new)
    written = tuple(name for name in (old, new) if name != _NO_FILE)
    return _Names(None if old == _NO_FILE else bare_old, None if new == _NO_FILE else bare_new, written)


def _name(rest: bytes, at: int) -> str:
    """The name of a --- or +++ line: git puts a tab after it if it has spaces, diff a tab and the time."""
    rest = rest.rstrip(b"\r\n")
    quoted = _QUOTED.match(rest)
    return _unquoted(quoted[0] if quoted else _TIMESTAMP.sub(b"", rest.partition(b"\t")[0]), at)


def _without_prefixes(old: str, new: str) -> tuple[str, str]:
    """Both names without `a/` and `b/`. First folders that are equal are no prefixes but part of the path."""
    if old != new and _same_file(old, new):
        return old.partition("/")[2], new.partition("/")[2]
    firsts = [name[:2] for name in (old, new) if name != _NO_FILE]
    if not _PREFIXES.issuperset(firsts) or len(set(firsts)) < len(firsts):
        return old, new
    return (old if old == _NO_FILE else old[2:]), (new if new == _NO_FILE else new[2:])


def _same_file(old: str, new: str) -> bool:
    return old == new or ("/" in old and "/" in new and old.partition("/")[2] == new.partition("/")[2])


def _split_header(rest: bytes) -> tuple[str, str] | None:
    """The two names of a `diff --git` line; None where spaces in them leave it open."""
    if len(rest) > _LONGEST_HEADER:
        return None
    if rest.startswith(b'"'):
        first = _QUOTED.match(rest)
        if first is None or rest[first.end() : first.end() + 1] != b" ":
            return None
        return _plain_or_quoted(rest[: first.end()], rest[first.end() + 1 :])
    if rest.endswith(b'"'):
        left, quote, right = rest.partition(b' "')
        return _plain_or_quoted(left, quote[1:] + right)
    for space in (match.start() for match in re.finditer(b" ", rest)):
        # The lengths are compared first: slicing at each space of a hostile line would take quadratic time.
        right_slash = rest.find(b"/", space)
        tails_fit = len(rest) - right_slash == space - rest.find(b"/")
        if (tails_fit and right_slash > 0) or 2 * space + 1 == len(rest):
            old, new = rest[:space].decode(*_UTF8), rest[space + 1 :].decode(*_UTF8)
            if _same_file(old, new):
                return old, new
    if rest.startswith(b"a/") and rest.count(b" b/") == 1:
        left, _, right = rest.partition(b" b/")
        return left.decode(*_UTF8), "b/" + right.decode(*_UTF8)
    return None


def _plain_or_quoted(old: bytes, new: bytes) -> tuple[str, str] | None:
    try:
        return _unquoted(old, 0), _unquoted(new, 0)
    except PatchError:
        return None


_UTF8 = ("utf-8", "surrogateescape")
_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"')
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2}|.)", re.DOTALL)
_ESCAPED = dict(zip(b'abtnvfr"\\', b'\a\b\t\n\v\f\r"\\', strict=True))


def _unquoted(name: bytes, at: int) -> str:
    """A path as git means it: C-quoting undone where the name stands in double quotes."""
    if name.startswith(b'"'):
        if not _QUOTED.fullmatch(name):
            raise _error(at, "a quoted path without its closing quote")
        name = _ESCAPE.sub(lambda match: _unescaped(match[1], at), name[1:-1])
    if not name:
        raise _error(at, "an empty path")
    return name.decode(*_UTF8)


def _unescaped(escape: bytes, at: int) -> bytes:
    if len(escape) == 3:
        return bytes([int(escape, 8)])
    if escape[0] not in _ESCAPED:
        raise _error(at, f"an unknown escape \\{escape.decode('latin-1')} in a quoted path")
    return bytes([_ESCAPED[escape[0]]])
