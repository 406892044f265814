"""A run that is killed again and again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cooperbench.storage import read_json
from tests.support.runner.harness import Harness

if TYPE_CHECKING:
    from pathlib import Path


def test_sigkill_at_many_moments(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    before: dict[str, Any] = {}
    for attempt in range(14):
        process = harness.start()
        time.sleep(0.35 + 0.11 * attempt)
        process.kill()
        process.communicate()
        harness.wait_for_no_survivors()
        now = harness.results()
        assert {pair: now[pair] for pair in before} == before
        before = {pair: result for pair, result in now.items() if result["status"] == "completed"}
    code, output = harness.finish()
    assert code == 0, output
    after = harness.results()
    assert len(after) == 6
    assert {pair: after[pair] for pair in before} == before
    for folder in (tmp_path / "logs").glob("r/coop/*/*/*"):
        evaluation = read_json(folder / "eval.json")
        assert evaluation is not None
        assert evaluation["status"] == "completed"
        assert not list(folder.rglob(".writing-*"))
    assert not [path for path in (harness.cache / "sandboxes").rglob("*") if path.is_file()]
    _, output = harness.finish()
    assert "6 pairs already finished" in output
    assert harness.results() == after
