"""Text for people: escaping of hostile characters, numbers, durations and line wrapping."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import TextIO

# Control characters, changes of text direction, invisible line breaks and surrogates.
_HOSTILE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Return one line that can neither move a terminal's cursor nor change its text direction."""
    return _HOSTILE.sub(lambda match: repr(match[0])[1:-1], text)


def describe_error(error: BaseException, max_characters: int = 500) -> str:
    """Return the type and the message of any exception on one line.

    It may come from an agent's code, and then even its message may raise an exception.
    """
    try:
        message = " ".join(str(error).split())
    except BaseException:  # a hostile `__str__`
        message = "its message cannot be read"
    name = type(error).__name__
    return shorten(printable(f"{name}: {message}" if message else name), max_characters)


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Return `1 pair` or `2 pairs`; `nouns` is the plural where an added s is not enough."""
    if count != 1:
        noun = nouns or f"{noun}s"
    return f"{count:,} {noun}"


def shorten(text: str, max_characters: int) -> str:
    """Cut a text that is too long at a word boundary and end it with an ellipsis."""
    if len(text) <= max_characters:
        return text
    cut = text[: max(0, max_characters - 1)]
    whole_words, space, _ = cut.rpartition(" ")
    # A single long word, such as a path, is cut in the middle.
    if space and len(whole_words) > max_characters // 2:
        cut = whole_words
    return f"{cut.rstrip(' ,;:')}…"


def terminal_width(stream: TextIO) -> int | None:
    """Return the number of columns of a terminal, or None for a file or a pipe."""
    if not stream.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def wrap(line: str, width: int | None) -> str:
    """Break a line at word boundaries so that it fits the width; continuation lines are indented.

    Words that are longer than the width, such as paths, stay whole.
    """
    if width is None or len(line) <= width:
        return line
    from textwrap import fill

    return fill(
        line,
        width,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def head_and_tail(text: str, most: int, note: str = "\n[… {cut} characters left out …]\n") -> str:
    """Cut a text of more than `most` characters in the middle, because errors stand at its end."""
    if len(text) <= most:
        return text
    tail = most // 2
    head = most - tail
    return text[:head] + note.format(cut=len(text) - most) + text[len(text) - tail :]


def names_for_error(names: Iterable[str], requested: str = "", *, limit: int = 12) -> str:
    """List the available names at the end of an error line, those similar to `requested` first."""
    from difflib import get_close_matches

    available = list(dict.fromkeys(names))
    if not available:
        return "none"
    similar: list[str] = []
    if requested:
        similar += get_close_matches(requested, available)
        similar += [name for name in available if requested in name]
    ordered = list(dict.fromkeys([*similar, *available]))
    listed = ", ".join(printable(name) for name in ordered[:limit])
    if len(ordered) <= limit:
        return listed
    return f"{listed}, … ({len(ordered)} in all)"


def duration_text(seconds: float) -> str:
    """Return `3.2s`, `3m 42s` or `1h 02m`."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, seconds_left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {seconds_left:02d}s"
    return f"{minutes // 60}h {minutes % 60:02d}m"


def dollars_text(dollars: float) -> str:
    """Return `$3.20`, or `$0.001` for less than a cent, because that is not nothing."""
    if 0 < dollars < 0.01:
        return f"${Decimal(f'{dollars:.2g}'):f}"
    return f"${dollars:,.2f}"
