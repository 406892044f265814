"""The whole loop on the local backend: what is run, what is judged, what lies on disk afterwards."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench import evaluate
from cooperbench.cli import main
from cooperbench.errors import UserError
from tests.support.runner.helpers import run_tiny
from tests.support.tiny import golden, write_script, write_tiny

if TYPE_CHECKING:
    from pathlib import Path


def test_golden_pair_passes_with_all_files(tmp_path: Path) -> None:
    left = run_tiny(tmp_path, "oracle")
    evaluation = left.evaluation
    assert evaluation["overall_success"] is True
    assert evaluation["overall_success_strict"] is True
    for agent in ("agent1", "agent2"):
        assert evaluation[agent]["success"] is True
        assert (evaluation[agent]["tests_passed"], evaluation[agent]["tests_failed"]) == (2, 0)
        assert evaluation[agent]["error"] is None
        assert evaluation[agent]["apply_status"] == "applied"
    merged = evaluation["merged"]
    assert (merged["tests_passed"], merged["merge_conflict"], merged["merge_status"]) == (
        4,
        False,
        "clean",
    )
    names = {
        path.relative_to(left.folder).as_posix()
        for path in left.folder.rglob("*")
        if path.is_file()
    }
    assert names == {
        "result.json", "conversation.json", "eval.json", "merged.patch",
        "agent1.patch", "agent1.log", "agent1/trajectory.json", "agent1/patch.diff",
        "agent2.patch", "agent2.log", "agent2/trajectory.json", "agent2/patch.diff",
        "tests/agent1-f1.txt", "tests/agent2-f2.txt", "tests/merged-f1.txt", "tests/merged-f2.txt",
    }  # fmt: skip
    assert "Ran 2 tests" in (left.folder / "tests/merged-f1.txt").read_text()
    assert {"config.json", "summary.json"} <= {
        path.name for path in (tmp_path / "logs/r").iterdir()
    }
    trajectory = left.trajectory()
    assert {
        "agent_id",
        "feature_id",
        "model",
        "start_time",
        "end_time",
        "steps",
        "token_usage",
    } <= set(trajectory)
    assert trajectory["feature_id"] == 1


def test_doing_nothing_scores_nothing(tmp_path: Path) -> None:
    evaluation = run_tiny(tmp_path, "nop").evaluation
    assert evaluation["overall_success"] is False
    assert evaluation["merge_success"] is False
    assert evaluation["agent1"]["apply_status"] == "empty"
    assert evaluation["merged"]["merge_status"] == "missing_input"
    summary = json.loads((tmp_path / "logs/r/summary.json").read_text())["settings"]["coop"]
    assert summary["rates"]["individual_success"] == {"passed": 0, "of": 1, "rate": 0.0}


def test_agents_that_ask_no_model_show_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_tiny(tmp_path, "nop", auto_eval=False)
    words = ["run", "-n", "c", "-a", "oracle", "--backend", "local", "--no-auto-eval", "-f", "1,2"]
    assert (
        main([*words, "--dataset-dir", str(tmp_path / "data"), "--log-dir", str(tmp_path / "logs")])
        == 0
    )
    assert "Model:" not in capsys.readouterr().out
    for name in ("r", "c"):
        config = (tmp_path / "logs" / name / "config.json").read_text()
        assert json.loads(config)["model_name"] is None
        (result,) = (tmp_path / "logs" / name).rglob("result.json")
        assert "gemini" not in config + result.read_text()


def test_union_merge_passes_but_not_strictly(tmp_path: Path) -> None:
    evaluation = run_tiny(tmp_path, "oracle", (1, 4)).evaluation
    assert evaluation["merged"]["merge_status"] == "conflict"
    assert evaluation["merged"]["strategy"] == "union"
    assert evaluation["merged"]["conflicting_files"] == ["app.txt"]
    assert evaluation["merge_success"] is False
    assert evaluation["overall_success"] is True
    assert evaluation["overall_success_strict"] is False


def test_solo_does_all_features_and_is_judged_on_all(tmp_path: Path) -> None:
    left = run_tiny(tmp_path, "oracle", (1, 4), setting="solo")
    assert left.evaluation["overall_success"] is True
    assert set(left.evaluation["solo"]["features"]) == {"1", "4"}
    assert left.evaluation["merged"]["success"] is True
    assert not (left.folder / "conversation.json").exists()


def test_three_agents_share_a_task(tmp_path: Path) -> None:
    left = run_tiny(tmp_path, "oracle", (1, 2, 3))
    assert left.folder.name == "f1_f2_f3"
    assert left.evaluation["overall_success"] is True
    assert left.evaluation["merged"]["tests_passed"] == 6
    assert set(left.result["agents"]) == {"agent1", "agent2", "agent3"}


def test_one_failing_agent_fails_the_pair(tmp_path: Path) -> None:
    script = write_script(
        tmp_path / "s.yaml",
        {1: [{"run": "echo nothing useful >>app.txt"}], 2: [{"apply": "two.patch"}]},
    )
    (tmp_path / "two.patch").write_text(golden(2))
    evaluation = run_tiny(tmp_path, "scripted", agent_config=str(script)).evaluation
    assert evaluation["merge_success"] is True
    assert evaluation["agent1"]["success"] is False
    assert evaluation["agent1"]["tests_failed"] == 1
    assert evaluation["agent2"]["success"] is True
    assert evaluation["merged"]["success"] is False
    assert evaluation["overall_success"] is False


def test_force_keeps_the_earlier_attempt(
    tmp_path: Path,
) -> None:
    left = run_tiny(tmp_path, "oracle")
    before = left.result
    assert run_tiny(tmp_path, "oracle").result == before
    assert not (tmp_path / "logs/r/attempts").exists()
    again = run_tiny(tmp_path, "oracle", force=True)
    assert again.result["started_at"] > before["started_at"]
    kept = tmp_path / "logs/r/attempts" / left.folder.relative_to(tmp_path / "logs/r") / "001"
    assert json.loads((kept / "result.json").read_text()) == before


def test_an_evaluation_is_repeated_only_when_its_inputs_change(tmp_path: Path) -> None:
    left = run_tiny(tmp_path, "oracle")
    before = left.evaluation
    assert run_tiny(tmp_path, "oracle").evaluation == before
    (left.folder / "agent1.patch").write_text(golden(2))
    evaluate("r", backend="local", dataset_dir=tmp_path / "data", logs_dir=tmp_path / "logs")
    after = left.evaluation
    assert after["key"] != before["key"]
    assert after["agent1"]["success"] is False
    assert after["merged"]["merge_status"] == "identical"


def test_verdicts_of_two_settings_stand_when_both_are_evaluated(tmp_path: Path) -> None:
    left = [run_tiny(tmp_path, "oracle", setting=setting) for setting in ("coop", "solo")]
    before = [(one.folder / "eval.json").stat() for one in left]
    evaluate("r", backend="local", dataset_dir=tmp_path / "data", logs_dir=tmp_path / "logs")
    assert [(one.folder / "eval.json").stat() for one in left] == before


def test_a_pair_whose_patch_was_damaged_is_run_again(tmp_path: Path) -> None:
    left = run_tiny(tmp_path, "oracle")
    patch = left.folder / "agent2.patch"
    whole = patch.read_bytes()
    patch.write_bytes(whole[:40])
    assert run_tiny(tmp_path, "oracle").evaluation["overall_success"] is True
    assert patch.read_bytes() == whole


def test_another_configuration_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    left = run_tiny(tmp_path, "oracle")
    before = left.result
    with pytest.raises(UserError, match="agent: 'oracle' → 'nop'"):
        run_tiny(tmp_path, "nop", force=True)
    assert left.result == before


def test_without_auto_eval_there_is_no_verdict_until_evaluate(tmp_path: Path) -> None:
    left = run_tiny(tmp_path, "oracle", auto_eval=False)
    assert not (left.folder / "eval.json").exists()
    evaluate("r", backend="local", dataset_dir=tmp_path / "data", logs_dir=tmp_path / "logs")
    assert left.evaluation["overall_success"] is True


def test_one_patch_can_be_tested_by_itself(tmp_path: Path) -> None:
    from cooperbench import run_patch_test

    data = write_tiny(tmp_path / "data")
    assert run_patch_test("tiny_task", 7, 1, backend="local", dataset_dir=data)["success"] is True
    wrong = run_patch_test("tiny_task", 7, 1, golden(2), backend="local", dataset_dir=data)
    assert (wrong["success"], wrong["tests_failed"], wrong["exit_code"]) == (False, 1, 1)
    (tmp_path / "p.patch").write_text(golden(1, 2))
    from_file = run_patch_test(
        "tiny_task", 7, 2, str(tmp_path / "p.patch"), 60, "local", dataset_dir=data
    )
    assert from_file["success"] is True
    stale = run_patch_test(
        "tiny_task",
        7,
        1,
        golden(1).replace("line 6", "line six"),
        backend="local",
        dataset_dir=data,
    )
    assert (stale["success"], stale["apply_status"]) == (False, "failed")
    with pytest.raises(UserError, match="feature 99"):
        run_patch_test("tiny_task", 7, 99, backend="local", dataset_dir=data)
    wrong_types: dict[str, Any] = {
        "repo_name": None, "task_id": "7", "feature_id": True, "agent_patch": 5, "timeout": "1", "backend": object(),
    }  # fmt: skip
    for name, value in wrong_types.items():
        given: dict[str, Any] = {
            "repo_name": "tiny_task",
            "task_id": 7,
            "feature_id": 1,
            "backend": "local",
        }
        with pytest.raises(
            UserError, match=rf"^{name} is .*; it must be a (name|path|whole number)$"
        ):
            run_patch_test(**given | {name: value}, dataset_dir=data)
    with pytest.raises(UserError, match=r"nowhere\.patch"):
        run_patch_test(
            "tiny_task", 7, 1, str(tmp_path / "nowhere.patch"), backend="local", dataset_dir=data
        )


def test_a_task_whose_image_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOPERBENCH_CACHE_DIR", str(tmp_path / "cache"))
    dataset = write_tiny(tmp_path / "dataset")
    (dataset / "tiny_task/task7/setup.sh").unlink()
    words = ["-n", "r", "-a", "oracle", "--backend", "local", "--pull", "never", "-f", "1,2"]
    folders = ["--dataset-dir", str(dataset), "--log-dir", str(tmp_path / "logs")]
    assert main(["run", *words, *folders]) == 1
    out = capsys.readouterr().out
    assert "[CooperBench] Not prepared 1/1: tiny_task/task7" in out
    assert "has no setup.sh and its image is not here: cooperbench images import FILE" in out
