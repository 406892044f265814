"""Many agents at once, in one group and in many pairs."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

import yaml

from cooperbench import run
from cooperbench.cli import main
from cooperbench.report.loading import load_run
from cooperbench.report.page.pair_detail import pair_detail
from tests.integration.runner.test_groups import options, write_wide
from tests.support.runner.helpers import Left
from tests.support.tiny import REPO, TASK_ID, write_tiny

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_sixteen_agents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_wide(tmp_path / "data", 16)
    steps: dict[int, list[Any]] = {
        number: [
            {"apply": f"data/{REPO}/task{TASK_ID}/feature{number}/feature.patch"},
            {"wait": {"seconds": 120, "for": "hello from agent1"}},
            {"send": {"to": "agent1", "text": f"agent{number} has it"}},
        ]
        for number in range(2, 17)
    }
    first = steps[2][0] | {"apply": f"data/{REPO}/task{TASK_ID}/feature1/feature.patch"}
    share = "git add -A && git -c user.name=a -c user.email=a@b.c commit -qm one && git push -q team HEAD:agent1"
    steps[1] = [first, {"run": share}, {"run": "send_message --all 'hello from agent1'"}]
    steps[1] += [
        {"wait": {"seconds": 120, "for": f"agent{number} has it"}} for number in range(2, 17)
    ]
    steps[16].append({"run": "git fetch -q team && git cat-file -p team/agent1:part1.txt"})
    script = tmp_path / "script.yaml"
    script.write_text(yaml.safe_dump({"repos": {REPO: {TASK_ID: {"coop": steps}}}}))
    everyone = list(range(1, 17))
    run(
        "wide",
        features=everyone,
        agent="scripted",
        agent_config=str(script),
        git_enabled=True,
        **options(tmp_path, data),
    )

    name = "_".join(f"f{number}" for number in everyone)
    left = Left(tmp_path / "logs/wide/coop" / REPO / str(TASK_ID) / name)
    evaluation = left.evaluation
    assert evaluation["overall_success"] is True
    assert [evaluation[f"agent{number}"]["success"] for number in everyone] == [True] * 16
    assert set(evaluation["merged"]["features"]) == {str(number) for number in everyone}
    assert evaluation["canary"].keys() == {*(f"agent{number}" for number in everyone), "merged"}
    assert evaluation["canary"]["merged"].keys() == evaluation["merged"]["features"].keys()
    assert "clean_order" not in evaluation["merged"]
    messages = left.json("conversation.json")["messages"]
    assert {one["to"] for one in messages if one["from"] == "agent1"} == {
        f"agent{n}" for n in range(2, 17)
    }
    assert {one["from"] for one in messages if one["to"] == "agent1"} == {
        f"agent{n}" for n in range(2, 17)
    }
    assert "feature 1" in left.observations("agent16")[-1]

    detail = pair_detail(load_run(tmp_path / "logs", "wide").pairs[0])
    found = detail.coordination
    assert [agent.id for agent in detail.agents] == [f"agent{number}" for number in everyone]
    assert found is not None
    assert len(found.overlaps) == 120
    capsys.readouterr()
    logs = ["--log-dir", str(tmp_path / "logs")]
    assert (
        main(["export", "wide", "--format", "csv", "-o", str(tmp_path / "pairs.csv"), *logs]) == 0
    )
    (row,) = csv.DictReader(io.StringIO((tmp_path / "pairs.csv").read_text()))
    assert row["features"] == ",".join(map(str, everyone))
    assert (row["agent16_agent"], row["agent16_success"], list(row)[-1]) == (
        "scripted",
        "true",
        "recorded_success",
    )
    for kind in ("parquet", "junit", "atif", "leaderboard"):
        assert main(["export", "wide", "--format", kind, *logs]) == 0
    assert (
        main(["export", "--verify", str(tmp_path / "logs/wide/export/submission.json"), *logs]) == 0
    )
    assert (
        main(["report", "wide", "--coordination", "--html", str(tmp_path / "page.html"), *logs])
        == 0
    )

    again = options(
        tmp_path, data, features=everyone, agent="replay", git_enabled=True, canary=False
    )
    run("again", **again, agent_config=str(tmp_path / "logs/wide"))
    replayed = Left(tmp_path / "logs/again/coop" / REPO / str(TASK_ID) / name)
    assert replayed.evaluation["overall_success"] is True
    assert replayed.result["messages"] == left.result["messages"] == 30


def test_twenty_pairs_at_once(tmp_path: Path) -> None:
    write_tiny(tmp_path / "data", task_ids=(0, 1, 2, 7))
    commit_and_push = "me=$(cat /cooperbench/team/agent); echo $me >$me.txt; git add -A; git commit -qm m; git push -q team HEAD:$me"
    merge = "other=$(cat /cooperbench/team/teammates); git fetch -q team; git merge -q -m m team/$other && cat $other.txt"
    # The one waits for the other on the host: so many that look again and again would only keep each other from work.
    steps = [
        {"run": commit_and_push},
        {"send": "pushed"},
        {"wait": {"for": "pushed", "seconds": 150}},
        {"run": merge},
    ]
    script = tmp_path / "script.yaml"
    repos = {REPO: {task_id: {"coop": {"*": steps}} for task_id in (0, 1, 2, 7)}}
    script.write_text(yaml.safe_dump({"repos": repos}))
    run(
        "r", agent="scripted", backend="local", agent_config=str(script), git_enabled=True, auto_eval=False,
        concurrency=24, dataset_dir=tmp_path / "data", logs_dir=tmp_path / "logs",
    )  # fmt: skip
    folders = sorted((tmp_path / "logs/r/coop").glob("*/*/f*_f*"))
    assert len(folders) == 24
    for folder in folders:
        left = Left(folder)
        assert left.observations("agent1")[2].strip() == "agent2"
        assert left.observations("agent2")[2].strip() == "agent1"
        assert left.result["git"]["pushes"] == {"agent1": 1, "agent2": 1}
