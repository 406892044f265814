"""Sweeps on real sandboxes, with scripted agents whose outcome depends on the factor by construction."""

from __future__ import annotations

import hashlib
import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cooperbench import sweep
from cooperbench.cli import main
from cooperbench.errors import UserError
from cooperbench.storage import read_json
from tests.support.runner.harness import Harness
from tests.support.tiny import PLACES, REPO, write_script, write_tiny

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("sweep")
TASKS = (7, 8, 9, 10)


def add_feature(number: int) -> str:
    return f"sed -i '{PLACES[number] + 1}a feature {number}' app.txt"


def write_agents(root: Path, command: Callable[[int], str], solo: str = "true") -> list[str]:
    """A dataset of four tasks, and agents that run one command each. Returns the options of a sweep."""
    write_tiny(root / "data", (1, 2, 3, 5), TASKS)
    chapters = {
        task: {
            "coop": {number: [{"run": command(number)}] for number in (1, 2, 3, 5)},
            "solo": {"*": [{"run": solo}]},
        }
        for task in TASKS
    }
    script = root / "script.yaml"
    script.write_text(yaml.safe_dump({"description": "for tests", "repos": {REPO: chapters}}))
    return [
        *("-a", "scripted", "--agent-config", str(script), "--backend", "local", "--no-canary"),
        *("--dataset-dir", str(root / "data"), "--log-dir", str(root / "logs"), "-f", "1,2"),
    ]


def study_of(root: Path, name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["report", name, "--json", "--log-dir", str(root / "logs")]) == 0
    (study,) = json.loads(capsys.readouterr().out)["studies"]
    assert isinstance(study, dict)
    return study


def effect_of(study: dict[str, Any], factor: str, measure: str = "overall") -> dict[str, Any]:
    (effect,) = [
        effect
        for effect in study["effects"]
        if (effect["factor"], effect["measure"]) == (factor, measure)
    ]
    assert isinstance(effect, dict)
    return effect


def rates_of(study: dict[str, Any], factor: str) -> dict[str, float]:
    (curve,) = [curve for curve in study["factors"] if curve["factor"] == factor]
    return {point["level"]: point["means"]["overall"]["value"] for point in curve["points"]}


def send_then_add(number: int, messages: int = 1) -> str:
    """Add a feature if all messages may be sent. Status 3: the teammate has finished already."""
    send = "send_message --all 'a note' || [ $? -eq 3 ]"
    return f"for i in $(seq {messages}); do {send} || exit 1; done; {add_feature(number)}"


def three_messages(number: int) -> str:
    return send_then_add(number, 3)


def test_agents_that_need_three_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = write_agents(tmp_path, three_messages)
    call = ["sweep", "-n", "dose", "--messages", "3,0,unlimited,1", *options, "-c", "1"]
    assert main([*call, "--dry-run"]) == 0
    assert "dose/messages=3: 4 pairs, 4 to run, 0 to evaluate" in capsys.readouterr().out
    assert not (tmp_path / "logs").exists()
    assert main(call) == 0
    study = study_of(tmp_path, "dose", capsys)
    assert rates_of(study, "messages") == {"0": 0.0, "1": 0.0, "3": 1.0, "unlimited": 1.0}
    effect = effect_of(study, "messages")
    assert (effect["first_level"], effect["last_level"]) == ("0", "unlimited")
    assert effect["difference"]["value"] == 1.0
    assert effect["difference"]["low"] > 0
    assert effect["slope"]["value"] == pytest.approx(0.4)
    assert effect["slope"]["high"] == pytest.approx(0.4)
    # All four tasks agree: the sign test.
    assert effect["p"] == effect["p_holm"] == 0.125
    assert effect["stratified"]["by_task"]["p"] < 0.01
    assert effect["status"] == "planned"
    assert effect_of(study, "messages", "strict")["status"] == "exploratory"
    results = [
        read_json(path) or {} for path in (tmp_path / "logs").glob("dose/*/coop/*/*/*/result.json")
    ]
    started = sorted(results, key=lambda result: str(result["started_at"]))
    # A pair in all arms, then the next; the arms take turns at being first.
    assert [result["task_id"] for result in started] == sorted(TASKS * 4)
    firsts = [result["run_name"] for result in started[::4]]
    levels = ("3", "0", "unlimited", "1")
    assert firsts == [f"dose/messages={level}" for level in levels]


