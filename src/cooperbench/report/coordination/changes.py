"""A patch as changes to the base: files, hunks, line ranges, and the functions and classes that it touches.

Built on `cooperbench.diff`, which decides what belongs to which file. A change is a run of removed and added lines
without context; its place is the range of base lines that it replaces (empty for an insertion).

Symbols are read from the patch alone, because the base repository is not on disk. A changed line belongs to the nearest
definition above it that is less indented; where the hunk does not show one, to the hunk's heading; where that is no
definition either, to none. Definitions are recognised line by line in Python, TypeScript, JavaScript, Go and Rust; no
file is parsed. What is found is usually right; what is not found proves nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from cooperbench.diff import PatchError, parse_diff

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cooperbench.diff import FilePatch

_HUNK = re.compile(r"@@ -(\d{1,10})(?:,(\d{1,10}))? \+\d{1,10}(?:,\d{1,10})? @@ ?(.*)")

_LONGEST_LINE = 400
"""Characters of a line that are looked at: definitions are shorter."""
_NAME = r"([A-Za-z_$][\w$]{0,120})"
_PYTHON = (rf"(?:async +)?def +{_NAME}", rf"class +{_NAME}")
_MODIFIERS = "(?:public|private|protected|static|readonly|async|override|get|set)"
_SCRIPT = (
    rf"(?:export +)?(?:default +)?(?:declare +)?(?:abstract +)?(?:async +)?function *\*? *{_NAME}",
    rf"(?:export +)?(?:default +)?(?:declare +)?(?:abstract +)?(?:class|interface|enum|namespace) +{_NAME}",
    rf"(?:export +)?(?:declare +)?type +{_NAME}[^=]{{0,80}}=",
    rf"(?:export +)?(?:const|let|var) +{_NAME}[^=]{{0,160}}= *(?:async +)?(?:function\b|\(|{_NAME} *=>)",
    # A method has no keyword: parameters without texts in them, and a block at the end of the line.
    rf"(?:{_MODIFIERS} +){{0,4}}\*?#?{_NAME} *(?:<[^>]{{0,80}}>)?\([^;'\"`]{{0,240}}\)(?: *:[^;]{{1,80}})? *\{{ *$",
)
_GO = (
    rf"func +(?:\([^)]{{0,120}}?\*?([A-Za-z_]\w{{0,80}})(?:\[[^\]]{{0,80}}\])?\) *)?{_NAME} *[\[(]",
    rf"type +{_NAME} ",
)
_RUST_VISIBLE = r"(?:pub(?:\([^)]{0,40}\))? +)?"
_RUST_PATH = r"(?:&'?\w* *)?(?:\w{1,60}::){0,6}"
_RUST = (
    rf"{_RUST_VISIBLE}(?:(?:default|const|async|unsafe|extern(?: +\"[^\"]{{0,20}}\")?) +){{0,4}}fn +{_NAME}",
    rf"{_RUST_VISIBLE}(?:unsafe +)?(?:struct|enum|trait|union|mod) +{_NAME}",
    rf"(?:unsafe +)?impl(?:<[^{{]{{0,120}}?>)? +(?:[\w:<>, '&]{{1,120}} for +)?{_RUST_PATH}{_NAME}",
    rf"macro_rules! +{_NAME}",
)
_INDENTED = re.compile(r"[ \t]*")
_LANGUAGES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("py", "pyi"), _PYTHON),
    **dict.fromkeys(("ts", "tsx", "js", "jsx", "mjs", "cjs", "mts", "cts"), _SCRIPT),
    "go": _GO,
    "rs": _RUST,
}
_PATTERNS = {ending: tuple(re.compile(pattern) for pattern in group) for ending, group in _LANGUAGES.items()}
_NO_METHODS = frozenset({"if", "for", "while", "switch", "catch", "function", "return", "with", "else", "do"})


@dataclass(frozen=True)
class HunkLine:
    """One line of a hunk."""

    kind: str
    """` `, `-` or `+`."""
    text: str
    patch_line: int
    """Its place in the patch file, from 1."""


@dataclass(frozen=True)
class Hunk:
    heading: str
    """What git found above the hunk: a function or class, as a rule."""
    old_start: int
    """The base line of its first line, from 1; for a hunk without base lines the one after which it goes."""
    old_count: int
    patch_line: int
    lines: tuple[HunkLine, ...]


@dataclass(frozen=True)
class Change:
    """Removed and added lines that stand together."""

    old_start: int
    """First base line that is replaced; for an insertion the one that it goes in front of."""
    old_end: int
    """The base line after the last one that is replaced."""
    removed: tuple[str, ...]
    added: tuple[str, ...]
    patch_line: int
    """Where it begins in the patch file, from 1."""


@dataclass(frozen=True)
class ChangedFile:
    path: str
    """After the change; before it where the file is deleted."""
    old_path: str | None
    is_new: bool
    is_binary: bool
    patch_line: int
    """Where its section begins in the patch file, from 1."""
    hunks: tuple[Hunk, ...]
    changes: tuple[Change, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(path for path in (self.path, self.old_path) if path is not None))

    @property
    def changed_lines(self) -> int:
        return sum(len(change.removed) + len(change.added) for change in self.changes)


@dataclass(frozen=True)
class Work:
    """What one agent handed in."""

    agent_id: str
    files: tuple[ChangedFile, ...]
    usable: bool
    """False: there is no patch, or it is no diff. Nothing can be said about it then."""

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(path for file in self.files for path in file.paths)

    @cached_property
    def symbols(self) -> tuple[TouchedSymbol, ...]:
        return touched_symbols(self.files)


def read_work(agent_id: str, patch: bytes | None) -> Work:
    """Take an agent's patch apart; one that cannot be read is marked, not an error."""
    if patch is None:
        return Work(agent_id, (), usable=False)
    try:
        diff = parse_diff(patch)
    except PatchError:
        return Work(agent_id, (), usable=False)
    files = []
    line = 1 + diff.preamble.count(b"\n")
    for section in diff.files:
        # A header alone changes nothing.
        if section.data.count(b"\n") > 1:
            files.append(_changed_file(section, line))
        line += section.data.count(b"\n") + section.trailer.count(b"\n")
    return Work(agent_id, tuple(files), usable=True)


