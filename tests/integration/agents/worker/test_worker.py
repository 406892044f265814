"""Agents that are programs: they get the sandbox, the teammates and the record, and never outlive the run."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cooperbench.retry
from cooperbench.agents.worker import WorkerAgent, client
from cooperbench.errors import UserError
from tests.support.agents.worker_programs import program
from tests.support.paths import SUPPORT
from tests.support.runner.helpers import run_tiny
from tests.support.tiny import TASK_ID, write_tiny

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.runner.helpers import Left

SHELL_AGENT = SUPPORT / "agents" / "shell_agent.sh"


def solo(tmp_path: Path, body: str, **options: Any) -> Left:
    return run_tiny(tmp_path, program(tmp_path, body), setting="solo", auto_eval=False, **options)


def ended(left: Left) -> tuple[str, str | None]:
    agent = left.result["agents"]["solo"]
    return agent["status"], agent["error"]


def test_an_agent_in_plain_shell_works_with_a_teammate(tmp_path: Path) -> None:
    left = run_tiny(tmp_path, str(SHELL_AGENT))
    assert left.evaluation["overall_success"]
    first = left.result["agents"]["agent1"]
    assert (first["status"], first["steps"], first["cost"]) == ("submitted", 2, 0.25)
    messages = left.json("conversation.json")["messages"]
    assert sorted((one["from"], one["to"], one["message"]) for one in messages) == [
        ("agent1", "agent2", "I have added line 1 ✓"),
        ("agent2", "agent1", "I have added line 2 ✓"),
    ]
    assert "I have added line 2" in (left.folder / "agent1" / "worker.log").read_text()
    actions = [step["action"] for step in left.trajectory()["steps"]]
    assert actions == ["think", "reply", "run", "send_message", "receive_message"]


def test_the_client_is_a_file_that_older_pythons_read() -> None:
    source = Path(client.__file__).read_text()
    tree = ast.parse(source, feature_version=(3, 9))
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {
        alias.name for node in imported if isinstance(node, ast.Import) for alias in node.names
    }
    names |= {str(node.module) for node in imported if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_everything_that_the_client_offers(tmp_path: Path) -> None:
    left = solo(
        tmp_path,
        """
        assert harness.start["setting"] == "solo" and harness.start["teammates"] == []
        assert harness.start["limits"]["steps"] == 9 and "feature 2" in harness.start["prompt"]
        assert harness.start["config"] == {"depth": [1, 2]}
        data = bytes(range(256)) * 4096
        harness.write_file("new.bin", data)
        harness.write_file("/tmp/tool", b"#!/bin/sh\\necho tool", step=False, executable=True)
        assert harness.read_file("new.bin") == data
        result = harness.exec("cat; echo wrong >&2; exit 3", stdin="grüße".encode(), thought="hm", shown="greet")
        assert result == (3, "grüße", "wrong\\n", False, False), result
        assert harness.exec("/tmp/tool", step=False).output == "tool\\n"
        slow = harness.exec("echo a; sleep 60", timeout_seconds=0.2)
        assert slow.timed_out and slow.stdout == "a\\n"
        for wrong in (lambda: harness.exec(5), lambda: harness.exec("true", timeout_seconds=-1)):
            try:
                wrong()
            except client.BadRequest:
                pass
            else:
                raise SystemExit("taken")
        try:
            harness.read_file("absent")
        except FileNotFoundError:
            pass
        else:
            raise SystemExit("read")
        print("a print of the framework's")
        harness.tell("try again", "format")
        harness.reply("fine", cost=0.5, prompt_tokens=7, cached_tokens=3, model_seconds=1.5, finish_reason="stop")
        harness.reply("dear", unpriced=True)
        assert harness.incoming() == [] and not harness.wait_for_message(0)
        harness.check_limits()
        harness.done("gave_up", "no more ideas")
        """,
        step_limit=9,
        agent_config=_config(tmp_path),
    )
    assert ended(left) == ("gave_up", "no more ideas")
    agent = left.result["agents"]["solo"]
    assert (agent["steps"], agent["model_calls"], agent["cost"], agent["unpriced_calls"]) == (
        3,
        2,
        0.5,
        1,
    )
    by_action = {step["action"]: step for step in left.trajectory("solo")["steps"]}
    assert by_action["reply"]["args"]["content"] == "dear"
    assert "a print of the framework's" in (left.folder / "solo" / "worker.log").read_text()
    assert "new.bin" in left.patch("solo")


def _config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("depth: [1, 2]\n")
    return path


def test_a_limit_is_told_and_the_work_is_handed_in(tmp_path: Path) -> None:
    left = solo(
        tmp_path,
        """
        try:
            while True:
                harness.exec("echo more >>app.txt")
        except client.Ended as end:
            print("told:", end)
        """,
        step_limit=3,
    )
    assert ended(left) == ("step_limit", "step limit of 3 reached")
    assert "told: step limit of 3 reached" in (left.folder / "solo" / "worker.log").read_text()
    assert left.patch("solo").count("+more") == 3


def test_time_runs_out_for_an_agent_that_only_thinks(tmp_path: Path) -> None:
    left = solo(tmp_path, "subprocess.Popen(['sleep', '3456']); time.sleep(3456)", time_limit=1.5)
    assert ended(left)[0] == "time_limit"
    assert not _running("sleep", "3456")


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (
            "harness.check_limits(); time.sleep(60)",
            "has not replied 1 s after the time limit of 1.5 s",
        ),
        ("while True: harness.check_limits(); time.sleep(0.1)", "has failed for 1 s"),
    ],
    ids=["hangs", "fails"],
)
def test_an_outage_does_not_end_as_the_agents_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: str, said: str
) -> None:
    monkeypatch.setenv("COOPERBENCH_MODEL_RETRY_TIMEOUT", "1")
    monkeypatch.setattr(cooperbench.retry, "FIRST_PAUSE_SECONDS", 0.01)
    left = solo(tmp_path, calls, time_limit=1.5)
    assert (left.result["status"], left.result["infrastructure"]) == ("error", True)
    assert said in left.result["error"]
    assert "a warning" not in left.result["error"]


def test_only_answered_calls_count_as_agent_time(tmp_path: Path) -> None:
    """Three attempts, of which the first two fail; then a slow answer, after which nothing more is done."""
    left = solo(
        tmp_path,
        """
        for seconds in (1.5, 1.5, 0):
            harness.check_limits()
            time.sleep(seconds)
        harness.reply("at last")
        harness.exec("echo more >>app.txt")
        harness.check_limits()
        time.sleep(3)
        harness.reply("slow")
        harness.exec("echo never >>app.txt")
        """,
        time_limit=2.5,
    )
    assert ended(left) == ("time_limit", "time limit of 2.5 s reached")
    agent = left.result["agents"]["solo"]
    assert (agent["steps"], agent["model_calls"]) == (1, 2)
    assert "+more" in left.patch("solo")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "harness.exec('true'); sys.exit('out of ideas')",
            "ended with exit code 1 unexpectedly: out of ideas",
        ),
        ("os.kill(os.getpid(), 9)", "exit code 137"),
        (
            "os.write(harness._requests.fileno(), b'Hello there\\n'); time.sleep(60)",
            "something else than a message",
        ),
        ("harness._send({'type': 'dance'}); time.sleep(60)", "unknown type: 'dance'"),
        (
            "import sys; sys.stderr.write('a warning\\n'); harness.failed('infra', 'the provider is down')",
            "the worker failed: the provider is down",
        ),
        ("harness.done('so <bad>')", "an invalid status"),
        ("os._exit(0)", "ended with exit code 0 unexpectedly"),
        ("harness.exec('true'); harness.failed('user', 'stop the run')", "stop the run"),
    ],
)
def test_a_worker_that_breaks_is_scored_as_crashed(tmp_path: Path, body: str, said: str) -> None:
    left = solo(tmp_path, body)
    assert left.result["attempt"] == 1
    status, error = ended(left)
    assert status == "crashed"
    assert said in str(error)


def test_a_worker_that_says_nothing_or_too_much_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(WorkerAgent, "silence_seconds", 0.5)
        _, error = ended(solo(tmp_path, "time.sleep(60)", run_name="q"))
        assert "has sent nothing for 0.5 s" in str(error)
    monkeypatch.setattr("cooperbench.agents.worker.worker_process.LINE_BYTES", 100_000)
    flood = "os.write(harness._requests.fileno(), b'x' * 300_000); time.sleep(60)"
    assert "a line of more than" in str(ended(solo(tmp_path, flood, run_name="f"))[1])


def test_a_full_disk_costs_only_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cooperbench.agents.worker.worker_process._LOG", "/dev/full")
    left = solo(
        tmp_path, "import sys; print('a word', file=sys.stderr); harness.done('submitted', None)"
    )
    assert left.result["status"] == "completed"


def test_what_the_user_must_mend_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the key is refused"):
        solo(tmp_path, "harness.failed('user', 'the key\\nis refused')")


@pytest.mark.parametrize(
    ("name", "said"), [("absent", "no file"), ("plain.txt", "chmod"), ("folder", "folder/agent")]
)
def test_what_is_no_program_is_said_before_anything_starts(
    tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / "plain.txt").write_text("no program")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=said):
        run_tiny(tmp_path, str(tmp_path / name))
    assert not (tmp_path / "logs").exists()


def test_secrets_come_in_the_first_message_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-0123456789")
    monkeypatch.setenv("UNRELATED_PASSWORD", "hunter2-hunter2")
    left = solo(
        tmp_path,
        """
        born = open("/proc/self/environ").read()
        print("leaked" if "secret" in born or "hunter2" in born else "clean")
        print("later", os.environ["OPENAI_API_KEY"], os.environ.get("UNRELATED_PASSWORD"))
        inside = harness.exec("env", step=False).stdout
        print("inside" if "secret" in inside else "outside")
        harness.reply("my key is sk-secret-0123456789")
        harness.done()
        """,
    )
    log = (left.folder / "solo" / "worker.log").read_text()
    assert "clean" in log
    assert "outside" in log
    assert "later [redacted OPENAI_API_KEY] None" in log
    for path in left.folder.rglob("*"):
        if path.is_file():
            assert b"sk-secret" not in path.read_bytes(), path


def test_a_killed_harness_takes_its_workers_along(tmp_path: Path) -> None:
    agent = program(
        tmp_path,
        """
        for words in (["sleep", "4567"], ["setsid", "sleep", "4568"]):
            subprocess.Popen(words, start_new_session=True)
        open(sys.argv[0] + ".started", "w").close()
        time.sleep(3456)
        """,
    )
    write_tiny(tmp_path / "data")
    words = ["run", "-n", "k", "-a", agent, "--setting", "solo", "--backend", "local", "-f", "1,2"]
    words += [
        "--dataset-dir",
        str(tmp_path / "data"),
        "--log-dir",
        str(tmp_path / "logs"),
        "-t",
        str(TASK_ID),
    ]
    harness = subprocess.Popen(
        [sys.executable, "-m", "cooperbench", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _until(lambda: Path(f"{agent}.started").exists())
        # While it is being replaced by exec, a process has no command line.
        _until(lambda: _running("sleep", "4567") and _running("sleep", "4568"))
    finally:
        harness.send_signal(signal.SIGKILL)
        harness.wait()
    _until(lambda: not (_running("sleep", "4567") or _running("sleep", "4568") or _running(agent)))


def _until(true: Any) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _running(*words: str) -> Sequence[int]:
    """Processes with these words in a row in their command line."""
    wanted = "\0".join(words).encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                line = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if wanted in line and b"pytest" not in line and b"cooperbench\0run" not in line:
                found.append(int(folder.name))
    return found
