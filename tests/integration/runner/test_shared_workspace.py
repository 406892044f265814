"""All agents of a pair on one tree: one patch, changes attributed to agents, and what they do to each other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench import evaluate
from cooperbench.cli import main
from tests.support.runner.helpers import Left, run_tiny
from tests.support.tiny import REPO, TASK_ID, write_script, write_tiny

if TYPE_CHECKING:
    from pathlib import Path

WAIT_FOR_END = "until [ -e $COOPERBENCH_TEAM/finished/agent1 ]; do sleep 0.05; done"
FEATURE_1 = "sed -i '6i feature 1' app.txt"
FEATURE_2 = "sed -i '/^line 15$/a feature 2' app.txt"
DESTROY = "cd /cooperbench/scratch && rm -rf -- *; chmod 0 ."
"""The folder that the shells of the harness need: none can be started any more."""
FIRST = [
    {"run": "printf 'one\\ntwo\\n' >notes.txt; echo x >old.txt; echo y >ignored.log"},
    {"run": FEATURE_1},
    {"send": "notes.txt is mine"},
]
SECOND = [
    {"wait": {"seconds": 60, "for": "mine"}},
    {"run": WAIT_FOR_END},
    {"run": "cat notes.txt; echo three >notes.txt; rm old.txt"},
    {"run": FEATURE_2},
]


def run_shared(tmp_path: Path, first: list[Any], second: list[Any], **more: Any) -> Left:
    script = write_script(tmp_path / "script.yaml", {1: first, 2: second})
    return run_tiny(
        tmp_path, "scripted", agent_config=str(script), workspace="shared", time_limit=300, **more
    )


def report_json(tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert main(["report", "r", *words, "--json", "--log-dir", str(tmp_path / "logs")]) == 0
    return json.loads(capsys.readouterr().out)


def test_one_tree_one_patch_one_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = run_shared(tmp_path, FIRST, SECOND)
    # The second agent has read what the first one wrote.
    assert "one\ntwo\n" in left.observations("agent2")
    assert not (left.folder / "agent1.patch").exists()
    patch = left.patch("shared")
    assert "+feature 1" in patch
    assert "+feature 2" in patch
    assert "ignored.log" not in patch
    result, evaluation = left.result, left.evaluation
    assert result["shared"]["files_changed"] == ["app.txt", "notes.txt"]
    assert [agent["patch_sha256"] for agent in result["agents"].values()] == [None, None]
    assert result["conditions"]["workspace"] == "shared"
    assert evaluation["shared"]["success"] is evaluation["overall_success"] is True
    assert {"agent1", "individual_success", "merge_success", "overall_success_strict"}.isdisjoint(
        evaluation
    )
    assert evaluation["merged"]["merge_status"] is None
    assert not (left.folder / "merged.patch").exists()

    content = report_json(tmp_path, capsys, "--coordination")
    (row,) = content["rates"]
    assert row["rates"].keys() == {"merged", "overall"}
    assert not [line for line in content["mismatches"] if line["kind"] != "unchecked"]
    (pair,) = content["coordination"][0]["pairs"]
    workspace = pair["workspace"]
    contributions = {agent["agent_id"]: agent for agent in workspace["contributions"]}
    assert contributions["agent1"]["files"] == ["notes.txt", "old.txt", "app.txt"]
    assert contributions["agent1"]["added"] == 4
    assert contributions["agent2"]["final_files"] == ["app.txt", "notes.txt"]
    assert [
        (change["path"], change["status"], change["agents"], change["previous_agents"])
        for change in workspace["overwrites"]
    ] == [
        ("notes.txt", "M", ["agent2"], ["agent1"]),
        ("old.txt", "D", ["agent2"], ["agent1"]),
        ("app.txt", "M", ["agent2"], ["agent1"]),
    ]
    assert (workspace["joint_changes"], workspace["unattributed"]) == (0, 0)
    assert pair["mentions"] is None
    assert pair["problems"] == []


def test_it_is_shown_and_exported_without_invented_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = run_shared(tmp_path, FIRST, SECOND[:-1])
    assert left.evaluation["overall_success"] is False
    logs = ["--log-dir", str(tmp_path / "logs")]
    shown = capsys.readouterr().out
    assert "2 agents on one tree per task" in shown
    assert "individual" not in shown.rpartition("overall")[0].rpartition("coop:")[2]
    page = tmp_path / "page.html"
    assert main(["report", "r", "--coordination", "--html", str(page), *logs]) == 0
    shown = capsys.readouterr().out
    assert "agent2 deleted old.txt after agent1" in shown
    assert "Contributions to shared workspaces" in shown
    assert "failed together" in shown
    assert "agent2 deleted old.txt" not in page.read_text()  # the details are compressed
    for kind in ("csv", "junit", "leaderboard", "inspect", "atif"):
        assert main(["export", "r", "--format", kind, *logs]) == 0, kind
    junit = (tmp_path / "logs/r/export/junit.xml").read_text()
    assert "the patch of all agents fails the tests of feature 2" in junit
    submission = json.loads(next((tmp_path / "logs/r/export").glob("*.json")).read_text())
    (pair,) = submission["pairs"]
    assert {"shared.patch", "result.json", "eval.json"} <= pair["files"].keys()
    assert pair["verdicts"] == {
        "individual": None, "merge": None, "merged": False, "overall": False, "strict": None,
    }  # fmt: skip


def test_a_run_continues_and_is_evaluated_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = run_shared(tmp_path, FIRST, SECOND, auto_eval=False)
    before = (left.folder / "result.json").read_bytes()
    evaluate("r", backend="local", dataset_dir=tmp_path / "data", logs_dir=tmp_path / "logs")
    assert left.evaluation["overall_success"] is True
    verdict = (left.folder / "eval.json").read_bytes()
    run_shared(tmp_path, FIRST, SECOND)
    assert (left.folder / "result.json").read_bytes() == before
    assert (left.folder / "eval.json").read_bytes() == verdict
    # Another patch is not the work of these agents: the pair runs again.
    (left.folder / "shared.patch").write_bytes(b"")
    content = report_json(tmp_path, capsys)
    assert "patch" in {mismatch["kind"] for mismatch in content["mismatches"]}
    run_shared(tmp_path, FIRST, SECOND)
    assert left.result["attempt"] == 2
    assert "+feature 2" in left.patch("shared")


def test_an_agent_that_kills_the_processes_of_others(tmp_path: Path) -> None:
    killer = [
        {"run": "until [ -e /tmp/sleeping ]; do sleep 0.05; done; kill -9 -1"},
        {"run": FEATURE_1},
    ]
    victim = [
        {"run": "touch /tmp/sleeping; sleep 250"},
        {"run": FEATURE_2},
        {"send": "I am still here"},
    ]
    left = run_shared(tmp_path, killer, victim)
    agents = left.result["agents"]
    assert [agent["status"] for agent in agents.values()] == ["submitted", "submitted"]
    assert "killed" in left.observations("agent2")[0]
    assert left.evaluation["overall_success"] is True
    (message,) = left.json("conversation.json")["messages"]
    assert (message["from"], message["message"]) == ("agent2", "I am still here")


def test_an_agent_that_destroys_the_sandbox(tmp_path: Path) -> None:
    """The pair is scored: the work of all is lost, and the record has who was at work."""
    destroyer = [
        {"run": "until [ -e /tmp/working ]; do sleep 0.05; done; " + DESTROY},
        {"run": "true"},
    ]
    worker = [{"run": FEATURE_2}, {"run": "touch /tmp/working; sleep 250"}, {"run": "true"}]
    left = run_shared(tmp_path, destroyer, worker)
    statuses = {name: agent["status"] for name, agent in left.result["agents"].items()}
    assert statuses == {"agent1": "sandbox_destroyed", "agent2": "sandbox_destroyed"}
    assert left.result["shared"]["error"]
    assert left.evaluation["overall_success"] is False
    assert left.json("workspace.json")["ended_during"] == ["agent1", "agent2"]


def test_a_team_has_its_tools(tmp_path: Path) -> None:
    first = [
        {
            "run": "coop-task-create 'Add feature 1' && coop-task-claim 1 && echo plan >/workspace/shared/plan"
        },
        {"run": FEATURE_1},
        {"send": "done"},
    ]
    second = [
        {"wait": {"seconds": 60, "for": "done"}},
        {"run": "cat /workspace/shared/plan; coop-task-list"},
        {"run": FEATURE_2},
    ]  # fmt: skip
    left = run_shared(tmp_path, first, second, setting="team")
    assert left.result["team_features"]["git"] is False
    assert left.result["metrics"]["claims_per_agent"]["agent1"] == 1
    assert "plan" in left.observations("agent2")[0]
    assert "agent1" in left.observations("agent2")[0]
    assert left.evaluation["overall_success"] is True
    assert "lead" not in left.evaluation


def test_it_cannot_be_forked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_shared(tmp_path, FIRST, SECOND, auto_eval=False)
    capsys.readouterr()
    folders = ["--dataset-dir", str(tmp_path / "data"), "--log-dir", str(tmp_path / "logs")]
    fork = ["fork", "r", "--pair", f"{REPO}/{TASK_ID}/f1_f2", "--at", "agent1:1"]
    fork += ["--agent-config", str(tmp_path / "script.yaml"), "--backend", "local"]
    assert main([*fork, *folders]) == 2
    assert "its agents shared a workspace" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--setting", "solo"], "--workspace shared is for several agents; setting solo has one"),
        (["--agents", "1"], "--workspace shared is for several agents; setting solo has one"),
        (["--git"], "--git does not go with --workspace shared"),
        (["--workspace", "mixed"], "invalid choice: 'mixed'"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    data = write_tiny(tmp_path / "data")
    folders = ["--dataset-dir", str(data), "--log-dir", str(tmp_path / "logs")]
    call = ["run", "-n", "r", "-f", "1,2", "-a", "oracle", "--backend", "local"]
    assert main([*call, "--workspace", "shared", *words, *folders]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line
    assert not (tmp_path / "logs").exists()


def test_one_run_has_one_kind_of_workspace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_tiny(tmp_path, "oracle", auto_eval=False)
    capsys.readouterr()
    folders = ["--dataset-dir", str(tmp_path / "data"), "--log-dir", str(tmp_path / "logs")]
    call = ["run", "-n", "r", "-f", "1,2", "-a", "oracle", "--backend", "local"]
    assert main([*call, "--workspace", "shared", *folders]) == 2
    assert "workspace: 'separate' → 'shared'" in capsys.readouterr().err
