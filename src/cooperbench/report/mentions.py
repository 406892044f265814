"""Which files, functions and lines messages name, and whose patch touches them.

A name is recognised by its form, whatever language the message is in; docs/coordination.md lists the forms. What the
sender meant (a promise, a question) is not guessed. Every scan is linear, however hostile the text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from cooperbench.report.pairs import SentMessage
from cooperbench.report.patches import Work

MAX_CHARACTERS = 64_000
"""Of a message that are read."""
MAX_NAMES = 200
"""Of one message."""
_MAX_LINE_LENGTH = 2_000
_ENDINGS = (
    "py|pyi|pyx|ts|tsx|js|jsx|mjs|cjs|mts|cts|go|rs|c|h|cc|cpp|hpp|java|kt|rb|php|cs|swift|scala|sh|bash|"
    "toml|cfg|ini|json|yaml|yml|lock|md|rst|txt|sql|html|css|scss|proto|xml|tmpl|j2|snap|mod|sum"
)
_FILE = rf"(?:\.{{0,2}}/)?(?:[\w@+-]{{1,80}}[./]){{1,24}}(?:{_ENDINGS})(?![\w/])"
_IDENTIFIER = r"[A-Za-z_$][\w$]{0,80}"
_DOTTED = rf"{_IDENTIFIER}(?:(?:\.|::|#){_IDENTIFIER}){{0,6}}"
_NAME = re.compile(
    r"`(?P<ticked>[^`\s]{1,160})`"
    rf"|(?<![\w./@$-])(?:(?P<file>{_FILE})"
    rf"|(?P<called>{_DOTTED})\((?!e?s\))[^()\s]{{0,80}}\)"
    r"|(?P<snake>(?:[A-Za-z]\w{0,60}\.)?_{0,2}[A-Za-z0-9]{1,40}(?:_[A-Za-z0-9]{1,40}){1,8}_{0,2})(?![\w/-]|\.\w)"
    r"|(?P<member>[A-Z][A-Za-z0-9]{1,60}\.[a-z_]\w{1,60}|[A-Za-z]\w{0,60}(?:::[A-Za-z_]\w{0,60}){1,6})(?![\w/(-]|\.\w)"
    r"|(?P<camel>[A-Za-z]{0,20}[a-z0-9][A-Z][A-Za-z0-9]{1,60})(?![\w/(-]|\.\w))",
    # ASCII: in Chinese or Japanese no space separates a name from the words around it.
    re.ASCII,
)
_NO_FILES = frozenset({"node.js", "next.js", "vue.js", "react.js", "express.js"})
_NO_SYMBOLS = frozenset({"self", "this", "none", "null", "true", "false", "return", "import"})
_LINES_ATTACHED = re.compile(r"[:#]L?(\d{1,6})(?:-L?(\d{1,6}))?")
_LINES_AFTER = re.compile(
    r"\W{0,4}(?:[^\W\d]{1,12}\W{0,2})?(\d{1,6})\s?[-–]\s?(\d{1,6})(?!\d|\s?[-–])"
)
_WORDS = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)


class Name(NamedTuple):
    kind: Literal["file", "symbol", "lines"]
    name: str
    lines: tuple[int, int] | None = None
    """First and last, in the line numbers of the base."""
    certain: bool = True
    """False: by its form it may be something else, so it counts only where a patch touches it."""


@dataclass(frozen=True)
class Touch:
    """Where a patch touches what was named: a path, and the line of the patch file, from 1."""

    agent_id: str
    path: str
    patch_line: int


@dataclass(frozen=True)
class Mention:
    """What an agent named, once for all its messages, and whose patches touch it."""

    sender: str
    messages: tuple[int, ...]
    kind: str
    name: str
    """A path, a symbol, or a path with lines: `a.py:12-30`."""
    touched_by_sender: bool
    touched_by_other: bool
    touches: tuple[Touch, ...]
    """The evidence, one for each patch that touches it."""


def mentions_of(messages: Sequence[SentMessage], works: Sequence[Work]) -> tuple[Mention, ...]:
    """Of the agents whose patches these are."""
    paths = _paths_by_ending(works)
    named: dict[tuple[str, Name], list[int]] = {}
    for message in messages:
        for name in dict.fromkeys(names_in(message.text, paths)):
            named.setdefault((message.sender, name), []).append(message.sequence)
    symbols = {part for _, name in named if name.kind == "symbol" for part in name.name.split(".")}
    patches = [(work, _touched_words(work, symbols)) for work in works]
    mentions = []
    for (sender, name), numbers in named.items():
        meant = paths.get(name.name, set()) if name.kind != "symbol" else set()
        touches = tuple(filter(None, (_touch(name, meant, *patch) for patch in patches)))
        # A short file name may fit several changed files.
        if len(meant) < 2 and (name.certain or touches):
            by_sender = [touch.agent_id == sender for touch in touches]
            shown = name.name if name.lines is None else "{}:{}-{}".format(name.name, *name.lines)
            who = (any(by_sender), not all(by_sender))
            mentions.append(Mention(sender, tuple(numbers), name.kind, shown, *who, touches))
    return tuple(mentions)


def prose_lines(message: str) -> Iterator[str]:
    """The lines outside of fenced code and quotations."""
    in_fence = False
    for line in message[:MAX_CHARACTERS].split("\n"):
        if line.lstrip().startswith(("```", "~~~")):
            in_fence = not in_fence
        elif not in_fence and not line.lstrip().startswith(">"):
            yield line


def names_in(message: str, paths: Collection[str]) -> list[Name]:
    """In order, at most `MAX_NAMES`. `paths`: what patches change, by every ending of a path."""
    found: list[Name] = []
    for line in prose_lines(message):
        text = line[:_MAX_LINE_LENGTH]
        for token in _NAME.finditer(text):
            if name := _name(token, paths):
                found.append(name)
                if name.kind == "file" and (lines := _lines(text, token)):
                    found.append(Name("lines", name.name, lines))
        if len(found) >= MAX_NAMES:
            return found[:MAX_NAMES]
    return found


def _name(token: re.Match[str], paths: Collection[str]) -> Name | None:
    group = token.lastgroup or ""
    text = token[group]
    # A path below the repository, or a symbol with its parts separated by dots.
    plain = (
        text.removeprefix("/workspace/repo/")
        .removeprefix("./")
        .replace("::", ".")
        .replace("#", ".")
    )
    if group == "ticked" and text not in paths:
        if inner := _NAME.match(text):
            return _name(inner, paths)
        is_word = re.fullmatch(_IDENTIFIER, text, re.ASCII) and text.lower() not in _NO_SYMBOLS
        return Name("symbol", text, certain=False) if is_word else None
    if group in ("ticked", "file"):
        return None if text.lower() in _NO_FILES else Name("file", plain)
    return Name("symbol", plain, certain=group != "camel")


def _lines(text: str, token: re.Match[str]) -> tuple[int, int] | None:
    end = token.end()
    found = (
        _LINES_ATTACHED.search(token[0])
        or _LINES_ATTACHED.match(text, end)
        or _LINES_AFTER.match(text, end)
    )
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    return (first, last) if 0 < first <= last else None


def _paths_by_ending(works: Sequence[Work]) -> dict[str, set[str]]:
    """`src/a/b.py` under `src/a/b.py`, `a/b.py` and `b.py`."""
    found: dict[str, set[str]] = {}
    for path in (path for work in works for path in work.by_path):
        parts = path.split("/")
        for at in range(len(parts)):
            found.setdefault("/".join(parts[at:]), set()).add(path)
    return found


def _touched_words(work: Work, wanted: set[str]) -> dict[str, Touch]:
    """Of these words those in changed lines, or in the names of symbols with changed lines."""
    found: dict[str, Touch] = {}
    for line in work.lines if wanted else ():
        for word in wanted.intersection(_WORDS.findall(f"{line.symbol} {line.text}")):
            found.setdefault(word, Touch(work.agent_id, line.path, line.patch_line))
    return found


def _touch(name: Name, paths: set[str], work: Work, words: Mapping[str, Touch]) -> Touch | None:
    if name.kind == "symbol":
        # `Wallet.split` is not touched by a patch that has `split` and no `Wallet`.
        touches = [words.get(part) for part in name.name.split(".")]
        return touches[-1] if all(touches) else None
    for file in (work.by_path[path] for path in paths if path in work.by_path):
        if name.lines is None:
            return Touch(work.agent_id, file.path, file.patch_line)
        first, last = name.lines
        for change in file.changes:
            end = max(change.old_start, change.old_end - 1)
            # A new file has no base lines, so all of its lines are meant.
            if file.old_path is None or (change.old_start <= last and end >= first):
                return Touch(work.agent_id, file.path, change.patch_line)
    return None
