"""Reading the output of a test run: counts, the outcome of each test, and the first error.

Code under test can print such lines too. So if a framework prints one summary per run, the last
one decides, and a failure counts wherever it is named. Whether a run is a success is decided in
`test_runs`.

All of this runs in a worker process with limits (`bounded`), however hostile the output is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from cooperbench.bounded import limit_seconds
from cooperbench.eval.log_parsers import PARSERS, Counts, LogParser, Outcome, prepare_log
from cooperbench.eval.log_parsers.base import compile_lines
from cooperbench.models import REPO_DIR

MAX_ERROR_LENGTH = 300
"""Maximum number of characters that `first_error` returns."""

_FROM_BEST_TO_WORST: tuple[Outcome, ...] = ("passed", "skipped", "failed")

_TRACEBACK = "Traceback (most recent call last):"
_TOOL_ERROR = compile_lines(
    rf"""
    {re.escape(_TRACEBACK)}
    # git, cargo, uv, gcc, tsc, argparse and others. After `error: subprocess-exited-with-error`
    # pip shows the error of the subprocess, which says more.
    | [ ]{{0,9}} (?: \S+:[ ] )? (?: fatal[ ] | internal[ ] )? [Ee]rror (?: \[\w+\] | [ ]TS[0-9]+ )?
      :[ ] (?! subprocess-exited ) [^\n]+
    # pip prints the message about its dependency resolver although it succeeds.
    | [ ]{{0,9}} ERROR:[ ] (?! usage:[ ] | pip's[ ]dependency[ ]resolver ) [^\n]+
    | fatal:[ ] [^\n]+
    | \w*Error (?: [ ]\[\w+\] )? :[ ] [^\n]+
    | E[ ][ ]+ [A-Za-z_][\w.]* :[ ] [^\n]+
    | E:[ ] [^\n]+
    | \[ERROR\][ ] [^\n]+
    | npm[ ] (?: ERR! | error ) [ ] (?! code[ ] | errno[ ] | syscall[ ] | path[ ] ) [^\n]+
    # pnpm prints a thin space before it.
    | [^\w\n]? ERR_PNPM_ [^\n]+
    | error[ ][A-Z] [^\n]+
    | [ ]{{0,9}} ×[ ] (?! Getting[ ] | Preparing[ ] | Building[ ] ) [A-Z] [^\n]+
    | go:[ ]
      (?! warning | downloading[ ] | finding[ ] | extracting[ ] | found[ ] | added[ ] | upgraded[ ]
        | creating[ ] | to[ ] )
      [^\n]+
    | curl:[ ] \( [0-9]+ \)[ ] [^\n]+
    | make (?: \[[0-9]+\] )? :[ ]\*\*\*[ ] [^\n]+
    # bash, dash
    | [^\s:]+ :[ ]line[ ] [0-9]+ :[ ] (?! warning:[ ] ) [^\n]+
    | [^\s:]+ :[ ] (?: [0-9]+ :[ ] )? [^\s:]+ :[ ] (?: command[ ] )? not[ ]found
    """
)
"""Lines in which tools other than test frameworks report an error. Warnings do not match."""
_GO_COMPILER_ERROR = re.compile(
    r"^(?:vet: )?(?:\./)?(?P<file>[^\s:]{1,300}\.go):\d+:\d+: (?P<message>[^\n;]+)", re.MULTILINE
)
"""`middleware/version_test.go:12:7: undefined: NewVersionSelector`"""
_EXCEPTION_OF_TRACEBACK = re.compile(r"(?:\n(?:[ \t][^\n]*)?)*\n(?P<exception>[^\n]+)")

_FAILURE_HEADING = r"""
    \n
    (?: _+[ ]                                   # pytest
      | ={70}\n (?: FAIL | ERROR ) :[ ]         # unittest
      | (?: FAILED | ERROR ) [ ]                # pytest's short summary
      | [ ]* ✖[ ]                               # node:test
      | [ ]* not[ ]ok[ ] [0-9]+ [ ]             # node:test, TAP
      | [ ][ ]●[ ]                              # Jest
      | [ ]? FAIL [ ][ ]?                       # Jest, Vitest
      | [ ]+ [0-9]+ \)[ ]                       # Mocha
      | [ ]* ---[ ]FAIL:[ ]                     # go
      | ----[ ]                                 # cargo
    )
    [^\n]*?
