"""What agents spent on messages, what messages are by their form, and which code they name.

Files, functions and lines that a message names are recognised by their form, whatever language it is written in;
docs/coordination.md lists the forms. What the sender meant (a promise, a question) is not guessed. A patch touches a
symbol where it changes its lines, or where a changed line contains the name. A plain word in backticks or a camelCase
word may be anything, so it counts only where a patch touches it; a short file name that fits several changed files
does not count. Every scan is linear, however hostile the text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from cooperbench.report.fields import mapping, number
from cooperbench.report.pairs import Conversation, SentMessage, Trajectory
from cooperbench.report.patches import Work

MOST_CHARACTERS = 64_000
"""Of a message that are read, without fenced code and quoted lines."""
SIMILAR = 0.7
"""Jaccard similarity of three-word sequences from which on a message repeats an earlier one."""
EARLIER_MESSAGES = 100
"""So many of the same sender to the same recipient are compared."""
_MOST_WORDS = 4_000
_MOST_SCANNED = 200_000
_CALLS = re.compile(
    r"(?:^|[;&|({`!\n]|\$\(|\b(?:then|do|else|if|while|time|exec|env))[ \t]*"
    r"(?:send_message|read_messages)(?![\w./=-])"
)
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+")
_WORD = re.compile(r"[^\W_]+(?:_[^\W_]+)*")

Kind = Literal["file", "symbol", "lines"]
MOST_NAMES = 200
"""Of one message."""
_LONGEST_LINE = 2_000
"""Characters of a line that are searched for names, in messages and patches."""
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
_LINES_AFTER = re.compile(r"\W{0,4}(?:[^\W\d]{1,12}\W{0,2})?(\d{1,6})\s?[-–]\s?(\d{1,6})(?!\d|\s?[-–])")
_WORDS = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)


@dataclass(frozen=True)
class Activity:
    agent_id: str
    steps: int
    messaging_steps: tuple[int, ...]
    step_share: float | None
    """Those over all; None where what was done in the steps is not on record."""
    token_share: float | None
    """Of the tokens that the model wrote, those of replies that led to such steps; None where none were counted."""
    sent: int
    first_message: int | None
    first_step_fraction: float | None
    """The step of its first message, as a share of all its steps."""


@dataclass(frozen=True)
class Question:
    message: int
    text: str


@dataclass(frozen=True)
class Repetition:
    """A message that says again what its sender has told the same recipient."""

    message: int
    earlier: int
    similarity: float


@dataclass(frozen=True)
class UnreadMessage:
    """A message that its recipient never saw."""

    message: int
    recipient: str


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
    kind: Kind
    name: str
    """A path, a symbol, or a path with lines: `a.py:12-30`."""
    touched_by_sender: bool | None
    """None: there is no readable patch of the sender."""
    touched_by_other: bool | None
    """None: no other patch can be read."""
    touches: tuple[Touch, ...]
    """The evidence, one for each patch that touches it."""


def activity_of(
    record: Mapping[str, Any], trajectory: Trajectory, messages: Sequence[SentMessage]
) -> Activity:
    """`record`: the agent's part of result.json."""
    entries = [(_step(entry), entry) for entry in trajectory.entries]
    mine = [message for message in messages if message.sender == trajectory.agent_id]
    steps = max(len({step for step, _ in entries if step is not None}), int(number(record, "steps")))
    messaging = {message.sender_step for message in mine if message.sender_step}
    messaging |= {step for step, entry in entries if step is not None and _is_messaging(entry)}
    first = mine[0] if mine else None
    return Activity(
        trajectory.agent_id,
        steps,
        tuple(sorted(messaging)),
        min(1.0, len(messaging) / steps) if steps and entries else None,
        _token_share(entries, messaging),
        len(mine),
        first.sequence if first else None,
        min(1.0, first.sender_step / steps) if first and first.sender_step and steps else None,
    )


