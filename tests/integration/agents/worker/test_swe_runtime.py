"""Our SWE-ReX runtime, deployment and hook with the real swe-rex package, in a worker on a real sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.agents.worker_programs import program
from tests.support.requirements import require_module
from tests.support.runner.helpers import run_tiny

if TYPE_CHECKING:
    from pathlib import Path

require_module("swerex", package="swe-rex")
BODY = """
import asyncio, pathlib
from swerex.deployment.dummy import DummyDeployment
from swerex.exceptions import CommandTimeoutError, NonZeroExitCodeError
from swerex.runtime import abstract as rex
from swe_worker import TeammateHook, SandboxRuntime

deployment, runtime = DummyDeployment(), SandboxRuntime(harness)
deployment.runtime = runtime

def now(call):
    return asyncio.run(call)

bash = lambda command: now(runtime.run_in_session(rex.BashAction(command=command, check="silent")))

def refused(kind, call):
    try:
        now(call)
    except kind:
        return True

now(deployment.start())
assert now(deployment.is_alive()).is_alive
now(runtime.create_session(rex.CreateBashSessionRequest(startup_source=["/root/.bashrc", "/nonexistent"])))
assert bash("pwd").output == "/\\n"
bash("cd /workspace/repo && export WORD=kept; greet() { echo hello $1; }")
seen = bash("greet $WORD; pwd; false")
assert (seen.output, seen.exit_code) == ("hello kept\\n/workspace/repo\\n", 1), seen
assert refused(NonZeroExitCodeError, runtime.run_in_session(rex.BashAction(command="false", check="raise")))
assert refused(CommandTimeoutError, runtime.run_in_session(rex.BashAction(command="sleep 60", timeout=0.3)))
now(runtime.run_in_session(rex.BashInterruptAction()))
assert bash("echo still $WORD").output == "still kept\\n"

got = now(runtime.execute(rex.Command(command="echo $A $PWD; exit 2", shell=True, env={"A": "it's"}, cwd="/tmp")))
assert (got.stdout, got.exit_code) == ("it's /tmp\\n", 2), got
assert refused(NonZeroExitCodeError, runtime.execute(rex.Command(command="false", shell=True, check=True)))

now(runtime.write_file(rex.WriteFileRequest(path="/root/state.json", content="grüße")))
assert now(runtime.read_file(rex.ReadFileRequest(path="/root/state.json"))).content == "grüße"
assert refused(FileNotFoundError, runtime.read_file(rex.ReadFileRequest(path="/nonexistent")))
bundle = pathlib.Path(os.environ["HOME"]) / "bundle"
(bundle / "bin").mkdir(parents=True)
(bundle / "bin" / "tool").write_text("#!/bin/sh\\necho a tool")
(bundle / "bin" / "tool").chmod(0o755)
(bundle / "it's data").write_bytes(bytes(range(256)) * 1000)
now(runtime.upload(rex.UploadRequest(source_path=str(bundle), target_path="/root/tools/mine")))
assert bash("/root/tools/mine/bin/tool").output == "a tool\\n"
assert harness.read_file("/root/tools/mine/it's data") == bytes(range(256)) * 1000
assert bash("test -x \\"/root/tools/mine/it's data\\"").exit_code == 1
assert refused(NonZeroExitCodeError, runtime.upload(rex.UploadRequest(source_path=str(bundle), target_path="/proc/x")))

class Agent:
    name = "main"
    history = []
    def _append_history(self, item):
        self.history.append(item)

class Step:
    thought, action = "hm", "echo step"

hook, agent = TeammateHook(harness, runtime), Agent()
hook.on_init(agent=agent)
hook.on_setup_done()
bash("printf 'echo $PIP_RETRIES; export MADE=kept; false' >/tmp/install.sh")
seen = bash("cd /tmp && source install.sh")
assert (seen.output, seen.exit_code) == ("0\\n", 1), seen
assert bash("echo $MADE $PIP_RETRIES").output == "kept\\n"
hook.on_query_message_added(role="system", content="Be good.", message_type="system_prompt", agent="main")
send, wait = harness.start["teammates"][0], harness.wait_for_message
harness.send_message(send, "from " + harness.start["agent_id"])
assert wait(60)
hook.on_step_start()
assert agent.history[0]["content"] == f"Message from {send}:\\n\\nfrom {send}", agent.history
hook.on_action_started(step=Step)
bash("echo step $PIP_RETRIES")
hook.on_action_executed(step=Step)
bash("echo no step")
now(deployment.stop())
harness.done()
"""


@pytest.mark.xdist_group("frameworks")
def test_swe_agent_finds_what_it_needs(tmp_path: Path) -> None:
    left = run_tiny(tmp_path, program(tmp_path, BODY), auto_eval=False)
    agent = left.result["agents"]["agent1"]
    assert (agent["status"], agent["steps"]) == ("submitted", 2), "the message, and the one action"
    runs = [step for step in left.trajectory()["steps"] if step["action"] == "run"]
    assert [(step["thought"], step["args"]["command"], step["observation"]) for step in runs] == [
        ("hm", "echo step $PIP_RETRIES", "step\n")
    ]
