"""node --test, jest and vitest."""

from __future__ import annotations

import re

from cooperbench.eval.counting.base import KIND, NUMBER, Failure, Tally, line

# Under TAP whatever a test prints becomes a comment too, so that only the whole block counts as a summary.
_NODE_SUMMARY = line(
    rf"(?:# |ℹ )tests {NUMBER}"
    r"(?:\n(?:# |ℹ )suites [0-9]+)?"
    + "".join(rf"\n(?:# |ℹ ){word} {NUMBER}" for word in ("pass", "fail", "cancelled", "skipped", "todo"))
    + r"\n(?:# |ℹ )duration_ms [0-9.]+"
)


def count_node(text: str) -> Tally | None:
    """The last lines of the spec and the TAP reporter. Cancelled tests count as failed, `todo` as skipped."""
    blocks = [[int(number) for number in block.groups()] for block in _NODE_SUMMARY.finditer(text)]
    if not blocks:
        return None
    _, passed, failed, cancelled, skipped, todo = (sum(column) for column in zip(*blocks, strict=True))
    return Tally(passed, failed + cancelled, skipped + todo)


_TAP_FAILURE = line(r" *not ok [0-9]+ - ([^\n]+)")
_TAP_KIND = re.compile(r"\n *name: '(\w+)'\n")
_TAP_END = line(r" *\.\.\.")
_SPEC_FAILURE = line(r" *✖ ([^\n]+) \([0-9.]+ms\)")
_SPEC_KIND = re.compile(rf"\n[ \t]+{KIND}(?: \[[A-Za-z_]+\])?:", re.ASCII)


def first_node_failure(text: str) -> Failure | None:
    """Subtests are printed before the test that they are part of, so that the first is what really failed."""
    for found in _TAP_FAILURE.finditer(text):
        if not re.search(r" # (?:TODO|SKIP)\b", found[1]):
            end = _TAP_END.search(text, found.end())
            kind = _TAP_KIND.search(text, found.end(), end.end() if end else found.end())
            return Failure(found.start(), kind[1] if kind else None, found[1])
    failures = list(_SPEC_FAILURE.finditer(text))
    for found in failures:
        kind = _SPEC_KIND.match(text, found.end())
        if kind:
            return Failure(found.start(), kind[1], found[1])
    return Failure(failures[0].start(), None, failures[0][1]) if failures else None


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
