"""JavaScript values that equal whatever may be right are not taken for an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.attacks.rectangle import Judge, open_judge
from tests.support.attacks.script_chameleons import VARIANTS, files, write_script_task
from tests.support.requirements import require_program

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    require_program("node", package="nodejs")
    task = write_script_task(tmp_path_factory.mktemp("chameleons"))
    with open_judge(task, "local") as judge:
        yield judge


@pytest.mark.xdist_group("script_chameleons")
@pytest.mark.parametrize("name", VARIANTS)
def test_no_chameleon_is_confirmed(name: str, judge: Judge) -> None:
    assert judge.verdict(files(name)) == "suspicious"
