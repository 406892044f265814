"""Whatever an agent does to its messages and its git directory hurts only itself, and never looks like our fault."""

from __future__ import annotations

import resource
import threading
import time
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.local import LocalBackend
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.sandbox.manager import open_sandbox
from cooperbench.team import git_remote
from cooperbench.team.git_remote import GitRemote
from tests.support.runner.helpers import run_tiny
from tests.support.sandbox.sharing import AGENTS, COMMIT, attach, git
from tests.support.team.agent_sandboxes import BOTH_WAYS
from tests.support.tiny import write_script

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cooperbench.sandbox.contract import Sandbox
    from tests.support.team.agent_sandboxes import AgentSandboxes

TEAM = "cd /cooperbench/team"
TO_MESSAGES = {
    "removes them": "rm -rf /cooperbench/team /cooperbench/bin",
    "files for folders": f"{TEAM}; rm -rf inbox responses read drafts; touch inbox responses read drafts",
    "links for folders": f"{TEAM}; rm -rf inbox responses; ln -s /proc inbox; ln -s /nowhere responses",
    "a bell that never ends": f"{TEAM}; rm -f bell; ln -s /dev/zero bell; kill -9 $(cat rpc.pid)",
    "a bell that is a folder": f"{TEAM}; rm -f bell; mkdir bell; kill -9 $(cat rpc.pid)",
    "huge requests": f"{TEAM}; truncate -s 1T send/huge; echo send huge 1<>bell",
    "requests that are no files": f"{TEAM}; mkfifo send/a; ln -s /dev/zero send/b; mkdir send/c; "
    "for n in a b c; do echo send $n 1<>bell; done",
    "requests to nobody": f"{TEAM}; for n in 1 2 3; do printf '\\377\\0' >send/x$n; echo send x$n 1<>bell; done",
    "kills whoever listens": f"{TEAM}; for n in $(seq 25); do kill -9 $(cat rpc.pid) || break; sleep 0.15; done",
    "another name": f"{TEAM}; echo agent2 >agent; printf 'agent2\\nagent1\\n' >teammates",
}


@BOTH_WAYS
@pytest.mark.parametrize("what", list(TO_MESSAGES))
def test_what_is_done_to_message_files_is_no_failure_of_ours(
    agent_sandboxes: AgentSandboxes, what: str, streams: bool
) -> None:
    agent = agent_sandboxes.open(streams=streams)
    agent.run(f"send_message agent2 before; {TO_MESSAGES[what]}")
    agent.mailbox.post("agent2", "agent1", "hello")
    agent.run("timeout 1 send_message agent2 after; timeout 1 read_messages")
    # Not shown twice, and shown unless the command has done so.
    assert [message.text for message in agent.inbox.incoming()] in (["hello"], [])
    assert agent.inbox.delivery(2).delivered_by in ("context", "command")
    started = time.monotonic()
    agent.rpc.last_call("read", "send")
    agent.leave()
    assert time.monotonic() - started < 30
    assert {(message.sender, message.recipient) for message in agent.mailbox.messages()} == {
        ("agent1", "agent2"),
        ("agent2", "agent1"),
    }


@pytest.mark.parametrize(
    "line", ["sync same", "send gone", "push gone", "read 00000001", "x" * 3000]
)
def test_a_flood_of_the_bell_ends_and_stops_nobody_else(
    agent_sandboxes: AgentSandboxes, line: str
) -> None:
    agent = agent_sandboxes.open()
    agent.run(f"timeout 1 yes '{line}' >/cooperbench/team/bell")
    agent.mailbox.post("agent2", "agent1", "hello")
    assert agent.inbox.wait(30)
    assert [message.text for message in agent.inbox.incoming()] == ["hello"]
    started = time.monotonic()
    agent.rpc.last_call("read", "send")
    agent.leave()
    assert time.monotonic() - started < 30


