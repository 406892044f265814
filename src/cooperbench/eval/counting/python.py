"""pytest and unittest."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cooperbench.eval.counting.base import KIND, NUMBER, Failure, Framework, Outcome, Tally, line, short_kind

if TYPE_CHECKING:
    from collections.abc import Iterator

_PYTEST_ITEM = r"[0-9]{1,9} [a-z]+(?: [a-z]+)?"
_PYTEST_SUMMARY = line(
    rf"(?:=+ )?(no tests ran|{_PYTEST_ITEM}(?:, {_PYTEST_ITEM})*)"
    r" in [0-9]+\.[0-9]{2}(?:s| seconds)(?: \([0-9a-z:, ]+\))?(?: =+)?"
)
_PYTEST_OUTCOMES = {
    "passed": "passed",
    "xpassed": "passed",
    "failed": "failed",
    "error": "failed",
    "errors": "failed",
    "skipped": "skipped",
    "xfailed": "skipped",
}
_PYTEST_OTHERS = frozenset({"deselected", "warning", "warnings", "rerun", "reruns", "subtests passed"})


def count_pytest(text: str) -> Tally | None:
    """Every session's last line, with `=` around it or, under -q, without."""
    total: dict[str, int] = {}
    found = False
    for summary in _PYTEST_SUMMARY.finditer(text):
        items = re.findall(f"{NUMBER} ([a-z ]+?)(?:, |$)", summary[1])
        if items and not any(word in _PYTEST_OUTCOMES or word in _PYTEST_OTHERS for _, word in items):
            continue
        found = True
        for number, word in items:
            outcome = _PYTEST_OUTCOMES.get(word)
            if outcome:
                total[outcome] = total.get(outcome, 0) + int(number)
    return Tally(**total) if found else None


_PYTEST_FAILED = line(r"(?:FAILED|ERROR) ([^\n]+)")
_PYTEST_HEADING = line(r"_{3,} (?:ERROR (?:at setup of|at teardown of|collecting) )?(\S[^\n]*?) _{3,}")
_PYTEST_RAISED = line(rf"E +{KIND}(?::[^\n]*)?|E +(assert)\b[^\n]*|[^\n:]+:[0-9]+: {KIND}")


def first_pytest_failure(text: str) -> Failure | None:
    """From the short summary, which names the test; what that left out or cut off, from its traceback."""
    summary = next((found for found in _PYTEST_FAILED.finditer(text) if _is_node_id(found[1])), None)
    if summary is None:
        heading = _PYTEST_HEADING.search(text)
        kind = _kind_below(text, heading)
        return Failure(heading.start(), kind, heading[1]) if heading and kind else None
    node, _, message = summary[1].partition(" - ")
    before_parameters, bracket, parameters = node.partition("[")
    name = before_parameters.rpartition("::")[2] + bracket + parameters
    stated = re.match(rf"{KIND}(:|$)", message)
    if message.startswith("assert "):
        kind = "AssertionError"
    elif stated and (stated[2] or not message.endswith("...")):
        kind = short_kind(stated[1])
    else:
        in_heading = (before_parameters.partition("::")[2].replace("::", ".") or node) + bracket + parameters
        headings = _PYTEST_HEADING.finditer(text)
        kind = _kind_below(text, next((found for found in headings if found[1] == in_heading), None))
    return Failure(summary.start(), kind, name)


def _is_node_id(rest: str) -> bool:
    return "::" in rest or rest.partition(" - ")[0].endswith(".py")


def _kind_below(text: str, heading: re.Match[str] | None) -> str | None:
    raised = _PYTEST_RAISED.search(text, heading.end()) if heading else None
    if raised is None:
        return None
    return "AssertionError" if raised[2] else short_kind(raised[1] or raised[3])


_PYTEST_WORDS: dict[str, Outcome] = {
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
        yield name, _PYTEST_WORDS.get(match[2] or match[3], "failed")


_UNITTEST_SUMMARY = line(
    rf"Ran {NUMBER} tests? in [0-9.]+s\n+(?:(OK|FAILED|NO TESTS RAN)(?: \(([a-z0-9=, ]+)\))?)"
)
_UNITTEST_HEADING = line(r"={70}\n(?:ERROR|FAIL): (\S+)(?: \(([^\n() ]+)\))?[^\n]*")
_UNITTEST_FIXTURES = frozenset({"setUpClass", "tearDownClass", "setUpModule", "tearDownModule"})


def count_unittest(text: str) -> Tally | None:
    """`Ran N tests` and the verdict below it.

    A test with subtests can fail several times, so that what passed is what ran less the tests that are named
    as failed; where the headings do not account for the failures, less the failures.
    """
    total = Tally()
    found = False
    start = 0
    for summary in _UNITTEST_SUMMARY.finditer(text):
        found = True
        ran = int(summary[1])
        items = re.findall(rf"([a-z ]+)={NUMBER}", summary[3] or "")
        numbers = {word.strip(): int(number) for word, number in items}
        unexpected = numbers.get("unexpected successes", 0)
        reported = numbers.get("failures", 0) + numbers.get("errors", 0)
        skipped = numbers.get("skipped", 0) + numbers.get("expected failures", 0)
        headings = [heading.groups() for heading in _UNITTEST_HEADING.finditer(text, start, summary.end())]
        named = {heading for heading in headings if heading[0] not in _UNITTEST_FIXTURES}
        tests_failed = len(named) if len(headings) == reported else reported
        passed = max(0, ran - tests_failed - unexpected - skipped)
        total = Tally(total.passed + passed, total.failed + reported + unexpected, total.skipped + skipped)
        start = summary.end()
    return total if found else None


_UNITTEST_RAISED = line(rf"{KIND}(?::[^\n]*)?")


def first_unittest_failure(text: str) -> Failure | None:
    heading = _UNITTEST_HEADING.search(text)
    if heading is None:
        return None
    raised = _UNITTEST_RAISED.search(text, heading.end())
    return Failure(heading.start(), short_kind(raised[1]) if raised else None, heading[1])


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
    Framework("pytest", count_pytest, first_pytest_failure, pytest_outcomes),
    Framework("unittest", count_unittest, first_unittest_failure, unittest_outcomes),
)
