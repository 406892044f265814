"""Forks of recorded pairs whose outcome depends on one message by construction."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.cli import main
from cooperbench.gateway.recording import read_exchanges
from cooperbench.storage import read_json
from tests.support.agents.mini_swe import TEXT, TOOLS
from tests.support.lab.forks import MESSAGE, PAIR, Laboratory
from tests.support.runner.helpers import run_tiny

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.modelserver import ModelServer, Request
    from tests.support.modelserver.replies import Reply

pytestmark = [pytest.mark.xdist_group("litellm"), pytest.mark.usefixtures("impatient")]


@pytest.fixture
def laboratory(tmp_path: Path, server: ModelServer) -> Laboratory:
    return Laboratory(tmp_path, server)


def folder_of(laboratory: Laboratory, arm: str) -> Path:
    (folder,) = (laboratory.logs / "f").glob(f"{arm}/*/tiny_task/7/f1_f2")
    return folder


def outcomes(laboratory: Laboratory) -> dict[str, bool]:
    """Overall success by arm."""
    found = {}
    for path in (laboratory.logs / "f").glob("*/*/*/*/*/eval.json"):
        arm = path.relative_to(laboratory.logs / "f").parts[0]
        found[arm] = (read_json(path) or {})["overall_success"]
    return found


@pytest.mark.parametrize("agent", [TOOLS, TEXT])
def test_a_message_that_never_arrives(
    agent: str, tmp_path: Path, server: ModelServer, capsys: Any
) -> None:
    laboratory = Laboratory(tmp_path, server, agent)
    laboratory.record()
    assert laboratory.fork("-n", "f", "--drop-message", "1", "--repeat", "2") == 0
    assert outcomes(laboratory) == {
        "control": True, "control@2": True, "drop-message-1": False, "drop-message-1@2": False,
    }  # fmt: skip
    folder = folder_of(laboratory, "drop-message-1")
    (message,) = (read_json(folder / "conversation.json") or {})["messages"]
    assert (message["message"], message["lost"], message["delivered_at"]) == (MESSAGE, True, None)
    # What was replayed was not asked again, and cost nothing.
    result = read_json(folder / "result.json") or {}
    record = read_json(laboratory.logs / "f/forks.json") or {}
    replayed = record["pairs"][0]["exchanges"]
    assert record["fork_point"] == "message:1"
    assert {name: one["model_calls"] for name, one in result["agents"].items()} == {
        name: 4 - count for name, count in replayed.items()
    }
    assert laboratory.live == 4 * (8 - sum(replayed.values()))
    forks = forks_of(laboratory, capsys)
    (effect,) = [one for one in forks["effects"] if one["measure"] == "overall"]
    assert (effect["arm"], effect["effect"]["value"]) == ("drop-message-1", -1.0)
    assert effect["effect"]["high"] < 0
    assert statuses(forks) == {"overall": "planned", "strict": "exploratory"}
    check_registration(laboratory, capsys)


def statuses(forks: Any) -> dict[str, str]:
    return {
        one["measure"]: one["status"]
        for one in forks["effects"]
        if one["measure"] in ("overall", "strict")
    }


def forks_of(laboratory: Laboratory, capsys: Any) -> Any:
    capsys.readouterr()
    assert main(["report", "f", "--json", "--log-dir", str(laboratory.logs)]) == 0
    (forks,) = json.loads(capsys.readouterr().out)["forks"]
    return forks


def check_registration(laboratory: Laboratory, capsys: Any) -> None:
    """plan.json of two forks in each arm."""
    path = laboratory.logs / "f/plan.json"
    content = path.read_bytes()
    checksum = hashlib.sha256(content).hexdigest()
    plan = json.loads(content)
    assert plan["fork"] == {"run": "r", "fork_point": "message:1"}
    assert plan["tests"] == [{"factor": "drop-message-1", "measure": "overall", "test": "fisher"}]
    assert (plan["conditions"], plan["repeat"]) == (["control", "drop-message-1"], 2)
    for arm in ("control", "control@2", "drop-message-1", "drop-message-1@2"):
        config = read_json(laboratory.logs / f"f/{arm}/config.json") or {}
        assert [call["plan_sha256"] for call in config["invocations"]] == [checksum]
        (result,) = (laboratory.logs / "f").glob(f"{arm}/*/*/*/*/result.json")
        assert plan["time"] <= str((read_json(result) or {})["started_at"])
    # The same call leaves the plan as it is; a third repetition is an amendment.
    assert laboratory.fork("-n", "f", "--drop-message", "1", "--repeat", "2") == 0
    assert path.read_bytes() == content
    assert laboratory.fork("-n", "f", "--drop-message", "1", "--repeat", "3") == 0
    (amendment,) = json.loads(path.read_bytes())["amendments"]
    assert (amendment["results"], amendment["changes"]) == (4, ["repeat: 2 → 3"])
    assert amendment["replaced_sha256"] == checksum
    assert statuses(forks_of(laboratory, capsys)) == {"overall": "amended", "strict": "exploratory"}
    # A plan that was changed or removed afterwards is none.
    path.write_text(path.read_text().replace('"primary": "overall"', '"primary": "strict"'))
    forks = forks_of(laboratory, capsys)
    assert forks["plan_problem"] == "plan.json is not the one that the runs were started with"
    assert set(statuses(forks).values()) == {"exploratory"}
    path.unlink()
    forks = forks_of(laboratory, capsys)
    assert (forks["plan"], forks["plan_problem"]) == (None, "there is no plan.json")
    assert set(statuses(forks).values()) == {"exploratory"}


@pytest.mark.parametrize(
    ("intervention", "arm", "succeeds"),
    [
        (["--edit-message", "1=the word is green"], "edit-message-1-*", False),
        (["--edit-message", "1=amber it is"], "edit-message-1-*", True),
        (["--delay-message", "1=1"], "delay-message-1-1", False),
        (["--oracle", "agent2", "--at", "agent2:1"], "oracle-agent2", True),
        (["--swap-agent", "agent2=nop", "--at", "agent2:1"], "agent-agent2-*", False),
        (["--swap-agent", f"agent2={TEXT}", "--at", "agent2:1"], "agent-agent2-*", True),
        (["--swap-model", "agent2=openai/other", "--at", "agent2:1"], "model-agent2-*", False),
    ],
)
def test_interventions_have_the_effect_that_they_must_have(
    laboratory: Laboratory, intervention: list[str], arm: str, succeeds: bool
) -> None:
    def recipient(request: Request) -> Reply:
        if request.model == "other":
            return laboratory.act("echo I am another model")
        return laboratory.recipient(request)

    def in_either_style(request: Request) -> Reply:
        laboratory.agent = TOOLS if request.body.get("tools") else TEXT
        return recipient(request)

    laboratory.server.script("You are agent2", in_either_style)
    laboratory.record(step_limit=6)
    assert laboratory.fork("-n", "f", *intervention) == 0
    (name,) = [path.name for path in (laboratory.logs / "f").glob(arm)]
    assert outcomes(laboratory) == {"control": True, name: succeeds}
    result = read_json(folder_of(laboratory, name) / "result.json") or {}
    if "--swap-model" in intervention:
        assert result["agents"]["agent2"]["model"] == "openai/other"
        assert result["agents"]["agent2"]["status"] == "step_limit"
    if "--oracle" in intervention:
        assert result["agents"]["agent2"]["agent"] == "oracle"


def test_a_message_that_nobody_sent(laboratory: Laboratory) -> None:
    """agent2 has heard of another word; the right one comes at the fork point."""
    laboratory.word = "green"
    laboratory.record()
    assert (
        laboratory.fork("-n", "f", "--insert-message", "agent1>agent2=amber!", "--at", "agent2:1")
        == 0
    )
    (name,) = [path.name for path in (laboratory.logs / "f").glob("insert-*")]
    assert outcomes(laboratory) == {"control": False, name: True}
    messages = (read_json(folder_of(laboratory, name) / "conversation.json") or {})["messages"]
    assert [one["message"] for one in messages] == ["the word is green", "amber!"]


def test_another_description(laboratory: Laboratory, tmp_path: Path) -> None:
    laboratory.record()
    text = tmp_path / "other.md"
    text.write_text("# Feature 3\n\nAdd a line `feature 3`.\n")
    assert laboratory.fork("-n", "f", "--at", "agent2:1", "--describe", f"agent2={text}") == 0
    (name,) = [path.name for path in (laboratory.logs / "f").glob("description-*")]
    assert outcomes(laboratory) == {"control": True, name: False}
    assert "+feature 3" in (folder_of(laboratory, name) / "agent2.patch").read_text()


def test_one_agent_alone_and_a_fork_of_a_fork(
    tmp_path: Path, server: ModelServer, capsys: Any
) -> None:
    laboratory = Laboratory(tmp_path, server)
    laboratory.record()
    assert laboratory.fork("-n", "f", "--at", "agent1:3") == 0
    # The control fork is a recording itself.
    words = laboratory.words("-n", "g", "--at", "agent2:2")
    words[1] = "f/control"
    assert main(words) == 0, capsys.readouterr().err
    assert (laboratory.logs / "g/control/coop/tiny_task/7/f1_f2/eval.json").exists()


@pytest.mark.parametrize(
    ("first_step", "difference"),
    [
        ("head -c 30 /dev/urandom | base64", "agent2: step 1 differs from the recorded run at observation: recorded"),
        ("head -c 30 /dev/urandom >noise", "agent2: file noise differs from the recorded run: recorded"),
    ],
)  # fmt: skip
def test_a_replay_that_diverges_is_not_continued(
    laboratory: Laboratory, first_step: str, difference: str, capsys: Any
) -> None:
    laboratory.first_step = first_step
    laboratory.record()
    assert laboratory.fork("-n", "f", "--drop-message", "1", "--repeat", "3") == 2
    error = capsys.readouterr().err
    assert "cooperbench: the replay of tiny_task/task7 f1_f2 differs from run 'r'" in error
    assert difference in error
    assert laboratory.live == 0
    assert not list((laboratory.logs / "f").glob("*/coop/*/*/*/result.json"))


_ENDED = "ended"
_ENDED_TEXTS = (
    "agent1 of tiny_task/task7 f1_f2 has ended by agent1:4",
    # If agent2 was faster in the recorded run.
    "all agents of tiny_task/task7 f1_f2 have ended by agent1:4",
)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--at", "agent1:99"], "there is no step 99 of agent1 in tiny_task/task7 f1_f2: it took 4 steps"),
        (["--at", "agent3:1"], "there is no agent3 in tiny_task/task7 f1_f2: it has agent1, agent2"),
        (["--at", "step 3"], "'step 3' is not a fork point; write agent1:12"),
        (["--at", "message:2"], "there is no message 2 in tiny_task/task7 f1_f2: it has 1 message"),
        (["--drop-message", "7"], "there is no message 7 in tiny_task/task7 f1_f2: it has 1 message"),
        (["--drop-message", "x"], "--drop-message 'x': write the number of a message"),
        (["--drop-message", "1", "--oracle", "agent1"], "--drop-message and --oracle are two interventions"),
        (["--drop-message", "1", "--at", "agent2:2"], "message 1 of tiny_task/task7 f1_f2 was shown to agent2 before"),
        (["--drop-message", "1", "--at", "agent1:0"], "message 1 of tiny_task/task7 f1_f2 was sent after agent1:0"),
        (["--edit-message", "1"], "--edit-message '1': write the message's number and text"),
        (["--delay-message", "1=0"], "--delay-message '1=0': write the message's number and steps"),
        (["--insert-message", "agent1>agent1=x"], "--insert-message 'agent1>agent1=x': write agent1>agent2=TEXT"),
        (["--insert-message", "agent1>agent2=x"], "--at is missing"),
        (["--oracle", "agent3", "--at", "agent1:1"], "there is no agent3 in"),
        (["--oracle", "agent1", "--at", "agent1:4"], "agent1 of tiny_task/task7 f1_f2 has ended by agent1:4"),
        (["--swap-agent", "agent2=nobody", "--at", "agent1:1"], "no agent 'nobody'; available:"),
        (["--describe", "agent2=/nonexistent", "--at", "agent1:1"], "--describe: /nonexistent cannot be read"),
        (["--at", "agent1:1", "--pair", "tiny_task/7/f1_f3"], "run 'r' has no pair 'tiny_task/7/f1_f3'; write REPO/TASK/f1_f2"),
        (["--at", "agent1:1", "--pair", "nonsense"], "run 'r' has no pair 'nonsense'"),
        ([], "--at is missing: name the fork point"),
        (["--at", "agent1:1", "--effect", "2"], "--effect is 2; it must be above 0"),
        (["--at", "agent1:1", "-n", "r"], "'r' is the name of a run or a study"),
        (["--at", "agent1:1", "-n", "../x"], "'../x' is not a valid experiment name"),
    ],
)  # fmt: skip
def test_what_cannot_be_forked_is_one_line(
    recorded: Laboratory, more: list[str], message: str, capsys: Any
) -> None:
    possible_messages = _ENDED_TEXTS if message is _ENDED else (message,)
    before = sorted(recorded.logs.rglob("*"))
    live = recorded.live
    assert recorded.fork(*more) == 2
    error = capsys.readouterr().err
    assert error.startswith(tuple(f"cooperbench: {text}" for text in possible_messages)), error
    assert error.count("\n") == 1
    assert sorted(recorded.logs.rglob("*")) == before
    assert recorded.live == live


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from tests.support.modelserver import ModelServer

    with ModelServer() as server:
        laboratory = Laboratory(tmp_path_factory.mktemp("recorded"), server)
        laboratory.record()
        yield laboratory


def test_runs_without_a_recording(laboratory: Laboratory, tmp_path: Path, capsys: Any) -> None:
    laboratory.record(record=False)
    assert laboratory.fork("--at", "agent1:1") == 2
    assert "was not recorded: make the run with --record" in capsys.readouterr().err
    run_tiny(tmp_path, "nop", run_name="n", auto_eval=False, record=True)
    words = laboratory.words("--at", "agent1:1")
    for run, message in (
        ("n", "cannot be replayed: it does not use a model"),
        ("q", "there is no run 'q'"),
    ):
        words[1] = run
        assert main(words) == 2
        assert message in capsys.readouterr().err
    assert laboratory.live == 0


def test_a_recording_in_a_shared_workspace(laboratory: Laboratory) -> None:
    laboratory.record(workspace="shared")
    for agent_id in ("agent1", "agent2"):
        folder = laboratory.logs / f"r/coop/tiny_task/7/f1_f2/{agent_id}"
        lists = [exchange["files"] for exchange in read_exchanges(folder / "exchanges.jsonl.gz")]
        assert len(lists) == 4
        assert "app.txt" in lists[-1]


def test_a_killed_fork_is_continued_by_the_same_command(laboratory: Laboratory) -> None:
    laboratory.record()
    release = threading.Event()
    asked = threading.Event()

    def recipient(request: Request) -> Reply:
        if sum(message.get("role") == "assistant" for message in request.messages) == 2:
            asked.set()
            release.wait(60)
        return laboratory.recipient(request)

    laboratory.server.script("You are agent2", recipient)
    words = laboratory.words("-n", "f", "--drop-message", "1", "--pair", PAIR, "-c", "1")
    environment = {**os.environ, "COOPERBENCH_MODEL_RETRY_TIMEOUT": "20"}
    process = subprocess.Popen(
        [sys.executable, "-m", "cooperbench", *words],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while not asked.wait(0.1):
            assert process.poll() is None
            assert time.monotonic() < deadline
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    release.set()
    assert outcomes(laboratory) == {}
    assert (laboratory.logs / "f/forks.json").exists()
    plan = (laboratory.logs / "f/plan.json").read_bytes()
    assert main(words) == 0
    assert outcomes(laboratory) == {"control": True, "drop-message-1": False}
    assert (laboratory.logs / "f/plan.json").read_bytes() == plan
    live = laboratory.live
    assert main(words) == 0
    assert laboratory.live == live
    assert laboratory.fork("-n", "f", "--at", "agent1:1") == 2
