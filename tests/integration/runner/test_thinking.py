"""A run with agents that ask models: who sat where, what it cost, what is on record, and what can be done with that."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.cli import main
from tests.support.runner.helpers import Left, run_tiny
from tests.support.runner.thinkers import COST, THINKER, TOKENS, Thinker
from tests.support.tiny import REPO, TASK_ID

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("thinking")
MODELS = "vendor/gpt-x,free-for-all"


@dataclass(frozen=True)
class Thought:
    root: Path
    left: Left
    printed: str


@pytest.fixture(scope="module")
def thought(tmp_path_factory: pytest.TempPathFactory) -> Thought:
    """Two agents with two models, told apart by the price of the second, which nobody knows."""
    from contextlib import redirect_stdout
    from io import StringIO

    root = tmp_path_factory.mktemp("thought")
    Thinker.warmed.clear()
    with redirect_stdout(StringIO()) as printed:
        left = run_tiny(root, THINKER, model_name=MODELS)
    return Thought(root, left, printed.getvalue())


def test_agents_and_models_are_recorded_slot_by_slot(thought: Thought) -> None:
    result = thought.left.result
    for agent_id, model in (("agent1", "vendor/gpt-x"), ("agent2", "free-for-all")):
        record = result["agents"][agent_id]
        assert (record["agent"], record["agent_version"], record["model"]) == (
            THINKER,
            "1.2.3",
            model,
        )
        trajectory = thought.left.trajectory(agent_id)
        assert (trajectory["agent"], trajectory["model"]) == (THINKER, model)
    config = json.loads((thought.root / "logs/r/config.json").read_text())
    assert (config["agent"], config["model_name"]) == (THINKER, MODELS)
    assert thought.left.evaluation["overall_success"] is True
    assert Thinker.warmed.is_set()


def test_accounts_add_up_and_calls_without_a_price_are_said(thought: Thought) -> None:
    result = thought.left.result
    first, second = result["agents"]["agent1"], result["agents"]["agent2"]
    assert (first["cost"], first["unpriced_calls"], second["cost"], second["unpriced_calls"]) == (
        2 * COST,
        0,
        0.0,
        2,
    )
    assert first["sandbox_seconds"] > 0
    summary = json.loads((thought.root / "logs/r/summary.json").read_text())
    for record in (result, summary, summary["settings"]["coop"]):
        assert (record["cost"], record["model_calls"], record["unpriced_calls"]) == (2 * COST, 4, 2)
        assert {name: record[name] for name in TOKENS} == {
            name: 4 * count for name, count in TOKENS.items()
        }
        assert record["model_seconds"] == 2.0
    assert (
        "cost $0.50, 480 tokens (160 cached), 4 model calls, 4 steps, 2 messages" in thought.printed
    )
    assert "cost excludes 2 calls to models without a known price" in thought.printed


def test_the_record_is_complete_and_the_log_is_for_people(thought: Thought) -> None:
    trajectory = thought.left.trajectory()
    actions = [step["action"] for step in trajectory["steps"]]
    assert actions == [
        "tell",
        "tell",
        "reply",
        "run",
        "reply",
        "send_message",
        "receive_message",
        "tell",
    ]
    assert all(step["timestamp"] for step in trajectory["steps"])
    reply = trajectory["steps"][2]
    assert reply["args"]["content"] == "I add feature 1.\nIt goes into line 6."
    assert (reply["tokens"], reply["cost"], reply["reasoning"]) == (TOKENS, COST, "It is short.")
    log = (thought.left.folder / "agent1.log").read_text()
    assert (
        "reply (100 + 20 tokens, $0.2500, 0.5s)\n    I add feature 1.\n    It goes into line 6.\n"
        in log
    )
    assert "    $ sed -i '6s/$/\\nfeature 1/' app.txt\n    $ echo done" in log
    assert "    > done\n" in log
    assert "receive_message from agent2\n    feature 2 is in\n" in log
    assert "no known price" in (thought.left.folder / "agent2.log").read_text()


def test_other_models_are_another_experiment(
    thought: Thought, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "run",
        "-n",
        "r",
        "-a",
        THINKER,
        "--backend",
        "local",
        "--dataset-dir",
        str(thought.root / "data"),
    ]
    code = main(
        [*words, "--log-dir", str(thought.root / "logs"), "-m", "vendor/gpt-x", "--dry-run"]
    )
    assert code == 2
    assert "model_name: 'vendor/gpt-x,free-for-all' → 'vendor/gpt-x'" in capsys.readouterr().err


def as_if_killed(logs: Path) -> None:
    """The journals that the finished trajectories were made of, each with a line that was cut off."""
    for path in logs.rglob("trajectory.json"):
        trajectory = json.loads(path.read_text())
        start = {
            "action": "start",
            "args": {"agent": trajectory["agent"], "model": trajectory["model"]},
        }
        lines = [json.dumps(entry) for entry in (start, *trajectory["steps"])]
        path.with_name("steps.jsonl").write_text("\n".join(lines) + '\n{"action": "run", "ar')
        path.unlink()
    for name in ("result.json", "eval.json"):
        for path in logs.rglob(name):
            path.unlink()


@pytest.mark.parametrize("killed", [False, True])
def test_a_model_s_run_is_played_again_without_the_model(
    thought: Thought, tmp_path: Path, killed: bool
) -> None:
    shutil.copytree(thought.root / "logs/r", tmp_path / "logs/source")
    if killed:
        as_if_killed(tmp_path / "logs/source")
    again = run_tiny(
        tmp_path, "replay", agent_config=str(tmp_path / "logs/source"), auto_eval=False
    )
    for agent_id in ("agent1", "agent2"):
        assert again.patch(agent_id) == thought.left.patch(agent_id)
    messages = [one["message"] for one in again.json("conversation.json")["messages"]]
    assert sorted(messages) == ["feature 1 is in", "feature 2 is in"]
    assert again.result["cost"] == 0


@pytest.mark.parametrize("killed", [False, True])
def test_the_run_is_exported_as_the_interchange_format_wants_it(
    thought: Thought, tmp_path: Path, killed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    from atif import Trajectory

    shutil.copytree(thought.root / "logs/r", tmp_path / "logs/r")
    if killed:
        as_if_killed(tmp_path / "logs/r")
    assert (
        main(["export", "r", "--log-dir", str(tmp_path / "logs"), "-o", str(tmp_path / "out")]) == 0
    )
    assert capsys.readouterr().out == f"wrote 3 files of 1 pair to {tmp_path / 'out'}\n"
    folder = tmp_path / "out/coop" / REPO / str(TASK_ID) / "f1_f2"
    documents: dict[str, Any] = {
        path.stem: json.loads(path.read_bytes()) for path in folder.iterdir()
    }
    assert sorted(documents) == ["agent1", "agent2", "pair"]
    for document in documents.values():
        Trajectory.model_validate(document, strict=True)
    agent, pair = documents["agent1"], documents["pair"]
    assert pair["subagent_trajectories"] == [agent, documents["agent2"]]
    assert pair["final_metrics"]["total_cost_usd"] == 2 * COST
    assert pair["final_metrics"]["extra"]["unpriced_calls"] == 2
    assert agent["agent"]["model_name"] == "vendor/gpt-x"
    sources = [step["source"] for step in agent["steps"]]
    assert sources == ["system", "user", "agent", "agent", "user", "user"]
    step = agent["steps"][2]
    (call,), (result,) = step["tool_calls"], step["observation"]["results"]
    assert call["function_name"] == "bash"
    assert call["arguments"]["command"].startswith("sed -i")
    assert (result["source_call_id"], result["content"]) == (call["tool_call_id"], "done\n\ufffd")
    assert step["reasoning_content"] == "It is short."
    assert step["metrics"] == {**TOKENS, "cost_usd": COST, "extra": {"model_seconds": 0.5}}
    assert "cost_usd" not in documents["agent2"]["steps"][2]["metrics"]
    assert pair["extra"]["state"] == ("missing" if killed else "passed")
    assert agent["extra"]["status"] == ("broken_off" if killed else "submitted")
