"""How each test framework prints its results. Used through `cooperbench.eval.counts`.

Test output can hold anything, so patterns are for whole lines and take time linear in them: of two neighbouring
repetitions, what one can match ends the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import Literal, NamedTuple

Outcome = Literal["passed", "failed", "skipped"]


class Counts(NamedTuple):
    """What a summary says; all zero where no test was run."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    framework: str | None = None
    """Whose summary was read; None where none was recognised."""


class Framework(NamedTuple):
    """How what one framework prints is read."""

    name: str
    tallies: Callable[[str], Iterator[Counts]]
    """One for each time that it was called, as far as that can be told."""
    outcomes: Callable[[str], Iterator[tuple[str, Outcome]]]
    """Ids of tests as far as they are printed; an id may come several times.

    What is part of many ids, such as a file, has at most 200 characters: ids are to stay small too.
    """
    prefix: str
    """A pattern of what people leave out when they name a test by its id: file, package, suite."""


_NUMBER = "([0-9]{1,9})"
_ESCAPE_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[ -/]+[0-~]|[0-Z\\^_a-~])"
)


def readable(output: str) -> str:
    """Output without colours and carriage returns at line ends, a newline before and after each line."""
    plain = _ESCAPE_SEQUENCE.sub("", output) if "\x1b" in output else output
    return "\n" + plain.replace("\r\n", "\n") + "\n"


def whole_line(pattern: str) -> re.Pattern[str]:
    """A pattern for whole lines that are not empty. It starts with a literal newline, which makes it fast."""
    return re.compile(rf"\n(?!\n)(?:{pattern})(?=\n)", re.ASCII)


_KINDS: dict[str, Outcome] = {
    **dict.fromkeys(("passed", "xpassed", "pass", "passing"), "passed"),
    **dict.fromkeys(
        ("failed", "error", "errors", "timed out", "exec failed", "fail", "cancelled"), "failed"
    ),
    **dict.fromkeys(("failures", "unexpected successes", "failing"), "failed"),
    **dict.fromkeys(
        ("skipped", "xfailed", "todo", "expected fail", "ignored", "pending"), "skipped"
    ),
    "expected failures": "skipped",
}
"""What frameworks call the tests that they count."""
_OUTCOMES: dict[str, Outcome] = {
    **dict.fromkeys(("PASSED", "XPASS", "✓", "PASS", "ok", "LEAK"), "passed"),
    **dict.fromkeys(("SKIPPED", "XFAIL", "○", "✎", "↓", "□", "SKIP", "ignored"), "skipped"),
}
"""How they mark a test that did not fail."""
_COUNT = re.compile(f"{_NUMBER} ([a-z ]+)|([a-z][a-z ]*)[= ]{_NUMBER}")


def _tally(counts: str) -> Counts:
    """`3 passed, 1 failed`, `failures=1` and the like."""
    sums = dict.fromkeys(("passed", "failed", "skipped"), 0)
    for before, word, other_word, after in _COUNT.findall(counts):
        if kind := _KINDS.get((word or other_word).strip()):
            sums[kind] += int(before or after)
    return Counts(sums["passed"], sums["failed"], sums["skipped"])


def _counted(outcomes: list[Outcome]) -> Counts:
    return Counts(outcomes.count("passed"), outcomes.count("failed"), outcomes.count("skipped"))


def _tallies(text: str, *, pattern: re.Pattern[str]) -> Iterator[Counts]:
    """Of lines with `tests`. Where none of them failed, one of the `suites` did that could not be loaded."""
    suites_failed = 0
    for match in pattern.finditer(text):
        if suites := match.groupdict().get("suites"):
            suites_failed = _tally(suites).failed
            continue
        found = _tally(match["tests"] or "")
        yield found._replace(failed=found.failed or suites_failed)
        suites_failed = 0


def _summed(tallies: Iterable[Counts]) -> Iterator[Counts]:
    """The summaries of packages and binaries belong together."""
    if every := list(tallies):
        yield Counts(*(sum(column) for column in list(zip(*every, strict=True))[:3]))


