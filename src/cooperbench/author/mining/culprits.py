"""Find the feature to leave out when features that hold alone fail together.

A feature that changes behavior also changes existing tests. The hidden tests of other features
contain the same tests as they were, and these fail now.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping

from cooperbench.diff import parse_diff
from cooperbench.patch_symbols import changed_lines

_PARTS = re.compile(r"::|\.|/|\s+>\s+|\s+")


def choose_culprit(failed_tests: Mapping[int, Collection[str]], tests: Mapping[int, bytes]) -> int:
    """Return the feature to leave out.

    It is the one that changes most of the tests that fail for other features; if there is none, the
    last feature that fails.

    Args:
        failed_tests: Names of the failed tests, by the feature that needs them.
        tests: The patches with the hidden tests of all features.
    """
    blamed: Counter[int] = Counter()
    for feature_id, patch in tests.items():
        changed = changed_tests(patch)
        for other, names in failed_tests.items():
            if other != feature_id:
                blamed[feature_id] += sum(1 for name in names if short_test_name(name) in changed)
    for feature_id, count in blamed.most_common(1):
        if count:
            return feature_id
    return max(failed_tests)


def changed_tests(patch: bytes) -> set[str]:
    """Return the names of the functions in tests that a patch changes."""
    try:
        files = parse_diff(patch)
    except ValueError:
        return set()
    names = set()
    for line in changed_lines(files):
        last = line.symbol.rpartition(".")[2]
        if last:
            names.add(last)
    return names


def short_test_name(test: str) -> str:
    """Return the function in the name of a test: `test_b` of `tests/test_a.py::A::test_b[1-2]`."""
    return _PARTS.split(test.partition("[")[0].strip())[-1]
