from __future__ import annotations

import json
from pathlib import Path

import pytest

from cooperbench import records
from cooperbench.cli import main
from cooperbench.errors import UserError
from cooperbench.importing.import_run import Imported, import_run
from cooperbench.models import Setting
from cooperbench.records.config import RunRecord
from cooperbench.records.conversation import Conversation
from cooperbench.records.imported import RecordedVerdict
from cooperbench.records.result import PairResult
from cooperbench.records.summary import Summary
from cooperbench.records.trajectory import Trajectory
from cooperbench.report.loading import load_run
from tests.support.importing.public_run import (
    FRAMEWORK,
    MODEL,
    PublicPair,
    SourceLayout,
    trajectory,
    write,
    write_config,
    write_json,
    write_pair,
)

PATCHES = {1: b"diff --git a/app.txt b/app.txt\n", 2: b"diff --git a/b.txt b/b.txt\n"}
PAIR = PublicPair(patches=PATCHES)
SOLO = PublicPair(setting="solo", patches={0: b"diff --git a/app.txt b/app.txt\n"})


def source(tmp_path: Path, *pairs: PublicPair, layout: SourceLayout = "public") -> Path:
    root = tmp_path / "their-run"
    write_config(root, pairs=len(pairs))
    for pair in pairs:
        write_pair(root, pair, layout)
    return root


def imported(tmp_path: Path, root: Path) -> Imported:
    return import_run(root, tmp_path / "logs")


def result_of(run: Imported, pair: str = "coop/tiny_task/7/f1_f2") -> PairResult:
    result = records.read(run.root / pair / "result.json", PairResult)
    assert result is not None
    return result


@pytest.mark.parametrize("layout", ["public", "public_without_setting", "quick_start"])
def test_layouts_become_the_same_pair(tmp_path: Path, layout: SourceLayout) -> None:
    run = imported(tmp_path, source(tmp_path, PAIR, layout=layout))
    result = result_of(run)
    assert (result.setting, result.features, result.status) == ("coop", [1, 2], "completed")
    assert [agent.feature_ids for agent in result.agents.values()] == [[1], [2]]
    folder = run.root / "coop/tiny_task/7/f1_f2"
    assert (folder / "agent1.patch").read_bytes() == PATCHES[1]
    assert (folder / "agent2/patch.diff").read_bytes() == PATCHES[2]
    steps = records.read(folder / "agent1/trajectory.json", Trajectory)
    assert steps is not None
    assert [step.number for step in steps.steps if step.number] == [1, 2]
    verdict = records.read(folder / "recorded.json", RecordedVerdict)
    assert verdict is not None
    assert verdict.passed is True
    conversation = records.read(folder / "conversation.json", Conversation)
    assert conversation is not None
    assert [message.text for message in conversation.messages] == ["I change line 5."]
    assert conversation.messages[0].recipient == "agent2"
    assert run.record.pairs[0].layout == layout


@pytest.mark.parametrize("layout", ["public", "public_without_setting"])
@pytest.mark.parametrize("setting", ["coop", "solo", "team"])
def test_settings(tmp_path: Path, setting: Setting, layout: SourceLayout) -> None:
    patches = SOLO.patches if setting == "solo" else PATCHES
    pair = PublicPair(setting=setting, patches=patches, lead="agent1")
    run = imported(tmp_path, source(tmp_path, pair, layout=layout))
    result = result_of(run, f"{setting}/tiny_task/7/f1_f2")
    assert result.setting == setting
    assert [*result.agents] == (["solo"] if setting == "solo" else ["agent1", "agent2"])
    if setting == "team":
        assert result.team_features == {
            "task_list": True, "scratchpad": False, "mcp": False, "roles": True,
        }  # fmt: skip
        assert (run.root / "team/tiny_task/7/f1_f2/recorded/task_log.json").exists()


def test_the_setting_is_found_without_result_json(tmp_path: Path) -> None:
    solo = PublicPair(setting="solo", features=(3, 4), patches=SOLO.patches)
    team = PublicPair(setting="team", patches=PATCHES, lead="agent2")
    root = source(tmp_path, solo, team, layout="public_without_setting")
    for path in root.glob("*/*/*/result.json"):
        path.unlink()
    run = imported(tmp_path, root)
    assert run.settings == {"solo": 1, "team": 1}
    assert result_of(run, "team/tiny_task/7/f1_f2").team_features == {"roles": False}


def test_values_of_the_public_layout(tmp_path: Path) -> None:
    run = imported(tmp_path, source(tmp_path, PAIR))
    result = result_of(run)
    assert (result.cost, result.prompt_tokens, result.messages) == (0.5, 400, 1)
    assert (result.started_at, result.duration_seconds) == ("2025-11-03T14:02:11.123456", 450.5)
    agent = result.agents["agent2"]
    assert (agent.agent, agent.model, agent.status) == (FRAMEWORK, MODEL, "submitted")
    assert (agent.steps, agent.cost, agent.cached_tokens) == (2, 0.25, 50)
    assert agent.files_changed == ["b.txt"]


