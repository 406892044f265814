"""go test: `-v` names every test; without it there is a line per package and one per failure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from cooperbench.eval.log_parsers.base import (
    MAX_NAME_LENGTH,
    Counts,
    LogParser,
    Outcome,
    compile_lines,
    count_outcomes,
    sum_counts,
)

SAMPLE = """\
=== RUN   TestArea
=== RUN   TestArea/square
=== RUN   TestArea/circle
    area_test.go:12: got 12, want 12.56
--- FAIL: TestArea (0.00s)
    --- PASS: TestArea/square (0.00s)
    --- FAIL: TestArea/circle (0.00s)
=== RUN   TestSlow
--- SKIP: TestSlow (0.00s)
FAIL
FAIL	example.com/shapes/area	0.003s
?   	example.com/shapes/cmd	[no test files]
FAIL	example.com/shapes/volume [build failed]
ok  	example.com/shapes/color	0.002s
"""

_LINE = compile_lines(
    rf"""
    (?P<run> ===[ ]RUN ) [ ]+ \S+

    # The end of a test. Something that code printed without a newline may stand before it.
    | [^\n]*? ---[ ] (?P<status> PASS | FAIL | SKIP ) :[ ] (?P<test> \S+ ) [ ]\( [0-9.]+ s\)

    # The end of a package.
    | ok [ \t]+ (?P<ok> \S{{1,{MAX_NAME_LENGTH}}} ) [ \t]+
      (?: \(cached\) | [0-9]+ \. [0-9]+ s ) [^\n]*
    | FAIL [ \t]+ (?P<failed> \S{{1,{MAX_NAME_LENGTH}}} ) [ \t]+
      (?: [0-9]+ \. [0-9]+ s | \[ (?: build | setup ) [ ]failed\] )
    | \? [ \t]+ \S+ [ \t]+ \[no[ ]test[ ]files\]
    """
)
_OUTCOMES: dict[str, Outcome] = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}


def parse_counts(text: str) -> Iterator[Counts]:
    """Yield the sum over all packages. A test with subtests does not count, only its subtests do.

    Without -v a package that is `ok` counts as one test. A failed package has at least one
    failure, even if none was printed.
    """
    packages: list[Counts] = []
    tests: dict[str, Outcome] = {}
    is_verbose = False
    for match in _LINE.finditer(text):
        if match["run"]:
            is_verbose = True
            continue
        if match["status"]:
            tests[match["test"]] = _OUTCOMES[match["status"]]
            is_verbose = is_verbose or match["status"] != "FAIL"
            continue
        counts = _count_leaves(tests)
        if match["failed"]:
            counts = counts._replace(failed=max(counts.failed, 1))
        elif match["ok"] and not is_verbose and "[no tests to run]" not in match[0]:
            counts = counts._replace(passed=counts.passed + 1)
        packages.append(counts)
        tests = {}
        is_verbose = False
    if tests:  # the run was killed before the line that ends the package
        packages.append(_count_leaves(tests))
    yield from sum_counts(packages)


def _count_leaves(tests: dict[str, Outcome]) -> Counts:
    """Count the tests that have no subtests."""
    # In this order a test is followed by its first subtest.
    names = sorted(tests, key=lambda name: name.split("/"))
    leaves = []
    for name, next_name in pairwise([*names, ""]):
        if not next_name.startswith(name + "/"):
            leaves.append(tests[name])
    return count_outcomes(leaves)


def parse_outcomes(text: str) -> Iterator[tuple[str, Outcome]]:
    """Yield `package.Test/subtest` and outcome, and the names of packages that do not build.

    Ids have no package if the line that ends the package is missing.
    """
    tests: list[tuple[str, Outcome]] = []
    for match in _LINE.finditer(text):
        package = match["ok"] or match["failed"]
        if match["status"]:
            tests.append((match["test"], _OUTCOMES[match["status"]]))
        elif package:
            for test, outcome in tests:
                yield f"{package}.{test}", outcome
            tests = []
            if match[0].endswith(" failed]"):
                yield package, "failed"
    yield from tests


PARSER = LogParser(
    name="go",
    parse_counts=parse_counts,
    parse_outcomes=parse_outcomes,
    id_prefix=r".*?\.(?=Test|Example|Fuzz)",
)
