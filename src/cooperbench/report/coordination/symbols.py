"""Which functions and classes a patch touches, read from the patch alone, with a light hand.

The base repository is not on disk, so a hunk shows only what git put above it and what stands in its lines. A changed
line belongs to the nearest definition above it that is less indented; where the hunk does not show one, to the hunk's
heading, and where that is no definition either, to none. Definitions are recognised line by line in Python, TypeScript,
JavaScript, Go and Rust; no file is parsed. What is found is right as a rule, what is not found proves nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cooperbench.report.coordination.changes import ChangedFile, Hunk

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
class TouchedSymbol:
    """A function, method, class or type with changed lines in it."""

    path: str
    name: str
    """With the class in front where the patch shows it: `Money.add`."""
    is_added: bool
    """Its definition is a new line."""
    patch_line: int
    """The first changed line of it in the patch file, from 1."""

    @property
    def last_name(self) -> str:
        return self.name.rpartition(".")[2]


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


def definition(line: str, path: str) -> str | None:
    """The name that a line of a file defines; None where it defines none."""
    return _definition(line, _PATTERNS.get(path.rpartition(".")[2].lower(), ()))


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
