"""Jest: tests are indented below their file; headings with a bullet name the failed ones."""

from __future__ import annotations

from collections.abc import Iterator

from cooperbench.eval.log_parsers.base import (
    MAX_NAME_LENGTH,
    LogParser,
    Outcome,
    compile_lines,
    summary_parser,
)

SAMPLE = """\
FAIL test/area.test.js (5.1 s)
  area
    ✓ of a square (3 ms)
    ✕ of a circle (1 ms)
    ○ skipped of a triangle

  ● area › of a circle

    expect(received).toBe(expected)

Test Suites: 1 failed, 1 total
Tests:       1 failed, 1 skipped, 1 passed, 3 total
"""

_SUMMARY = compile_lines(
    r"""
    Test[ ]Suites:[ ] (?P<suites> [^\n]+ [ ]total )
    | Tests: [ ]+ (?P<tests> (?: [0-9]{1,9} [ ] [a-z]+ ,[ ] )* [0-9]{1,9} [ ]total )
    | No[ ]tests[ ]found,[ ]exiting[ ]with[ ]code[ ][01]
    """
)
_DURATION = r"(?: [ ]\( [0-9.]+ [ ] m?s \) )?"
_LINE = compile_lines(
    rf"""
    # A file. Something that code printed without a newline may stand before it.
    (?: [^\n]* (?= (?: PASS | FAIL ) [ ] \S+ \. [cm]?[jt]sx? {_DURATION} \n ) )?
    [ ]? (?: PASS | FAIL ) [ ][ ]?
    (?P<file> [^\s>] [^\n>]{{0,{MAX_NAME_LENGTH - 1}}}? ) {_DURATION}

    # The heading of a failure.
    | [ ][ ]●[ ] (?! Console\n ) (?P<failed> \S [^\n]* )

    # A test, or the `describe` block of the tests below.
    | (?P<indent> [ ]{{2,32}} )
      (?: (?P<mark> [✓✕○✎] ) [ ] (?P<name> [^\n]+? ) {_DURATION}
        | (?P<group> [^\s●] [^\n]{{0,{MAX_NAME_LENGTH - 1}}} )
      )
    """
)
_OUTCOMES: dict[str, Outcome] = {"✓": "passed", "○": "skipped", "✎": "skipped"}
"""Outcomes by mark; every other mark is a failure."""


def parse_outcomes(text: str) -> Iterator[tuple[str, Outcome]]:
    """Yield `file > describe > test` and outcome, and the names of files that failed to run."""
    file = ""
    groups: list[str] = []
    for match in _LINE.finditer(text):
        if match["file"]:
            file = match["file"]
        elif not file:
            continue
        elif match["failed"] == "Test suite failed to run":
            yield file, "failed"
        elif match["failed"]:
            yield _make_id([file, match["failed"]]), "failed"
        else:
            depth = len(match["indent"]) // 2 - 1
            groups = groups[:depth]
            if match["group"]:
                groups.append(match["group"])
                continue
            outcome = _OUTCOMES.get(match["mark"], "failed")
            name = match["name"]
            if outcome == "skipped":
                name = name.partition(" ")[2]  # without the word `skipped` or `todo`
            yield _make_id([file, *groups, name]), outcome


def _make_id(names: list[str]) -> str:
    # In headings of failures a separator looks like one in a name.
    return " > ".join(names).replace(" › ", " > ")


PARSER = LogParser(
    name="jest",
    parse_counts=summary_parser(_SUMMARY),
    parse_outcomes=parse_outcomes,
    id_prefix=".* > ",
)
