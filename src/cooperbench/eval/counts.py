"""What the test runner printed: how many tests passed, and what went wrong first.

Counts are summed over all summaries of all frameworks in the output, and a summary counts only as a whole
line, as its framework prints it. Ambiguity that this accepts: a test can print a line that looks like a
summary, and where a framework shows what a failed test printed, the summary of a run inside of a test is
counted too. Both only add to the counts; whether the tests passed is first of all the exit code's to say.

Not for deciding success: that is the verdict's work.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cooperbench.eval.counting import compiled, javascript, python
from cooperbench.eval.counting.base import readable
from cooperbench.models import TestCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cooperbench.eval.counting.base import Failure, Tally

LONGEST_ERROR = 300
"""Characters of the line that `first_error` gives."""

_COUNTERS: Mapping[str, Callable[[str], Tally | None]] = {
    "pytest": python.count_pytest,
    "unittest": python.count_unittest,
    "node": javascript.count_node,
    "go": compiled.count_go,
    "jest": javascript.count_jest,
    "vitest": javascript.count_vitest,
    "cargo": compiled.count_cargo,
}
_FAILURE_FINDERS: tuple[Callable[[str], Failure | None], ...] = (
    python.first_pytest_failure,
    python.first_unittest_failure,
    javascript.first_node_failure,
    javascript.first_jest_failure,
    javascript.first_vitest_failure,
    compiled.first_go_failure,
    compiled.first_cargo_failure,
)


def read_counts(output: str) -> TestCounts:
    """What all summaries in the output add up to; `framework` names those found, joined with `+`."""
    text = readable(output)
    found = {name: tally for name, counter in _COUNTERS.items() if (tally := counter(text)) is not None}
    return TestCounts(
        passed=sum(tally.passed for tally in found.values()),
        failed=sum(tally.failed for tally in found.values()),
        skipped=sum(tally.skipped for tally in found.values()),
        framework="+".join(found) or None,
    )


def first_error(output: str) -> str | None:
    """One line: `AssertionError in test_edge_case`, else the last line that is not empty, else None."""
    text = readable(output)
    failures = [failure for finder in _FAILURE_FINDERS if (failure := finder(text)) is not None]
    if failures:
        return _one_line(str(min(failures, key=lambda failure: failure.position)))
    lines = reversed(text.rstrip().split("\n"))
    return next((shown for line in lines if line and (shown := _one_line(line))), None)


def _one_line(text: str) -> str:
    # Cut before anything else: a line may be megabytes long.
    shown = "".join(char if char.isprintable() else " " for char in text[: 2 * LONGEST_ERROR])
    shown = re.sub(" +", " ", shown).strip()
    return shown if len(shown) <= LONGEST_ERROR else shown[: LONGEST_ERROR - 1] + "…"


def read_outcomes(output: str) -> dict[str, str]:
    """STUB to be replaced."""
    return {}