def test_plan_comes_first_and_every_run_has_its_checksum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = write_agents(tmp_path, three_messages)
    first = ["sweep", "-n", "s", "--messages", "0,3", *options, "-t", "7"]
    assert main([*first, "--primary", "merged", "--effect", "0.5"]) == 0
    path = tmp_path / "logs/s/plan.json"
    content = path.read_bytes()
    plan = json.loads(content)
    assert plan["tests"] == [{"factor": "messages", "measure": "merged", "test": "trend"}]
    assert plan["pairs"] == [f"{REPO}/7/f1_f2"]
    checksum = hashlib.sha256(content).hexdigest()
    for level in (0, 3):
        config = read_json(tmp_path / f"logs/s/messages={level}/config.json") or {}
        assert [call["plan_sha256"] for call in config["invocations"]] == [checksum]
    assert effect_of(study_of(tmp_path, "s", capsys), "messages", "merged")["status"] == "planned"
    # The same call, and one that does less, leave the plan as it is.
    assert main(first) == 0
    assert path.read_bytes() == content
    # One that does more is an amendment, and no longer planned before the results.
    assert main(["sweep", "-n", "s", "--messages", "1,2", *options, "-t", "7"]) == 0
    plan = json.loads(path.read_text())
    (amendment,) = plan["amendments"]
    assert amendment["results"] == 2
    assert amendment["changes"] == ["messages: 1, 2 added", "2 conditions added"]
    assert amendment["replaced_sha256"] == checksum
    study = study_of(tmp_path, "s", capsys)
    assert effect_of(study, "messages", "merged")["status"] == "amended"
    assert len(study["factors"][0]["points"]) == 4
    # A report of some arms does not have all planned levels.
    arms = ["s/messages=0", "s/messages=3", "--log-dir", str(tmp_path / "logs")]
    assert main(["report", *arms]) == 0
    assert "planned or changed after" not in capsys.readouterr().out
    # A plan that was written afterwards is none.
    path.write_text(path.read_text().replace('"primary": "merged"', '"primary": "overall"'))
    study = study_of(tmp_path, "s", capsys)
    assert study["plan"] is None
    assert study["plan_problem"] == "plan.json is not the one that the runs were started with"
    assert {effect["status"] for effect in study["effects"]} == {"exploratory"}


def test_topology_has_no_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each agent needs to write to the other."""
    options = write_agents(tmp_path, send_then_add)
    arms = ("--topology", "agent1>agent2,agent2>agent1", "--topology", "all,agent1>agent2")
    assert main(["sweep", "-n", "s", *arms, *options]) == 2
    assert "topology 'all,agent1>agent2' is not one of" in capsys.readouterr().err
    arms = ("--topology", "agent1>agent2", "--topology", "all,ring")
    assert main(["sweep", "-n", "s", *arms, *options]) == 0
    study = study_of(tmp_path, "s", capsys)
    assert rates_of(study, "topology") == {"agent1>agent2": 0.0, "all": 1.0, "ring": 1.0}
    effect = effect_of(study, "topology")
    assert (effect["test"], effect["slope"], effect["stratified"]) == ("heterogeneity", None, None)
    assert effect["p"] == 3 * 0.125


def test_number_of_agents_crossed_with_git(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Several agents succeed only with a remote, whatever their number."""
    options = write_agents(
        tmp_path, lambda number: f"git remote get-url team && {add_feature(number)}"
    )
    options[options.index("1,2")] = "1,2,3"
    call = ["sweep", "-n", "s", "--agents", "2,3", "--off", "git", *options, "-t", "7"]
    assert main(call) == 0
    study = study_of(tmp_path, "s", capsys)
    assert set(study["arms"]) == {
        "s/agents=2", "s/agents=2+no-git", "s/agents=3", "s/agents=3+no-git"
    }  # fmt: skip
    assert effect_of(study, "git")["difference"]["value"] == 1.0
    assert effect_of(study, "agents")["difference"]["value"] == 0.0
    assert rates_of(study, "agents") == {"2": 0.5, "3": 0.5}


