"""cargo test, cargo nextest, and test suites that cargo starts (see `typst`)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cooperbench.eval.log_parsers import typst
from cooperbench.eval.log_parsers.base import (
    MAX_NAME_LENGTH,
    Counts,
    LogParser,
    Outcome,
    compile_lines,
    sum_counts,
    summary_parser,
)

SAMPLE = """\
     Running unittests src/lib.rs (target/debug/deps/shapes-0123456789abcdef)

running 3 tests
test area::square ... ok
test area::circle ... FAILED
test area::slow ... ignored

failures:

---- area::circle stdout ----
thread 'area::circle' panicked at src/lib.rs:12:9

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

   Doc-tests shapes

test src/lib.rs - area (line 3) ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
"""
SAMPLE_NEXTEST = """\
        PASS [   0.004s] shapes area::square
        FAIL [   0.005s] shapes area::circle
     Summary [   0.010s] 2 tests run: 1 passed, 1 failed, 0 skipped
"""

_SUMMARY = compile_lines(
    rf"""
    # cargo test prints one for each test binary and one for the documentation.
    (?: test[ ]result:[ ] (?: ok | FAILED ) \.[ ]
      | [ ]+ Summary[ ]\[ [ 0-9.s]* \][ ] (?: [0-9]+ / )? [0-9]+ [ ]tests?[ ]run:[ ]    # nextest
      | {typst.SUMMARY}
    )
    (?P<tests> [^\n]+ )

    # Code that does not compile has no tests.
    | error:[ ]could[ ]not[ ]compile[ ] [^\n]+
    """
)
_parse_summaries = summary_parser(_SUMMARY)


def parse_counts(text: str) -> Iterator[Counts]:
    """Yield the sum over all test binaries."""
    yield from sum_counts(_parse_summaries(text))


_LINE = compile_lines(
    rf"""
    # A test binary: `Running unittests src/lib.rs (target/debug/deps/shapes-0123456789abcdef)`
    [ ]+ Running[ ] (?: unittests[ ] )? (?P<source> \S+ [ ] )?
      \(? (?: [^\s()]* / )? (?P<binary> [^\s/()]{{1,{MAX_NAME_LENGTH}}} ) - [0-9a-f]{{16}} \)?
    | [ ]+ Doc-tests[ ] (?P<crate> \S{{1,{MAX_NAME_LENGTH}}} )

    # A test, and the heading of its output if it failed.
    | test[ ] (?P<test> [^\n]+? ) (?: [ ]-[ ]should[ ]panic )?
      [ ]\.\.\.[ ] (?P<status> ok | FAILED | ignored ) (?: [ ,] [^\n]* )?
    # The same, with something that code wrote to stdout or stderr without a newline.
    | [^\n]{{0,500}}? test[ ] (?P<glued_test> [^\s]++ )
      [ ]\.\.\.[ ] [^\n]{{0,500}}? (?P<glued_status> ok | FAILED | ignored )
    | ----[ ] (?P<failed> [^\n]+ ) [ ]stdout[ ]----

    # nextest: `PASS [   0.004s] binary module::test`, perhaps with `(1/20)` or `TRY 2`
    | [ ]+ (?: TRY[ ] [0-9]+ [ ] )?
      (?P<nextest_status> PASS | LEAK | SKIP | FAIL | TIMEOUT | ABORT | SIG[A-Z]+ )
      [ ]\[ [ 0-9.s]* \]
      [ ] (?: \( [ ]* [0-9]+ / [0-9]+ \)[ ] )? (?P<nextest> \S+ [ ] \S+ )

    # Typst's own test suite, which names only tests that fail
    | {typst.FAILED_TEST}
    """
)
_OUTCOMES: dict[str, Outcome] = {
    "ok": "passed",
    "ignored": "skipped",
    "PASS": "passed",
    "LEAK": "passed",
    "SKIP": "skipped",
}
"""Outcomes by status; every other status is a failure."""


def parse_outcomes(text: str) -> Iterator[tuple[str, Outcome]]:
    """Yield `binary::module::test` and outcome; `binary module::test` for nextest.

    Ids have no binary if the line that announces it is missing.
    """
    prefix = ""
    for match in _LINE.finditer(text):
        if match["binary"] or match["crate"]:
            prefix = _binary_prefix(match)
        elif match["nextest"]:
            yield match["nextest"], _OUTCOMES.get(match["nextest_status"], "failed")
        elif match["test"]:
            yield prefix + match["test"], _OUTCOMES.get(match["status"], "failed")
        elif match["glued_test"]:
            yield prefix + match["glued_test"], _OUTCOMES.get(match["glued_status"], "failed")
        else:
            yield prefix + (match["failed"] or match["typst"]), "failed"


def _binary_prefix(match: re.Match[str]) -> str:
    name = match["binary"] or match["crate"]
    # The library and the program of a crate can have the same name.
    is_program = (match["source"] or "").endswith("main.rs ")
    return f"{name} (bin)::" if is_program else f"{name}::"


PARSER = LogParser(
    name="cargo",
    parse_counts=parse_counts,
    parse_outcomes=parse_outcomes,
    id_prefix="[^: ]*(?:::| )",
)
