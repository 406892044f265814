"""jest, vitest and node --test."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cooperbench.eval.counting import NUMBER, Framework, Outcome, Tally, line, numbers_of

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator

_JEST_SUMMARY = line(
    r"Test Suites: (?P<suites>[^\n]+ total)"
    r"|Tests: +(?P<tests>(?:[0-9]{1,9} [a-z]+, )*[0-9]{1,9} total)"
    r"|No tests found, exiting with code [01]"
)
_ITEM = "[0-9]{1,9} [a-z ]+"
_VITEST_SUMMARY = line(
    rf" +Test Files  (?P<suites>{_ITEM}(?: \| {_ITEM})*)(?: \([0-9]+\))?"
    rf"| +Tests  (?P<tests>no tests|{_ITEM}(?: \| {_ITEM})*)(?: \([0-9]+\))?"
    r"|No test files found, exiting with code [01]"
)


def _tallies(text: str, *, pattern: re.Pattern[str]) -> Iterator[Tally]:
    """The line about tests. Where no test failed, a suite did that could not be loaded."""
    suites_failed = 0
    for match in pattern.finditer(text):
        if match["suites"]:
            suites_failed = numbers_of(match["suites"]).get("failed", 0)
            continue
        count = numbers_of(match["tests"] or "")
        skipped = sum(count.get(word, 0) for word in ("skipped", "todo", "expected fail"))
        yield Tally(count.get("passed", 0), count.get("failed", 0) or suites_failed, skipped)
        suites_failed = 0


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


_VITEST_OUTCOMES: dict[str, Outcome] = {"✓": "passed", "×": "failed", "↓": "skipped", "□": "skipped"}
_VITEST_TEST = line(
    r" (?P<mark>[✓×↓□]) (?P<test>[^\s>][^\n>]* > [^\n]+?)(?: [0-9]+ms)?(?: \((?:retry|repeat) x[0-9]+\)){0,2}"
    r"| FAIL  (?P<failed>[^\n]+ > [^\n]+|[^\n]+?(?= \[ ))[^\n]*"
)


def vitest_outcomes(text: str) -> Iterator[tuple[str, Outcome]]:
    """`file > describe > name`, from the verbose reporter; others name only what failed."""
    for match in _VITEST_TEST.finditer(text):
        yield match["failed"] or match["test"], _VITEST_OUTCOMES.get(match["mark"], "failed")


# Under TAP whatever a test prints becomes a comment too, so that only the whole block counts as a summary.
_NODE_SUMMARY = line(
    r"(?:# |ℹ )tests [0-9]+(?:\n(?:# |ℹ )suites [0-9]+)?"
    + "".join(rf"\n(?:# |ℹ ){word} {NUMBER}" for word in ("pass", "fail", "cancelled", "skipped", "todo"))
    + r"\n(?:# |ℹ )duration_ms [0-9.]+"
)


def node_tallies(text: str) -> Iterator[Tally]:
    """The last lines of the spec and the TAP reporter. Cancelled tests count as failed, `todo` as skipped."""
    for block in _NODE_SUMMARY.finditer(text):
        passed, failed, cancelled, skipped, todo = map(int, block.groups())
        yield Tally(passed, failed + cancelled, skipped + todo)


_NODE_TEST = line(
    r"test at [^\n]+\n✖ [^\n]+"
    r"|(?P<indent> {0,32})(?:"
    r"(?:▶|(?P<subtest># Subtest:)) (?P<group>[^\n]{1,200})"
    r"|(?P<mark>[✔✖]) (?P<spec>[^\n]+) \([0-9.]+ms\)(?P<todo> # [^\n]*)?"
    r"|﹣ (?P<skipped>[^\n]+?)(?: \([0-9.]+ms\))?(?: # [^\n]*)?"
    r"|(?P<not>not )?ok [0-9]+ - (?P<tap>[^\n]+?)(?P<directive> # (?:SKIP|TODO)\b[^\n]*)?"
    r")"
)


def node_outcomes(text: str) -> Iterator[tuple[str, Outcome]]:
    """`suite > name`; suites are named too. Other tools print such lines as well: only with a summary.

    The list at the end of the spec reporter repeats the failures without their suites, and is left out.
    """
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
        yield name, "skipped" if skipped else "failed" if match["not"] or match["mark"] == "✖" else "passed"


_PREFIX = ".* > "
FRAMEWORKS = (
    Framework("node", node_tallies, node_outcomes, _PREFIX),
    Framework("jest", partial(_tallies, pattern=_JEST_SUMMARY), jest_outcomes, _PREFIX),
    Framework("vitest", partial(_tallies, pattern=_VITEST_SUMMARY), vitest_outcomes, _PREFIX),
)
