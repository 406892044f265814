"""A patch as changes to the base, and where two patches meet: files, line ranges, functions and classes.

A change is a run of removed and added lines without context; its place is the range of base lines that it replaces
(empty for an insertion). Places of two patches are compared in the base's line numbers, which both share.

Symbols are read from the patch alone, because the base repository is not on disk. A changed line belongs to the nearest
definition above it that is less indented; where the hunk does not show one, to the hunk's heading. Definitions are
recognised line by line; no file is parsed. What is found is usually right; what is not found proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from cooperbench.diff import FilePatch, PatchError, parse_diff

_HUNK = re.compile(r"@@ -(\d{1,10})(?:,(\d{1,10}))? \+\d{1,10}(?:,\d{1,10})? @@ ?(.*)")
_LONGEST_LINE = 400
"""Characters of a line that are looked at: definitions are shorter."""
_CODE = re.compile(r"\.(?:pyi?|[cm]?[jt]sx?|go|rs|java|kt|cs|c|cc|cpp|h|hpp|swift|scala|rb|php)$")
_NAME = r"([A-Za-z_$][\w$]{0,120})"
_MODIFIERS = "(?:public|private|protected|static|readonly|async|override|get|set)"
_KEYWORDS = (
    "(?:def|class|function *\\*?|interface|enum|namespace|fn|func|struct|trait|union|mod|type|macro_rules!)"
)
_DEFINITIONS = (
    # Go's methods, with the type of their receiver.
    re.compile(rf"func +\([^)]{{0,120}}?\*?([A-Za-z_]\w{{0,80}})(?:\[[^\]]{{0,80}}\])?\) *{_NAME} *[\[(]"),
    # Rust's impl, which belongs to the type.
    re.compile(
        r"(?:unsafe +)?impl(?:<[^{]{0,120}?>)? +(?:[\w:<>, '&]{1,120} for +)?(?:&'?\w* *)?(?:\w{1,60}::){0,6}"
        + _NAME
    ),
    re.compile(rf"(?:[\w\"]{{1,20}}(?:\([^)]{{0,40}}\))? +){{0,6}}{_KEYWORDS} +{_NAME}"),
    re.compile(
        rf"(?:export +)?(?:const|let|var) +{_NAME}[^=]{{0,160}}= *(?:async +)?(?:function\b|\(|{_NAME} *=>)"
    ),
    # A method has no keyword: parameters without texts in them, and a block at the end of the line.
    re.compile(
        rf"(?:{_MODIFIERS} +){{0,4}}\*?#?{_NAME} *(?:<[^>]{{0,80}}>)?\([^;'\"`]{{0,240}}\)(?: *:[^;]{{1,80}})? *\{{ *$"
    ),
)
_NO_METHODS = frozenset({"if", "for", "while", "switch", "catch", "function", "return", "with", "else", "do"})
Meeting = Literal["overlapping", "adjacent", "identical"]


@dataclass(frozen=True)
class Change:
    old_start: int
    """First base line that is replaced; for an insertion the one that it goes in front of."""
    old_end: int
    """The base line after the last one that is replaced."""
    removed: tuple[str, ...]
    added: tuple[str, ...]
    patch_line: int
    """Where it begins in the patch file, from 1."""

    def meets(self, other: Change) -> Meeting | None:
        """`overlapping`: they replace a common base line or insert at the same point; `adjacent`: one begins where the
        other ends, which git does not merge either; `identical`: the same change, e.g. shared over git."""
        if self.old_start > other.old_end or other.old_start > self.old_end:
            return None
        if (self.old_start, self.removed, self.added) == (other.old_start, other.removed, other.added):
            return "identical"
        common = min(self.old_end, other.old_end) - max(self.old_start, other.old_start)
        return "overlapping" if common or self.old_start == other.old_start else "adjacent"


@dataclass(frozen=True)
class Hunk:
    heading: str
    """What git found above the hunk: a function or class, as a rule."""
    old_start: int
    """The base line of its first line, from 1; for a hunk without base lines the one after which it goes."""
    lines: tuple[tuple[int, str], ...]
    """With the sign in front, each with its line of the patch file, from 1."""
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class ChangedFile:
    path: str
    """After the change; before it where the file is deleted."""
    old_path: str | None
    is_binary: bool
    patch_line: int
    """Where its section begins in the patch file, from 1."""
    hunks: tuple[Hunk, ...]

    @property
    def is_new(self) -> bool:
        return self.old_path is None

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(path for path in (self.path, self.old_path) if path is not None))

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        return tuple(change for hunk in self.hunks for change in hunk.changes)


@dataclass(frozen=True)
class Symbol:
    """A function, method, class or type with changed lines in it."""

    path: str
    name: str
    """With the class in front where the patch shows it: `Money.add`."""
    patch_line: int
    """The first changed line of it in the patch file, from 1."""


@dataclass(frozen=True)
class Work:
    agent_id: str
    files: tuple[ChangedFile, ...] = ()
    usable: bool = False
    """False: there is no patch, or it is no diff. Nothing can be said about it then."""

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(path for file in self.files for path in file.paths)

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        found: dict[tuple[str, str], Symbol] = {}
        for file in (file for file in self.files if _CODE.search(file.path)):
            for name, patch_line in (place for hunk in file.hunks for place in _symbols(hunk)):
                found.setdefault((file.path, name), Symbol(file.path, name, patch_line))
        return tuple(found.values())


@dataclass(frozen=True)
class SharedFile:
    """A file that both change, and how many of their changes meet in which way."""

    path: str
    conflicts: bool | None
    """By the plain git merge of the evaluation; None: not evaluated."""
    overlapping: int
    adjacent: int
    identical: int


@dataclass(frozen=True)
class Overlap:
    first: str
    second: str
    files: tuple[SharedFile, ...]
    file_share: float | None
    """Shared files over all files of the two (Jaccard); None where there are none."""
    symbols: tuple[Symbol, ...]
    """Touched by both in the same file, with the line of the first patch."""


def read_work(agent_id: str, patch: bytes | None) -> Work:
    """Take an agent's patch apart; one that cannot be read is marked, not an error."""
    if patch is None:
        return Work(agent_id)
    try:
        return Work(agent_id, tuple(map(_changed_file, parse_diff(patch))), usable=True)
    except PatchError:
        return Work(agent_id)


