"""The rules for messages in real runs: what is refused, lost and late, and what is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.cli import main
from cooperbench.storage import read_json
from tests.support.tiny import write_script, write_tiny

if TYPE_CHECKING:
    from pathlib import Path

STEPS: dict[int, list[object]] = {
    1: [{"run": f"send_message agent2 'text {number}' 2>&1"} for number in range(4)],
    2: [{"wait": {"seconds": 5, "for": "text 1"}}],
}


def run_scripted(tmp_path: Path, name: str, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """Run one pair and return the exit status and the messages on record."""
    data = tmp_path / "data"
    if not data.exists():
        write_tiny(data, (1, 2))
    script = write_script(tmp_path / "script.yaml", STEPS)
    argv = ["run", "-n", name, "-a", "scripted", "--agent-config", str(script), "-f", "1,2"]
    argv += ["--dataset-dir", str(data), "--log-dir", str(tmp_path / "logs")]
    status = main([*argv, "--backend", "local", "--no-auto-eval", *options])
    conversation = read_json(tmp_path / "logs" / name / "coop/tiny_task/7/f1_f2/conversation.json")
    return status, (conversation or {}).get("messages", [])


def test_budget_is_enforced_told_and_recorded(tmp_path: Path) -> None:
    status, messages = run_scripted(tmp_path, "budget", "--messages", "2")
    assert status == 0
    assert [message["message"] for message in messages] == ["text 0", "text 1"]
    logs = tmp_path / "logs/budget"
    log = (logs / "coop/tiny_task/7/f1_f2/agent1.log").read_text()
    assert "1 message left" in log
    assert "this is more than your budget has left: 0 messages" in log
    config = read_json(logs / "config.json") or {}
    assert config["message_budget"] == 2
    assert "topology" not in config
    assert run_scripted(tmp_path, "budget", "--messages", "3")[0] == 2
    assert run_scripted(tmp_path, "budget")[0] == 2
    assert run_scripted(tmp_path, "budget", "--messages", "2")[0] == 0


def test_lost_message_is_on_record_and_never_delivered(tmp_path: Path) -> None:
    status, messages = run_scripted(tmp_path, "loss", "--loss", "0.5", "--loss-seed", "3")
    assert status == 0
    assert {message.get("lost", False) for message in messages} == {True, False}
    assert all(message["delivered_at"] is None for message in messages if message.get("lost"))
    lost = [message["message"] for message in messages if message.get("lost")]
    _, again = run_scripted(tmp_path, "again", "--loss", "0.5", "--loss-seed", "3")
    assert [message["message"] for message in again if message.get("lost")] == lost


def test_nobody_can_write_with_a_budget_of_zero(tmp_path: Path) -> None:
    assert run_scripted(tmp_path, "zero", "--messages", "0") == (0, [])
    folder = tmp_path / "logs/zero/coop/tiny_task/7/f1_f2"
    assert not (folder / "conversation.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--messages", "-1"], "'-1' is not a whole number from 0, or unlimited, e.g. 3 or unlimi"),
        (["--loss", "1.5"], "'1.5' is not a probability from 0 to 1"),
        (["--delay", "x"], "'x' is not a whole number from 0"),
        (["--knows", "all"], "invalid choice: 'all'"),
        (["--topology", "line"], "topology 'line' is not one of all, ring, star"),
        (["--topology", "agent1>agent3"], "topology 'agent1>agent3' has agent3, but tiny_task"),
        (["--messages", "3", "--no-messaging"], "--messages does not go with --no-messaging"),
        (["--knows", "titles", "--setting", "solo"], "--knows does not go with --setting solo"),
    ],
)
def test_bad_rules_are_one_line(
    tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_scripted(tmp_path, "bad", *options)[0] == 2
    error = " ".join(capsys.readouterr().err.split())
    assert message in error
    assert not (tmp_path / "logs").exists()