def test_agent_without_its_files_is_scored(tmp_path: Path) -> None:
    script = write_script(
        tmp_path / "script.yaml",
        {
            1: [{"run": "rm -rf /cooperbench/team /cooperbench/team.git; touch /cooperbench/team; echo done >>app.txt"},
                {"run": "git push team HEAD:agent1"}],
            2: [{"send": "are you there?"}, {"run": "touch new; git add new; git commit -qm new; git push team HEAD:agent2; echo code $?"}],
        },
    )  # fmt: skip
    left = run_tiny(
        tmp_path, "scripted", agent_config=str(script), git_enabled=True, auto_eval=False
    )
    assert (left.result["status"], left.result["attempt"]) == ("completed", 1)
    assert [agent["status"] for agent in left.result["agents"].values()] == [
        "submitted",
        "submitted",
    ]
    assert "code 0" in left.observations("agent2")[1]
    assert left.result["git"]["pushes"] == {"agent1": 0, "agent2": 1}


@pytest.fixture
def sandboxes() -> Iterator[dict[str, Sandbox]]:
    backend = LocalBackend()
    options = SandboxOptions("agent")
    opened = {
        agent_id: open_sandbox(backend, "host", timeout_seconds=600, options=options)
        for agent_id in AGENTS
    }
    yield opened
    for sandbox in opened.values():
        sandbox.terminate()
    backend.close()


SLOW_GIT = "printf '#!/bin/sh\\nsleep 900\\n' >/usr/local/bin/git; chmod +x /usr/local/bin/git"
TO_GIT = {
    "removes it": "rm -rf /cooperbench/team.git",
    "a file": "rm -rf /cooperbench/team.git; touch /cooperbench/team.git",
    "a link": "rm -rf /cooperbench/team.git; ln -s /proc /cooperbench/team.git",
    "no objects": "rm -rf /cooperbench/team.git/objects",
    "a locked branch": "touch /cooperbench/team.git/refs/heads/agent1.lock",
    "rubbish objects": "find /cooperbench/team.git /tmp/repo/.git -type f -exec sh -c 'echo x >\"$0\"' {} \\;",
    "a git that sleeps": SLOW_GIT,
}


@pytest.mark.parametrize("what", list(TO_GIT))
def test_what_is_done_to_the_git_directory_is_no_failure_of_ours(
    sandboxes: dict[str, Sandbox], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(git_remote, "_DELIVERY_SECONDS", 2.0)
    remote = GitRemote(tmp_path / "team.git", AGENTS)
    for agent_id, sandbox in sandboxes.items():
        attach(remote, agent_id, sandbox)
    sandboxes["agent2"].run(["bash", "-c", TO_GIT[what]], timeout_seconds=60)
    for number in (1, 2):
        said = git(sandboxes["agent1"], f"seq {number} >new; {COMMIT}; git rev-parse HEAD")
        commit = said.split()[0]
        # As the hook in the sandbox finds it.
        sandboxes["agent1"].run(
            ["git", "--git-dir=/cooperbench/team.git", "fetch", "-q", "/tmp/repo", "HEAD"]
        )
        assert remote.push("agent1", commit).code == 0
    if what != "a git that sleeps":
        assert remote.push("agent2", "1" * 40).code == 1
        assert remote.counts["refused"]["agent2"] == 1
    assert remote.counts["pushes"] == {"agent1": 2, "agent2": 0}
    assert remote.write_bundle(tmp_path / "team.bundle")
    remote.close()


def test_push_survives_a_lack_of_descriptors(sandboxes: dict[str, Sandbox], tmp_path: Path) -> None:
    remote = GitRemote(tmp_path / "team.git", AGENTS)
    for agent_id, sandbox in sandboxes.items():
        attach(remote, agent_id, sandbox)
    commit = git(sandboxes["agent1"], f"seq 3 >new; {COMMIT}; git rev-parse HEAD").split()[0]
    sandboxes["agent1"].run(
        ["git", "--git-dir=/cooperbench/team.git", "fetch", "-q", "/tmp/repo", "HEAD"]
    )
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    later = threading.Timer(1.0, resource.setrlimit, (resource.RLIMIT_NOFILE, usual))
    later.start()
    resource.setrlimit(resource.RLIMIT_NOFILE, (8, usual[1]))
    try:
        assert remote.push("agent1", commit).code == 0
    finally:
        later.join()
    assert remote.counts["pushes"] == {"agent1": 1, "agent2": 0}
    assert remote.counts["refused"] == {"agent1": 0, "agent2": 0}
    remote.close()
