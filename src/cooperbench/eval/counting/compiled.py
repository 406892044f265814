"""go test and cargo test."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from cooperbench.eval.counting.base import NUMBER, Failure, Framework, Outcome, Tally, line

if TYPE_CHECKING:
    from collections.abc import Iterator

_GO_LINE = line(
    r"(?P<run>=== RUN) +\S+"
    r"| *--- (?P<outcome>PASS|FAIL|SKIP): (?P<test>\S+) \([0-9.]+s\)"
    r"|ok[ \t]+(?P<ok>\S{1,200})[ \t]+(?:\(cached\)|[0-9]+\.[0-9]+s)[^\n]*"
    r"|FAIL[ \t]+(?P<failed>\S{1,200})[ \t]+(?:[0-9]+\.[0-9]+s|\[(?:build|setup) failed\])"
    r"|\?[ \t]+\S+[ \t]+(?P<none>\[no test files\])"
)


def count_go(text: str) -> Tally | None:
    """Each package by itself, up to the line that closes it.

    With -v its tests are counted, and of a test with subtests only these. Without it only failed tests are
    printed: a package that is `ok` counts as one that passed, if it had tests to run. A failed package has at
    least one failure, also where none was printed (it did not build, or panicked).
    """
    total = [0, 0, 0]
    outcomes: dict[str, str] = {}
    verbose = found = False
    for match in _GO_LINE.finditer(text):
        if match["run"]:
            verbose = True
        elif match["outcome"]:
            outcomes[match["test"]] = match["outcome"]
            verbose = verbose or match["outcome"] != "FAIL"
        else:
            found = True
            passed, failed, skipped = _leaves(outcomes)
            if match["failed"]:
                failed = max(failed, 1)
            elif match["ok"] and not verbose and "[no tests to run]" not in match[0]:
                passed += 1
            total = [total[0] + passed, total[1] + failed, total[2] + skipped]
            outcomes = {}
            verbose = False
    # A run that was killed leaves its last package open.
    passed, failed, skipped = _leaves(outcomes)
    return Tally(total[0] + passed, total[1] + failed, total[2] + skipped) if found or outcomes else None


def _leaves(outcomes: dict[str, str]) -> Tally:
    # In this order the first subtest follows the test that it is part of.
    names = sorted(outcomes, key=lambda name: name.split("/"))
    following = pairwise([*names, ""])
    leaves = [outcomes[name] for name, follower in following if not follower.startswith(name + "/")]
    return Tally(leaves.count("PASS"), leaves.count("FAIL"), leaves.count("SKIP"))


_GO_FAILURE = line(r" *--- FAIL: (\S+) \([0-9.]+s\)")
_GO_BROKEN = line(r"FAIL[ \t]+(\S+)[ \t]+\[((?:build|setup) failed)\]")


def first_go_failure(text: str) -> Failure | None:
    failures = list(_GO_FAILURE.finditer(text))
    broken = _GO_BROKEN.search(text)
    if broken and (not failures or broken.start() < failures[0].start()):
        return Failure(broken.start(), broken[2], broken[1])
    if not failures:
        return None
    first = failures[0]
    subtest = next((other for other in failures if other[1].startswith(first[1] + "/")), first)
    panicked = text.startswith("\npanic: ", subtest.end())
    return Failure(first.start(), "panic" if panicked else None, subtest[1])


_GO_OUTCOMES: dict[str, Outcome] = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}


def go_outcomes(text: str) -> Iterator[tuple[str, Outcome]]:
    """`package.Test/subtest`, without the package where its line is missing; what did not build by itself."""
    tests: list[tuple[str, Outcome]] = []
    for match in _GO_LINE.finditer(text):
        if match["outcome"]:
            tests.append((match["test"], _GO_OUTCOMES[match["outcome"]]))
        elif package := match["ok"] or match["failed"]:
            yield from ((f"{package}.{test}", outcome) for test, outcome in tests)
            tests = []
            if match[0].endswith(" failed]"):
                yield package, "failed"
    yield from tests


_CARGO_SUMMARY = line(
    rf"test result: (?:ok|FAILED)\. {NUMBER} passed; {NUMBER} failed; {NUMBER} ignored;[^\n]*"
)
_CARGO_BROKEN = line(r"error: could not compile [^\n]+")


def count_cargo(text: str) -> Tally | None:
    """One summary a test binary and one for the doc-tests. Code that does not compile has no tests."""
    rows = [[int(number) for number in summary.groups()] for summary in _CARGO_SUMMARY.finditer(text)]
    if not rows:
        return Tally() if _CARGO_BROKEN.search(text) else None
    return Tally(*(sum(column) for column in zip(*rows, strict=True)))


_CARGO_FAILURE = line(r"---- ([^\n]+) stdout ----")
_CARGO_ERROR = line(r"error(?:\[E[0-9]+\])?: [^\n]+")


def first_cargo_failure(text: str) -> Failure | None:
    found = _CARGO_FAILURE.search(text)
    if found:
        return Failure(found.start(), "panic", found[1].partition(" - ")[2] or found[1])
    broken = _CARGO_BROKEN.search(text)
    error = _CARGO_ERROR.search(text)
    if broken is None or error is None:
        return None
    location = re.compile(r"\n *--> ([^\n]+)").match(text, error.end())
    kind = error[0].strip().partition("error")[2]
    return Failure(error.start(), "error" + kind, location[1] if location else "the build")


_CARGO_OUTCOMES: dict[str, Outcome] = {
    "ok": "passed",
    "PASS": "passed",
    "LEAK": "passed",
    "ignored": "skipped",
    "SKIP": "skipped",
}
_CARGO_TEST = line(
    r" +Running (?:unittests )?(?P<source>\S+ )?\(?(?:[^\s()]*/)?(?P<binary>[^\s/()]{1,200})-[0-9a-f]{16}\)?"
    r"| +Doc-tests (?P<crate>\S{1,200})"
    r"|test (?P<test>[^\n]+?)(?: - should panic)? \.\.\. (?P<outcome>ok|FAILED|ignored)(?:[ ,][^\n]*)?"
    r"|---- (?P<failed>[^\n]+) stdout ----"
    r"| +(?:TRY [0-9]+ )?(?P<status>PASS|LEAK|SKIP|FAIL|TIMEOUT|ABORT|SIG[A-Z]+) \[[ 0-9.s]*\]"
    r" (?:\( *[0-9]+/[0-9]+\) )?(?P<nextest>\S+ \S+)"
)


def cargo_outcomes(text: str) -> Iterator[tuple[str, Outcome]]:
    """`binary::module::test`, without the binary where it is not announced; nextest's names as they are."""
    binary = ""
    for match in _CARGO_TEST.finditer(text):
        if match["binary"] or match["crate"]:
            # The library and the program of a crate have the same name.
            program = (match["source"] or "").endswith("main.rs ")
            binary = (match["binary"] or match["crate"]) + (" (bin)::" if program else "::")
        elif match["nextest"]:
            yield match["nextest"], _CARGO_OUTCOMES.get(match["status"], "failed")
        else:
            name = match["test"] or match["failed"]
            yield binary + name, _CARGO_OUTCOMES.get(match["outcome"], "failed")


FRAMEWORKS = (
    Framework("go", count_go, first_go_failure, go_outcomes),
    Framework("cargo", count_cargo, first_cargo_failure, cargo_outcomes),
)
