"""An agent's patch, and where two of them meet: files, changes, functions and classes.

Symbols are read from the patch alone, because the base repository is not on disk: a changed line belongs to the nearest
definition above it that is less indented, or to the hunk's heading. What is not found proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from cooperbench.report.parsed_diff import Change, ChangedFile, Hunk, PatchError, parse_diff

_LONGEST_LINE = 1_000
"""Characters of a line that are looked at."""
_CODE = re.compile(r"\.(?:pyi?|[cm]?[jt]sx?|go|rs|java|kt|cs|c|cc|cpp|h|hpp|swift|scala|rb|php)$")
_NAME = r"([A-Za-z_$][\w$]{0,120})"
_KEYWORD = (
    r"(?:def|class|function *\*?|interface|enum|namespace|fn|func|struct|trait|union|mod|type|macro_rules!)"
)
_MODIFIER = "(?:public|private|protected|static|readonly|async|override|get|set)"
_NO_METHOD = r"(?!(?:if|for|while|switch|catch|function|return|with|else|do)\b)"
_PARAMETERS = r"\([^;'\"`]{0,240}\)(?: *:[^;]{1,80})?"
_DEFINITIONS = (
    # Go's methods, with the type of their receiver; Rust's impl, which belongs to the type.
    re.compile(rf"func +\([^)]{{0,120}}?\*?([A-Za-z_]\w{{0,80}})(?:\[[^\]]{{0,80}}\])?\) *{_NAME} *[\[(]"),
    re.compile(rf"impl(?:<[^{{]{{0,120}}?>)? +(?:[\w:<>, '&]{{1,120}} for +)?(?:\w{{1,60}}::){{0,6}}{_NAME}"),
    re.compile(rf"(?:[\w\"]{{1,20}}(?:\([^)]{{0,40}}\))? +){{0,6}}{_KEYWORD} +{_NAME}"),
    re.compile(
        rf"(?:export +)?(?:const|let|var) +{_NAME}[^=]{{0,160}}= *(?:async +)?(?:function\b|\(|\w{{1,80}} *=>)"
    ),
    # A method has no keyword, but a block at the end of the line.
    re.compile(
        rf"(?:{_MODIFIER} +){{0,4}}\*?#?{_NO_METHOD}{_NAME} *(?:<[^>]{{0,80}}>)?{_PARAMETERS} *\{{ *$"
    ),
)


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
        return tuple(line for file in self.files for hunk in file.hunks for line in _lines(file.path, hunk))

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
    except PatchError:
        return Work(agent_id)


def overlap_of(first: Work, second: Work) -> Overlap:
    files = {}
    for ours in first.files:
        theirs = next(filter(None, map(second.by_path.get, ours.paths)), None)
        if theirs is not None:
            binary = ours.is_binary or theirs.is_binary
            files[ours.path] = len(set(meetings(ours, theirs))) + binary
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
        text = line[1:_LONGEST_LINE]
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
