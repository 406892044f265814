"""Ablations on real sandboxes: planned, interleaved, under one budget, continued after a kill."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench import ablate
from cooperbench.cli import main
from cooperbench.storage import read_json
from tests.support.runner.harness import Harness
from tests.support.runner.thinkers import COST, THINKER
from tests.support.tiny import PLACES, write_script, write_tiny

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("ablation")


def words(tmp_path: Path, *more: str, agent: str = "oracle") -> list[str]:
    data = tmp_path / "data"
    if not data.exists():
        write_tiny(data, (1, 2, 3))
    place = ["--backend", "local", "--dataset-dir", str(data), "--log-dir", str(tmp_path / "logs")]
    return ["ablate", "-n", "s", "-a", agent, "-m", "m", "-c", "1", *place, *more]


def results(tmp_path: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for path in (tmp_path / "logs").glob("s/*/coop/*/*/*/result.json"):
        content = read_json(path)
        assert content is not None
        found[f"{content['run_name']} {path.parent.name}"] = content
    return found


def test_arms_are_runs_of_their_own_interleaved_pair_by_pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(tmp_path, "--off", "git,messages", "--dry-run")) == 0
    assert "s/no-messages: 3 pairs, 3 to run, 0 to evaluate" in capsys.readouterr().out
    assert not (tmp_path / "logs").exists()
    assert main(words(tmp_path, "--off", "git,messages", "--repeat", "2", "--no-canary")) == 0
    found = results(tmp_path)
    arms = ["s/all", "s/no-messages", "s/no-git", "s/all@2", "s/no-messages@2", "s/no-git@2"]
    assert {one["run_name"] for one in found.values()} == set(arms)
    configs = {name: read_json(tmp_path / "logs" / name / "config.json") or {} for name in arms}
    switches = {
        name: (one["messaging_enabled"], one["git_enabled"]) for name, one in configs.items()
    }
    assert switches == {name: ("no-messages" not in name, "no-git" not in name) for name in arms}
    assert "git" in found["s/all f1_f2"]
    assert "git" not in found["s/no-git f1_f2"]
    # One at a time: a pair in all arms, then the next; the second round after the first.
    started = sorted(found, key=lambda name: str(found[name]["started_at"]))
    order = [(("@" in name), name.split()[1]) for name in started]
    assert order == sorted(order)
    firsts = [name.split()[0] for name in started[::3]]
    assert firsts[:3] == ["s/all", "s/no-messages", "s/no-git"]
    for name in arms:
        summary = read_json(tmp_path / "logs" / name / "summary.json") or {}
        assert summary["settings"]["coop"]["evaluated"] == 3
    capsys.readouterr()
    before = {path: path.read_bytes() for path in (tmp_path / "logs").glob("s/*/coop/**/*.json")}
    # More arms are added to what is there.
    assert main(words(tmp_path, "--off", "git,messages", "--full-factorial", "--no-canary")) == 0
    assert {path: path.read_bytes() for path in before} == before
    assert len(results(tmp_path)) == 21
    study = read_json(tmp_path / "logs/s/study.json") or {}
    assert [arm["name"] for arm in study["arms"]][-1] == "no-messages+git"
    assert main(["report", "s", "--json", "--log-dir", str(tmp_path / "logs")]) == 0
    content = json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))
    assert {one["factor"] for one in content["studies"][0]["effects"]} == {"messages", "git"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ["--off", "mesages"],
            "no part 'mesages' to switch off in setting coop; available: messages, git",
        ),
        (["--off", "task_list"], "no part 'task_list' to switch off in setting coop; available:"),
        (["--off", " , "], "--off names no part"),
        (["--off", "git", "--setting", "solo"], "in setting solo nobody cooperates"),
        (["--off", "messages", "--no-messaging"], "messages is off in all arms already"),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    tmp_path: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(tmp_path, *more)) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"cooperbench: {message}")
    assert error.count("\n") == 1
    assert not (tmp_path / "logs").exists()


def test_other_settings_and_names_that_are_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(tmp_path, "--off", "git", "-f", "1,2", "--no-auto-eval")) == 0
    assert (
        main(words(tmp_path, "--off", "git", "-f", "1,2", "--no-auto-eval", "--step-limit", "5"))
        == 2
    )
    assert "'s/all' was started with another configuration (step_limit" in capsys.readouterr().err
    place = words(tmp_path)[words(tmp_path).index("--backend") :]
    assert main(["eval", "-n", "s/all", *place, "--no-canary"]) == 0
    assert "coop: 1 pair, 1 evaluated" in capsys.readouterr().out
    plain = words(tmp_path, "-f", "1,2", "--no-auto-eval")
    assert main(["run", "-n", "s/all", *plain[3:]]) == 2
    assert "'s/all' is not a valid experiment name" in capsys.readouterr().err
    assert main(["run", "-n", "r", *plain[3:]]) == 0
    assert main(["ablate", "-n", "r", *plain[3:], "--off", "git"]) == 2
    assert "'r' is the name of a run" in capsys.readouterr().err


def test_one_budget_for_all_arms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pair costs four calls, without messages two. The first is run in both arms before the budget is used up."""
    call = words(
        tmp_path,
        "--off",
        "messages",
        "--no-auto-eval",
        "--max-cost",
        str(6.5 * COST),
        agent=THINKER,
    )
    assert main(call) == 3
    assert sorted(results(tmp_path)) == [
        "s/all f1_f2",
        "s/no-messages f1_f2",
        "s/no-messages f1_f3",
    ]
    assert "3 pairs were not started" in capsys.readouterr().out
    assert main(call) == 3
    assert main([*call[:-1], str(30 * COST)]) == 0
    assert len(results(tmp_path)) == 6


