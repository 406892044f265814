"""pytest and unittest."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cooperbench.eval.counting import NUMBER, Framework, Outcome, Tally, line, numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_ITEM = r"[0-9]{1,9} [a-z]+(?: [a-z]+)?"
_PYTEST_SUMMARY = line(
    r"(?:=+ )?(no tests ran|(?=[^\n]*?\b(?:passed|failed|errors?|skipped|xfailed|xpassed|deselected|warnings?)\b)"
    rf"{_ITEM}(?:, {_ITEM})*)"
    r" in [0-9]+\.[0-9]{2}(?:s| seconds)(?: \([0-9a-z:, ]+\))?(?: =+)?"
)


def pytest_tallies(text: str) -> Iterator[Tally]:
    """A session's last line, with `=` around it or, under -q, without."""
    for summary in _PYTEST_SUMMARY.finditer(text):
        count = numbers_of(summary[1])
        yield Tally(
            count.get("passed", 0) + count.get("xpassed", 0),
            count.get("failed", 0) + count.get("error", 0) + count.get("errors", 0),
            count.get("skipped", 0) + count.get("xfailed", 0),
        )


_PYTEST_OUTCOMES: dict[str, Outcome] = {
    "PASSED": "passed",
    "XPASS": "passed",
    "SKIPPED": "skipped",
    "XFAIL": "skipped",
}
_WORD = "PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS"
_FILE = r"[^\s:\[]+\.[A-Za-z]+"
# Only parameters may contain spaces. Of a test that comes from elsewhere its file is shown behind an arrow.
_NODE = rf"({_FILE}::[^\s\[]+(?:\[[^\n]*?\])?)(?: <- \S+)?"
_PYTEST_TEST = line(
    rf"{_NODE} (?:({_WORD})(?: \([^\n]*| *(?:\[[ 0-9/%]+\])?)|SUBFAIL[^\n]*)"
    r"|(?:\[gw[0-9]+\] (?:\[[ 0-9/%]+\] )?)?"
    rf"(?:({_WORD})|SUBFAIL(?>[^\n]*?(?= {_FILE}::))) {_NODE}(?: - [^\n]*| *)"
    rf"|ERROR ({_FILE})(?: - [^\n]*)?"
)


def pytest_outcomes(text: str) -> Iterator[tuple[str, Outcome]]:
    """From -v, also under xdist, and from the short summary, which may name only what failed.

    There a message that follows parameters starts at the first `] - `. A file that was not collected is named.
    """
    for match in _PYTEST_TEST.finditer(text):
        name = match[1] or match[4] or match[5]
        yield name, _PYTEST_OUTCOMES.get(match[2] or match[3], "failed")


_UNITTEST_SUMMARY = line(
    rf"Ran {NUMBER} tests? in [0-9.]+s\n+(?:OK|FAILED|NO TESTS RAN)(?: \(([a-z0-9=, ]+)\))?"
)


def unittest_tallies(text: str) -> Iterator[Tally]:
    """`Ran N tests` and the verdict below it. A test with subtests can fail several times."""
    for summary in _UNITTEST_SUMMARY.finditer(text):
        items = re.findall(rf"([a-z ]+)={NUMBER}", summary[2] or "")
        count = {word.strip(): int(number) for word, number in items}
        failed = sum(count.get(word, 0) for word in ("failures", "errors", "unexpected successes"))
        skipped = count.get("skipped", 0) + count.get("expected failures", 0)
        yield Tally(max(0, int(summary[1]) - failed - skipped), failed, skipped)


_UNITTEST_ENDING = r"""(?:ok|FAIL|ERROR|expected failure|unexpected success|skipped ['"][^\n]*)"""
_UNITTEST_TEST = line(
    r" *(?P<test>\S+) \((?P<place>[^\s()]+)\)(?:\n[^\n]*?| [\[(][^\n]*?)? \.\.\. (?P<rest>[^\n]*)"
    r"|={70}\n(?:ERROR|FAIL|UNEXPECTED SUCCESS): (?P<failed>\S+)(?: \((?P<of>[^\s()]+)\))?[^\n]*"
    rf"|(?P<end>{_UNITTEST_ENDING})"
)
_UNITTEST_END = re.compile(rf"(?:.* \.\.\. )?({_UNITTEST_ENDING})")


def unittest_outcomes(text: str) -> Iterator[tuple[str, Outcome]]:
    """`module.Class.test`, from -v and from the headings of failures.

    What a test prints stands before its outcome, which then is alone on a line.
    """
    running = None
    for match in _UNITTEST_TEST.finditer(text):
        if match["failed"]:
            yield _unittest_id(match["failed"], match["of"]), "failed"
            continue
        if match["test"]:
            running = _unittest_id(match["test"], match["place"])
        end = _UNITTEST_END.fullmatch(match["end"] or match["rest"] or "")
        if end and running:
            skipped = end[1].startswith(("skipped", "expected"))
            yield running, "skipped" if skipped else "passed" if end[1] == "ok" else "failed"
            running = None


def _unittest_id(test: str, place: str | None) -> str:
    # Since Python 3.11 the place includes the test.
    return place if place and place.endswith(f".{test}") else f"{place}.{test}" if place else test


FRAMEWORKS = (
    Framework("pytest", pytest_tallies, pytest_outcomes, prefix=r"[^\[]*::"),
    Framework("unittest", unittest_tallies, unittest_outcomes, prefix=r".*\."),
)
