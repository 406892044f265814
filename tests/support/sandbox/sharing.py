"""Agents that share a git remote, for the tests of several backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from cooperbench.sandbox.contract import Sandbox
    from cooperbench.team.git_remote import GitRemote
    from tests.support.runner.helpers import Left

COMMIT = "git add -A && git commit -qm done"
AGENTS = ("agent1", "agent2")
REPO = "/tmp/repo"
_REPOSITORY = f"""
export GIT_AUTHOR_DATE='@1 +0000' GIT_COMMITTER_DATE='@1 +0000' GIT_AUTHOR_NAME=a GIT_COMMITTER_NAME=a
export GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_EMAIL=a@b
git init -q {REPO} && cd {REPO} && echo base >file && git add file && git commit -qm base && git rev-parse HEAD
"""


def attach(remote: GitRemote, agent_id: str, sandbox: Sandbox) -> None:
    """A repository with the remote `team`; its commit is the same in every sandbox."""
    commit = sandbox.run(["bash", "-ec", _REPOSITORY]).stdout_read().strip()
    remote.attach(agent_id, sandbox, repo_dir=REPO, base_commit=commit, base_git_dir=f"{REPO}/.git")


def git(sandbox: Sandbox, command: str) -> str:
    """What a command in the repository says, and its exit code."""
    script = f"export GIT_TERMINAL_PROMPT=0; {{ {command}; }} 2>&1; echo code $?"
    return sandbox.run(["bash", "-c", script], cwd=REPO, timeout_seconds=60).stdout_read()


def lower_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    """For `talk_and_share`."""
    monkeypatch.setattr("cooperbench.team.git_remote.QUOTA_BYTES", 500_000)


def talk_and_share(first: dict[str, Any], second: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """The steps of two agents, each with a change of its own: both end with both."""
    too_much = f"head -c 600000 /dev/urandom >big; {COMMIT}; git push team HEAD:agent1 2>&1"
    return [
        first,
        {"run": f"{COMMIT}; git push -q team HEAD:agent1 2>&1; echo code $?"},
        {"run": "git push team HEAD:agent2 2>&1; git push team :agent1 2>&1"},
        {"run": f"{too_much}; git reset -q --hard HEAD~1"},
        {"run": "send_message agent2 it is pushed"},
        {"run": "read_messages --wait 120"},
        {"run": "git pull -q --no-edit team agent2 2>&1; git log --format=%an -1"},
    ], [
        second,
        {"wait": {"for": "pushed", "seconds": 120}},
        {"run": f"{COMMIT}; git pull -q --no-edit team agent1 && git push -q team HEAD:agent2; echo code $?"},
        {"run": "send_message agent1 merged"},
    ]  # fmt: skip


def check_that_they_talked_and_shared(left: Left) -> None:
    pushed, refused, too_large, sent, read, pulled = left.observations("agent1")[1:]
    assert "code 0" in pushed
    assert "agent2 is your teammate's branch" in refused
    assert "agent1 cannot be deleted" in refused
    assert "refused: too large" in too_large
    assert sent == "Message sent.\n"
    assert "From agent2:\n" in read
    assert pulled.strip() == "agent2"
    assert left.patch("agent1") == left.patch("agent2")
    assert (left.folder / "team.bundle").is_file()
    assert not (left.folder / ".team.git").exists()
    shared = left.result["git"]
    assert shared["pushes"] == {"agent1": 1, "agent2": 1}
    assert shared["refused"] == {"agent1": 1, "agent2": 0}
    assert shared["commits"] == {"agent1": 1, "agent2": 2}
    messages = left.json("conversation.json")["messages"]
    assert [message["message"] for message in messages] == ["it is pushed", "merged"]
