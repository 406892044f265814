"""A run folder whose files take long to read: the report says so, soon, and never hangs."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from cooperbench.bounded import LIMIT_ATTRIBUTE
from cooperbench.report.coordination import measure_files, measure_run
from cooperbench.report.loading import Run, load_run
from cooperbench.report.page.build import build_page, read_and_pack_pair
from tests.support.hostile import hostile_texts
from tests.support.report.factory import Style, Talk, write_run

if TYPE_CHECKING:
    from pathlib import Path


def git_patch(lines: list[str]) -> str:
    added = "".join(f"+{line}" for line in lines)
    header = "diff --git a/src/app.py b/src/app.py\n--- a/src/app.py\n+++ b/src/app.py\n"
    return f"{header}@@ -0,0 +1,{len(lines)} @@\n{added}"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a run of one pair whose messages, patches, steps and test output are hostile."""
    texts = hostile_texts(60_000)
    talk = tuple(Talk(1 + step % 2, 1, text) for step, text in enumerate(texts.values()))
    write_run(tmp_path, "r", {"alpha_task": {3: [(1, 2)]}}, "conflict", style=Style(talk=talk))
    (pair,) = load_run(tmp_path, "r").pairs
    lines = [f"{line}\n" for text in texts.values() for line in text.split("\n")]
    for agent_id in pair.agent_ids:
        paths = pair.paths.agent(agent_id)
        paths.patch.write_text(git_patch(lines))
        record = json.loads(paths.trajectory.read_text())
        for step, text in zip(record["steps"], texts.values(), strict=False):
            step["args"] = {"command": f"send_message {text}"}
        paths.trajectory.write_text(json.dumps(record))
    return load_run(tmp_path, "r")


def test_hostile_texts(run: Run, tmp_path: Path) -> None:
    """Every reader takes linear time, so that all is read."""
    started = time.process_time()
    coordination = measure_run(run.pairs)
    assert coordination.problems == ()
    assert coordination.n == 1
    build_page([run], tmp_path / "page.html")
    assert time.process_time() - started < 20
    assert (tmp_path / "page.html").stat().st_size > 100_000


def test_files_that_cannot_be_read_in_time(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_files, LIMIT_ATTRIBUTE, 1)
    monkeypatch.setattr(read_and_pack_pair, LIMIT_ATTRIBUTE, 1)
    patch = run.pairs[0].paths.agent("agent1").patch
    patch.write_text(git_patch(["def a():\n"] * 500_000))
    (problem,) = measure_run(run.pairs).problems
    assert "it takes more than 1 s of processor time to read" in problem
    build_page([run], tmp_path / "page.html")
    assert (tmp_path / "page.html").exists()