def test_what_is_missing_is_null_and_listed(tmp_path: Path) -> None:
    other = PublicPair(features=(1, 3), patches={1: b"x", 3: b"y"}, passed=None, conversation=False)
    root = source(tmp_path, PAIR, other)
    for path in (root / "coop/tiny_task/7/f1_f3").glob("*.json"):
        path.unlink()
    run = imported(tmp_path, root)
    result = result_of(run, "coop/tiny_task/7/f1_f3")
    agent = result.agents["agent1"]
    values = (agent.cost, agent.steps, agent.prompt_tokens, agent.status, result.cost)
    assert values == (None, None, None, None, None)
    assert (result.messages, result.base_commit, result.duration_seconds) == (None, None, None)
    assert "model_calls" in run.record.missing
    missing = {pair.pair: pair.missing for pair in run.record.pairs}
    assert missing["coop/tiny_task/7/f1_f2"] == []
    assert {
        "result.json",
        "eval.json",
        "conversation.json",
        "agent1.trajectory",
        "agent2.cost",
    } <= set(missing["coop/tiny_task/7/f1_f3"])


def test_the_run_is_marked_as_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = imported(tmp_path, source(tmp_path, PAIR, SOLO))
    config = records.read(run.root / "config.json", RunRecord)
    assert config is not None
    assert config.imported is not None
    assert config.imported.folder == "their-run"
    assert (config.agent, config.model_name, config.backend) == (FRAMEWORK, MODEL, None)
    summary = records.read(run.root / "summary.json", Summary)
    assert summary is not None
    assert summary.imported == "their-run"
    loaded = load_run(tmp_path / "logs", "their-run")
    assert loaded.configuration == f"{MODEL} · {FRAMEWORK} (imported)"
    assert all(mismatch.is_unchecked for mismatch in loaded.mismatches)
    logs = ["--log-dir", str(tmp_path / "logs")]
    for argv in (["status", "their-run"], ["report", "their-run"]):
        assert main([*argv, *logs]) == 0
        assert "imported from their-run" in capsys.readouterr().out
    page = tmp_path / "page.html"
    assert main(["report", "their-run", "--html", str(page), *logs]) == 0
    assert "imported from their-run" in page.read_text()
    for name, text in (("leaderboard", '"folder":"their-run"'), ("csv", "their-run,true,")):
        target = tmp_path / name
        assert main(["export", "their-run", "--format", name, "-o", str(target), *logs]) == 0
        assert text in target.read_text()
    capsys.readouterr()
    assert main(["run", "-n", "their-run", "--dataset-dir", "demo", "-a", "nop", *logs]) == 2
    assert "was imported, so agents cannot work in it" in capsys.readouterr().err


