"""Runs as they lie on disk: whole, half finished, old, broken. Everything is counted, nothing raises."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cooperbench.errors import UserError
from cooperbench.report.analysis import rate_rows
from cooperbench.report.loading import check_same_dataset, load_run, resolve_run, run_names
from cooperbench.report.page.pair_detail import pair_detail
from cooperbench.report.pairs import EVALUATED
from cooperbench.storage import ExperimentPaths, seconds_between
from tests.support.report.factory import Kind, Style, layout, write_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cooperbench.report.pairs import PairData, PairKey

KINDS: tuple[Kind, ...] = (
    "passed", "union", "conflict", "capability", "integration",
    "unsound", "suspicious", "no_reference", "error", "eval_error", "unevaluated", "missing", "unstarted", "killed", "broken",
)  # fmt: skip
PAIRS = layout(1, 1, len(KINDS))


def of_every_kind(key: PairKey) -> Kind:
    return KINDS[[*PAIRS["repo01_task"][100]].index(key.features)]


def by_kind(tmp_path: Path) -> dict[Kind, PairData]:
    write_run(tmp_path, "r", PAIRS, of_every_kind)
    run = load_run(tmp_path, "r")
    return {of_every_kind(pair.key): pair for pair in run.pairs}


def test_every_ending_has_its_state(tmp_path: Path) -> None:
    pairs = by_kind(tmp_path)
    assert {kind: pair.state for kind, pair in pairs.items()} == {
        "passed": "passed", "union": "passed", "conflict": "failed", "capability": "failed",
        "integration": "failed", "unsound": "passed", "suspicious": "failed", "no_reference": "no_reference", "error": "error", "eval_error": "error", "unevaluated": "unevaluated",
        "missing": "missing", "unstarted": "missing", "killed": "missing", "broken": "broken",
    }  # fmt: skip
    assert [*pairs["union"].verdicts.values()] == [True, False, True, True, False]
    assert [*pairs["conflict"].verdicts.values()] == [True, False, False, False, False]
    assert [*pairs["capability"].verdicts.values()] == [False, True, False, False, False]
    assert pairs["error"].error == "the sandbox did not start"
    assert pairs["broken"].error == "eval.json is not complete JSON"
    run = load_run(tmp_path, "r")
    assert run.problems == (f"coop {pairs['broken'].label}: eval.json is not complete JSON",)
    (row,) = rate_rows([run])
    assert (row.pairs, row.judged, row.suspicious) == (15, 7, 1)
    left_out = {
        state: count for state, count in row.states.items() if count and state not in EVALUATED
    }
    assert left_out == {"error": 2, "no_reference": 1, "unevaluated": 1, "missing": 3, "broken": 1}
    assert row.rates["overall"].value == pytest.approx(3 / 7)
    assert row.rates["strict"].value == pytest.approx(2 / 7)
    assert row.rates["merge"].value == pytest.approx(5 / 7)
    assert str(pairs["no_reference"].error).endswith(
        ": the golden patch does not pass: ImportError in test_x"
    )
    assert (pairs["unsound"].unsound, pairs["passed"].unsound) == (
        (pairs["unsound"].key.features[-1],),
        (),
    )
    assert row.unsound == 1
    assert row.sound_rates["overall"].n == 6
    assert row.sound_rates["overall"].value == pytest.approx(2 / 6)


def test_large_files_are_read_when_asked_for(tmp_path: Path) -> None:
    pairs = by_kind(tmp_path)
    passed = pairs["passed"]
    trajectory = passed.trajectory("agent1")
    assert [step.action for step in trajectory][:3] == ["tell", "reply", "run"]
    conversation = passed.conversation()
    assert [(one.sender, one.recipient, one.sender_step) for one in conversation.messages] == [
        ("agent1", "agent2", 1), ("agent2", "agent1", 1), ("agent2", "agent1", 2), ("agent1", "agent2", 3),
    ]  # fmt: skip
    assert b"feature_1" in (passed.patch("agent1") or b"")
    assert set(passed.test_outputs()) == {"agent1-f1", "agent2-f2", "merged-f1", "merged-f2"}
    assert (passed.cost, passed.steps, passed.messages) == (0.5, 8, 4)
    assert [agent.success for agent in pairs["capability"].agents] == [False, True]


def test_a_killed_run_is_read_from_its_journals(tmp_path: Path) -> None:
    killed = by_kind(tmp_path)["killed"]
    trajectory = killed.trajectory("agent1")
    assert len(trajectory) > 8
    conversation = killed.conversation()
    assert not conversation.complete
    assert [(one.sequence, one.sender) for one in conversation.messages] == [
        (1, "agent1"), (2, "agent2"), (3, "agent2"), (4, "agent1"),
    ]  # fmt: skip
    assert killed.patch("agent1") is None
    assert killed.agents == ()


def edit(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def test_an_older_evaluation_is_read_as_far_as_it_goes_and_named(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "r", layout(1, 1, 2))
    folder = paths.pair_named("coop", "repo01_task", 100, (1, 2))
    folder.evaluation.write_text(
        json.dumps(
            {
                "agent1": {
                    "tests_passed": 12,
                    "tests_failed": 1,
                    "success": False,
                    "error": "boom",
                },
                "agent2": {"tests_passed": 8, "tests_failed": 0, "success": True, "error": None},
                "merged": {
                    "tests_passed": 18,
                    "tests_failed": 3,
                    "success": False,
                    "merge_conflict": True,
                },
                "overall_success": False,
            }
        )
    )
    run = load_run(tmp_path, "r")
    assert [*run.pairs[0].verdicts.values()] == [None, None, False, False, None]
    assert (run.pairs[0].state, run.pairs[0].loss) == ("failed", "capability")
    assert run.problems == (
        "coop repo01_task/task100 f1_f2: eval.json is of another schema (none given), read as far as it goes",
    )
    edit(folder.evaluation, overall_success=..., schema="cooperbench.eval/9")
    pair = load_run(tmp_path, "r").pairs[0]
    assert (pair.state, pair.verdicts) == ("broken", {})
    assert pair.problems[-1] == "eval.json has no overall_success"


def test_a_verdict_that_an_older_record_lacks_is_not_a_failure(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "r", layout(1, 1, 2))
    folder = paths.pair_named("coop", "repo01_task", 100, (1, 2))
    edit(folder.evaluation, merge_success=..., overall_success_strict=..., merged=...)
    (row,) = rate_rows([load_run(tmp_path, "r")])
    assert {name: estimate.n for name, estimate in row.rates.items()} == {
        "individual": 2, "merge": 1, "merged": 1, "overall": 2, "strict": 1,
    }  # fmt: skip


def test_a_run_without_config_or_pairs_says_so(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    run = load_run(tmp_path, "old")
    assert run.pairs == ()
    assert run.dataset == (None, None)
    assert run.problems == ("config.json is missing", "there are no pairs in it")


def test_an_unknown_run_is_one_line_with_what_there_is(tmp_path: Path) -> None:
    write_run(tmp_path, "first", layout(1, 1, 1))
    with pytest.raises(UserError, match=r"no run 'frist' in .*; available: first"):
        load_run(tmp_path, "frist")
    assert resolve_run(f"{tmp_path}/first/", tmp_path / "nowhere").name == "first"
    with pytest.raises(UserError, match="is not a valid experiment name"):
        load_run(tmp_path, "../x")
    assert run_names(tmp_path / "nowhere") == []


def test_a_summary_cannot_point_out_of_the_run(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "r", layout(1, 1, 1))
    lines = [
        {"repo": "../../secrets", "task_id": 1, "features": [1, 2]},
        {"repo": "x", "task_id": "1", "features": [1, 2]},
        {"repo": "x", "task_id": 1, "features": "12"},
        "nonsense",
    ]
    paths.summary.write_text(json.dumps({"settings": {"coop": {"results": lines}}}))
    assert len(load_run(tmp_path, "r").pairs) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["status", "agents", "agent1", "merged", "overall_success", "individual_success", "cost", "messages", "steps", "schema"]
)  # fmt: skip
CONTENT = st.binary(max_size=40) | st.dictionaries(KEYS, JSON, max_size=6).map(
    lambda one: json.dumps(one).encode()
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    result=CONTENT, evaluation=CONTENT, trajectory=CONTENT, conversation=CONTENT, journal=CONTENT
)
def test_whatever_is_in_the_files_nothing_raises(
    tmp_path: Path,
    result: bytes,
    evaluation: bytes,
    trajectory: bytes,
    conversation: bytes,
    journal: bytes,
) -> None:
    files = ExperimentPaths(tmp_path, "wild").pair_named("coop", "x", 1, (1, 2))
    agent = files.agent("agent1")
    agent.trajectory.parent.mkdir(parents=True, exist_ok=True)
    files.result.write_bytes(result)
    files.evaluation.write_bytes(evaluation)
    files.conversation.write_bytes(conversation)
    agent.trajectory.write_bytes(trajectory)
    agent.journal.write_bytes(journal)
    run = load_run(tmp_path, "wild")
    (pair,) = run.pairs
    assert Counter([pair.state])[pair.state] == 1
    for one in pair.agents:
        assert one.configuration
    _ = (
        pair.cost,
        pair.steps,
        pair.messages,
        pair.duration_seconds,
        pair.merge_status,
        pair.error,
    )
    _ = pair.trajectory("agent1"), pair.conversation(), pair.patch("agent1"), pair.test_outputs()
    (row,) = rate_rows([run])
    assert bool(pair.verdicts) == (row.judged == 1)


def test_models_of_agents_are_told_apart(tmp_path: Path) -> None:
    write_run(tmp_path, "r", layout(1, 1, 1), style=Style(agents=("a", "b"), models=("m", None)))
    (pair,) = load_run(tmp_path, "r").pairs
    assert [agent.configuration for agent in pair.agents] == ["m · a", "b"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "name", ["result.json", "eval.json", "conversation.json", "config.json", "summary.json"]
)
def test_pipe_in_place_of_a_file_does_not_hang(tmp_path: Path, name: str) -> None:
    pairs = layout(1, 1, 1)
    write_run(tmp_path, "r", pairs, lambda _: "passed")
    (path,) = tmp_path.rglob(name)
    path.unlink()
    os.mkfifo(path)
    (pair,) = load_run(tmp_path, "r").pairs
    problem = f"{name} cannot be read: it is not a regular file"
    if name in ("result.json", "eval.json"):
        assert pair.error == problem
    assert pair.conversation().complete == (name != "conversation.json")


@pytest.fixture
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    assert time.timezone == 18_000
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_new_york")
def test_a_time_without_a_zone_is_utc_for_every_reader(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "r", {"repo_task": {1: [(1, 2)]}}, "passed")
    result = paths.pair_named("coop", "repo_task", 1, (1, 2)).result

    def shown() -> tuple[object, ...]:
        run = load_run(tmp_path, "r")
        detail = pair_detail(run.pairs[0])
        return tuple(detail.entries), tuple(detail.messages)

    with_zone = shown()
    started_at = json.loads(result.read_text())["started_at"]
    assert started_at.endswith("Z")
    edit(result, started_at=started_at.removesuffix("Z"))
    assert shown() == with_zone
    here = datetime.fromisoformat(started_at).astimezone(ZoneInfo("America/New_York"))
    edit(result, started_at=here.isoformat())
    assert shown() == with_zone
    assert seconds_between("2026-03-04T10:30:00", "2026-03-04T10:30:07+00:00") == 7.0
    assert [seconds_between(started_at, one) for one in (None, "7 h", "", "soon")] == [None] * 4
    assert seconds_between(started_at, "0001-01-01T00:00:00+14:00") == 0.0


def test_the_same_files_are_the_same_dataset(tmp_path: Path) -> None:
    """A copy of the dataset has another name; another revision may have other tests."""
    pairs = {"a_task": {1: [(1, 2)]}}
    write_run(tmp_path, "first", pairs, style=Style(dataset="public", dataset_revision="1"))
    write_run(tmp_path, "copy", pairs, style=Style(dataset="mirror", dataset_revision=None))
    other = {"b_task": {1: [(1, 2)]}}
    write_run(tmp_path, "other", other, style=Style(dataset="mirror", dataset_revision=None))
    first, copy, other_run = (load_run(tmp_path, name) for name in ("first", "copy", "other"))
    check_same_dataset([first, copy])
    with pytest.raises(UserError, match="these runs are of different datasets"):
        check_same_dataset([first, other_run])
