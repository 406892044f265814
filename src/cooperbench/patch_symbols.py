"""Symbols that a patch changes, and where the changes of two patches meet.

Symbols are read from the patch alone, because the base repository need not be on disk: a changed
line belongs to the nearest definition above it that is less indented, or to the hunk's heading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cooperbench.diff import Change, ChangedFile, Hunk

_MAX_LINE_CHARACTERS = 1_000
"""Longer lines are searched up to here."""
_MAX_SCOPES = 3
"""Enclosing definitions that are part of a symbol."""
_CODE_FILE = re.compile(
    r"\.(?:pyi?|[cm]?[jt]sx?|go|rs|java|kt|cs|c|cc|cpp|h|hpp|swift|scala|rb|php)$"
)
_NAME = r"([A-Za-z_$][\w$]{0,120})"
_GO_METHOD = re.compile(
    rf"""
    func\ +
    \([^)]{{0,120}}?\*?([A-Za-z_]\w{{0,80}})    # the type of the receiver
    (?:\[[^\]]{{0,80}}\])?\)                    # type parameters
    \ *{_NAME}\ *[\[(]
    """,
    re.VERBOSE,
)
_RUST_IMPL = re.compile(
    rf"""
    impl(?:<[^{{]{{0,120}}?>)?\ +
    (?:[\w:<>,\ '&]{{1,120}}\ for\ +)?          # the trait
    (?:\w{{1,60}}::){{0,6}}{_NAME}              # the type
    """,
    re.VERBOSE,
)
_KEYWORD_DEFINITION = re.compile(
    rf"""
    (?:[\w"]{{1,20}}(?:\([^)]{{0,40}}\))?\ +){{0,6}}    # modifiers: export, async, pub(crate), …
    (?:def|class|function\ *\*?|interface|enum|namespace|fn|func|struct|trait|union|mod|type
      |macro_rules!)
    \ +{_NAME}
    """,
    re.VERBOSE,
)
_FUNCTION_VARIABLE = re.compile(
    rf"""
    (?:export\ +)?(?:const|let|var)\ +{_NAME}
    [^=]{{0,160}}=\ *
    (?:async\ +)?(?:function\b|\(|\w{{1,80}}\ *=>)
    """,
    re.VERBOSE,
)
_METHOD = re.compile(
    rf"""
    (?:(?:public|private|protected|static|readonly|async|override|get|set)\ +){{0,4}}
    \*?\#?
    (?!(?:if|for|while|switch|catch|function|return|with|else|do)\b)
    {_NAME}\ *
    (?:<[^>]{{0,80}}>)?                         # type parameters
    \([^;'"`]{{0,240}}\)                        # parameters
    (?:\ *:[^;]{{1,80}})?                       # type of the result
    \ *\{{\ *$                                  # no keyword, but a block at the end of the line
    """,
    re.VERBOSE,
)
_DEFINITIONS = (_GO_METHOD, _RUST_IMPL, _KEYWORD_DEFINITION, _FUNCTION_VARIABLE, _METHOD)


@dataclass(frozen=True)
class ChangedLine:
    """An added or removed line."""

    path: str
    patch_line: int
    """Line of the patch file, from 1."""
    text: str
    is_added: bool
    symbol: str
    """Function, method, class or type that it is in, with the class in front where the patch shows
    it (`Money.add`); empty where the patch shows none."""


def changed_lines(files: Sequence[ChangedFile]) -> tuple[ChangedLine, ...]:
    """Return all changed lines of a patch, in its order."""
    lines: list[ChangedLine] = []
    for file in files:
        for hunk in file.hunks:
            lines += _hunk_lines(file.path, hunk)
    return tuple(lines)


def changed_symbols(lines: Sequence[ChangedLine]) -> tuple[str, ...]:
    """Return the symbols of these lines, with their files: `src/money.py: Money.add`."""
    symbols = [line for line in lines if line.symbol and _CODE_FILE.search(line.path)]
    return tuple(dict.fromkeys(f"{line.path}: {line.symbol}" for line in symbols))


def meeting_changes(first: ChangedFile, second: ChangedFile) -> Iterator[Change]:
    """Yield the changes of the first file that meet one of the second; a change may come twice.

    Changes of a file are sorted by position, so one walk over both lists is enough.
    """
    first_index = second_index = 0
    while first_index < len(first.changes) and second_index < len(second.changes):
        change = first.changes[first_index]
        other = second.changes[second_index]
        if change.meets(other):
            yield change
        if (change.old_end, change.old_start) <= (other.old_end, other.old_start):
            first_index += 1
        else:
            second_index += 1


def _hunk_lines(path: str, hunk: Hunk) -> Iterator[ChangedLine]:
    """Yield the changed lines of a hunk with the symbols that they are in."""
    # Enclosing definitions with their indentation. Git's heading is the nearest line above that is
    # not indented, so everything in the hunk may be inside of it.
    scopes: list[tuple[int, str]] = []
    lines = (f" {hunk.heading}", *hunk.lines)
    for patch_line, line in enumerate(lines, hunk.patch_line - 1):
        text = line[1:_MAX_LINE_CHARACTERS]
        if not text.strip() or line.startswith("\\"):
            continue
        indent = _indentation(text)
        is_closing = text.lstrip()[0] in ")}]"
        while scopes and _leaves_scope(scopes[-1][0], indent, is_closing):
            scopes.pop()
        if name := defined_name(text.strip()):
            scopes.append((indent, name))
        if line.startswith(("+", "-")):
            symbol = ".".join(name for _, name in scopes[-_MAX_SCOPES:])
            yield ChangedLine(path, patch_line, text, line.startswith("+"), symbol)


def _indentation(text: str) -> int:
    expanded = text.expandtabs(4)
    return len(expanded) - len(expanded.lstrip(" "))


def _leaves_scope(scope_indent: int, indent: int, is_closing: bool) -> bool:
    """Whether a line is outside of a definition. A closing bracket still belongs to it."""
    if scope_indent == indent:
        return not is_closing
    return scope_indent > indent


def defined_name(line: str) -> str:
    """Return the name of what a line defines; empty if it defines nothing."""
    for pattern in _DEFINITIONS:
        if definition := pattern.match(line):
            return ".".join(definition.groups())
    return ""