def _step(entry: Mapping[str, Any]) -> int | None:
    step = entry.get("step")
    return step if isinstance(step, int) and not isinstance(step, bool) else None


def _is_messaging(entry: Mapping[str, Any]) -> bool:
    if entry.get("action") != "run":
        return entry.get("action") == "send_message"
    text = str(mapping(entry, "args").get("command", ""))[:_MOST_SCANNED]
    # The cheap question first: most commands have nothing to do with messages.
    return "_message" in text and _CALLS.search(text) is not None


def _token_share(
    entries: Sequence[tuple[int | None, Mapping[str, Any]]], messaging: Collection[int]
) -> float | None:
    """By the provider's count; a reply with several steps is divided evenly among them."""
    replies: list[tuple[float, list[int]]] = []
    for step, entry in entries:
        if entry.get("action") == "reply":
            replies.append((max(0.0, number(mapping(entry, "tokens"), "completion_tokens")), []))
        elif step is not None and replies:
            replies[-1][1].append(step)
    total = sum(written for written, _ in replies)
    on_messages = sum(
        written * sum(step in messaging for step in steps) / max(1, len(steps)) for written, steps in replies
    )
    return on_messages / total if total else None


def prose_lines(message: str) -> Iterator[str]:
    """The lines outside of fenced code and quotations."""
    in_fence = False
    for line in message[:MOST_CHARACTERS].split("\n"):
        if line.lstrip().startswith(("```", "~~~")):
            in_fence = not in_fence
        elif not in_fence and not line.lstrip().startswith(">"):
            yield line


def questions_in(messages: Sequence[SentMessage]) -> list[Question]:
    """Sentences of at least two words that end with a question mark."""
    return [
        Question(message.sequence, sentence.strip())
        for message in messages
        for line in prose_lines(message.text)
        if "?" in line
        for sentence in _SENTENCE_END.split(line)
        if sentence.rstrip("\"')]*_ ").endswith("?") and len(_WORD.findall(sentence)) > 1
    ]


def repetitions_in(messages: Sequence[SentMessage]) -> list[Repetition]:
    found = []
    said: dict[tuple[str, str], list[tuple[int, frozenset[str]]]] = {}
    for message in messages:
        spoken = [word.lower() for word in _WORD.findall(message.text[:MOST_CHARACTERS])[:_MOST_WORDS]]
        if not spoken:
            continue
        sequences = frozenset(" ".join(spoken[at : at + 3]) for at in range(max(1, len(spoken) - 2)))
        before = said.setdefault((message.sender, message.recipient), [])
        similar = ((len(sequences & other) / len(sequences | other), number) for number, other in before)
        similarity, earlier = max(similar, default=(0.0, 0))
        if similarity >= SIMILAR:
            found.append(Repetition(message.sequence, earlier, round(similarity, 3)))
        before.append((message.sequence, sequences))
        del before[:-EARLIER_MESSAGES]
    return found


def never_shown(conversation: Conversation) -> list[UnreadMessage]:
    """Messages without a delivery, as a rule because the recipient took no further step; none where the record does not
    tell of deliveries."""
    if not conversation.complete or all(one.sender_step is None for one in conversation.messages):
        return []
    unread = (one for one in conversation.messages if one.delivered_at is None)
    return [UnreadMessage(one.sequence, one.recipient) for one in unread]


def mentions_of(messages: Sequence[SentMessage], works: Mapping[str, Work]) -> tuple[Mention, ...]:
    paths = _paths_by_ending(path for work in works.values() for path in work.paths)
    found: dict[tuple[str, Name], list[int]] = {}
    for message in messages:
        for name in names_in(message.text, paths) if message.sender in works else ():
            found.setdefault((message.sender, name), []).append(message.sequence)
    wanted = {part for _, name in found if name.kind == "symbol" for part in name.name.split(".")}
    patches = {agent_id: _Patch(work, wanted) for agent_id, work in works.items() if work.usable}
    mentions = []
    for (sender, name), numbers in found.items():
        touches = tuple(touch for patch in patches.values() if (touch := patch.touch(name)))
        is_ambiguous = name.kind != "symbol" and len(paths.get(name.name, ())) > 1
        if is_ambiguous or not (name.certain or touches):
            continue
        touching = {touch.agent_id for touch in touches}
        others = patches.keys() - {sender}
        mentions.append(
            Mention(
                sender,
                tuple(dict.fromkeys(numbers)),
                name.kind,
                name.name if name.lines is None else "{}:{}-{}".format(name.name, *name.lines),
                sender in touching if sender in patches else None,
                bool(others & touching) if others else None,
                touches,
            )
        )
    return tuple(mentions)


