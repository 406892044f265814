"""Patches taken apart for reports: files, hunks and changes; the symbols that they change; where two patches meet.

Lines of hunks are counted, so none of them is ever taken for a header. Text around the files (mail headers, signatures)
belongs to none of them. Symbols are read from the patch alone, because the base repository is not on disk: a changed
line belongs to the nearest definition above it that is less indented, or to the hunk's heading. What is judged is
decided on git's trees, not here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from cooperbench.diff import HUNK
from cooperbench.git import decode_path

_MAX_LINE_LENGTH = 1_000
"""Characters of a line that are looked at."""
_CODE = re.compile(r"\.(?:pyi?|[cm]?[jt]sx?|go|rs|java|kt|cs|c|cc|cpp|h|hpp|swift|scala|rb|php)$")
_NAME = r"([A-Za-z_$][\w$]{0,120})"
_KEYWORD = r"(?:def|class|function *\*?|interface|enum|namespace|fn|func|struct|trait|union|mod|type|macro_rules!)"
_MODIFIER = "(?:public|private|protected|static|readonly|async|override|get|set)"
_NO_METHOD = r"(?!(?:if|for|while|switch|catch|function|return|with|else|do)\b)"
_PARAMS = r"\([^;'\"`]{0,240}\)(?: *:[^;]{1,80})?"
_DEFINITIONS = (
    # Go's methods, with the type of their receiver; Rust's impl, which belongs to the type.
    re.compile(
        rf"func +\([^)]{{0,120}}?\*?([A-Za-z_]\w{{0,80}})(?:\[[^\]]{{0,80}}\])?\) *{_NAME} *[\[(]"
    ),
    re.compile(
        rf"impl(?:<[^{{]{{0,120}}?>)? +(?:[\w:<>, '&]{{1,120}} for +)?(?:\w{{1,60}}::){{0,6}}{_NAME}"
    ),
    re.compile(rf"(?:[\w\"]{{1,20}}(?:\([^)]{{0,40}}\))? +){{0,6}}{_KEYWORD} +{_NAME}"),
    re.compile(
        rf"(?:export +)?(?:const|let|var) +{_NAME}[^=]{{0,160}}= *(?:async +)?(?:function\b|\(|\w{{1,80}} *=>)"
    ),
    # A method has no keyword, but a block at the end of the line.
    re.compile(
        rf"(?:{_MODIFIER} +){{0,4}}\*?#?{_NO_METHOD}{_NAME} *(?:<[^>]{{0,80}}>)?{_PARAMS} *\{{ *$"
    ),
)


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
        return tuple(
            dict.fromkeys(path for path in (self.new_path, self.old_path) if path is not None)
        )

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
    """The files of a diff; ValueError where it is none, or not a whole one. Blank text has no files."""
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
            raise ValueError("the diff ends before the hunks of this file")
        paths = _paths(lines[start].removeprefix(_START), fields)
        files.append(ChangedFile(*paths, start + 1, is_binary, tuple(hunks)))
    if data.strip() and not files:
        raise ValueError("no file header")
    return tuple(files)


def _hunk(lines: Sequence[bytes], start: int, header: re.Match[bytes]) -> Hunk:
    first, old_count, _, new_count = (
        1 if number is None else int(number) for number in header.groups()[:4]
    )
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
        raise ValueError("the hunk does not have the lines that its header says")
    heading, *body = (
        line.decode("utf-8", "surrogateescape").removesuffix("\r")
        for line in (header[5].strip(), *lines[start + 1 : end])
    )
    # A hunk without base lines names the one after which it goes.
    return Hunk(heading, first + (old_count == 0), tuple(body), start + 2)


def _paths(header: bytes, fields: dict[bytes, bytes]) -> tuple[str | None, str | None]:
    """Old and new path of a file, None where it is created or deleted."""
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
        raise ValueError("both sides are /dev/null")
    return None if created else _unquoted(old)[2:], None if deleted else _unquoted(new)[2:]


def _unquoted(name: bytes) -> str:
    """A path as git means it: C-quoting undone where the name stands in double quotes."""
    if quoted := _QUOTED.fullmatch(name):
        name = _ESCAPE.sub(_unescaped, quoted[1])
    if not name or name.startswith(b'"'):
        raise ValueError("a path that is empty, or a quoted one without its closing quote")
    return decode_path(name)


def _unescaped(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    return bytes([int(code, 8)]) if len(code) == 3 else bytes([_ESCAPED.get(code[0], code[0])])


@dataclass(frozen=True)
class ChangedLine:
    path: str
    patch_line: int
    """In the patch file, from 1."""
    text: str
    symbol: str
    """The function, method, class or type that it is in, with the class in front where the patch shows it
    (`Money.add`); empty where it shows none."""


@dataclass(frozen=True)
class Work:
    agent_id: str
    files: tuple[ChangedFile, ...] = ()
    usable: bool = False
    """False: there is no patch, or it is no diff. Nothing can be said about it then."""

    @cached_property
    def by_path(self) -> dict[str, ChangedFile]:
        """Renamed files under both of their names."""
        return {path: file for file in self.files for path in file.paths}

    @cached_property
    def lines(self) -> tuple[ChangedLine, ...]:
        return tuple(
            line for file in self.files for hunk in file.hunks for line in _lines(file.path, hunk)
        )

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Those that it changes, with their file: `src/money.py: Money.add`."""
        lines = (line for line in self.lines if line.symbol and _CODE.search(line.path))
        return tuple(dict.fromkeys(f"{line.path}: {line.symbol}" for line in lines))


