"""Files, functions and lines that messages name, and the patches that touch them.

A name is recognized by its form, in whatever language the message is written;
docs/coordination.md lists the forms. The intention of the sender (a promise, a question) is not
guessed. Every scan takes linear time, however hostile the text is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from cooperbench.diff import ChangedFile
from cooperbench.report.pairs import SentMessage
from cooperbench.report.patches import AgentPatch

MAX_CHARACTERS = 64_000
"""Longer messages are read up to here."""
MAX_NAMES = 200
"""Names that are taken from one message."""
_MAX_LINE_CHARACTERS = 2_000
_FILE_SUFFIXES = "|".join(
    (
        "py|pyi|pyx|ts|tsx|js|jsx|mjs|cjs|mts|cts|go|rs|c|h|cc|cpp|hpp|java|kt|rb|php|cs|swift",
        "scala|sh|bash|toml|cfg|ini|json|yaml|yml|lock|md|rst|txt|sql|html|css|scss|proto|xml",
        "tmpl|j2|snap|mod|sum",
    )
)
_IDENTIFIER = r"[A-Za-z_$][\w$]{0,80}"
_NAME = re.compile(
    rf"""
    `(?P<ticked>[^`\s]{{1,160}})`
    | (?<![\w./@$-])
      (?:
        (?P<file>
          (?:\.{{0,2}}/)?(?:[\w@+-]{{1,80}}[./]){{1,24}}(?:{_FILE_SUFFIXES})(?![\w/])
        )
      | # `parse(text)`, `Wallet.split()`; not the plural `message(s)`
        (?P<called>{_IDENTIFIER}(?:(?:\.|::|\#){_IDENTIFIER}){{0,6}})
        \((?!e?s\))[^()\s]{{0,80}}\)
      | (?P<snake>
          (?:[A-Za-z]\w{{0,60}}\.)?
          _{{0,2}}[A-Za-z0-9]{{1,40}}(?:_[A-Za-z0-9]{{1,40}}){{1,8}}_{{0,2}}
        )(?![\w/-]|\.\w)
      | (?P<member>
          [A-Z][A-Za-z0-9]{{1,60}}\.[a-z_]\w{{1,60}}
        | [A-Za-z]\w{{0,60}}(?:::[A-Za-z_]\w{{0,60}}){{1,6}}
        )(?![\w/(-]|\.\w)
      | (?P<camel>[A-Za-z]{{0,20}}[a-z0-9][A-Z][A-Za-z0-9]{{1,60}})(?![\w/(-]|\.\w)
      )
    """,
    # ASCII: in Chinese or Japanese no space separates a name from the text around it.
    re.ASCII | re.VERBOSE,
)
_PRODUCTS = frozenset({"node.js", "next.js", "vue.js", "react.js", "express.js"})
"""Names of products that look like files."""
_KEYWORDS = frozenset({"self", "this", "none", "null", "true", "false", "return", "import"})
_ATTACHED_LINES = re.compile(r"[:#]L?(\d{1,6})(?:-L?(\d{1,6}))?")
_FOLLOWING_LINES = re.compile(
    r"""
    \W{0,4}
    (?:[^\W\d]{1,12}\W{0,2})?                   # "lines", in any language
    (\d{1,6})\s?[-–]\s?(\d{1,6})
    (?!\d|\s?[-–])
    """,
    re.VERBOSE,
)
_IDENTIFIERS_IN_CODE = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)
_REPOSITORY_PREFIX = "/workspace/repo/"


class Name(NamedTuple):
    """Something in the repository that a message names."""

    kind: Literal["file", "symbol", "lines"]
    name: str
    lines: tuple[int, int] | None = None
    """First and last line, in the line numbers of the base."""
    certain: bool = True
    """False if it may be an ordinary word: it counts only if a patch touches it."""


@dataclass(frozen=True)
class Touch:
    """A line of a patch that touches what was named."""

    agent_id: str
    path: str
    patch_line: int
    """Line of the patch file, from 1."""


@dataclass(frozen=True)
class Mention:
    """Something that an agent named, once for all its messages, and the patches that touch it."""

    sender: str
    messages: tuple[int, ...]
    kind: str
    name: str
    """A path, a symbol, or a path with lines: `a.py:12-30`."""
    touched_by_sender: bool
    touched_by_other: bool
    touches: tuple[Touch, ...]
    """The evidence, one for each patch that touches it."""


class _SearchablePatch(NamedTuple):
    """A patch, and where it touches the identifiers that messages name."""

    patch: AgentPatch
    identifiers: Mapping[str, Touch]


def find_mentions(
    messages: Sequence[SentMessage], patches: Sequence[AgentPatch]
) -> tuple[Mention, ...]:
    """Return what the messages name, and which of these patches touch it."""
    paths = _paths_by_suffix(patches)
    named: dict[tuple[str, Name], list[int]] = {}
    for message in messages:
        for name in dict.fromkeys(find_names(message.text, paths)):
            named.setdefault((message.sender, name), []).append(message.sequence)
    identifiers = _named_identifiers(name for _, name in named)
    searchable = [
        _SearchablePatch(patch, _touched_identifiers(patch, identifiers)) for patch in patches
    ]
    mentions = []
    for (sender, name), numbers in named.items():
        candidates = paths.get(name.name, set()) if name.kind != "symbol" else set()
        if len(candidates) > 1:
            # A short file name may fit several changed files.
            continue
        touches = _find_touches(name, candidates, searchable)
        if name.certain or touches:
            mentions.append(_make_mention(sender, name, numbers, touches))
    return tuple(mentions)


def _make_mention(
    sender: str, name: Name, numbers: Sequence[int], touches: tuple[Touch, ...]
) -> Mention:
    text = name.name
    if name.lines is not None:
        first, last = name.lines
        text = f"{name.name}:{first}-{last}"
    agents = {touch.agent_id for touch in touches}
    return Mention(
        sender=sender,
        messages=tuple(numbers),
        kind=name.kind,
        name=text,
        touched_by_sender=sender in agents,
        touched_by_other=bool(agents - {sender}),
        touches=touches,
    )


def prose_lines(message: str) -> Iterator[str]:
    """Yield the lines of a message outside of fenced code and quotations."""
    in_fence = False
    for line in message[:MAX_CHARACTERS].split("\n"):
        if line.lstrip().startswith(("```", "~~~")):
            in_fence = not in_fence
        elif not in_fence and not line.lstrip().startswith(">"):
            yield line