def names_in(message: str, paths: Collection[str]) -> list[Name]:
    """In order, at most `MOST_NAMES`. `paths`: what patches change, by every ending of a path."""
    found: list[Name] = []
    for line in prose_lines(message):
        text = line[:_LONGEST_LINE]
        for token in _NAME.finditer(text):
            if name := _name(token, paths):
                found.append(name)
                if name.kind == "file" and (lines := _lines(text, token)):
                    found.append(Name("lines", name.name, lines))
        if len(found) >= MOST_NAMES:
            return found[:MOST_NAMES]
    return found


def _name(token: re.Match[str], paths: Collection[str]) -> Name | None:
    group = token.lastgroup or ""
    text = token[group]
    # A path below the repository, or a symbol with its parts separated by dots.
    plain = text.removeprefix("/workspace/repo/").removeprefix("./").replace("::", ".").replace("#", ".")
    if group == "ticked" and text not in paths:
        inner = _NAME.match(text)
        if inner is not None:
            return _name(inner, paths)
        is_word = re.fullmatch(_IDENTIFIER, text, re.ASCII) and text.lower() not in _NO_SYMBOLS
        return Name("symbol", text, certain=False) if is_word else None
    if group in ("ticked", "file"):
        return None if text.lower() in _NO_FILES else Name("file", plain)
    return Name("symbol", plain, certain=group != "camel")


def _lines(text: str, token: re.Match[str]) -> tuple[int, int] | None:
    end = token.end()
    found = (
        _LINES_ATTACHED.search(token[0]) or _LINES_ATTACHED.match(text, end) or _LINES_AFTER.match(text, end)
    )
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    return (first, last) if 0 < first <= last else None


def _paths_by_ending(paths: Iterable[str]) -> dict[str, set[str]]:
    """`src/a/b.py` under `src/a/b.py`, `a/b.py` and `b.py`."""
    found: dict[str, set[str]] = {}
    for path in paths:
        parts = path.split("/")
        for at in range(len(parts)):
            found.setdefault("/".join(parts[at:]), set()).add(path)
    return found


class _Patch:
    """An agent's patch, asked for many names; `wanted` are the words of symbols among them."""

    def __init__(self, work: Work, wanted: set[str]) -> None:
        self._agent_id = work.agent_id
        self._files = {path: file for file in work.files for path in file.paths}
        self._paths = _paths_by_ending(self._files)
        self._words: dict[str, Touch] = {}
        for symbol in work.symbols:
            for word in wanted.intersection(symbol.name.split(".")):
                self._words.setdefault(word, Touch(work.agent_id, symbol.path, symbol.patch_line))
        hunks = [(file.path, hunk) for file in work.files for hunk in file.hunks] if wanted else []
        for path, place, line in ((path, *numbered) for path, hunk in hunks for numbered in hunk.lines):
            if line.startswith(("+", "-")):
                for word in wanted.intersection(_WORDS.findall(line[:_LONGEST_LINE])):
                    self._words.setdefault(word, Touch(work.agent_id, path, place))

    def touch(self, name: Name) -> Touch | None:
        if name.kind == "symbol":
            # `Wallet.split` is not touched by a patch that has `split` and no `Wallet`.
            touches = [self._words.get(part) for part in name.name.split(".")]
            return touches[-1] if all(touches) else None
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
