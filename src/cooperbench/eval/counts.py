"""What the test runner printed: how many tests passed, which ones, and what went wrong first.

Code under test can print such lines too. So where a framework prints one summary a run, the last one decides, and
failures count wherever they are named. Success is not decided here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cooperbench.eval.frameworks import FRAMEWORKS, Counts, Outcome, readable, whole_line
from cooperbench.models import REPO_DIR

MAX_ERROR = 300
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
    r"| *✖ | *not ok [0-9]+ |  ● | ?FAIL  ?| +[0-9]+\) "  # node, jest, vitest, mocha
    r"| *--- FAIL: |---- "  # go, cargo
)
_EXCEPTION = re.compile(
    r"(?: - |\nE +)(?:(assert )|([A-Za-z_](?:[\w.]*\w)?)(?=[:\n]))"  # pytest
    r"|\n[# \t]*(?:(expect\()|(?:name: ')?((?:\w+\.)*\w*(?:Error|Exception|Warning))(?=[:'\n]| \[))"
    r"|\npanic: |\nthread [^\n]* panicked "
)
_FAR = 5000
"""Characters, at most, between a test and the error that goes with it."""
_NEAR = 300
"""Characters, at most, between two lines of one trace."""
_RAISED = re.compile(r"(?:\n(?:[ \t][^\n]*)?)*\n[^\n]+")


def read_counts(output: str) -> Counts:
    """Of all frameworks found; `framework` names them, joined with `+`."""
    text = readable(output)
    every = {framework.name: list(framework.tallies(text)) for framework in FRAMEWORKS}
    found = {name: tallies for name, tallies in every.items() if tallies}
    # A package without tests may come last.
    last = [
        next((one for one in reversed(tallies) if any(one)), Counts()) for tallies in found.values()
    ]
    return Counts(
        passed=sum(one.passed for one in last),
        failed=sum(tally.failed for tallies in found.values() for tally in tallies),
        skipped=sum(one.skipped for one in last),
        framework="+".join(found) or None,
    )


def read_outcomes(output: str) -> dict[str, Outcome]:
    """What became of each test that the output names, by an id that is the same in every run.

    Of a test that is named several times the worst counts: code under test may print that it passed.
    """
    text = readable(output)
    outcomes: dict[str, Outcome] = {}
    for framework in FRAMEWORKS:
        for test, outcome in framework.outcomes(text):
            outcomes[test] = max(outcome, outcomes.get(test, outcome), key=_FROM_BEST.index)
    return outcomes


def first_error(output: str) -> str | None:
    """One line: `AssertionError in test_edge_case`, else the first error of a tool, else the last line."""
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
    if len(test) > MAX_ERROR:
        return "failure"  # to look for it would take its length for each character
    heading = re.search(rf"\n(?:{_HEADINGS})[^\n]*?{re.escape(test)}(?!\w)", text)
    raised = _EXCEPTION.search(text, heading.end(), heading.end() + _FAR) if heading else None
    if raised is None:
        return "failure"
    if raised[1] or raised[3]:
        return "AssertionError"
    return (raised[2] or raised[4] or "panic").rpartition(".")[2]


def _one_line(text: str) -> str:
    # Cut before anything else: a line may be megabytes long.
    shown = "".join(char if char.isprintable() else " " for char in text[: 2 * MAX_ERROR])
    shown = re.sub(" +", " ", shown).strip()
    return shown if len(shown) <= MAX_ERROR else shown[: MAX_ERROR - 1] + "…"


def named_file(output: str, paths: Sequence[str]) -> str | None:
    """The last of these files in the first trace that names one of them."""
    pattern = rf"(?<![\w./-])(?:(?:{REPO_DIR}|\.)/)?({'|'.join(map(re.escape, paths))})(?=[\":(])"
    found = None
    for place in re.finditer(pattern, readable(output)) if paths else ():
        if found and place.start() > found.end() + _NEAR:
            break
        found = place
    return found[1] if found else None
