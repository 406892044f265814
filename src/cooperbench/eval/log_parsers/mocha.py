"""Mocha: passed tests have a check mark, failed ones are listed after the summary."""

from __future__ import annotations

from collections.abc import Iterator

from cooperbench.eval.log_parsers.base import LogParser, Outcome, compile_lines, summary_parser

SAMPLE = """\
  area
    ✔ of a square (52ms)
    1) of a circle
    - of a triangle


  1 passing (58ms)
  1 pending
  1 failing

  1) area
       of a circle:
     AssertionError: expected 12 to equal 12.56
"""

_SUMMARY = compile_lines(
    r"""
    [ ][ ]
    (?P<tests>
      [0-9]{1,9} [ ]passing[ ]\( [0-9]+ m?[a-z] \)
      (?: \n [ ][ ] [0-9]{1,9} [ ] (?: pending | failing ) ){0,2}
    )
    """
)
_LINE = compile_lines(
    r"""
    # A passed test. Something that code printed without a newline may stand before it.
    [^\n]* [ ][ ][✔✓][ ] (?P<passed> [^\n]+? ) (?: (?: [ ]\( | :[ ] ) [0-9]+ m?s \)? )*

    | [ ][ ]+ -[ ] (?P<skipped> [^\n]+ )

    # The summary, after which failures are listed.
    | [ ][ ] [0-9]{1,9} [ ] (?P<summary> passing ) [ ]\( [^\n]+ \)

    # A failure: its suites and its title on a line each, or all on one; a colon ends it.
    | [ ][ ] [0-9]{1,9} \)[ ]
      (?: [^\n]++ \n (?: [ ]{7,}+ [^\n]++ \n )* [ ]{7,}+ )?
      (?P<failed> [^\n]+ ) :
    """
)


def parse_outcomes(text: str) -> Iterator[tuple[str, Outcome]]:
    """Yield title and outcome of each test, without its suites.

    The suites of a passed test look like anything else that code prints. Failures are read from
    the list after the summary.
    """
    if not _SUMMARY.search(text):
        return
    is_after_summary = False
    for match in _LINE.finditer(text):
        if match["summary"]:
            is_after_summary = True
        elif match["passed"]:
            yield match["passed"], "passed"
        elif match["skipped"]:
            yield match["skipped"], "skipped"
        elif is_after_summary:
            yield match["failed"], "failed"


PARSER = LogParser(
    name="mocha",
    parse_counts=summary_parser(_SUMMARY),
    parse_outcomes=parse_outcomes,
    id_prefix="",
)