_PYTEST_ITEM = r"[0-9]{1,9} [a-z]+(?: [a-z]+)?"
# A session's last line, with `=` around it or, under -q, without.
_PYTEST_SUMMARY = whole_line(
    r"(?:=+ )?(?:no tests ran"
    r"|(?P<tests>(?=[^\n]*?\b(?:passed|failed|errors?|skipped|xfailed|xpassed|deselected|warnings?)\b)"
    rf"{_PYTEST_ITEM}(?:, {_PYTEST_ITEM})*))"
    r" in [0-9]+\.[0-9]{2}(?:s| seconds)(?: \([0-9a-z:, ]+\))?(?: =+)?"
)
_PYTEST_WORD = "PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS"
_PYTEST_FILE = r"[^\s:\[]+\.[A-Za-z]+"
# Only parameters may contain spaces. Of a test that comes from elsewhere its file is shown behind an arrow.
_PYTEST_NODE = rf"({_PYTEST_FILE}::[^\s\[]+(?:\[[^\n]*?\])?)(?: <- \S+)?"
_PYTEST_TEST = whole_line(
    rf"{_PYTEST_NODE} (?:({_PYTEST_WORD})(?: \([^\n]*| *(?:\[[ 0-9/%]+\])?)|SUBFAIL[^\n]*)"
    r"|(?:\[gw[0-9]+\] (?:\[[ 0-9/%]+\] )?)?"
    rf"(?:({_PYTEST_WORD})|SUBFAIL(?>[^\n]*?(?= {_PYTEST_FILE}::))) {_PYTEST_NODE}(?: - [^\n]*| *)"
    rf"|ERROR ({_PYTEST_FILE})(?: - [^\n]*)?"
)


def pytest_outcomes(text: str) -> Iterator[tuple[str, Outcome]]:
    """From -v, also under xdist, and from the short summary, which may name only what failed.

    There a message that follows parameters starts at the first `] - `. A file that was not collected is named.
    """
    for match in _PYTEST_TEST.finditer(text):
        name = match[1] or match[4] or match[5]
        yield name, _OUTCOMES.get(match[2] or match[3], "failed")


_UNITTEST_SUMMARY = whole_line(
    rf"Ran {_NUMBER} tests? in [0-9.]+s\n+(?:OK|FAILED|NO TESTS RAN)(?: \(([a-z0-9=, ]+)\))?"
)


def unittest_tallies(text: str) -> Iterator[Counts]:
    """`Ran N tests` and the verdict below it. A test with subtests can fail several times."""
    for summary in _UNITTEST_SUMMARY.finditer(text):
        found = _tally(summary[2] or "")
        yield found._replace(passed=max(0, int(summary[1]) - found.failed - found.skipped))