"""
_RAISED = re.compile(
    r"""
    # pytest: `FAILED test.py::test - assert 1 == 2`, `E   ValueError: no`
    (?: [ ]-[ ] | \nE[ ]+ )
    (?: (?P<pytest_assert> assert[ ] ) | (?P<pytest_name> [A-Za-z_] (?: [\w.]*\w )? ) (?= [:\n] ) )

    # Jest: `expect(received).toBe(expected)`; all others name the exception
    | \n [# \t]*
      (?: (?P<expect> expect\( )
        | (?: name:[ ]' )? (?P<name> (?: \w+\. )* \w* (?: Error | Exception | Warning ) )
          (?= [:'\n] | [ ]\[ )
      )

    # go, Rust
    | \npanic:[ ]
    | \nthread[ ] [^\n]* [ ]panicked[ ]
    """,
    re.VERBOSE,
)
_MAX_CHARACTERS_TO_ERROR = 5000
"""Maximum distance between the heading of a failed test and the error below it."""
_MAX_CHARACTERS_IN_TRACE = 300
"""Maximum distance between two lines of the same stack trace."""


class LogReading(NamedTuple):
    """Counts, outcomes and errors in the output of a test run."""

    counts: Counts
    outcomes: dict[str, Outcome]
    """Outcome of each test that the output names."""
    error: str | None
    """The first error of a run that is not a success; None without one."""


@limit_seconds(30)
def read_log(output: str, exit_code: int) -> LogReading:
    """Return what the output of a test run says. Callers use `call_bounded`."""
    counts = read_counts(output)
    has_failed = exit_code != 0 or counts.failed > 0
    error = first_error(output) if has_failed else None
    return LogReading(counts, read_outcomes(output), error)


def read_counts(output: str) -> Counts:
    """Return how many tests passed, failed and were skipped, summed over all frameworks.

    `framework` names the frameworks that printed a summary, joined with `+`.
    """
    text = prepare_log(output)
    passed = failed = skipped = 0
    frameworks = []
    for parser in PARSERS:
        summaries = list(parser.parse_counts(text))
        if not summaries:
            continue
        frameworks.append(parser.name)
        last = _last_with_tests(summaries)
        passed += last.passed
        skipped += last.skipped
        failed += sum(counts.failed for counts in summaries)
    return Counts(passed, failed, skipped, "+".join(frameworks) or None)


def _last_with_tests(summaries: Sequence[Counts]) -> Counts:
    """Return the last summary that counts a test: a package without tests may come last."""
    for counts in reversed(summaries):
        if any(counts):
            return counts
    return Counts()


def read_outcomes(output: str) -> dict[str, Outcome]:
    """Return the outcome of each test that the output names, by an id that is stable across runs.

    If a test is named several times, the worst outcome counts: code under test may print that it
    passed.
    """
    text = prepare_log(output)
    outcomes: dict[str, Outcome] = {}
    for parser in PARSERS:
        for test, outcome in parser.parse_outcomes(text):
            previous = outcomes.get(test, outcome)
            outcomes[test] = max(outcome, previous, key=_FROM_BEST_TO_WORST.index)
    return outcomes


def first_error(output: str) -> str | None:
    """Return one line about the first failure, such as `AssertionError in test_edge_case`.

    Without a failed test it is the first error of another tool, or else the last line.
    """
    text = prepare_log(output)
    return _first_failure(text) or _first_tool_error(text) or _last_line(text)


def _first_failure(text: str) -> str | None:
    for parser in PARSERS:
        failed = [test for test, outcome in parser.parse_outcomes(text) if outcome == "failed"]
        if failed:
            name = _without_prefix(_first_part_of(failed[0], failed), parser)
            if parser.name == "go":
                compiler_error = _go_compiler_error(name, text)
                if compiler_error:
                    return _shorten(compiler_error)
            return _shorten(f"{_exception_of(name, text)} in {name}")
    return None


def _without_prefix(test: str, parser: LogParser) -> str:
    return re.sub(f"^(?:{parser.id_prefix})", "", test) or test


def short_name(test: str, framework: str | None) -> str:
    """Return the part of a test's id that its framework prints on one line in any case.

    `framework` is that of `Counts`.
    """
    frameworks = (framework or "").split("+")
    names = [_without_prefix(test, parser) for parser in PARSERS if parser.name in frameworks]
    return min(names, key=len, default=test)


def _go_compiler_error(package: str, text: str) -> str | None:
    """Return the first error of the compiler in a package that does not build.

    Without a heading for the package, a package that it imports does not build.
    """
    if not re.search(rf"^FAIL[ \t]+{re.escape(package)} \[", text, re.MULTILINE):
        return None
    heading = re.search(rf"^# \[?{re.escape(package)}(?=[_.\]\s])", text, re.MULTILINE)
    error = _GO_COMPILER_ERROR.search(text, heading.end() if heading else 0)
    return f"{error['message']} in {error['file']}" if error else None


def _first_part_of(test: str, failed: Sequence[str]) -> str:
    """Return the first failed subtest of a test, or the test itself."""
    for other in failed:
        if other.startswith((f"{test}/", f"{test} > ")):
            return other
    return test


def _exception_of(test: str, text: str) -> str:
    """Return the exception below the heading of a failed test, or on the same line."""
    if len(test) > MAX_ERROR_LENGTH:
        return "failure"  # the search would take time proportional to its length, per character
    heading = re.search(rf"{_FAILURE_HEADING}{re.escape(test)}(?!\w)", text, re.VERBOSE)
    if heading is None:
        return "failure"
    end = heading.end() + _MAX_CHARACTERS_TO_ERROR
    raised = _RAISED.search(text, heading.end(), end)
    if raised is None:
        return "failure"
    if raised["pytest_assert"] or raised["expect"]:
        return "AssertionError"
    name = raised["pytest_name"] or raised["name"] or "panic"
    return name.rpartition(".")[2]


def _first_tool_error(text: str) -> str | None:
    error = _TOOL_ERROR.search(text)
    if error is None:
        return None
    if error[0] == f"\n{_TRACEBACK}":
        exception = _EXCEPTION_OF_TRACEBACK.match(text, error.end())
        if exception and (line := _shorten(exception["exception"])):
            return line
    return _shorten(error[0])


def _last_line(text: str) -> str | None:
    for line in reversed(text.rstrip().split("\n")):
        if text_line := _shorten(line):
            return text_line
    return None


def _shorten(text: str) -> str:
    """Return printable text on one line, of at most `MAX_ERROR_LENGTH` characters."""
    # Cut first: a line may have megabytes.
    text = text[: 2 * MAX_ERROR_LENGTH]
    printable = "".join(char if char.isprintable() else " " for char in text)
    line = re.sub(" +", " ", printable).strip()
    if len(line) > MAX_ERROR_LENGTH:
        return line[: MAX_ERROR_LENGTH - 1] + "…"
    return line


@limit_seconds(10)
def find_named_file(output: str, paths: Sequence[str]) -> str | None:
    """Return the last of these files in the first stack trace that names one of them.

    Callers use `call_bounded`.
    """
    if not paths:
        return None
    any_path = "|".join(re.escape(path) for path in paths)
    pattern = rf"(?<![\w./-])(?:(?:{REPO_DIR}|\.)/)?(?P<path>{any_path})(?=[\":(])"
    last = None
    for match in re.finditer(pattern, prepare_log(output)):
        if last and match.start() > last.end() + _MAX_CHARACTERS_IN_TRACE:
            break
        last = match
    return last["path"] if last else None
