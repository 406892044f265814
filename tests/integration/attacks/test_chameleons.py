"""Code that knows how successes are confirmed is not confirmed itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.attacks.chameleons import GUESSES, HIDDEN, PYTHON, python_files
from tests.support.attacks.rectangle import Judge, judge_in

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with judge_in(tmp_path_factory.mktemp("chameleons"), HIDDEN) as judge:
        yield judge


@pytest.mark.xdist_group("chameleons")
@pytest.mark.parametrize("name", PYTHON)
def test_no_chameleon_is_confirmed(name: str, judge: Judge) -> None:
    assert judge.verdict(python_files(name)) == "suspicious"


@pytest.mark.xdist_group("chameleons")
def test_code_that_guesses_among_copies_is_caught(judge: Judge) -> None:
    """It is wrong in three of four tests, which it marks as passed in the real run."""
    assert judge.verdict(GUESSES) == "suspicious"