_UNITTEST_ENDING = r"""(?:ok|FAIL|ERROR|expected failure|unexpected success|skipped ['"][^\n]*)"""
_UNITTEST_TEST = whole_line(
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


_JEST_SUMMARY = whole_line(
    r"Test Suites: (?P<suites>[^\n]+ total)"
    r"|Tests: +(?P<tests>(?:[0-9]{1,9} [a-z]+, )*[0-9]{1,9} total)"
    r"|No tests found, exiting with code [01]"
)
_VITEST_ITEM = "[0-9]{1,9} [a-z ]+"
_VITEST_SUMMARY = whole_line(
    rf" +Test Files  (?P<suites>{_VITEST_ITEM}(?: \| {_VITEST_ITEM})*)(?: \([0-9]+\))?"
    rf"| +Tests  (?P<tests>no tests|{_VITEST_ITEM}(?: \| {_VITEST_ITEM})*)(?: \([0-9]+\))?"
    r"|No test files found, exiting with code [01]"
)


_JEST_TEST = whole_line(
    r"(?:[^\n]*(?=(?:PASS|FAIL) \S+\.[cm]?[jt]sx?(?: \([0-9.]+ m?s\))?\n))?"
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
            outcome = _OUTCOMES.get(match["mark"], "failed")
            name = match["name"].partition(" ")[2] if outcome == "skipped" else match["name"]
            yield _jest_id(file, *above, name), outcome


def _jest_id(*names: str) -> str:
    # The headings of failures do not tell a separator from one in a name.
    return " > ".join(names).replace(" › ", " > ")


_VITEST_TEST = whole_line(
    r"(?:[^\n]*?\S)? (?P<mark>[✓×↓□]) (?P<test>[^\s>][^\n>]{0,199} > [^\n]+?)"
    r"(?: [0-9]+ms)?(?: \((?:retry|repeat) x[0-9]+\)){0,2}"
    r"| FAIL  (?P<failed>[^\n]+ > [^\n]+|[^\n]+?(?= \[ ))[^\n]*"
)


def vitest_outcomes(text: str) -> Iterator[tuple[str, Outcome]]:
    """`file > describe > name`, from the verbose reporter; others name only what failed."""
    for match in _VITEST_TEST.finditer(text):
        yield match["failed"] or match["test"], _OUTCOMES.get(match["mark"], "failed")


# Under TAP whatever a test prints becomes a comment too, so that only the whole block counts as a summary.
_NODE_SUMMARY = whole_line(
    r"(?:# |ℹ )tests [0-9]+(?:\n(?:# |ℹ )suites [0-9]+)?(?P<tests>"
    + "".join(
        rf"\n(?:# |ℹ ){word} [0-9]{{1,9}}"
        for word in ("pass", "fail", "cancelled", "skipped", "todo")
    )
    + r")\n(?:# |ℹ )duration_ms [0-9.]+"
)
_NODE_TEST = whole_line(
    r"test at [^\n]+\n✖ [^\n]+"  # the list at the end repeats failures without their suites: left out
    r"|(?P<indent> {0,32})(?:"
    r"(?:▶|(?P<subtest># Subtest:)) (?P<group>[^\n]{1,200})"
    r"|(?P<mark>[✔✖]) (?P<spec>[^\n]+) \([0-9.]+ms\)(?P<todo> # [^\n]*)?"
    r"|﹣ (?P<skipped>[^\n]+?)(?: \([0-9.]+ms\))?(?: # [^\n]*)?"
    r"|(?P<not>not )?ok [0-9]+ - (?P<tap>[^\n]+?)(?P<directive> # (?:SKIP|TODO)\b[^\n]*)?"
    r")"
)


def node_outcomes(text: str) -> Iterator[tuple[str, Outcome]]:
    """`suite > name`; suites are named too. Other tools print such lines as well: only with a summary."""
    if not _NODE_SUMMARY.search(text):
        return
    above: list[str] = []
    for match in _NODE_TEST.finditer(text):
        if match["indent"] is None:
            continue
        above = above[: len(match["indent"]) // (4 if match["subtest"] or match["tap"] else 2)]
        if match["group"]:
            above.append(match["group"])
            continue
        name = " > ".join((*above, match["spec"] or match["skipped"] or match["tap"]))
        if match["tap"]:
            name = name.replace(r"\#", "#").replace("\\\\", "\\")
        skipped = match["skipped"] or match["todo"] or match["directive"]
        yield (
            name,
            "skipped"
            if skipped
            else "failed"
            if match["not"] or match["mark"] == "✖"
            else "passed",
        )


_MOCHA_SUMMARY = whole_line(
    r"  (?P<tests>[0-9]{1,9} passing \([0-9]+m?[a-z]\)(?:\n  [0-9]{1,9} (?:pending|failing)){0,2})"
)
_MOCHA_TEST = whole_line(
    r"[^\n]*  [✔✓] (?P<passed>[^\n]+?)(?:(?: \(|: )[0-9]+m?s\)?)*|  +- (?P<skipped>[^\n]+)"
    r"|  [0-9]{1,9} (?P<end>passing) \([^\n]+\)"
    r"|  [0-9]{1,9}\) (?:[^\n]++\n(?: {7,}+[^\n]++\n)* {7,}+)?(?P<failed>[^\n]+):"
)


def mocha_outcomes(text: str) -> Iterator[tuple[str, Outcome]]:
    """Titles alone: what code prints cannot be told from the suites above them. Failures from the list at the end."""
    ended = False
    for match in _MOCHA_TEST.finditer(text if _MOCHA_SUMMARY.search(text) else ""):
        ended = ended or bool(match["end"])
        name = match["passed"] or match["skipped"]
        if name or (match["failed"] and ended):
            outcome: Outcome = "passed" if match["passed"] else "skipped" if name else "failed"
            yield name or match["failed"], outcome


_GO_LINE = whole_line(
    r"(?P<run>=== RUN) +\S+"
    r"|[^\n]*?--- (?P<outcome>PASS|FAIL|SKIP): (?P<test>\S+) \([0-9.]+s\)"
    r"|ok[ \t]+(?P<ok>\S{1,200})[ \t]+(?:\(cached\)|[0-9]+\.[0-9]+s)[^\n]*"
    r"|FAIL[ \t]+(?P<failed>\S{1,200})[ \t]+(?:[0-9]+\.[0-9]+s|\[(?:build|setup) failed\])"
    r"|\?[ \t]+\S+[ \t]+(?P<none>\[no test files\])"
)


def go_tallies(text: str) -> Iterator[Counts]:
    """Each package by itself, up to the line that closes it; of a test with subtests only these.

    Without -v a package that is `ok` counts as one test. A failed one has a failure, also where none was printed.
    """
    tallies: list[Counts] = []
    tests: dict[str, Outcome] = {}
    verbose = False
    for match in _GO_LINE.finditer(text):
        if match["run"]:
            verbose = True
        elif match["outcome"]:
            tests[match["test"]] = _OUTCOMES.get(match["outcome"], "failed")
            verbose = verbose or match["outcome"] != "FAIL"
        else:
            found = _leaves(tests)
            if match["failed"]:
                found = found._replace(failed=max(found.failed, 1))
            elif match["ok"] and not verbose and "[no tests to run]" not in match[0]:
                found = found._replace(passed=found.passed + 1)
            tallies.append(found)
            tests = {}
            verbose = False
    if tests:  # a run that was killed leaves its last package open
        tallies.append(_leaves(tests))
    yield from _summed(tallies)


def _leaves(tests: dict[str, Outcome]) -> Counts:
    # In this order the first subtest follows the test that it is part of.
    names = sorted(tests, key=lambda name: name.split("/"))
    following = pairwise([*names, ""])
    return _counted(
        [tests[name] for name, follower in following if not follower.startswith(name + "/")]
    )


def go_outcomes(text: str) -> Iterator[tuple[str, Outcome]]:
    """`package.Test/subtest`, without the package where its line is missing; what did not build by itself."""
    tests: list[tuple[str, Outcome]] = []
    for match in _GO_LINE.finditer(text):
        if match["outcome"]:
            tests.append((match["test"], _OUTCOMES.get(match["outcome"], "failed")))
        elif package := match["ok"] or match["failed"]:
            yield from ((f"{package}.{test}", outcome) for test, outcome in tests)
            tests = []
            if match[0].endswith(" failed]"):
                yield package, "failed"
    yield from tests


# One summary a test binary and one for the doc-tests, nextest's, or Typst's. Code that does not compile has no tests.
_CARGO_SUMMARY = whole_line(
    r"(?:test result: (?:ok|FAILED)\. | +Summary \[[ 0-9.s]*\] (?:[0-9]+/)?[0-9]+ tests? run: "
    r"|(?=[0-9]{1,9} passed, [0-9]{1,9} failed, [0-9]{1,9} skipped\n))(?P<tests>[^\n]+)"
    r"|error: could not compile [^\n]+"
)
_CARGO_TEST = whole_line(
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
            yield match["nextest"], _OUTCOMES.get(match["status"], "failed")
        else:
            name = match["test"] or match["failed"]
            yield binary + name, _OUTCOMES.get(match["outcome"], "failed")


FRAMEWORKS = (
    Framework(
        "pytest", partial(_tallies, pattern=_PYTEST_SUMMARY), pytest_outcomes, prefix=r"[^\[]*::"
    ),
    Framework("unittest", unittest_tallies, unittest_outcomes, prefix=r".*\."),
    Framework("node", partial(_tallies, pattern=_NODE_SUMMARY), node_outcomes, ".* > "),
    Framework("jest", partial(_tallies, pattern=_JEST_SUMMARY), jest_outcomes, ".* > "),
    Framework("vitest", partial(_tallies, pattern=_VITEST_SUMMARY), vitest_outcomes, ".* > "),
    Framework("mocha", partial(_tallies, pattern=_MOCHA_SUMMARY), mocha_outcomes, prefix=""),
    Framework("go", go_tallies, go_outcomes, prefix=r".*?\.(?=Test|Example|Fuzz)"),
    Framework(
        "cargo",
        lambda text: _summed(_tallies(text, pattern=_CARGO_SUMMARY)),
        cargo_outcomes,
        prefix="[^: ]*(?:::| )",
    ),
)
