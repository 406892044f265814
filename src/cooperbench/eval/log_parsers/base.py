"""Types and helpers that the parsers of all test frameworks share.

Test output can contain anything, and code under test writes to it. So patterns match whole lines
and need time linear in the length of a line: where two repetitions follow each other, the second
begins with something that the first cannot match.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

Outcome = Literal["passed", "failed", "skipped"]

MAX_NAME_LENGTH = 200
"""Maximum length of a file or suite, which is part of the ids of many tests."""


class Counts(NamedTuple):
    """Numbers of tests according to a summary; all zero if no test ran."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    framework: str | None = None
    """Name of the framework that printed the summary; None if there is no known summary."""


class LogParser(NamedTuple):
    """Reads the output of one test framework.

    Both functions expect text that went through `prepare_log`.
    """

    name: str
    parse_counts: Callable[[str], Iterator[Counts]]
    """Yield the counts of each summary in a log, in order: one for each call of the framework."""
    parse_outcomes: Callable[[str], Iterator[tuple[str, Outcome]]]
    """Yield the id and the outcome of each test that a log names. An id can occur several times."""
    id_prefix: str
    """Regular expression for the part of an id that people leave out: file, package, suite."""


_ESCAPE_SEQUENCE = re.compile(
    r"""
    \x1b
    (?: \[ [0-?]* [ -/]* [@-~]                  # control sequence, such as a color
      | \] [^\x07\x1b\n]* (?: \x07 | \x1b\\ )   # operating system command, such as a title
      | [ -/]+ [0-~]                            # choice of a character set
      | [0-Z\\^_a-~]                            # any other sequence of two characters
    )
    """,
    re.VERBOSE,
)


def prepare_log(output: str) -> str:
    """Return output without colors, with a newline before and after it.

    Carriage returns become newlines, so that each state of a progress bar is a line.
    """
    if "\x1b" in output:
        output = _ESCAPE_SEQUENCE.sub("", output)
    return "\n" + output.replace("\r\n", "\n").replace("\r", "\n") + "\n"


def compile_lines(pattern: str) -> re.Pattern[str]:
    """Compile a verbose pattern that matches one or more whole lines; the first is not empty.

    The result starts with a literal newline, which lets `re` search quickly.
    """
    return re.compile("\\n(?!\\n)(?:" + pattern + "\n)(?=\\n)", re.ASCII | re.VERBOSE)


_COUNT_WORDS: dict[str, Outcome] = {
    "passed": "passed",
    "xpassed": "passed",
    "pass": "passed",
    "passing": "passed",
    "failed": "failed",
    "error": "failed",
    "errors": "failed",
    "timed out": "failed",
    "exec failed": "failed",
    "fail": "failed",
    "cancelled": "failed",
    "failures": "failed",
    "unexpected successes": "failed",
    "failing": "failed",
    "skipped": "skipped",
    "xfailed": "skipped",
    "todo": "skipped",
    "expected fail": "skipped",
    "ignored": "skipped",
    "pending": "skipped",
    "expected failures": "skipped",
}
"""Words with which summaries of all frameworks count tests."""
_COUNT = re.compile(
    r"""
    (?P<number> [0-9]{1,9} ) [ ] (?P<word> [a-z ]{1,40} )               # 3 passed
    | (?P<leading_word> [a-z][a-z ]{0,40} ) [= ] (?P<last_number> [0-9]{1,9} )   # failures=1
    """,
    re.VERBOSE,
)


def parse_count_list(text: str) -> Counts:
    """Return the counts in text such as `3 passed, 1 failed` or `failures=1, skipped=2`."""
    sums: dict[Outcome, int] = {"passed": 0, "failed": 0, "skipped": 0}
    for match in _COUNT.finditer(text):
        word = match["word"] or match["leading_word"]
        outcome = _COUNT_WORDS.get(word.strip())
        if outcome:
            sums[outcome] += int(match["number"] or match["last_number"])
    return Counts(sums["passed"], sums["failed"], sums["skipped"])


def count_outcomes(outcomes: list[Outcome]) -> Counts:
    """Return how many of these outcomes are passed, failed and skipped."""
    return Counts(outcomes.count("passed"), outcomes.count("failed"), outcomes.count("skipped"))


def summary_parser(pattern: re.Pattern[str]) -> Callable[[str], Iterator[Counts]]:
    """Return a function that yields the counts in the group `tests` of each match.

    A pattern may also have a group `suites`, which matches a line before that of the tests. A
    failed suite counts as a failure if no test failed: it could not be loaded.
    """

    def parse_counts(text: str) -> Iterator[Counts]:
        failed_suites = 0
        for match in pattern.finditer(text):
            groups = match.groupdict()
            if groups.get("suites"):
                failed_suites = parse_count_list(groups["suites"]).failed
                continue
            counts = parse_count_list(groups["tests"] or "")
            yield counts._replace(failed=counts.failed or failed_suites)
            failed_suites = 0

    return parse_counts


def sum_counts(summaries: Iterable[Counts]) -> Iterator[Counts]:
    """Yield the sum of all summaries, if there is any: one run prints several of them."""
    summaries = list(summaries)
    if summaries:
        yield Counts(
            passed=sum(counts.passed for counts in summaries),
            failed=sum(counts.failed for counts in summaries),
            skipped=sum(counts.skipped for counts in summaries),
        )