def test_every_format_can_be_exported(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    imported(tmp_path, source(tmp_path, PAIR, SOLO))
    for name in ("csv", "parquet", "junit", "inspect", "atif", "leaderboard"):
        argv = ["export", "their-run", "--format", name, "--log-dir", str(tmp_path / "logs")]
        assert main([*argv, "-o", str(tmp_path / f"out-{name}")]) == 0
    submission = str(tmp_path / "out-leaderboard")
    assert main(["export", "--verify", submission, "--log-dir", str(tmp_path / "logs")]) == 0


def test_files_named_by_the_number_of_the_agent(tmp_path: Path) -> None:
    root = source(tmp_path, PublicPair(features=(2, 5), patches={2: b"two", 5: b"five"}))
    folder = root / "coop/tiny_task/7/f2_f5"
    (folder / "agent2.patch").rename(folder / "agent1.patch")
    (folder / "agent5.patch").rename(folder / "agent2.patch")
    (folder / "agent2_traj.json").rename(folder / "agent1_traj.json")
    (folder / "agent5_traj.json").rename(folder / "agent2_traj.json")
    run = imported(tmp_path, root)
    target = run.root / "coop/tiny_task/7/f2_f5"
    assert (target / "agent1.patch").read_bytes() == b"two"
    assert (target / "agent2.patch").read_bytes() == b"five"


def test_a_file_of_another_feature_is_named(tmp_path: Path) -> None:
    root = source(tmp_path, PAIR)
    write(root / "coop/tiny_task/7/f1_f2/agent9.patch", b"x")
    run = imported(tmp_path, root)
    assert run.record.pairs[0].problems == [
        "agent9.patch belongs to no feature of the pair: not read"
    ]


def test_a_pair_whose_patch_was_not_published_is_not_evaluated(tmp_path: Path) -> None:
    empty = PublicPair(features=(1, 3), patches={1: b"x"})
    root = source(tmp_path, PublicPair(patches={1: b"x"}), empty)
    path = root / "coop/tiny_task/7/f1_f3/result.json"
    content = json.loads(path.read_bytes())
    content["agents"]["agent2"]["patch_lines"] = 0
    write_json(path, content)
    run = imported(tmp_path, root)
    result = result_of(run)
    assert result.status == "error"
    assert result.error == "the source has no patch of agent2, so there is nothing to evaluate"
    assert result_of(run, "coop/tiny_task/7/f1_f3").status == "completed"


def test_damaged_files_are_read_as_far_as_they_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = source(tmp_path, PAIR)
    folder = root / "coop/tiny_task/7/f1_f2"
    for name in ("result.json", "eval.json", "agent1_traj.json"):
        data = (folder / name).read_bytes()
        write(folder / name, data[: len(data) - 120])
    write(folder / "conversation.json", b'[{"from": "agent1"}, 7]')
    write(root / "config.json", b"[]")
    (root / "link").symlink_to(tmp_path)
    logs = str(tmp_path / "logs")
    assert main(["import-run", str(root), "--log-dir", logs]) == 0
    lines = capsys.readouterr().err.splitlines()
    pair = "coop/tiny_task/7/f1_f2"
    assert lines == [
        "link is a symbolic link, which is not followed",
        "config.json does not contain a JSON object: not read",
        f"{pair}: result.json is not complete JSON: not read",
        f"{pair}: eval.json is not complete JSON: not read",
        f"{pair}: conversation.json: 1 of 2 entries are not messages",
        f"{pair}: agent1_traj.json is cut off: read as far as it goes",
    ]
    steps = records.read(tmp_path / "logs/their-run" / pair / "agent1/trajectory.json", Trajectory)
    assert steps is not None
    assert [step.number for step in steps.steps if step.number] == [1, 2]


def test_links_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("key")
    root = source(tmp_path, PAIR)
    folder = root / "coop/tiny_task/7/f1_f2"
    for name in ("agent1.patch", "result.json", "agent1_traj.json"):
        (folder / name).unlink()
        (folder / name).symlink_to(secret)
    run = imported(tmp_path, root)
    assert result_of(run).status == "error"
    assert not [
        path for path in run.root.rglob("*") if path.is_file() and path.read_bytes() == b"key"
    ]


def test_a_folder_of_trajectories(tmp_path: Path) -> None:
    pair = PublicPair(features=(2, 4))
    root = tmp_path / "published"
    for number, feature in enumerate(pair.features, 1):
        write_json(root / "some-name" / f"agent{feature}_traj.json", trajectory(pair, number))
        write(root / "some-name" / f"agent{feature}.patch", b"x")
    write_json(root / "odd" / "agent1_traj.json", {"messages": []})
    run = imported(tmp_path, root)
    assert [pair.pair for pair in run.record.pairs] == ["coop/tiny_task/7/f2_f4"]
    assert run.record.left_out == ["odd: its files do not name one task: not read"]


def test_the_same_pair_twice_is_read_once(tmp_path: Path) -> None:
    root = source(tmp_path, PAIR)
    write_pair(root, PAIR, "public_without_setting")
    run = imported(tmp_path, root)
    assert [pair.source for pair in run.record.pairs] == ["coop/tiny_task/7/f1_f2"]
    expected = "tiny_task/7/f1_f2 is the same pair as coop/tiny_task/7/f1_f2: not read"
    assert run.record.left_out == [expected]


def test_mixed_versions_of_the_layout(tmp_path: Path) -> None:
    root = source(tmp_path, PAIR)
    write_pair(
        root, PublicPair(features=(1, 3), patches={1: b"", 3: b""}), "public_without_setting"
    )
    write_pair(root, PublicPair(features=(2, 3), patches={2: b"", 3: b""}), "quick_start")
    run = imported(tmp_path, root)
    assert {pair.layout for pair in run.record.pairs} == {
        "public", "public_without_setting", "quick_start",
    }  # fmt: skip


def _no_folder(root: Path) -> None:
    del root


def _empty(root: Path) -> None:
    root.mkdir()


def _own_run(root: Path) -> None:
    write_pair(root, PAIR)
    write_json(root / "config.json", {"schema": "cooperbench.config/1"})


def _several_runs(root: Path) -> None:
    write_pair(root / "a", PAIR)
    write_pair(root / "b", PAIR)


def _nothing_known(root: Path) -> None:
    write(root / "x" / "agent1.patch", b"")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (_no_folder, "there is no folder"),
        (_empty, "there are no pairs in"),
        (_own_run, "is already a run in our records"),
        (_several_runs, "contains several runs; import each by its folder: a, b"),
        (_nothing_known, "can be imported: x: its files do not name one task"),
    ],
)
def test_a_folder_that_is_not_a_run(
    tmp_path: Path, make: object, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(make)
    make(tmp_path / "folder")
    argv = ["import-run", str(tmp_path / "folder"), "--log-dir", str(tmp_path / "logs")]
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1
    assert not [*tmp_path.glob("logs/*")]


def test_a_name_that_is_taken(tmp_path: Path) -> None:
    root = source(tmp_path, PAIR)
    imported(tmp_path, root)
    with pytest.raises(UserError, match="there is already a run 'their-run'"):
        imported(tmp_path, root)
    assert import_run(root, tmp_path / "logs", "other").name == "other"
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["other", "their-run"]


def test_the_folder_of_one_run_in_another(tmp_path: Path) -> None:
    root = source(tmp_path, PAIR)
    run = import_run(tmp_path, tmp_path / "logs")
    assert run.name == root.name
    assert run.record.config is not None