def test_a_killed_study_continues_and_repeats_nothing(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.words[3:6] = ["ablate", "-n", "s"]
    harness.words += ["--off", "messages,git", "--no-canary", "-f", "1,2"]
    before: dict[str, dict[str, Any]] = {}
    for attempt in range(6):
        process = harness.start()
        time.sleep(0.8 + 0.4 * attempt)
        process.kill()
        process.communicate()
        harness.wait_for_no_survivors()
        now = results(tmp_path)
        assert {name: now[name] for name in before} == before
        before = now
    code, output = harness.finish()
    assert code == 0, output
    after = results(tmp_path)
    assert sorted(after) == ["s/all f1_f2", "s/no-git f1_f2", "s/no-messages f1_f2"]
    assert {name: after[name] for name in before} == before
    assert all(read_json(path) for path in (tmp_path / "logs").glob("s/*/coop/*/*/*/eval.json"))


def test_what_a_part_of_a_team_is_worth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Agents that do their work only where there is a task list; whether they can write to each other is all the same."""
    steps = {
        number: [
            {
                "run": f"coop-task-create mine && sed -i '{PLACES[number] + 1}a feature {number}' app.txt"
            }
        ]
        for number in (1, 2, 3)
    }
    ablate(
        "s", ["task_list", "messages"], setting="team", agent="scripted", backend="local", canary=False,
        agent_config=str(write_script(tmp_path / "script.yaml", steps)), logs_dir=tmp_path / "logs",
        dataset_dir=write_tiny(tmp_path / "data", (1, 2, 3)),
    )  # fmt: skip
    table = capsys.readouterr().out.partition("arm ")[2]
    assert [line.split()[:3] for line in table.splitlines()[1:] if line.split()[2:3] == ["3"]] == [
        ["all", "3", "3"], ["no-messages", "3", "3"], ["no-task_list", "3", "3"]
    ]  # fmt: skip
    assert main(["report", "s", "--log-dir", str(tmp_path / "logs")]) == 0
    # Marked: without canaries, nothing is confirmed.
    report = capsys.readouterr().out.partition("Effects: s †\n")[2].partition("difference:")[0]
    rows = {
        tuple(line.split()[:2]): " ".join(line.split()[3:13])
        for line in report.splitlines()
        if line.strip()
    }
    assert rows["task_list", "overall"] == "3 1 off: 0 % on: 100 % +100.0 points"
    assert rows["messages", "overall"] == "3 1 off: 100 % on: 100 % 0.0 points"
    assert rows["task_list", "conflict"].endswith("0.0 points")
    assert {part for part, _ in rows} >= {"task_list", "messages"}