def _changed_file(section: FilePatch, patch_line: int) -> ChangedFile:
    path = section.new_path if section.new_path is not None else section.old_path
    assert path is not None, "a section names a path"
    hunks = tuple(_hunks(section.data.decode("utf-8", "surrogateescape"), patch_line))
    changes = tuple(change for hunk in hunks for change in changes_of(hunk))
    is_new = section.old_path is None
    return ChangedFile(path, section.old_path, is_new, section.is_binary, patch_line, hunks, changes)


def _hunks(text: str, first_line: int) -> Iterator[Hunk]:
    """Of one file's section, whose hunks `parse_diff` has counted: a body line never begins with `@@`."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    heads = [(at, head) for at, line in enumerate(lines) if (head := _HUNK.match(line))]
    ends = [at for at, _ in heads[1:]] + [len(lines)]
    for (at, head), end in zip(heads, ends, strict=True):
        body = tuple(
            HunkLine(
                line[:1] if line[:1] in ("-", "+") else " ", line[1:].removesuffix("\r"), first_line + number
            )
            for number, line in enumerate(lines[at + 1 : end], at + 1)
            if not line.startswith("\\")
        )
        old_count = 1 if head[2] is None else int(head[2])
        yield Hunk(head[3].strip(), int(head[1]), old_count, first_line + at, body)


def changes_of(hunk: Hunk) -> Iterator[Change]:
    """The changes of a hunk, each with its place in the base."""
    base_line = hunk.old_start + (hunk.old_count == 0)
    removed: list[str] = []
    added: list[str] = []
    began = 0
    start = base_line
    for line in hunk.lines:
        if line.kind == " ":
            if began:
                yield Change(start, base_line, tuple(removed), tuple(added), began)
            removed, added, began = [], [], 0
            base_line += 1
            continue
        if not began:
            began, start = line.patch_line, base_line
        if line.kind == "-":
            removed.append(line.text)
            base_line += 1
        else:
            added.append(line.text)
    if began:
        yield Change(start, base_line, tuple(removed), tuple(added), began)


@dataclass(frozen=True)
class TouchedSymbol:
    """A function, method, class or type with changed lines in it."""

    path: str
    name: str
    """With the class in front where the patch shows it: `Money.add`."""
    is_added: bool
    """Its definition is a new line."""
    patch_line: int
    """The first changed line of it in the patch file, from 1."""


def touched_symbols(files: Iterable[ChangedFile]) -> tuple[TouchedSymbol, ...]:
    """In the order of the patch, each once per file."""
    found: dict[tuple[str, str], TouchedSymbol] = {}
    for file in files:
        patterns = _PATTERNS.get(file.path.rpartition(".")[2].lower())
        for hunk in file.hunks if patterns else ():
            for symbol in _of_hunk(file.path, hunk, patterns or ()):
                known = found.setdefault((symbol.path, symbol.name), symbol)
                if symbol.is_added and not known.is_added:
                    found[symbol.path, symbol.name] = TouchedSymbol(
                        known.path, known.name, is_added=True, patch_line=known.patch_line
                    )
    return tuple(found.values())


def _of_hunk(path: str, hunk: Hunk, patterns: tuple[re.Pattern[str], ...]) -> Iterator[TouchedSymbol]:
    heading = _definition(hunk.heading, patterns)
    # Git's heading is the nearest line above that is not indented, so everything in the hunk may be inside.
    scopes: list[tuple[int, str, bool]] = [(_indent(hunk.heading), heading, False)] if heading else []
    for line in hunk.lines:
        text = line.text[:_LONGEST_LINE]
        if not text.strip():
            continue
        indent = _indent(text)
        closes = text.lstrip()[0] in ")}]"
        while scopes and (scopes[-1][0] > indent or (scopes[-1][0] == indent and not closes)):
            scopes.pop()
        name = _definition(text, patterns)
        if name is not None:
            scopes.append((indent, name, line.kind == "+"))
        if line.kind == " " or not scopes:
            continue
        yield TouchedSymbol(
            path,
            ".".join(name for _, name, _ in scopes[-3:]),
            is_added=scopes[-1][2],
            patch_line=line.patch_line,
        )


def _indent(text: str) -> int:
    found = _INDENTED.match(text)
    return len((found[0] if found else "").expandtabs(4))


def _definition(line: str, patterns: tuple[re.Pattern[str], ...]) -> str | None:
    stripped = line[:_LONGEST_LINE].strip()
    for pattern in patterns:
        found = pattern.match(stripped)
        if found is None:
            continue
        names = [name for name in found.groups() if name]
        if names and names[0] not in _NO_METHODS:
            return ".".join(names) if patterns is _PATTERNS["go"] else names[0]
    return None