def test_from_one_agent_to_one_for_each_feature(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In setting team, where a single agent has neither the tools nor the rules of the others."""
    options = write_agents(tmp_path, add_feature)
    options[options.index("1,2")] = "1,2,3"
    sizes = ["--agents", "1,2,3", "--setting", "team", "--knows", "titles", "--team-no-mcp"]
    assert main(["sweep", "-n", "s", *sizes, *options, "-t", "7"]) == 0
    assert "agents=1  1      1          0/1" in capsys.readouterr().out
    study = study_of(tmp_path, "s", capsys)
    assert rates_of(study, "agents") == {"1": 0.0, "2": 1.0, "3": 1.0}
    assert effect_of(study, "agents")["slope"]["value"] == pytest.approx(0.5)
    merge = effect_of(study, "agents", "merge")
    assert (merge["first_level"], merge["last_level"]) == ("2", "3")
    assert main(["report", "s", "--log-dir", str(tmp_path / "logs")]) == 0
    assert "3 features by number of agents" in capsys.readouterr().out


def test_killed_sweep_continues_and_repeats_nothing(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.words[3:6] = ["sweep", "-n", "s"]
    harness.words += ["--messages", "0,1,3", "--no-canary", "-f", "1,2"]

    def results() -> dict[str, bytes]:
        paths = (tmp_path / "logs").glob("s/*/coop/*/*/*/result.json")
        return {str(path): path.read_bytes() for path in paths}

    before: dict[str, bytes] = {}
    plan = tmp_path / "logs/s/plan.json"
    planned = b""
    for attempt in range(5):
        process = harness.start()
        time.sleep(0.8 + 0.4 * attempt)
        process.kill()
        process.communicate()
        harness.wait_for_no_survivors()
        now = results()
        assert {path: now[path] for path in before} == before
        before = now
        if planned:
            assert plan.read_bytes() == planned
        elif plan.exists():
            planned = plan.read_bytes()
    code, output = harness.finish()
    assert code == 0, output
    after = results()
    assert len(after) == 3
    assert {path: after[path] for path in before} == before
    content = json.loads(plan.read_text())
    assert content["amendments"] == []
    assert len(list((tmp_path / "logs").glob("s/*/coop/*/*/*/eval.json"))) == 3


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "a sweep needs several levels of an option (--agents, --messages, "),
        (["--messages", "3"], "a sweep needs several levels of an option ("),
        (["--messages", "0,3,03"], "--messages has the level 3 twice"),
        (["--messages", "0,many"], "--messages: 'many' is not a whole number from 0, or unlimited"),
        (["--messages", "0,-1"], "--messages is -1; it must be a whole number from 0"),
        (["--messages", "0,,3"], "--messages has an empty level"),
        (["--loss", "0.1,0.10"], "--loss has the level 0.1 twice"),
        (["--loss", "0,2"], "--loss is 2.0; it must be a probability from 0 to 1"),
        (["--knows", "titles,all"], "--knows is 'all'; it must be one of nothing, titles, "),
        (["--knows", "titles"], "a sweep needs several levels"),
        (["--knows", "everything"], "knows is 'everything'; it must be one of nothing, "),
        (["--delay", "soon"], "--delay: 'soon' is not a whole number from 0"),
        (["--topology", "all,circle"], "topology 'circle' is not one of all, ring, star"),
        (["-m", "x", "-m", "x"], "--model has the level x twice"),
        (["--agents", "1,2"], "--agents as a factor needs the features that they share: -f"),
        (["--agents", "2,2", "-f", "1,2"], "--agents has the level 2 twice"),
        (["--agents", "2,4", "-f", "1,2"], "--agents 4 is more than the 2 features of "),
        (["--agents", "1,2", "-f", "1,2", "--messages", "0,1"], "--agents 1 has nobody to"),
        (["--agents", "1,2", "--setting", "solo"], "setting solo has one agent, so agents cannot"),
        (["--messages", "0,1", "--setting", "solo"], "setting solo has one agent, so messages"),
        (["--messages", "0,1", "--no-messaging"], "--messages does not go with --no-messaging"),
        (["--messages", "0,1", "--off", "messages"], "--messages is a factor already: "),
        (["--off", "git,git"], "--off names git twice"),
        (["--off", "task_list"], "no part 'task_list' to switch off in setting coop; available:"),
        (["--off", "git", "--setting", "solo"], "in setting solo nobody cooperates"),
        (["--off", "git", "--effect", "0.6"], "--discordant is 0.5; it must be from --effect (0.6)"),
        (["--off", "git", "--effect", "0"], "--effect is 0; it must be above 0 and at most 1"),
        (["--off", "git", "--design-effect", "-1"], "--design-effect is -1; it must be above 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_sweep_is_one_line(
    tmp_path: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny(tmp_path / "data", (1, 2, 3))
    place = ["--dataset-dir", str(tmp_path / "data"), "--log-dir", str(tmp_path / "logs")]
    assert main(["sweep", "-n", "s", "-a", "oracle", "--backend", "local", *place, *more]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"cooperbench: {message}")
    assert error.count("\n") == 1
    assert not (tmp_path / "logs").exists()


def test_names_that_are_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny(tmp_path / "data", (1, 2))
    place = ["--dataset-dir", str(tmp_path / "data"), "--log-dir", str(tmp_path / "logs")]
    options = ["-a", "nop", "--backend", "local", "--no-auto-eval", *place]
    assert main(["run", "-n", "r", *options]) == 0
    assert main(["sweep", "-n", "r", "--delay", "0,1", *options]) == 2
    assert "'r' is the name of a run; choose another name (-n)" in capsys.readouterr().err
    assert main(["sweep", "-n", "s", "--delay", "0,1", *options]) == 0
    assert main(["run", "-n", "s", *options]) == 2
    assert "'s' is the name of a study; choose another name (-n)" in capsys.readouterr().err
    assert main(["sweep", "-n", "s", "--loss", "0,1", *options]) == 2
    assert "study 's' has other factors (delay); choose another name" in capsys.readouterr().err
    assert main(["sweep", "--delay", "0,1", *options]) == 2
    assert "a study needs a name: -n NAME" in capsys.readouterr().err


def test_levels_in_python_that_are_not_a_list(tmp_path: Path) -> None:
    place: dict[str, Any] = {
        "dataset_dir": write_tiny(tmp_path / "data", (1, 2)), "logs_dir": tmp_path / "logs", "agent": "nop",
        "backend": "local",
    }  # fmt: skip
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"messages": 3}, "the levels of messages are 3; they must be a list"),
        ({"messages": [3]}, "--messages has 1 level; a factor needs at least two"),
        ({"delay": [0, None]}, "--delay does not have the level None"),
        ({"delay": [0, True]}, "--delay is True; it must be a whole number from 0"),
        ({"mesages": [0, 3]}, "no factor 'mesages'; available: "),
    )
    for levels, message in cases:
        with pytest.raises(UserError, match=f"^{re.escape(message)}"):
            sweep("s", levels, **place)
    assert not (tmp_path / "logs").exists()


def test_sweep_in_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = {number: [{"run": three_messages(number)}] for number in (1, 2)}
    script = write_script(tmp_path / "script.yaml", steps)
    sweep(
        "s", {"messages": [2, None], "knows": ["nothing", "titles"]}, one_at_a_time=True, repeat=2,
        primary="strict", agent="scripted", agent_config=str(script), backend="local", canary=False,
        dataset_dir=write_tiny(tmp_path / "data", (1, 2)), logs_dir=tmp_path / "logs",
    )  # fmt: skip
    table = capsys.readouterr().out.partition("arm ")[2]
    rates = {
        line.split()[0]: line.split()[3] for line in table.splitlines()[1:] if "messages=" in line
    }
    arms = {
        "messages=2+knows=nothing": "0/1",
        "messages=unlimited+knows=nothing": "1/1",
        "messages=2+knows=titles": "0/1",
    }
    assert rates == arms | {f"{arm}@2": rate for arm, rate in arms.items()}
    study = study_of(tmp_path, "s", capsys)
    assert effect_of(study, "messages", "strict")["difference"]["value"] == 1.0
    assert effect_of(study, "knows", "strict")["difference"]["value"] == 0.0
    assert study["plan"]["repeat"] == 2
