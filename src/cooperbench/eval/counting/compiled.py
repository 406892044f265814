"""go test, cargo test and cargo nextest."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from cooperbench.eval.counting import NUMBER, Framework, Outcome, Tally, line, numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_GO_LINE = line(
    r"(?P<run>=== RUN) +\S+"
    r"| *--- (?P<outcome>PASS|FAIL|SKIP): (?P<test>\S+) \([0-9.]+s\)"
    r"|ok[ \t]+(?P<ok>\S{1,200})[ \t]+(?:\(cached\)|[0-9]+\.[0-9]+s)[^\n]*"
    r"|FAIL[ \t]+(?P<failed>\S{1,200})[ \t]+(?:[0-9]+\.[0-9]+s|\[(?:build|setup) failed\])"
    r"|\?[ \t]+\S+[ \t]+(?P<none>\[no test files\])"
)
_GO_OUTCOMES: dict[str, Outcome] = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}


def go_tallies(text: str) -> Iterator[Tally]:
    """Each package by itself, up to the line that closes it.

    With -v its tests are counted, and of a test with subtests only these. Without it only failed tests are
    printed: a package that is `ok` counts as one that passed, if it had tests to run. A failed package has at
    least one failure, also where none was printed (it did not build, or panicked).
    """
    tallies: list[Tally] = []
    tests: dict[str, Outcome] = {}
    verbose = False
    for match in _GO_LINE.finditer(text):
        if match["run"]:
            verbose = True
        elif match["outcome"]:
            tests[match["test"]] = _GO_OUTCOMES[match["outcome"]]
            verbose = verbose or match["outcome"] != "FAIL"
        else:
            passed, failed, skipped = _leaves(tests)
            if match["failed"]:
                failed = max(failed, 1)
            elif match["ok"] and not verbose and "[no tests to run]" not in match[0]:
                passed += 1
            tallies.append(Tally(passed, failed, skipped))
            tests = {}
            verbose = False
    if tests:  # a run that was killed leaves its last package open
        tallies.append(_leaves(tests))
    yield from _summed(tallies)


def _leaves(tests: dict[str, Outcome]) -> Tally:
    # In this order the first subtest follows the test that it is part of.
    names = sorted(tests, key=lambda name: name.split("/"))
    following = pairwise([*names, ""])
    leaves = [tests[name] for name, follower in following if not follower.startswith(name + "/")]
    return Tally(leaves.count("passed"), leaves.count("failed"), leaves.count("skipped"))


def _summed(tallies: list[Tally]) -> Iterator[Tally]:
    """The summaries of packages and binaries belong together."""
    if tallies:
        yield Tally(*(sum(column) for column in zip(*tallies, strict=True)))


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
    r"| +Summary \[[ 0-9.s]*\] (?:[0-9]+/)?[0-9]+ tests? run: (?P<nextest>[^\n]+)"
)
_CARGO_BROKEN = line(r"error: could not compile [^\n]+")


def cargo_tallies(text: str) -> Iterator[Tally]:
    """One summary a test binary and one for the doc-tests, or nextest's. Code that does not compile has no tests."""
    tallies = []
    for summary in _CARGO_SUMMARY.finditer(text):
        if summary["nextest"]:
            count = numbers_of(re.sub(r"\([^\n)]*\)", "", summary["nextest"]))
            failed = sum(count.get(word, 0) for word in ("failed", "timed out", "exec failed"))
            tallies.append(Tally(count.get("passed", 0), failed, count.get("skipped", 0)))
        else:
            tallies.append(Tally(*(int(summary[group]) for group in (1, 2, 3))))
    if not tallies and _CARGO_BROKEN.search(text):
        tallies.append(Tally())
    yield from _summed(tallies)


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
    Framework("go", go_tallies, go_outcomes, prefix=r".*?\.(?=Test|Example|Fuzz)"),
    Framework("cargo", cargo_tallies, cargo_outcomes, prefix="[^: ]*(?:::| )"),
)
