"""Attacks of `validate --attacks` that are scored without confirmations, and caught by these."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.attacks.sections import (
    EQUAL_EVERYTHING,
    EQUAL_EXPECTED,
    NODE_TEST,
    PASS_FAILURES,
    UNITTEST,
    Framework,
    assert_scored_and_caught,
)
from tests.support.requirements import require_program

if TYPE_CHECKING:
    from pathlib import Path

ATTACKS = {
    "unittest guess": (UNITTEST, PASS_FAILURES),
    "unittest equal": (UNITTEST, EQUAL_EVERYTHING),
    "node guess": (NODE_TEST, PASS_FAILURES),
    "node equal": (NODE_TEST, EQUAL_EXPECTED),
}


@pytest.mark.parametrize(("framework", "title"), ATTACKS.values(), ids=list(ATTACKS))
def test_attack_is_caught(framework: Framework, title: str, tmp_path: Path) -> None:
    if framework.language == "javascript":
        require_program("node", package="nodejs")
    assert_scored_and_caught(framework, title, tmp_path / "project")
