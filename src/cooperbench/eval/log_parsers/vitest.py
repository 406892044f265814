"""Vitest: the verbose reporter names every test, other reporters only the failed ones."""

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
 ✓ test/area.test.ts > area > of a square 3ms
 × test/area.test.ts > area > of a circle 5ms
 ↓ test/area.test.ts > area > of a triangle

 FAIL  test/area.test.ts > area > of a circle
AssertionError: expected 12 to be 12.56

 Test Files  1 failed (1)
      Tests  1 failed | 1 passed | 1 skipped (3)
"""

_COUNT = "[0-9]{1,9} [ ] [a-z ]+"
_COUNTS = rf"{_COUNT} (?: [ ]\|[ ] {_COUNT} )*"
_SUMMARY = compile_lines(
    rf"""
    [ ]+ Test[ ]Files[ ][ ] (?P<suites> {_COUNTS} ) (?: [ ]\( [0-9]+ \) )?
    | [ ]+ Tests[ ][ ] (?P<tests> no[ ]tests | {_COUNTS} ) (?: [ ]\( [0-9]+ \) )?
    | No[ ]test[ ]files[ ]found,[ ]exiting[ ]with[ ]code[ ][01]
    """
)
_TEST = compile_lines(
    rf"""
    # A test. Something that code printed without a newline may stand before it.
    (?: [^\n]*? \S [ ]* )? [ ] (?P<mark> [✓×↓□] ) [ ]
    (?P<test> [^\s>] [^\n>]{{0,{MAX_NAME_LENGTH - 1}}} [ ]>[ ] [^\n]+? )
    (?: [ ] [0-9]+ ms )?
    (?: [ ]\( (?: retry | repeat ) [ ]x [0-9]+ \) ){{0,2}}

    # The heading of a failure: of a test, or of a file that could not be loaded.
    | [ ]FAIL[ ][ ] (?P<failed> [^\n]+ [ ]>[ ] [^\n]+ | [^\n]+? (?= [ ]\[[ ] ) ) [^\n]*
    """
)
_OUTCOMES: dict[str, Outcome] = {"✓": "passed", "↓": "skipped", "□": "skipped"}
"""Outcomes by mark; every other mark is a failure."""


def parse_outcomes(text: str) -> Iterator[tuple[str, Outcome]]:
    """Yield `file > describe > test` and outcome."""
    for match in _TEST.finditer(text):
        yield match["failed"] or match["test"], _OUTCOMES.get(match["mark"], "failed")


PARSER = LogParser(
    name="vitest",
    parse_counts=summary_parser(_SUMMARY),
    parse_outcomes=parse_outcomes,
    id_prefix=".* > ",
)
