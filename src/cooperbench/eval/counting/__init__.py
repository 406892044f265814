"""How each test framework prints its results, one module for each family. Used through `cooperbench.eval.counts`.

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
    """What one summary says; all zero where no test was run."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0


class Framework(NamedTuple):
    """How what one framework prints is read."""

    name: str
    tallies: Callable[[str], Iterator[Tally]]
    """One for each time that it was called, as far as that can be told."""
    outcomes: Callable[[str], Iterator[tuple[str, Outcome]]]
    """Ids of tests as far as they are printed; an id may come several times.

    What is part of many ids, such as a file, has at most 200 characters: ids are to stay small too.
    """
    prefix: str
    """A pattern of what people leave out when they name a test by its id: file, package, suite."""


NUMBER = "([0-9]{1,9})"
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


def numbers_of(summary: str) -> dict[str, int]:
    """`3 passed, 1 failed` and the like by word."""
    return {word.strip(): int(number) for number, word in re.findall(f"{NUMBER} ([a-z ]+)", summary)}