def find_names(message: str, paths: Collection[str]) -> list[Name]:
    """Return the names in a message in order, at most `MAX_NAMES`.

    Args:
        message: The text of the message.
        paths: The files that patches change, by every suffix of their paths.
    """
    names: list[Name] = []
    for line in prose_lines(message):
        text = line[:_MAX_LINE_CHARACTERS]
        for token in _NAME.finditer(text):
            name = _read_name(token, paths)
            if name is None:
                continue
            names.append(name)
            lines = _read_lines(text, token) if name.kind == "file" else None
            if lines is not None:
                names.append(Name("lines", name.name, lines))
        if len(names) >= MAX_NAMES:
            break
    return names[:MAX_NAMES]


def _read_name(token: re.Match[str], paths: Collection[str]) -> Name | None:
    form = token.lastgroup or ""
    text = token[form]
    if form == "ticked" and text not in paths:
        return _read_ticked(text, paths)
    if form in ("ticked", "file"):
        return None if text.lower() in _PRODUCTS else Name("file", _normalize(text))
    return Name("symbol", _normalize(text), certain=form != "camel")


def _read_ticked(text: str, paths: Collection[str]) -> Name | None:
    """Return the name between backticks, which need not have one of the other forms."""
    if inner := _NAME.match(text):
        return _read_name(inner, paths)
    is_identifier = re.fullmatch(_IDENTIFIER, text, re.ASCII) is not None
    if is_identifier and text.lower() not in _KEYWORDS:
        return Name("symbol", text, certain=False)
    return None


def _normalize(text: str) -> str:
    """Return a path below the repository, or a symbol with its parts separated by dots."""
    path = text.removeprefix(_REPOSITORY_PREFIX).removeprefix("./")
    return path.replace("::", ".").replace("#", ".")


def _read_lines(text: str, token: re.Match[str]) -> tuple[int, int] | None:
    """Return the line numbers that belong to a file name, inside of it or after it."""
    end = token.end()
    numbers = (
        _ATTACHED_LINES.search(token[0])
        or _ATTACHED_LINES.match(text, end)
        or _FOLLOWING_LINES.match(text, end)
    )
    if numbers is None:
        return None
    first = int(numbers[1])
    last = int(numbers[2] or numbers[1])
    return (first, last) if 0 < first <= last else None


def _paths_by_suffix(patches: Sequence[AgentPatch]) -> dict[str, set[str]]:
    """Return the changed files by suffix: `src/a/b.py` is at `src/a/b.py`, `a/b.py` and `b.py`."""
    paths: dict[str, set[str]] = {}
    for patch in patches:
        for path in patch.by_path:
            parts = path.split("/")
            for start in range(len(parts)):
                paths.setdefault("/".join(parts[start:]), set()).add(path)
    return paths


def _named_identifiers(names: Iterator[Name]) -> set[str]:
    identifiers: set[str] = set()
    for name in names:
        if name.kind == "symbol":
            identifiers.update(name.name.split("."))
    return identifiers


def _touched_identifiers(patch: AgentPatch, named: set[str]) -> dict[str, Touch]:
    """Return the named identifiers in changed lines, or in the symbols that these lines are in."""
    touched: dict[str, Touch] = {}
    if not named:
        return touched
    for line in patch.lines:
        identifiers = _IDENTIFIERS_IN_CODE.findall(f"{line.symbol} {line.text}")
        for identifier in named.intersection(identifiers):
            touched.setdefault(identifier, Touch(patch.agent_id, line.path, line.patch_line))
    return touched


def _find_touches(
    name: Name, candidates: set[str], patches: Sequence[_SearchablePatch]
) -> tuple[Touch, ...]:
    touches = []
    for patch in patches:
        if name.kind == "symbol":
            touch = _touch_of_symbol(name, patch)
        else:
            touch = _touch_of_file(name, candidates, patch.patch)
        if touch is not None:
            touches.append(touch)
    return tuple(touches)


def _touch_of_symbol(name: Name, patch: _SearchablePatch) -> Touch | None:
    """Return where a patch touches every part of a symbol.

    `Wallet.split` is not touched by a patch that has `split` but no `Wallet`.
    """
    touches = [patch.identifiers.get(part) for part in name.name.split(".")]
    return touches[-1] if all(touches) else None


def _touch_of_file(name: Name, candidates: set[str], patch: AgentPatch) -> Touch | None:
    for path in candidates:
        file = patch.by_path.get(path)
        if file is None:
            continue
        patch_line = file.patch_line if name.lines is None else _line_in(file, name.lines)
        if patch_line is not None:
            return Touch(patch.agent_id, file.path, patch_line)
    return None


def _line_in(file: ChangedFile, lines: tuple[int, int]) -> int | None:
    """Return the line of the patch with the first change of these base lines."""
    first, last = lines
    for change in file.changes:
        end = max(change.old_start, change.old_end - 1)
        # A new file has no base lines, so all of its lines are meant.
        if file.old_path is None or (change.old_start <= last and end >= first):
            return change.patch_line
    return None