@dataclass(frozen=True)
class Overlap:
    """What two agents both change."""

    first: str
    second: str
    files: dict[str, int]
    """With the number of changes of the first agent that meet one of the second."""
    symbols: tuple[str, ...]


def read_work(agent_id: str, patch: bytes | None) -> Work:
    """One that cannot be read is marked, not an error."""
    try:
        return Work(agent_id) if patch is None else Work(agent_id, parse_diff(patch), usable=True)
    except ValueError:
        return Work(agent_id)


def overlap_of(first: Work, second: Work) -> Overlap:
    files = {}
    for ours in first.files:
        theirs = next(filter(None, map(second.by_path.get, ours.paths)), None)
        if theirs is not None:
            files[ours.path] = len(set(meetings(ours, theirs))) + (
                ours.is_binary or theirs.is_binary
            )
    symbols = set(second.symbols)
    shared = tuple(symbol for symbol in first.symbols if symbol in symbols)
    return Overlap(first.agent_id, second.agent_id, files, shared)


def meetings(first: ChangedFile, second: ChangedFile) -> Iterator[Change]:
    """Changes of the first that meet one of the second. Changes of one file are sorted by place: one walk over both."""
    ours, theirs = first.changes[::-1], second.changes[::-1]
    while ours and theirs:
        one, other = ours[-1], theirs[-1]
        if one.meets(other):
            yield one
        ended = ours if (one.old_end, one.old_start) <= (other.old_end, other.old_start) else theirs
        ended.pop()


def _lines(path: str, hunk: Hunk) -> Iterator[ChangedLine]:
    # Git's heading is the nearest line above that is not indented, so everything in the hunk may be inside.
    scopes: list[tuple[int, str]] = []
    for place, line in enumerate((f" {hunk.heading}", *hunk.lines), hunk.patch_line - 1):
        text = line[1:_MAX_LINE_LENGTH]
        if not text.strip() or line.startswith("\\"):
            continue
        expanded = text.expandtabs(4)
        indent = len(expanded) - len(expanded.lstrip(" "))
        closes = text.lstrip()[0] in ")}]"
        while scopes and (scopes[-1][0] > indent or (scopes[-1][0] == indent and not closes)):
            scopes.pop()
        if name := _definition(text.strip()):
            scopes.append((indent, name))
        if line.startswith(("+", "-")):
            yield ChangedLine(path, place, text, ".".join(name for _, name in scopes[-3:]))


def _definition(line: str) -> str:
    """The name of what the line defines; empty where it is no definition."""
    found = next(filter(None, (pattern.match(line) for pattern in _DEFINITIONS)), None)
    return ".".join(found.groups()) if found else ""
