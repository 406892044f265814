from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.author.mining.state import HOLDS, MinedTask, MiningState
from cooperbench.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path


def test_everything_is_known_after_a_restart(tmp_path: Path) -> None:
    state = MiningState(tmp_path / "state.json")
    state.load()
    state.reject_commits({"c1": "it changes no tests"})
    state.add_trial("base", "c2", HOLDS)
    state.add_trial("base", "c3", "its tests fail with it")
    state.reject_base("other", "no tests")
    state.reject_setup("environment", "setup.sh failed")
    state.add_task(MinedTask("r_task/task1", "base", ["c2", "c4"]))
    again = MiningState(tmp_path / "state.json")
    again.load()
    assert again.rejected == {"c1": "it changes no tests"}
    assert again.trial("base", "c2") == HOLDS
    assert again.trial("base", "unknown") is None
    assert again.failures_of("c3") == ["its tests fail with it"]
    assert again.base_problem("other") == "no tests"
    assert again.setup_problem("environment") == "setup.sh failed"
    assert again.tasks == [MinedTask("r_task/task1", "base", ["c2", "c4"])]


@pytest.mark.parametrize("content", ["{", '{"schema": "other/1"}'])
def test_a_damaged_file_is_not_overwritten(tmp_path: Path, content: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(content)
    with pytest.raises(UserError, match="remove it"):
        MiningState(path).load()
    assert path.read_text() == content
