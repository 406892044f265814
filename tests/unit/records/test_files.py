"""Records read what the current and older versions wrote, and survive what is damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cooperbench import records
from cooperbench.records import lenient
from cooperbench.records.evaluation import Evaluation
from cooperbench.records.files import Record
from cooperbench.records.result import PairResult
from cooperbench.records.schema import RECORDS
from cooperbench.records.trajectory import Trajectory

RUNS = Path(__file__).parent / "runs"
"""Runs that version 0.1.0 wrote before there were typed records."""
FILES = sorted((RUNS / "logs").rglob("*.json"))


def assert_includes(content: Any, expected: Any, where: str = "") -> None:
    """Newer versions may add keys; what was there stays."""
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert key in content, f"{where}.{key}"
            assert_includes(content[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(content) == len(expected), where
        for position, value in enumerate(expected):
            assert_includes(content[position], value, f"{where}[{position}]")
    else:
        assert content == expected, where


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(RUNS).as_posix())
def test_old_files_round_trip(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.loads(path.read_bytes())
    if content.get("status") != "error":
        monkeypatch.setattr(lenient, "convert_struct", None)  # complete files need no leniency
    record = records.read(path, RECORDS[path.stem])
    assert record is not None
    assert record.schema == record.SCHEMA
    written = records.to_object(record)
    if content.get("status") == "error":
        assert written["error"] == content["error"] == "the sandbox did not start"
        assert not record.is_completed  # type: ignore[attr-defined]
    else:
        assert [*written] == [*content]
        if isinstance(content.get("canary"), dict):
            _check_confirmations(written.pop("canary"), content.pop("canary"))
        assert_includes(written, content)


def _check_confirmations(written: Any, answers: Any) -> None:
    """Answers for a feature stand for all patches that were tested for it."""
    outcomes: dict[str, str] = {}
    for by_feature in written.values():
        outcomes |= {feature: entry["outcome"] for feature, entry in by_feature.items()}
    assert "merged" in written or not answers
    assert outcomes == answers


def test_write_is_indented_json_with_the_current_schema(tmp_path: Path) -> None:
    source = next(path for path in FILES if path.name == "eval.json")
    evaluation = records.read(source, Evaluation)
    assert evaluation is not None
    records.write(tmp_path / "eval.json", evaluation)
    assert (tmp_path / "eval.json").read_bytes() == source.read_bytes()


def test_older_answers_of_canaries_are_read() -> None:
    totals = {"success": True, "features": {"1": {}}}
    content = {
        "agent1": totals,
        "agent2": {"success": True, "features": {"2": {}}},
        "merged": {"success": True, "features": {"1": {}, "2": {}}},
        "canary": {"1": "confirmed", "2": "the golden patch fails"},
    }
    evaluation = records.from_object(content, Evaluation)
    assert isinstance(evaluation.canary, dict)
    assert evaluation.canary["agent1"][1].outcome == "confirmed"
    assert evaluation.canary["merged"][2].outcome == "impossible"
    assert evaluation.canary["merged"][2].detail == "the golden patch fails"
    assert evaluation.unconfirmed_successes == [("agent2", 2), ("merged", 2)]


@pytest.mark.parametrize("canary", ["off", None])
def test_successes_without_a_confirmation_are_listed(canary: str | None) -> None:
    content = {
        "agent1": {"success": True, "features": {"1": {}}},
        "agent2": {"success": False, "features": {"2": {}}},
        "merged": {"success": False, "features": {"1": {}, "2": {}}},
        "canary": canary,
    }
    assert records.from_object(content, Evaluation).unconfirmed_successes == [("agent1", 1)]


def test_text_that_is_not_utf8_is_kept(tmp_path: Path) -> None:
    source = next(path for path in FILES if path.name == "trajectory.json")
    content = json.loads(source.read_bytes())
    content["steps"][0]["observation"] = "caf\udce9"
    content["steps"][0]["framework_key"] = {"kept": [1, "é"]}
    path = tmp_path / "trajectory.json"
    path.write_text(json.dumps(content))
    trajectory = records.read(path, Trajectory)
    assert trajectory is not None
    assert trajectory.steps[0].observation == "caf\udce9"
    assert trajectory.steps[0].extra == {"framework_key": {"kept": [1, "é"]}}
    records.write(path, trajectory)
    assert b"caf\\udce9" in path.read_bytes()
    assert json.loads(path.read_bytes()) == content


def test_incomplete_and_wrong_values_become_empty() -> None:
    content = {
        "status": 7,
        "agents": {"agent1": {"steps": 3.0, "cost": "much", "model": 5}, "agent2": "x"},
        "features": [1, "2", None, 3],
        "cost": True,
        "duration_seconds": 1e999,
        "messages": None,
        "team_features": {"roles": 1, "mcp": True},
    }
    result = records.decode(json.dumps(content).encode(), PairResult)
    assert (result.schema, result.status, result.features) == ("", "", [1, 3])
    assert [*result.agents] == ["agent1"]
    agent = result.agents["agent1"]
    assert (agent.steps, agent.cost, agent.model, agent.feature_ids) == (3, None, None, [])
    assert (result.cost, result.duration_seconds, result.messages) == (None, None, None)
    assert result.team_features == {"mcp": True}
    assert records.decode(b"{}", PairResult).is_completed


def test_the_documented_evaluation_is_read() -> None:
    """The public documentation shows an eval.json without schema and status."""
    content = {
        "agent1": {"tests_passed": 12, "tests_failed": 1, "success": False, "error": "boom"},
        "merged": {"tests_passed": 18, "success": False, "merge_conflict": True},
        "overall_success": False,
    }
    evaluation = records.decode(json.dumps(content).encode(), Evaluation)
    assert evaluation.is_completed
    assert evaluation.overall_success is False
    assert evaluation.merge_success is None
    assert evaluation.agents["agent1"].tests_passed == 12
    assert evaluation.merged is not None
    assert evaluation.merged.merge_conflict
    assert evaluation.merged.merge_status is None


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b'{"status": "comp', "result.json is not complete JSON"),
        (b"", "result.json is not complete JSON"),
        (b"\xff\xfe\x00", "result.json is not complete JSON"),
        (b"[" * 100_000, "result.json is not complete JSON"),
        (b"[1, 2]", "result.json does not contain a JSON object"),
        (b"null", "result.json does not contain a JSON object"),
    ],
)
def test_problems_are_one_line(tmp_path: Path, data: bytes, problem: str) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(data)
    assert records.read_or_problem(path, PairResult) == (None, problem)
    assert records.read(path, PairResult) is None


def test_no_file_is_no_problem(tmp_path: Path) -> None:
    assert records.read_or_problem(tmp_path / "result.json", PairResult) == (None, None)
    (tmp_path / "eval.json").mkdir()
    assert records.read_or_problem(tmp_path / "eval.json", Evaluation).problem == (
        "eval.json cannot be read: it is not a regular file"
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("kind", RECORDS.values(), ids=RECORDS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(data=st.data())
def test_any_json_object_is_read(kind: type[Record], data: st.DataObject) -> None:
    keys = st.sampled_from(kind.__struct_encode_fields__) | st.text(max_size=5)
    content: dict[str, Any] = data.draw(st.dictionaries(keys, JSON, max_size=6))
    record = records.decode(json.dumps(content).encode(), kind)
    assert isinstance(record, kind)
    again = records.decode(records.encode(record), kind)
    assert records.encode(again) == records.encode(record)
