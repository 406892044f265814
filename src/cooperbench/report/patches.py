"""The patches of agents: which symbols they change, and where two patches meet.

Symbols are read from the patch alone, because the base repository is not on disk: a changed line
belongs to the nearest definition above it that is less indented, or to the hunk's heading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from cooperbench.diff import Change, ChangedFile, Hunk, parse_diff

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
    symbol: str
    """Function, method, class or type that it is in, with the class in front where the patch shows
    it (`Money.add`); empty where the patch shows none."""


@dataclass(frozen=True)
class AgentPatch:
    """The patch of one agent."""

    agent_id: str
    files: tuple[ChangedFile, ...] = ()
    is_readable: bool = False
    """False if there is no patch, or if it is not a diff. Nothing is known about it then."""

    @cached_property
    def by_path(self) -> dict[str, ChangedFile]:
        """The files by path; renamed files under both of their paths."""
        files = {}
        for file in self.files:
            for path in file.paths:
                files[path] = file
        return files

    @cached_property
    def lines(self) -> tuple[ChangedLine, ...]:
        """All changed lines, in the order of the patch."""
        lines: list[ChangedLine] = []
        for file in self.files:
            for hunk in file.hunks:
                lines += _changed_lines(file.path, hunk)
        return tuple(lines)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The symbols that it changes, with their files: `src/money.py: Money.add`."""
        lines = [line for line in self.lines if line.symbol and _CODE_FILE.search(line.path)]
        return tuple(dict.fromkeys(f"{line.path}: {line.symbol}" for line in lines))


@dataclass(frozen=True)
class Overlap:
    """Files and symbols that two agents both change."""

    first: str
    second: str
    files: dict[str, int]
    """Number of changes of the first agent that meet one of the second, by path."""
    symbols: tuple[str, ...]


def read_agent_patch(agent_id: str, patch: bytes | None) -> AgentPatch:
    """Parse the patch of an agent. A patch that cannot be read is marked as such."""
    if patch is None:
        return AgentPatch(agent_id)
    try:
        return AgentPatch(agent_id, parse_diff(patch), is_readable=True)
    except ValueError:
        return AgentPatch(agent_id)


def find_overlap(first: AgentPatch, second: AgentPatch) -> Overlap:
    """Return what two patches both change."""
    files = {}
    for file in first.files:
        other = _same_file(file, second)
        if other is None:
            continue
        overlapping = len(set(meeting_changes(file, other)))
        if file.is_binary or other.is_binary:
            overlapping += 1
        files[file.path] = overlapping
    other_symbols = set(second.symbols)
    shared_symbols = tuple(symbol for symbol in first.symbols if symbol in other_symbols)
    return Overlap(first.agent_id, second.agent_id, files, shared_symbols)


def _same_file(file: ChangedFile, patch: AgentPatch) -> ChangedFile | None:
    for path in file.paths:
        if path in patch.by_path:
            return patch.by_path[path]
    return None


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


def _changed_lines(path: str, hunk: Hunk) -> Iterator[ChangedLine]:
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
        if name := _defined_name(text.strip()):
            scopes.append((indent, name))
        if line.startswith(("+", "-")):
            symbol = ".".join(name for _, name in scopes[-_MAX_SCOPES:])
            yield ChangedLine(path, patch_line, text, symbol)


def _indentation(text: str) -> int:
    expanded = text.expandtabs(4)
    return len(expanded) - len(expanded.lstrip(" "))


def _leaves_scope(scope_indent: int, indent: int, is_closing: bool) -> bool:
    """Whether a line is outside of a definition. A closing bracket still belongs to it."""
    if scope_indent == indent:
        return not is_closing
    return scope_indent > indent


def _defined_name(line: str) -> str:
    """Return the name of what a line defines; empty if it defines nothing."""
    for pattern in _DEFINITIONS:
        if definition := pattern.match(line):
            return ".".join(definition.groups())
    return ""
