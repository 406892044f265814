"""What messages name and what patches touch: files, functions and lines.

Names are recognised by their form, whatever language a message is written in; docs/coordination.md lists the forms.
What the sender meant (a promise, a question) is not guessed. A patch touches a symbol where it changes its lines, or
where a changed line contains the name. A plain word in backticks or a camelCase word may be anything, so it counts only
where a patch touches it; a short file name that fits several changed files does not count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from cooperbench.report.coordination.messages import prose_lines

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from cooperbench.report.coordination.changes import Symbol, Work
    from cooperbench.report.pairs import SentMessage

Kind = Literal["file", "symbol", "lines"]
MOST_NAMES = 200
"""Of one message."""
_LONGEST_LINE = 2_000
"""Characters of a line that are looked at, in messages and patches."""
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
_RANGE = r"(\d{1,6})\s?[-–]\s?(\d{1,6})(?!\d|\s?[-–])"
_LINES_AFTER = re.compile(rf"\W{{0,4}}(?:[^\W\d]{{1,12}}\W{{0,2}})?{_RANGE}")
_LINES_BEFORE = re.compile(rf"(?<![\d-]){_RANGE}\W{{0,2}}(?:[^\W\d]{{1,12}}\W{{1,2}}){{1,2}}$")
_WORDS = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)


class Name(NamedTuple):
    kind: Kind
    name: str
    lines: tuple[int, int] | None = None
    """First and last, in the line numbers of the base."""
    certain: bool = True
    """False: by its form it may be something else."""


@dataclass(frozen=True)
class Touch:
    """Where a patch touches what was named: a path, and the line of the patch file, from 1."""

    agent_id: str
    path: str
    patch_line: int


@dataclass(frozen=True)
class Mention:
    """What an agent named, once for all its messages, and who touches it."""

    sender: str
    messages: tuple[int, ...]
    """Numbers of those that name it."""
    kind: Kind
    name: str
    """A path, a symbol, or a path with lines: `a.py:12-30`."""
    touched_by_sender: bool | None
    """None: there is no readable patch of the sender."""
    touched_by_other: bool | None
    """None: no other patch can be read."""
    touches: tuple[Touch, ...]
    """The evidence, one for each patch that touches it."""


def mentions_of(messages: Sequence[SentMessage], works: Mapping[str, Work]) -> tuple[Mention, ...]:
    """In the order of the messages."""
    found: dict[tuple[str, str], tuple[Name, list[int]]] = {}
    paths = _paths_by_ending(path for work in works.values() for path in work.paths)
    for message in messages:
        for one in names_in(message.text, paths) if message.sender in works else ():
            shown = one.name if one.lines is None else "{}:{}-{}".format(one.name, *one.lines)
            found.setdefault((message.sender, shown), (one, []))[1].append(message.sequence)
    wanted = frozenset(one.name.rpartition(".")[2] for one, _ in found.values() if one.kind == "symbol")
    patches = {agent_id: _Patch(work, wanted) for agent_id, work in works.items() if work.usable}
    mentions = []
    for (sender, shown), (one, numbers) in found.items():
        touches = tuple(touch for patch in patches.values() if (touch := patch.touch(one)))
        is_ambiguous = one.kind != "symbol" and len(paths.get(one.name, ())) > 1
        if is_ambiguous or not (one.certain or touches):
            continue
        touching = {touch.agent_id for touch in touches}
        others = patches.keys() - {sender}
        by_sender = sender in touching if sender in patches else None
        by_other = bool(others & touching) if others else None
        unique = tuple(dict.fromkeys(numbers))
        mentions.append(Mention(sender, unique, one.kind, shown, by_sender, by_other, touches))
    return tuple(mentions)


def names_in(message: str, paths: Collection[str]) -> list[Name]:
    """In order, at most `MOST_NAMES`. `paths`: what patches change, by every ending of a path."""
    found: list[Name] = []
    for line in prose_lines(message):
        text = line[:_LONGEST_LINE]
        before = 0
        for token in _NAME.finditer(text):
            name = _name(token, paths)
            if name is not None:
                found.append(name)
                if name.kind == "file" and (lines := _lines(text, before, token)):
                    found.append(Name("lines", name.name, lines))
            before = token.end()
        if len(found) >= MOST_NAMES:
            return found[:MOST_NAMES]
    return found


def _name(token: re.Match[str], paths: Collection[str]) -> Name | None:
    group = token.lastgroup or ""
    text = token[group]
    if group == "ticked" and text not in paths:
        inner = _NAME.match(text)
        if inner is not None:
            return _name(inner, paths)
        is_word = re.fullmatch(_IDENTIFIER, text, re.ASCII) and text.lower() not in _NO_SYMBOLS
        return Name("symbol", text, certain=False) if is_word else None
    if group in ("ticked", "file"):
        return None if text.lower() in _NO_FILES else Name("file", _plain(text))
    return Name("symbol", _plain(text), certain=group != "camel")


def _lines(text: str, before: int, token: re.Match[str]) -> tuple[int, int] | None:
    """The lines that a file is named with; `before`: where the name before it ends."""
    found = (
        _LINES_ATTACHED.search(token[0])
        or _LINES_ATTACHED.match(text, token.end())
        or _LINES_AFTER.match(text, token.end())
        or _LINES_BEFORE.search(text[max(before, token.start() - 60) : token.start()])
    )
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    return (first, last) if 0 < first <= last else None


def _plain(name: str) -> str:
    """A path below the repository, or a symbol with its parts separated by dots."""
    return name.removeprefix("/workspace/repo/").removeprefix("./").replace("::", ".").replace("#", ".")


def _paths_by_ending(paths: Iterable[str]) -> dict[str, set[str]]:
    """`src/a/b.py` under `src/a/b.py`, `a/b.py` and `b.py`."""
    found: dict[str, set[str]] = {}
    for path in paths:
        parts = path.split("/")
        for at in range(len(parts)):
            found.setdefault("/".join(parts[at:]), set()).add(path)
    return found


class _Patch:
    """An agent's patch, asked for many names; `wanted` are the symbols among them."""

    def __init__(self, work: Work, wanted: frozenset[str]) -> None:
        self._agent_id = work.agent_id
        self._files = {path: file for file in work.files for path in file.paths}
        self._paths = _paths_by_ending(self._files)
        self._symbols: dict[str, list[Symbol]] = {}
        for symbol in work.symbols:
            for part in wanted.intersection(symbol.name.split(".")):
                self._symbols.setdefault(part, []).append(symbol)
        self._words: dict[str, Touch] = {}
        for file in work.files if wanted else ():
            for place, line in file.changed_lines:
                for word in wanted.intersection(_WORDS.findall(line[:_LONGEST_LINE])):
                    self._words.setdefault(word, Touch(work.agent_id, file.path, place))

    def touch(self, name: Name) -> Touch | None:
        if name.kind == "symbol":
            return self._touch_symbol(name.name)
        for path in self._paths.get(name.name, ()):
            file = self._files[path]
            if name.lines is None:
                return Touch(self._agent_id, file.path, file.patch_line)
            first, last = name.lines
            for change in file.changes:
                end = max(change.old_start, change.old_end - 1)
                # A new file has no base lines, so all of its lines are meant.
                if file.is_new or (change.old_start <= last and end >= first):
                    return Touch(self._agent_id, file.path, change.patch_line)
        return None

    def _touch_symbol(self, name: str) -> Touch | None:
        *outer, last = name.split(".")
        symbols = self._symbols.get(last, [])
        for symbol in symbols:
            parts = symbol.name.split(".")
            if not outer or len(parts) == 1 or outer[-1] in parts:
                return Touch(self._agent_id, symbol.path, symbol.patch_line)
        # `Wallet.split` is not touched where the patch is seen to change `Money.split`.
        return None if symbols else self._words.get(last)
