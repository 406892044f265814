"""More than two agents: named, merged, judged, reported, exported and played again like pairs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cooperbench import run
from cooperbench.cli import main
from tests.support.dataset.factory import write_dataset
from tests.support.runner.helpers import Left
from tests.support.tiny import REPO, RUNNER, SETUP, TASK_ID, text_patch, write_tiny

if TYPE_CHECKING:
    from pathlib import Path


def write_wide(root: Path, features: int) -> Path:
    """A task with many features, a new file each."""

    def content(repo: str, task_id: int, number: int) -> dict[str, str]:
        return {
            "feature.md": f"# Feature {number}\n",
            "feature.patch": text_patch(f"part{number}.txt", None, [f"feature {number}\n"]),
            "tests.patch": text_patch(
                f"tests/f{number}.sh", None, [f'grep -q "feature {number}" part{number}.txt\n']
            ),
        }

    def task(repo: str, task_id: int) -> dict[str, str]:
        return {
            "Dockerfile": "FROM scratch\n",
            "setup.sh": SETUP,
            "runner.sh": RUNNER,
            "run_tests.sh": "exit 0\n",
        }

    return write_dataset(
        root,
        {REPO: {TASK_ID: list(range(1, features + 1))}},
        feature_content=content,
        task_content=task,
    )


def options(tmp_path: Path, data: Path, **more: Any) -> dict[str, Any]:
    shared = {
        "backend": "local",
        "dataset_dir": data,
        "logs_dir": tmp_path / "logs",
        "concurrency": 2,
    }
    return {**shared, "eval_concurrency": 2, "time_limit": 240, **more}


def test_groups_of_a_task_by_size_are_run_and_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_tiny(tmp_path / "data", (1, 2, 3, 4))
    words = [
        "-a",
        "oracle",
        "--backend",
        "local",
        "--dataset-dir",
        str(data),
        "--log-dir",
        str(tmp_path / "logs"),
    ]
    assert main(["run", "-n", "g", "--agents", "3,4", *words]) == 0
    folder = tmp_path / "logs/g/coop" / REPO / str(TASK_ID)
    assert {path.name for path in folder.iterdir()} == {
        "f1_f2_f3", "f1_f2_f4", "f1_f3_f4", "f2_f3_f4", "f1_f2_f3_f4",
    }  # fmt: skip
    # Features 1 and 4 change the same line: the union merge has both.
    merged = Left(folder / "f1_f2_f4").evaluation["merged"]
    assert (merged["merge_status"], merged["strategy"]) == ("conflict", "union")
    assert (merged["clean_order"], merged["all_orders_tried"]) == (None, True)
    assert "clean_order" not in Left(folder / "f1_f2_f3").evaluation["merged"]
    before = {path: path.read_bytes() for path in folder.rglob("*.json")}
    capsys.readouterr()
    assert main(["run", "-n", "g", "--agents", "2,3,4", "--dry-run", *words]) == 0
    assert "11 pairs, 6 to run, 0 to evaluate" in capsys.readouterr().out
    assert main(["eval", "-n", "g", *words[2:]]) == 0
    assert {path: path.read_bytes() for path in folder.rglob("*.json")} == before
    assert main(["run", "-n", "alone", "--setting", "solo", "--agents", "4", *words]) == 0
    solo = Left(tmp_path / "logs/alone/solo" / REPO / str(TASK_ID) / "f1_f2_f3_f4")
    assert solo.result["agents"].keys() == {"solo"}
    assert solo.evaluation["overall_success"] is True


def test_a_conflict_of_the_order_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_tiny(tmp_path / "data", (1, 2, 3))
    work: dict[int, list[Any]] = {
        1: [{"run": "sed -i '6i feature 1' app.txt && git mv app.txt moved.txt"}],
        2: [{"run": r"sed -i '8,40s/line /another line entirely /; 16i feature 2' app.txt"}],
        3: [{"run": "sed -i '3s/$/ !/' app.txt"}],
    }
    script = tmp_path / "script.yaml"
    script.write_text(yaml.safe_dump({"repos": {REPO: {TASK_ID: {"coop": work}}}}))
    run(
        "o",
        features=[1, 2, 3],
        agent="scripted",
        agent_config=str(script),
        **options(tmp_path, data),
    )
    merged = Left(tmp_path / "logs/o/coop" / REPO / str(TASK_ID) / "f1_f2_f3").evaluation["merged"]
    assert merged["merge_status"] == "conflict"
    assert sorted(merged["clean_order"]) == ["agent1", "agent2", "agent3"]
    assert merged["clean_order"] != ["agent1", "agent2", "agent3"]
    capsys.readouterr()
    assert main(["report", "o", "--log-dir", str(tmp_path / "logs")]) == 0
    assert (
        "o:coop: 1 conflict of three or more agents would merge in another order"
        in capsys.readouterr().out
    )


def test_golden_conflicts_by_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_tiny(tmp_path / "data", (1, 2, 3, 4))
    words = [
        "--conflicts-only",
        "--backend",
        "local",
        "--dataset-dir",
        str(data),
        "--agents",
        "2,3,4",
    ]
    assert main(["validate", *words, "--report", str(tmp_path / "report.json")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "6 golden pairs: 1 conflict, 5 merge cleanly",
        "4 golden groups of 3: 2 conflict, 2 merge cleanly",
        "1 golden group of 4: 1 conflict, 0 merge cleanly",
    ]
    assert len(json.loads((tmp_path / "report.json").read_text())["pairs"]) == 11


def test_two_agents_share_four_features(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """N is between solo and one agent per feature, with the same files and the same commands."""
    data = write_tiny(tmp_path / "data", (1, 2, 3, 5))
    words = ["--backend", "local", "--dataset-dir", str(data), "--log-dir", str(tmp_path / "logs")]
    call = ["run", "-n", "k4n2", "-f", "1,2,3,5", "--agents", "2", "-a", "oracle", *words]
    assert main(call) == 0
    pair = Left(tmp_path / "logs/k4n2/coop" / REPO / str(TASK_ID) / "f1_f2_f3_f5")
    agents = pair.result["agents"]
    assert {name: agent["feature_ids"] for name, agent in agents.items()} == {
        "agent1": [1, 2],
        "agent2": [3, 5],
    }
    tested = {name: set(pair.evaluation[name]["features"]) for name in agents}
    assert tested == {"agent1": {"1", "2"}, "agent2": {"3", "5"}}
    assert "feature 3" not in pair.patch("agent1")
    assert pair.evaluation["overall_success"] is True
    assert set(pair.evaluation["merged"]["features"]) == {"1", "2", "3", "5"}

    # The same command continues; another number of agents does not fit to the results.
    capsys.readouterr()
    assert main([*call, "--dry-run"]) == 0
    assert "1 pair, 0 to run, 0 to evaluate" in capsys.readouterr().out
    three = [word if word != "2" else "3" for word in call]
    assert main(three) == 2
    assert "agent_count: 2 → 3" in capsys.readouterr().err
    assert main([*call, "--split", "1,5/2,3"]) == 2
    assert "split: 'even' → '1,5/2,3'" in capsys.readouterr().err

    # `eval` takes the division of work from result.json.
    assert main(["eval", "-n", "k4n2", "--force", *words]) == 0
    assert pair.evaluation["overall_success"] is True
    assert main(["report", "k4n2", "--log-dir", str(tmp_path / "logs")]) == 0
    assert "Mismatches" not in capsys.readouterr().out


def test_one_agent_is_solo(tmp_path: Path) -> None:
    data = write_tiny(tmp_path / "data", (1, 2, 3))
    words = ["-a", "oracle", "--backend", "local", "--dataset-dir", str(data)]
    words += ["--log-dir", str(tmp_path / "logs"), "--no-auto-eval"]
    assert main(["run", "-n", "n1", "-f", "1,2,3", "--agents", "1", *words]) == 0
    pair = Left(tmp_path / "logs/n1/solo" / REPO / str(TASK_ID) / "f1_f2_f3")
    assert pair.result["setting"] == "solo"
    assert pair.result["agents"].keys() == {"solo"}
    # As many agents as features are the default: this continues a run without --agents.
    assert main(["run", "-n", "n3", "-f", "1,2,3", "--agents", "3", *words]) == 0
    assert main(["run", "-n", "n3", "-f", "1,2,3", *words]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--agents", "4"], "--agents 4 is more than the 3 features"),
        (["--split", "1,2/4"], "--split 1,2/4 omits feature 3"),
        (["--split", "1,2/2,3"], "names feature 2 more than once"),
        (["--agents", "3", "--split", "1,2/3"], "of 2 agents, not of --agents 3"),
        (["--split", "together"], "--split together needs --agents N"),
        (["--agents", "2", "--setting", "solo"], "setting solo has one agent"),
        (["--agents", "2,3", "--group-size", "3"], "give one number of agents"),
    ],
)
def test_bad_division_of_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    data = write_tiny(tmp_path / "data", (1, 2, 3))
    words = ["-a", "oracle", "--backend", "local", "--dataset-dir", str(data)]
    words += ["--log-dir", str(tmp_path / "logs"), "-n", "bad", "-f", "1,2,3"]
    assert main(["run", *words, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "logs/bad").exists()
