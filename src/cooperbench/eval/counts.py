"""What the test runner printed: how many tests passed, which ones, and what went wrong first.

A summary counts only as a whole line, as its framework prints it. Code under test can print such a line as well:
where a framework prints one summary a run, the last one decides, since it comes after what tests print. Failures count
wherever they are named. Whether the tests passed is first of all the exit code's to say.

Not for deciding success: that is the verdict's work.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from cooperbench.eval.frameworks import FRAMEWORKS, Outcome, Tally, readable, whole_line
from cooperbench.models import REPO_DIR

LONGEST_ERROR = 300
"""Characters of the line that `first_error` gives."""

_FROM_BEST: tuple[Outcome, ...] = ("passed", "skipped", "failed")

_TRACEBACK = "Traceback (most recent call last):"
_TOOL_ERROR = whole_line(
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
_HEADINGS = (
    r"_+ |={70}\n(?:FAIL|ERROR): |(?:FAILED|ERROR) "  # pytest, unittest
    r"| *✖ | *not ok [0-9]+ - |  ● | ?FAIL  ?"  # node, jest, vitest
    r"| *--- FAIL: |---- "  # go, cargo
)
_EXCEPTION = re.compile(
    r"(?: - |\nE +)(?:(assert )|([A-Za-z_](?:[\w.]*\w)?)(?=[:\n]))"  # pytest
    r"|\n[# \t]*(?:(expect\()|(?:name: ')?((?:\w+\.)*\w*(?:Error|Exception|Warning))(?=[:'\n]| \[))"
    r"|\npanic: |\nthread [^\n]* panicked "
)
_FAR = 5000
"""Characters, at most, between a test or a place and the error that goes with it."""
_RAISED = re.compile(r"(?:\n(?:[ \t][^\n]*)?)*\n[^\n]+")


class Counts(NamedTuple):
    """What a test runner said of itself."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    framework: str | None = None
    """Whose summary was read; None where none was recognised."""


def read_counts(output: str) -> Counts:
    """Of all frameworks found; `framework` names them, joined with `+`."""
    text = readable(output)
    every = {framework.name: list(framework.tallies(text)) for framework in FRAMEWORKS}
    found = {name: tallies for name, tallies in every.items() if tallies}
    # A package without tests may come last.
    last = [next((one for one in reversed(tallies) if any(one)), Tally()) for tallies in found.values()]
    return Counts(
        passed=sum(tally.passed for tally in last),
        failed=sum(tally.failed for tallies in found.values() for tally in tallies),
        skipped=sum(tally.skipped for tally in last),
        framework="+".join(found) or None,
    )


def read_outcomes(output: str) -> dict[str, Outcome]:
    """What became of each test that the output names, by an id that is the same in every run.

    Many runners name all tests only if they are told to be verbose. A test that is made of others is named
    like them. Of a test that is named several times the worst counts: code under test may print that it passed.
    """
    text = readable(output)
    outcomes: dict[str, Outcome] = {}
    for framework in FRAMEWORKS:
        for test, outcome in framework.outcomes(text):
            outcomes[test] = max(outcome, outcomes.get(test, outcome), key=_FROM_BEST.index)
    return outcomes


def first_error(output: str) -> str | None:
    """One line: `AssertionError in test_edge_case`, else the first error of a tool, else the last line.

    Lines that are empty do not count; None where there is no other.
    """
    text = readable(output)
    for framework in FRAMEWORKS:
        failed = [test for test, outcome in framework.outcomes(text) if outcome == "failed"]
        if failed:
            parts = (failed[0] + "/", failed[0] + " > ")
            test = next((other for other in failed if other.startswith(parts)), failed[0])
            name = re.sub(f"^(?:{framework.prefix})", "", test) or test
            return _one_line(f"{_raised_in(text, name)} in {name}")
    error = _TOOL_ERROR.search(text)
    if error:
        raised = _RAISED.match(text, error.end()) if error[0][1:] == _TRACEBACK else None
        return _one_line(raised[0].rpartition("\n")[2] if raised else "") or _one_line(error[0])
    lines = reversed(text.rstrip().split("\n"))
    return next((shown for last in lines if last and (shown := _one_line(last))), None)


def _raised_in(text: str, test: str) -> str:
    """What is named below the heading of a failed test, or in the summary's line about it."""
    heading = re.search(rf"\n(?:{_HEADINGS})[^\n]*?{re.escape(test)}(?!\w)", text)
    raised = _EXCEPTION.search(text, heading.end(), heading.end() + _FAR) if heading else None
    if raised is None:
        return "failure"
    if raised[1] or raised[3]:
        return "AssertionError"
    return (raised[2] or raised[4] or "panic").rpartition(".")[2]


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
            return f"{kind.rpartition('.')[2]} in {place[1]} line {place[2]}"
    return None


def _kind(text: str, place: re.Match[str], following: re.Match[str] | None) -> str | None:
    """What was raised or reported there."""
    same = _SAME_LINE.match(text, place.end())
    if same and (same[1] or place[3]):
        return same[1] or "error"
    if place[3] or text.startswith(" +0x", place.end()):
        # JavaScript, Rust and Go name the error first, then the places.
        before = [*_OTHER_LINE.finditer(text, max(0, place.start() - _FAR), place.start())]
        return before[-1][1] or "panic" if before else None
    after = _OTHER_LINE.search(text, place.end(), place.end() + _FAR)
    if after is None or (following and following.start() < after.start()):
        return None  # nothing was raised, or further down in the same traceback
    return after[1] or "panic"
