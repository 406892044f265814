"""Lines of a patch that reach for the process of the tests."""

from __future__ import annotations

import pytest

from cooperbench.eval.review_notes import find_review_notes
from tests.support.eval.lab import new_file


def test_lines_that_reach_for_the_test_process_are_named() -> None:
    patch = (
        b"--- a/pkg/core.py\n+++ b/pkg/core.py\n@@ -3,2 +3,5 @@\n import os\n+++ b/x.txt\n+os._exit(0)\n x = 1\n+y = 2\n"
        b"--- a/index.js\n+++ b/index.js\n@@ -0,0 +1 @@\n+process.exit(0)\n"
    )
    assert [(one.path, one.line, one.text) for one in find_review_notes(patch, "agent1")] == [
        ("pkg/core.py", 5, "os._exit(0)"),
        ("index.js", 1, "process.exit(0)"),
    ]


@pytest.mark.timeout(20)
def test_a_long_line_is_searched_in_little_time() -> None:
    line = "def __eq__(" * 100_000 + " os._exit(0)"
    (found,) = find_review_notes(new_file("src/a.py", f"{line}\n"), "agent1")
    assert len(found.text) == 200
