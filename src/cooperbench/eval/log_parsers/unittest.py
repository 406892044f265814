"""unittest of the standard library: `-v` names every test, headings name the failed ones.

unittest writes to stderr, as code under test may do: without a newline, with progress bars, with
lines that look like a status. So headings decide which tests failed, and a status may have
something before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cooperbench.eval.log_parsers.base import (
    MAX_NAME_LENGTH,
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
ERROR
50 %ok

======================================================================
FAIL: test_circle (test_area.AreaTest.test_circle)
----------------------------------------------------------------------
AssertionError: 12.0 != 12.56

----------------------------------------------------------------------
Ran 3 tests in 0.001s

FAILED (failures=1, skipped=1)
"""

_SUMMARY = re.compile(
    r"""
    (?<! [ \t] ) Ran[ ] (?P<total> [0-9]{1,9} ) [ ]tests?[ ]in[ ] [0-9.]+ s [^\n]* \n
    # Other threads may print something in between.
    (?: (?! [^\n]* Ran[ ][0-9] ) [^\n]* \n ){0,9}?
    [^\n]*? (?: OK | FAILED | NO[ ]TESTS[ ]RAN ) (?: [ ]\( (?P<tests> [a-z0-9=, ]+ ) \) )? (?= \n )
    """,
    re.VERBOSE,
)


def parse_counts(text: str) -> Iterator[Counts]:
    """Yield the counts of each `Ran N tests` and the result below it.

    A test with subtests can fail several times.
    """
    for match in _SUMMARY.finditer(text):
        counts = parse_count_list(match["tests"] or "")
        passed = int(match["total"]) - counts.failed - counts.skipped
        yield counts._replace(passed=max(0, passed))


_START = re.compile(
    r"""
    # `test (module.Class.test) ... `, with the first line of a docstring on a second line, or with
    # the parameters of a subtest. The name of the test is what stands before it.
    [ ]\( (?P<location> [^\s().]{1,200} (?: \. [^\s().]{1,200} ){1,20} ) \)
    (?: \n (?! [^\n]{0,500} \)[ ]\.\.\.[ ] ) [^\n]{0,500}? | [ ][\[(] [^\n]{0,500}? )?
    [ ]\.\.\.[ ]
    """,
    re.VERBOSE,
)
_MAX_NAME = 300
_NAME_AT_END = re.compile(r"\S*\Z")
_IDENTIFIER_AT_END = re.compile(r"[^\W\d]\w*\Z")
_HEADING = compile_lines(
    r"""
    [^\n]*? ={70} \n (?: ERROR | FAIL | UNEXPECTED[ ]SUCCESS ) :[ ]
    (?P<test> \S+ ) (?: [ ]\( (?P<location> [^\s()]+ ) \) )? [^\n]*
    """
)
_END_OF_TESTS = re.compile(r"\n[^\n]*(?:={70}|-{70})\n")
_SKIPPED = re.compile(r"expected failure|skipped ['\"][^\n]*")


def parse_outcomes(text: str) -> Iterator[tuple[str, Outcome]]:
    """Yield `module.Class.test` and outcome, from `-v` and from the headings of failures."""
    running: str | None = None
    start = 0
    for match in _START.finditer(text):
        name = _name_before(match.start(), text)
        if running:
            yield from _outcome_in(running, text[start : match.start() - len(name)])
        running = _make_id(name, match["location"])
        start = match.end()
    if running:
        end = _END_OF_TESTS.search(text, start)
        yield from _outcome_in(running, text[start : end.start() if end else len(text)])
    for match in _HEADING.finditer(text):
        yield _make_id(match["test"], match["location"]), "failed"


def _name_before(position: int, text: str) -> str:
    name = _NAME_AT_END.search(text, max(0, position - _MAX_NAME), position)
    return name[0] if name else ""


def _outcome_in(test: str, output: str) -> Iterator[tuple[str, Outcome]]:
    """Yield the outcome of a test, if it can be read from what was printed while it ran.

    A status comes last, but other threads may print something after it. Only `ok` cannot be
    misleading: a test that fails has a heading too, and one that is skipped is counted.
    """
    lines = output.rstrip().split("\n")
    if any(_SKIPPED.fullmatch(line) for line in lines):
        yield test, "skipped"
    elif any(line.endswith("ok") for line in lines):
        yield test, "passed"
    elif any(line.endswith(("FAIL", "ERROR", "unexpected success")) for line in lines):
        yield test, "failed"
    elif re.search("expected failure$|skipped ['\"]", lines[-1]):
        yield test, "skipped"


def _make_id(test: str, location: str | None) -> str:
    if not location:
        return test
    # Since Python 3.11 the location includes the test.
    name = location.rpartition(".")[2]
    if test == name or (name.startswith("test") and test.endswith(name)):
        return location
    identifier = _IDENTIFIER_AT_END.search(test, max(0, len(test) - MAX_NAME_LENGTH))
    return f"{location}.{identifier[0] if identifier else test}"


PARSER = LogParser(
    name="unittest",
    parse_counts=parse_counts,
    parse_outcomes=parse_outcomes,
    id_prefix=r".*\.",
)
