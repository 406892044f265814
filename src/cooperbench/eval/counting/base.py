"""What the readers of all frameworks share: lines as they look at them, and what they find.

A reader gets text that `readable` has prepared and finds whole lines in it with patterns made by `line`. Test
output can hold anything, so the patterns take time linear in it: of two neighbouring repetitions, what one
can match ends the other.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Outcome = Literal["passed", "failed", "skipped"]


class Tally(NamedTuple):
    """Tests that a framework reported; all zero where it said that it ran none."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0


class Failure(NamedTuple):
    """The first failure that a framework reported."""

    position: int
    """Where in the text it was found; the first framework to complain is quoted."""
    kind: str | None
    """`AssertionError`, `panic`, …; None where it is not recognisable."""
    test: str

    def __str__(self) -> str:
        return f"{self.kind or 'failure'} in {self.test}"


class Framework(NamedTuple):
    """How what one framework prints is read."""

    name: str
    tally: Callable[[str], Tally | None]
    first_failure: Callable[[str], Failure | None]
    outcomes: Callable[[str], Iterator[tuple[str, Outcome]]]
    """Ids of tests as far as they are printed; an id may come several times.

    What is part of many ids, such as a file, has at most 200 characters: ids are to stay small too.
    """


NUMBER = "([0-9]{1,9})"
KIND = r"([A-Za-z_][\w.]*)"
"""Of an exception, with its module if it has one."""

_ESCAPE_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[ -/]+[0-~]|[0-Z\\^_a-~])"
)


def readable(output: str) -> str:
    """Output without colours and carriage returns at line ends, a newline before and after each line."""
    plain = _ESCAPE_SEQUENCE.sub("", output) if "\x1b" in output else output
    return "\n" + plain.replace("\r\n", "\n") + "\n"


def line(pattern: str) -> re.Pattern[str]:
    """A pattern for whole lines that are not empty. It starts with a literal newline, which makes it fast."""
    return re.compile(rf"\n(?!\n)(?:{pattern})(?=\n)", re.ASCII)


def short_kind(kind: str) -> str:
    """An exception's name without its module."""
    return kind.rpartition(".")[2] or kind
