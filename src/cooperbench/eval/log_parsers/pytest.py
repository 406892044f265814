"""pytest, also with xdist: `-v` names every test, the short summary at least the failed ones."""

from __future__ import annotations

from collections.abc import Iterator

from cooperbench.eval.log_parsers.base import LogParser, Outcome, compile_lines, summary_parser

SAMPLE = """\
tests/test_area.py::test_square PASSED                                   [ 25%]
tests/test_area.py::test_circle[radius 2] FAILED                         [ 50%]
tests/test_area.py::test_slow SKIPPED (needs --slow)                     [ 75%]
[gw1] [100%] XFAIL tests/test_area.py::test_negative
=========================== short test summary info ============================
FAILED tests/test_area.py::test_circle[radius 2] - assert 12.0 == 12.56
ERROR tests/test_volume.py - ImportError: cannot import name 'volume'
========= 1 failed, 1 passed, 1 skipped, 1 xfailed, 1 error in 0.12s ==========
"""

_COUNT = r"[0-9]{1,9} [ ] [a-z]+ (?: [ ] [a-z]+ )?"
_SUMMARY = compile_lines(
    rf"""
    # The last line of a session. With -q it has no `=` around it.
    (?: =+ [ ] )?
    (?: no[ ]tests[ ]ran
      | (?P<tests>
          (?= [^\n]*?
              \b (?: passed | failed | errors? | skipped | xfailed | xpassed
                   | deselected | warnings? ) \b )
          {_COUNT} (?: ,[ ] {_COUNT} )*
        )
    )
    [ ]in[ ] [0-9]+ \. [0-9]{{2}} (?: s | [ ]seconds )
    (?: [ ] \( [0-9a-z:, ]+ \) )?       # (0:01:15)
    (?: [ ] =+ )?
    """
)

_STATUS = "(?: PASSED | FAILED | ERROR | SKIPPED | XFAIL | XPASS )"
_FILE = r"[^\s:\[]+ \. [A-Za-z]+"
# Only parameters may contain spaces.
_ID = rf"{_FILE} :: [^\s\[]+ (?: \[ [^\n]*? \] )?"
# The file of a test that is inherited from a class elsewhere.
_DEFINED_IN = r"(?: [ ]<-[ ] \S+ )?"
_PROGRESS = r"\[ [ 0-9/%]+ \]"
_TEST = compile_lines(
    rf"""
    # -v: `file.py::test PASSED   [ 25%]`. A reason may follow in parentheses.
    (?P<verbose_id> {_ID} ) {_DEFINED_IN} [ ]
    (?: (?P<verbose_status> {_STATUS} ) (?: [ ]\( [^\n]* | [ ]* (?: {_PROGRESS} )? )
      | SUBFAIL [^\n]*
    )

    # -v with xdist: `[gw1] [ 25%] PASSED file.py::test`, and the short summary:
    # `FAILED file.py::test - message`. After parameters a message starts at the first `] - `.
    | (?: \[gw[0-9]+\] [ ] (?: {_PROGRESS} [ ] )? )?
      (?: (?P<summary_status> {_STATUS} ) | SUBFAIL (?> [^\n]*? (?= [ ] {_FILE} :: ) ) )
      [ ] (?P<summary_id> {_ID} ) {_DEFINED_IN} (?: [ ]-[ ] [^\n]* | [ ]* )

    # A file that could not be collected.
    | ERROR[ ] (?P<file> {_FILE} ) (?: [ ]-[ ] [^\n]* )?
    """
)
_OUTCOMES: dict[str, Outcome] = {
    "PASSED": "passed",
    "XPASS": "passed",
    "SKIPPED": "skipped",
    "XFAIL": "skipped",
}
"""Outcomes by status; every other status is a failure."""


def parse_outcomes(text: str) -> Iterator[tuple[str, Outcome]]:
    """Yield `file.py::Class::test[parameters]` and outcome, and the names of broken files.

    With `-s`, tests print into their lines of `-v`. So the short summary at the end decides about
    the tests that it names, and if it names those that passed, no others did.
    """
    verbose, summary = _read_lines(text)
    yield from summary
    named = {test for test, _ in summary}
    names_passed_tests = any(outcome == "passed" for _, outcome in summary)
    for test, outcome in verbose:
        if test not in named and not (names_passed_tests and outcome == "passed"):
            yield test, outcome


def _read_lines(text: str) -> tuple[list[tuple[str, Outcome]], list[tuple[str, Outcome]]]:
    """Return test and outcome of the lines of `-v`, and of all other lines."""
    verbose: list[tuple[str, Outcome]] = []
    summary: list[tuple[str, Outcome]] = []
    for match in _TEST.finditer(text):
        test = match["verbose_id"] or match["summary_id"] or match["file"]
        status = match["verbose_status"] or match["summary_status"]
        lines = verbose if match["verbose_status"] else summary
        lines.append((test, _OUTCOMES.get(status, "failed")))
    return verbose, summary


PARSER = LogParser(
    name="pytest",
    parse_counts=summary_parser(_SUMMARY),
    parse_outcomes=parse_outcomes,
    id_prefix=r"[^\[]*::",
)
