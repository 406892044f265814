"""Text for people: hostile characters made visible, and lists of names for error lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

# Control characters, changes of direction, invisible line breaks, surrogates.
_HOSTILE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]"
)


def printable(text: str) -> str:
    """One line that can neither move a terminal's cursor nor turn its direction."""
    return _HOSTILE.sub(lambda found: repr(found[0])[1:-1], text)


def plural(count: int, noun: str, nouns: str = "") -> str:
    """`1 pair`, `2 pairs`; `nouns` where an s is not enough."""
    return f"{count} {noun if count == 1 else nouns or noun + 's'}"


def head_and_tail(text: str, most: int, note: str = "\n[… {cut} characters left out …]\n") -> str:
    """A text of at most `most` characters as it is; of a longer one both halves, since errors stand at the end."""
    if len(text) <= most:
        return text
    tail = most // 2
    head = most - tail
    return text[:head] + note.format(cut=len(text) - most) + text[len(text) - tail :]


def names_for_error(names: Iterable[str], wanted: str = "", *, limit: int = 12) -> str:
    """What there is, for the end of an error line: at most `limit` names, those like the wanted one first."""
    from difflib import get_close_matches

    every = list(dict.fromkeys(names))
    if not every:
        return "none"
    close = get_close_matches(wanted, every) if wanted else []
    ordered = list(
        dict.fromkeys([*close, *(name for name in every if wanted and wanted in name), *every])
    )
    shown = ", ".join(printable(name) for name in ordered[:limit])
    return shown if len(ordered) <= limit else f"{shown}, … ({len(ordered)} in all)"


def duration_text(seconds: float) -> str:
    """`3.2s`, `3m 42s`, `1h 02m`."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    return f"{minutes // 60}h {minutes % 60:02d}m"


def dollars_text(dollars: float) -> str:
    """`$3.20`; less than a cent as `$0.001`, since that is not nothing."""
    return (
        f"${dollars:.2f}" if dollars >= 0.01 or dollars <= 0 else f"${Decimal(f'{dollars:.2g}'):f}"
    )
