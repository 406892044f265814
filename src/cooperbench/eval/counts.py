"""What the test runner printed: how many tests passed, which ones, and what went wrong first.

Counts are summed over all summaries of all frameworks in the output, and a summary counts only as a whole
line, as its framework prints it. Ambiguity that this accepts: a test can print a line that looks like a
summary, and where a framework shows what a failed test printed, the summary of a run inside of a test is
counted too. Both only add to the counts; whether the tests passed is first of all the exit code's to say.
The same holds for the lines that name a test.

Not for deciding success: that is the verdict's work.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from cooperbench.eval.counting import compiled, jest, node, python
from cooperbench.eval.counting.base import Outcome, line, readable, short_kind
from cooperbench.models import REPO_DIR, TestCounts

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LONGEST_ERROR", "Outcome", "first_error", "read_counts", "read_outcomes"]

LONGEST_ERROR = 300
"""Characters of the line that `first_error` gives."""

_FRAMEWORKS = (*python.FRAMEWORKS, *node.FRAMEWORKS, *jest.FRAMEWORKS, *compiled.FRAMEWORKS)
_STRENGTH: tuple[Outcome, ...] = ("skipped", "passed", "failed")

_TRACEBACK = "Traceback (most recent call last):"
_TOOL_ERROR = line(
    "|".join(
        (
            re.escape(_TRACEBACK),
            # git, cargo, uv, gcc, tsc, argparse, …
            # (what pip says of a subprocess is followed by what that said)
            r" {0,9}(?:\S+: )?(?:fatal |internal )?[Ee]rror(?:\[\w+\]| TS[0-9]+)?: (?!subprocess-exited)[^\n]+",
            # pip says the latter of installations that succeeded
            r" {0,9}ERROR: (?!usage: |pip's dependency resolver)[^\n]+",
            r"fatal: [^\n]+",
            r"\w*Error(?: \[\w+\])?: [^\n]+",
            r"E  +[A-Za-z_][\w.]*: [^\n]+",
            r"E: [^\n]+",
            r"\[ERROR\] [^\n]+",
            r"npm (?:ERR!|error) (?!code |errno |syscall |path )[^\n]+",
            # pnpm puts a thin space before it
            r"[^\w\n]?ERR_PNPM_[^\n]+",
            r"error [A-Z][^\n]+",
            r" {0,9}× (?!Getting |Preparing |Building )[A-Z][^\n]+",
            r"go: (?!warning|downloading |finding |extracting |found |added |upgraded |creating |to )[^\n]+",
            r"curl: \([0-9]+\) [^\n]+",
            r"make(?:\[[0-9]+\])?: \*\*\* [^\n]+",
            r"[^\s:]+: line [0-9]+: (?!warning: )[^\n]+",
            r"[^\s:]+: (?:[0-9]+: )?[^\s:]+: (?:command )?not found",
        )
    )
)
"""Lines in which tools other than test frameworks say what failed. Warnings are not among them."""
_RAISED = re.compile(r"(?:\n(?:[ \t][^\n]*)?)*\n[^\n]+")


def read_counts(output: str) -> TestCounts:
    """What all summaries in the output add up to; `framework` names those found, joined with `+`."""
    text = readable(output)
    tallies = ((framework.name, framework.tally(text)) for framework in _FRAMEWORKS)
    found = {name: tally for name, tally in tallies if tally is not None}
    return TestCounts(
        passed=sum(tally.passed for tally in found.values()),
        failed=sum(tally.failed for tally in found.values()),
        skipped=sum(tally.skipped for tally in found.values()),
        framework="+".join(found) or None,
    )


def read_outcomes(output: str) -> dict[str, Outcome]:
    """What became of each test that the output names, by an id that is the same in every run.

    Many runners name all tests only if they are told to be verbose. A test that is made of others is named
    like them. Of a test that is named several times the worst counts: failed before passed before skipped.
    """
    text = readable(output)
    outcomes: dict[str, Outcome] = {}
    for framework in _FRAMEWORKS:
        for test, outcome in framework.outcomes(text):
            outcomes[test] = max(outcome, outcomes.get(test, "skipped"), key=_STRENGTH.index)
    return outcomes


def first_error(output: str) -> str | None:
    """One line: `AssertionError in test_edge_case`, else the first error of a tool, else the last line.

    Lines that are empty do not count; None where there is no other.
    """
    text = readable(output)
    failures = [found for framework in _FRAMEWORKS if (found := framework.first_failure(text)) is not None]
    if failures:
        return _one_line(str(min(failures, key=lambda failure: failure.position)))
    error = _TOOL_ERROR.search(text)
    if error:
        raised = _RAISED.match(text, error.end()) if error[0][1:] == _TRACEBACK else None
        return _one_line(raised[0].rpartition("\n")[2] if raised else "") or _one_line(error[0])
    lines = reversed(text.rstrip().split("\n"))
    return next((shown for last in lines if last and (shown := _one_line(last))), None)


def _one_line(text: str) -> str:
    # Cut before anything else: a line may be megabytes long.
    shown = "".join(char if char.isprintable() else " " for char in text[: 2 * LONGEST_ERROR])
    shown = re.sub(" +", " ", shown).strip()
    return shown if len(shown) <= LONGEST_ERROR else shown[: LONGEST_ERROR - 1] + "…"


_KIND = r"((?:\w+\.)*\w*(?:Error|Exception|Warning)|(?:syntax )?error(?:\[E\d+\])?|warning)(?!\w)"
_SAME_LINE = re.compile(rf"\)?: (?:{_KIND}|(?=\S))", re.IGNORECASE)
_OTHER_LINE = re.compile(
    rf"\n(?:E )?[# \t]*(?:(?:name: ')?{_KIND}(?=[:'\n])|panic: |thread [^\n]* panicked at )"
)
_FAR = 2000
"""Characters, at most, between a place and the error that goes with it."""
_MOST_PLACES = 500
"""Looked at: output can be megabytes of them."""


def broken_place(output: str, paths: Sequence[str]) -> str | None:
    """`SyntaxError in stencil/filters.py line 42`: the first error in one of the files, else None."""
    text = readable(output)
    pattern = (
        rf"(?:(?<=[\s\"'(])|(?<=[\s(]\./)|(?<={REPO_DIR}/))({'|'.join(map(re.escape, paths))})"
        r"(?:\", line |:|\(|: [^\n(]{1,200}\()(\d+)([:,]\d+)?"
    )
    places = list(islice(re.finditer(pattern, text), _MOST_PLACES)) if paths else []
    for place, following in zip(places, [*places[1:], None], strict=False):
        kind = _kind(text, place, following)
        if kind and not kind.lower().endswith("warning"):
            return f"{short_kind(kind)} in {place[1]} line {place[2]}"
    return None


def _kind(text: str, place: re.Match[str], following: re.Match[str] | None) -> str | None:
    """What was raised or reported there."""
    same = _SAME_LINE.match(text, place.end())
    if same and (same[1] or place[3]):
        return same[1] or "error"
    if place[3] or text.startswith(" +0x", place.end()):
        # JavaScript, Rust and Go name the error first, then the places.
        before = [*_OTHER_LINE.finditer(text, max(0, place.start() - _FAR), place.start())]
        return _word(before[-1]) if before else None
    after = _OTHER_LINE.search(text, place.end(), place.end() + _FAR)
    if after is None or (following and following.start() < after.start()):
        return None  # nothing was raised, or further down in the same traceback
    return _word(after)


def _word(kind: re.Match[str]) -> str:
    return kind[1] or "panic"
