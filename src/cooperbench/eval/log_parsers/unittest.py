"""unittest of the standard library: `-v` names every test, headings name the failed ones."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cooperbench.eval.log_parsers.base import (
    Counts,
    LogParser,
    Outcome,
    compile_lines,
    parse_count_list,
)

SAMPLE = """\
test_circle (test_area.AreaTest.test_circle) ... FAIL
test_slow (test_area.AreaTest.test_slow) ... skipped 'needs --slow'
test_square (test_area.AreaTest.test_square) ... a line that the test printed
ok

======================================================================
FAIL: test_circle (test_area.AreaTest.test_circle)
----------------------------------------------------------------------
AssertionError: 12.0 != 12.56

----------------------------------------------------------------------
Ran 3 tests in 0.001s

FAILED (failures=1, skipped=1)
"""

_SUMMARY = compile_lines(
    r"""
    Ran[ ] (?P<total> [0-9]{1,9} ) [ ]tests?[ ]in[ ] [0-9.]+ s \n+
    (?: OK | FAILED | NO[ ]TESTS[ ]RAN ) (?: [ ]\( (?P<tests> [a-z0-9=, ]+ ) \) )?
    """
)


def parse_counts(text: str) -> Iterator[Counts]:
    """Yield the counts of each `Ran N tests` and the result below it.

    A test with subtests can fail several times.
    """
    for match in _SUMMARY.finditer(text):
        counts = parse_count_list(match["tests"] or "")
        passed = int(match["total"]) - counts.failed - counts.skipped
        yield counts._replace(passed=max(0, passed))


_STATUS = r"""
    (?: ok | FAIL | ERROR | expected[ ]failure | unexpected[ ]success | skipped[ ]['"] [^\n]* )
"""
_TEST = compile_lines(
    rf"""
    # `test (module.Class.test) ... status`, with the first line of a docstring on a second line.
    # In place of the status there may be something that the test prints.
    [ ]* (?P<test> \S+ ) [ ]\( (?P<location> [^\s()]+ ) \)
    (?: \n [^\n]*? | [ ][\[(] [^\n]*? )?
    [ ]\.\.\.[ ] (?P<rest> [^\n]* )

    # The heading of a failure.
    | ={{70}} \n (?: ERROR | FAIL | UNEXPECTED[ ]SUCCESS ) :[ ]
      (?P<failed> \S+ ) (?: [ ]\( (?P<failed_location> [^\s()]+ ) \) )? [^\n]*

    # A status on a line of its own, after something that the test printed.
    | (?P<status> {_STATUS} )
    """
)
_STATUS_AT_END = re.compile(rf"(?: .* [ ]\.\.\.[ ] )? (?P<status> {_STATUS} )", re.VERBOSE)


def parse_outcomes(text: str) -> Iterator[tuple[str, Outcome]]:
    """Yield `module.Class.test` and outcome, from `-v` and from the headings of failures."""
    running: str | None = None
    for match in _TEST.finditer(text):
        if match["failed"]:
            yield _make_id(match["failed"], match["failed_location"]), "failed"
            continue
        if match["test"]:
            running = _make_id(match["test"], match["location"])
        ending = _STATUS_AT_END.fullmatch(match["status"] or match["rest"] or "")
        if ending and running:
            yield running, _outcome_of(ending["status"])
            running = None


def _outcome_of(status: str) -> Outcome:
    if status == "ok":
        return "passed"
    if status.startswith(("skipped", "expected")):
        return "skipped"
    return "failed"


def _make_id(test: str, location: str | None) -> str:
    if not location:
        return test
    # Since Python 3.11 the location includes the test.
    if location.endswith(f".{test}"):
        return location
    return f"{location}.{test}"


PARSER = LogParser(
    name="unittest",
    parse_counts=parse_counts,
    parse_outcomes=parse_outcomes,
    id_prefix=r".*\.",
)