def overlap_of(first: Work, second: Work, conflicting: frozenset[str] | None) -> Overlap:
    """`conflicting`: the files in which the plain merge failed, None where that is not known."""
    by_path = {path: file for file in second.files for path in file.paths}
    files = []
    for ours in first.files:
        # A renamed file is compared under both of its names.
        theirs = next(filter(None, map(by_path.get, ours.paths)), None)
        if theirs is not None:
            conflicts = None if conflicting is None else bool(conflicting & {*ours.paths, *theirs.paths})
            kinds = [kind for _, kind in meetings(ours, theirs)]
            binary = ours.is_binary or theirs.is_binary
            counts = (kinds.count("overlapping") + binary, kinds.count("adjacent"), kinds.count("identical"))
            files.append(SharedFile(ours.path, conflicts, *counts))
    union = first.paths | second.paths
    share = len(first.paths & second.paths) / len(union) if union else None
    touched = {(symbol.path, symbol.name) for symbol in second.symbols}
    symbols = tuple(symbol for symbol in first.symbols if (symbol.path, symbol.name) in touched)
    return Overlap(first.agent_id, second.agent_id, tuple(files), share, symbols)


def meetings(first: ChangedFile, second: ChangedFile) -> Iterator[tuple[Change, Meeting]]:
    """Changes of the first that meet one of the second. Changes of one file are sorted by place: one walk over both."""
    ours, theirs = list(first.changes[::-1]), list(second.changes[::-1])
    while ours and theirs:
        one, other = ours[-1], theirs[-1]
        if kind := one.meets(other):
            yield one, kind
        ended = ours if (one.old_end, one.old_start) <= (other.old_end, other.old_start) else theirs
        ended.pop()


def _changed_file(section: FilePatch) -> ChangedFile:
    path = section.new_path if section.new_path is not None else section.old_path
    assert path is not None, "a section names a path"
    text = section.data.decode("utf-8", "surrogateescape").removesuffix("\n")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    # `parse_diff` has counted the lines of hunks: none in a body begins with `@@`.
    heads = [(at, head) for at, line in enumerate(lines) if (head := _HUNK.match(line))]
    ends = [at for at, _ in heads[1:]] + [len(lines)]
    hunks = []
    for (at, head), end in zip(heads, ends, strict=True):
        start, body = int(head[1]), tuple(enumerate(lines[at + 1 : end], section.patch_line + at + 1))
        hunks.append(Hunk(head[3].strip(), start, body, tuple(_changes(body, start + (head[2] == "0")))))
    return ChangedFile(path, section.old_path, section.is_binary, section.patch_line, tuple(hunks))


def _changes(lines: Sequence[tuple[int, str]], base_line: int) -> Iterator[Change]:
    together: list[tuple[int, str]] = []
    for place, line in (*lines, (0, " ")):
        if line.startswith(("+", "-")):
            together.append((place, line))
        elif not line.startswith("\\"):
            if together:
                removed, added = (tuple(one[1:] for _, one in together if one[0] == sign) for sign in "-+")
                start, base_line = base_line, base_line + len(removed)
                yield Change(start, base_line, removed, added, together[0][0])
                together = []
            base_line += 1


def _symbols(hunk: Hunk) -> Iterator[tuple[str, int]]:
    heading = _definition(hunk.heading)
    # Git's heading is the nearest line above that is not indented, so everything in the hunk may be inside.
    scopes = [(_indent(hunk.heading), heading)] if heading else []
    for place, line in hunk.lines:
        text = line[1:_LONGEST_LINE]
        if not text.strip() or line.startswith("\\"):
            continue
        indent = _indent(text)
        closes = text.lstrip()[0] in ")}]"
        while scopes and (scopes[-1][0] > indent or (scopes[-1][0] == indent and not closes)):
            scopes.pop()
        if name := _definition(text):
            scopes.append((indent, name))
        if line.startswith(("+", "-")) and scopes:
            yield ".".join(name for _, name in scopes[-3:]), place


def _indent(text: str) -> int:
    expanded = text.expandtabs(4)
    return len(expanded) - len(expanded.lstrip(" "))


def _definition(line: str) -> str | None:
    stripped = line[:_LONGEST_LINE].strip()
    for place, pattern in enumerate(_DEFINITIONS):
        found = pattern.match(stripped)
        if found is not None and found[1] not in _NO_METHODS:
            return f"{found[1]}.{found[2]}" if place == 0 else found[1]
    return None
