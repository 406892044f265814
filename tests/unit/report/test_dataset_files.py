"""Titles of features, as far as the dataset of a run is at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.report.dataset_files import read_feature_titles
from cooperbench.report.loading import load_run
from tests.support.report.factory import Style, keys_of, write_run

if TYPE_CHECKING:
    from pathlib import Path

PAIRS = {"repo_task": {1: [(1, 2)]}}


def test_titles_need_the_dataset_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    description = tmp_path / "mine" / "repo_task" / "task1" / "feature2" / "feature.md"
    description.parent.mkdir(parents=True)
    description.write_text("# Feature: wildcards\n")
    write_run(tmp_path / "logs", "mine", PAIRS, "passed", style=Style(dataset="mine"))
    write_run(tmp_path / "logs", "other", PAIRS, "passed", style=Style(dataset="other"))
    mine = load_run(tmp_path / "logs", "mine")
    other = load_run(tmp_path / "logs", "other")
    monkeypatch.setenv("COOPERBENCH_DATASET_DIR", str(tmp_path / "mine"))
    assert read_feature_titles([mine], keys_of(PAIRS)) == {("repo_task", 1, 2): "wildcards"}
    assert read_feature_titles([other], keys_of(PAIRS)) == {}
    monkeypatch.setenv("COOPERBENCH_DATASET_DIR", str(tmp_path / "nothing"))
    assert read_feature_titles([mine], keys_of(PAIRS)) == {}
