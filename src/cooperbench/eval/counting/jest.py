"""jest and vitest."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cooperbench.eval.counting.base import KIND, NUMBER, Failure, Framework, Outcome, Tally, line

if TYPE_CHECKING:
    from collections.abc import Iterator

_JEST_LINE = line(
    r"Test Suites: (?P<suites>[^\n]+ total)"
    r"|Tests: +(?P<tests>(?:[0-9]{1,9} [a-z]+, )*[0-9]{1,9} total)"
    r"| ?FAIL  ?(?P<failed>\S[^\n]*)"
    r"|  ● (?P<broken>Test suite failed to run)"
    r"|(?P<none>No tests found, exiting with code [01])"
)
_OUTCOME = re.compile(f"{NUMBER} ([a-z ]+)")


def count_jest(text: str) -> Tally | None:
    """The `Tests:` line, and those failed suites of which no test ran: they are in no other number."""
    total = Tally()
    found = False
    suites_failed = 0
    broken_suites: set[str] = set()
    current_suite = ""
    for match in _JEST_LINE.finditer(text):
        if match["failed"]:
            current_suite = match["failed"]
        elif match["broken"]:
            broken_suites.add(current_suite)
        elif match["suites"]:
            suites_failed = _outcomes(match["suites"]).get("failed", 0)
        elif match["tests"]:
            found = True
            tests = _outcomes(match["tests"])
            failed = tests.get("failed", 0)
            failed += min(len(broken_suites), suites_failed) if failed else suites_failed
            total = _plus(total, tests, failed)
            suites_failed = 0
            broken_suites.clear()
        elif match["none"]:
            found = True
    return total if found else None


def _outcomes(summary: str) -> dict[str, int]:
    return {word.strip(): int(number) for number, word in _OUTCOME.findall(summary)}


def _plus(total: Tally, tests: dict[str, int], failed: int) -> Tally:
    skipped = tests.get("skipped", 0) + tests.get("todo", 0) + tests.get("expected fail", 0)
    return Tally(total.passed + tests.get("passed", 0), total.failed + failed, total.skipped + skipped)


_JEST_FAILURE = line(r"  ● (?!Console)(\S[^\n]*)\n+ {4}([^\n]+)")


def first_jest_failure(text: str) -> Failure | None:
    found = _JEST_FAILURE.search(text)
    if found is None:
        return None
    name = found[1].rpartition(" › ")[2]
    if name == "Test suite failed to run":
        suites = [
            match["failed"] for match in _JEST_LINE.finditer(text, 0, found.start() + 1) if match["failed"]
        ]
        return Failure(found.start(), name, suites[-1]) if suites else Failure(found.start(), None, name)
    stated = re.match(rf"{KIND}:", found[2])
    if stated:
        return Failure(found.start(), stated[1], name)
    return Failure(found.start(), "AssertionError" if found[2].startswith("expect(") else None, name)


_JEST_OUTCOMES: dict[str, Outcome] = {"✓": "passed", "✕": "failed", "○": "skipped", "✎": "skipped"}
_JEST_TEST = line(
    r" ?(?:PASS|FAIL)  ?(?P<file>[^\s>][^\n>]{0,199}?)(?: \([0-9.]+ m?s\))?"
    r"|  ● (?!Console\n)(?P<failed>\S[^\n]*)"
    r"|(?P<indent> {2,32})(?:"
    r"(?P<mark>[✓✕○✎]) (?P<name>[^\n]+?)(?: \([0-9.]+ m?s\))?|(?P<group>[^\s●][^\n]{0,199}))"
)


def jest_outcomes(text: str) -> Iterator[tuple[str, Outcome]]:
    """`file > describe > name`: what is indented below a file, and the headings of its failures."""
    file = ""
    above: list[str] = []
    for match in _JEST_TEST.finditer(text):
        if match["file"]:
            file = match["file"]
        elif not file:
            continue
        elif match["failed"]:
            broken = match["failed"] == "Test suite failed to run"
            yield file if broken else _jest_id(file, match["failed"]), "failed"
        else:
            above = above[: len(match["indent"]) // 2 - 1]
            if match["group"]:
                above.append(match["group"])
                continue
            outcome = _JEST_OUTCOMES[match["mark"]]
            name = match["name"].partition(" ")[2] if outcome == "skipped" else match["name"]
            yield _jest_id(file, *above, name), outcome


def _jest_id(*names: str) -> str:
    # The headings of failures do not tell a separator from one in a name.
    return " > ".join(names).replace(" › ", " > ")


_VITEST_SUMMARY = line(
    r" +(?P<what>Test Files|Tests|Errors)  "
    r"(?P<numbers>no tests|[0-9]{1,9} [a-z ]+(?: \| [0-9]{1,9} [a-z ]+)*)(?: \([0-9]+\))?"
    r"|⎯+ Failed Suites (?P<suites>[0-9]{1,9}) ⎯+"
    r"|(?P<none>No test files found, exiting with code [01])"
)


def count_vitest(text: str) -> Tally | None:
    """The `Tests` line, suites that failed before their tests, and errors outside of tests."""
    total = Tally()
    found = False
    files_failed = broken_suites = 0
    for match in _VITEST_SUMMARY.finditer(text):
        numbers = _outcomes(match["numbers"] or "")
        if match["what"] == "Test Files":
            files_failed = numbers.get("failed", 0)
        elif match["what"] == "Errors":
            total = _plus(total, {}, sum(numbers.values()))
        elif match["what"] == "Tests":
            found = True
            failed = numbers.get("failed", 0)
            failed += min(broken_suites, files_failed) if failed else files_failed
            total = _plus(total, numbers, failed)
            files_failed = broken_suites = 0
        elif match["none"]:
            found = True
        else:
            broken_suites = int(match["suites"])
    return total if found else None


# Jest's coloured heading looks the same, but has no error in the next line.
_VITEST_FAILURE = line(rf" FAIL  ([^\n]+)\n{KIND}:[^\n]*")


def first_vitest_failure(text: str) -> Failure | None:
    found = _VITEST_FAILURE.search(text)
    if found is None:
        return None
    name = found[1].partition(" [ ")[0].rpartition(" > ")[2]
    return Failure(found.start(), found[2], name)


_VITEST_OUTCOMES: dict[str, Outcome] = {"✓": "passed", "×": "failed", "↓": "skipped", "□": "skipped"}
_VITEST_TEST = line(
    r" (?P<mark>[✓×↓□]) (?P<test>[^\s>][^\n>]* > [^\n]+?)(?: [0-9]+ms)?(?: \((?:retry|repeat) x[0-9]+\)){0,2}"
    r"| FAIL  (?P<failed>[^\n]+ > [^\n]+|[^\n]+?(?= \[ ))[^\n]*"
)


def vitest_outcomes(text: str) -> Iterator[tuple[str, Outcome]]:
    """`file > describe > name`, from the verbose reporter; others name only what failed."""
    for match in _VITEST_TEST.finditer(text):
        if match["failed"]:
            yield match["failed"], "failed"
        else:
            yield match["test"], _VITEST_OUTCOMES[match["mark"]]


FRAMEWORKS = (
    Framework("jest", count_jest, first_jest_failure, jest_outcomes),
    Framework("vitest", count_vitest, first_vitest_failure, vitest_outcomes),
)
