"""Which pairs count as finished, and what an error leaves behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cooperbench import records
from cooperbench.errors import InfraError
from cooperbench.models import Pair, Task
from cooperbench.records.errors import make_error
from cooperbench.records.evaluation import EvaluationError
from cooperbench.records.result import (
    PairResult,
    ResultError,
    count_earlier_attempts,
    is_finished,
    is_undamaged,
)
from cooperbench.storage import ExperimentPaths, PairPaths, write_json

RUN = Path(__file__).parent / "runs/logs/demo-coop"
PAIR = Pair(Task("coinage_task", 3, Path("dataset"), (1, 2)), (1, 2))


def copy_pair(tmp_path: Path) -> PairPaths:
    shutil.copytree(RUN, tmp_path / "demo-coop", symlinks=True)
    return ExperimentPaths(tmp_path, "demo-coop").pair(PAIR, "coop")


def test_a_finished_pair_is_finished_until_a_patch_changes(tmp_path: Path) -> None:
    paths = copy_pair(tmp_path)
    assert is_finished(paths)
    assert is_undamaged(paths)
    paths.agent("agent2").patch.write_bytes(b"")
    assert not is_undamaged(paths)
    paths.agent("agent2").patch.unlink()
    assert not is_undamaged(paths)


def test_a_result_without_checksums_is_not_run_again(tmp_path: Path) -> None:
    paths = copy_pair(tmp_path)
    content = json.loads(paths.result.read_bytes())
    for agent in content["agents"].values():
        del agent["patch_sha256"]
    paths.result.write_text(json.dumps(content))
    paths.agent("agent1").patch.unlink()
    assert is_finished(paths)
    assert is_undamaged(paths)


def test_incomplete_results_are_not_finished(tmp_path: Path) -> None:
    paths = copy_pair(tmp_path)
    for data in (b"", b"{}", b"[]", paths.result.read_bytes()[:-20]):
        paths.result.write_bytes(data)
        assert not is_finished(paths)


def test_an_error_is_written_and_read(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path, "run")
    error = make_error(ResultError, paths, PAIR, "coop", InfraError("the sandbox did not start"))
    result_path = paths.pair(PAIR, "coop").result
    records.write(result_path, error)
    content = json.loads(result_path.read_bytes())
    assert [*content] == [
        *("schema", "status", "run_name", "repo", "task_id", "features", "setting", "error"),
        *("infrastructure", "ended_at", "version"),
    ]
    assert (content["schema"], content["status"]) == ("cooperbench.result/1", "error")
    assert content["infrastructure"] is True
    result = records.read(result_path, PairResult)
    assert result is not None
    assert (result.is_completed, result.error) == (False, "the sandbox did not start")
    assert not is_finished(paths.pair(PAIR, "coop"))
    assert not paths.error_log.exists()


def test_an_unexpected_error_leaves_its_traceback(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path, "run")
    error = make_error(EvaluationError, paths, PAIR, "coop", KeyError("x"))
    assert (error.error, error.infrastructure) == ("KeyError: 'x'", False)
    assert "KeyError: 'x'" in paths.error_log.read_text()
    assert records.to_object(error)["schema"] == "cooperbench.eval/1"
    full = make_error(EvaluationError, paths, PAIR, "coop", OSError(28, "No space left on device"))
    assert full.infrastructure


def test_only_a_whole_good_result_is_finished(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path, "r").pair(PAIR, "coop")
    assert not is_finished(paths)
    write_json(paths.result, {"status": "error"})
    assert not is_finished(paths)
    paths.result.write_text(json.dumps({"status": "completed"})[:-3])
    assert not is_finished(paths)
    write_json(paths.result, {"status": "completed"})
    assert is_finished(paths)


@pytest.mark.parametrize("agents", [None, [], {"agent1": {}}, {"agent1": "?"}])
def test_a_finished_pair_without_digests_is_kept(tmp_path: Path, agents: object) -> None:
    """It was paid for; and whatever stands in the file, planning goes on."""
    paths = PairPaths(tmp_path)
    paths.result.write_text(json.dumps({"status": "completed", "agents": agents}))
    assert is_undamaged(paths)


def test_archived_attempts_are_added_to_copies(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path, "run")
    folder = paths.pair(PAIR, "coop").folder
    error = make_error(ResultError, paths, PAIR, "coop", InfraError("the sandbox did not start"))
    records.write(folder / "result.json", error)
    paths.archive(PAIR, "coop")
    folder.mkdir()
    paths.archive(PAIR, "coop")
    shutil.copytree(copy_pair(tmp_path / "other").folder, folder)
    count_earlier_attempts(paths, PAIR, "coop")
    result = records.read(folder / "result.json", PairResult)
    assert result is not None
    assert result.attempt == 3
    attempts = [(attempt.status, attempt.error) for attempt in result.earlier_attempts or ()]
    assert attempts == [("error", "the sandbox did not start"), ("interrupted", None)]
