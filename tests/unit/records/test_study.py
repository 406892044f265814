"""study.json of the first version, also if it is damaged."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench import records
from cooperbench.records.study import StudyArm, StudyFactor, StudyRecord

if TYPE_CHECKING:
    from pathlib import Path

OLD: dict[str, Any] = {
    "schema": "cooperbench.study/1",
    "study": "s",
    "parts": {"messages": "messaging_enabled", "git": "git_enabled"},
    "arms": [
        {"name": "all", "off": [], "round": 1},
        {"name": "no-git@2", "off": ["git"], "round": 2},
    ],
}


def read(path: Path, content: dict[str, Any]) -> StudyRecord:
    path.write_text(json.dumps(content))
    record = records.read(path, StudyRecord)
    assert record is not None
    return record


def test_parts_are_factors_that_are_on_or_off(tmp_path: Path) -> None:
    record = read(tmp_path / "study.json", OLD)
    assert record.factors[1] == StudyFactor(
        name="git", levels=["off", "on"], is_ordered=True, options=["git_enabled"]
    )
    assert record.arms[1] == StudyArm(
        name="no-git@2",
        levels={"messages": "on", "git": "off"},
        options={"messaging_enabled": True, "git_enabled": False},
        round=2,
    )
    records.write(tmp_path / "new.json", record)
    again = records.read(tmp_path / "new.json", StudyRecord)
    assert again is not None
    assert again.arms == record.arms
    assert again.schema == StudyRecord.SCHEMA


@pytest.mark.parametrize(
    ("changes", "arms"),
    [({"parts": 3}, 2), ({"arms": None}, 0), ({"arms": [5, {"name": "x", "off": 1}]}, 1)],
)
def test_damaged_files(tmp_path: Path, changes: dict[str, Any], arms: int) -> None:
    assert len(read(tmp_path / "study.json", OLD | changes).arms) == arms
