"""Agents that share through a git server, for the tests of every backend that has one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.sandbox.contract import RichSandbox
    from cooperbench.team.git_remote import GitRemote
    from tests.runner.helpers import Left

COMMIT = "git add -A && git commit -qm done"
AGENTS = ("agent1", "agent2")
AT_WORK, GO = "/tmp/at-work", "/tmp/go"
REPO = "/tmp/repo"
_REPOSITORY = f"""
export GIT_AUTHOR_DATE='@1 +0000' GIT_COMMITTER_DATE='@1 +0000' GIT_AUTHOR_NAME=a GIT_COMMITTER_NAME=a
export GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_EMAIL=a@b
git init -q {REPO} && cd {REPO} && echo base >file && git add file && git commit -qm base && git rev-parse HEAD
"""


def make_repository(sandbox: RichSandbox) -> str:
    """At `REPO`; its commit is the same in every sandbox."""
    return sandbox.run(["bash", "-ec", _REPOSITORY]).stdout_read().strip()


def attach(remote: GitRemote, agent_id: str, sandbox: RichSandbox) -> None:
    """A repository with the remote `team`."""
    commit = make_repository(sandbox)
    remote.attach(agent_id, sandbox, repo_dir=REPO, base_commit=commit, base_git_dir=f"{REPO}/.git")


def git(sandbox: RichSandbox, command: str) -> str:
    """What a command in the repository says, and its exit code."""
    script = f"export GIT_TERMINAL_PROMPT=0; {{ {command}; }} 2>&1; echo code $?"
    return sandbox.run(["bash", "-c", script], cwd=REPO, timeout_seconds=60).stdout_read()


def address(sandbox: RichSandbox) -> tuple[str, str, str]:
    """The remote's scheme, token and the rest."""
    scheme, _, rest = git(sandbox, "git remote get-url team").split()[0].partition("://")
    credential, _, place = rest.partition("@")
    return scheme, credential.partition(":")[2], place


def check_that_nobody_else_gets_in(one: RichSandbox, stranger: RichSandbox) -> None:
    """`stranger` is agent1 of another pair, and reaches the same server."""
    scheme, token, place = address(one)
    _, foreign_token, foreign_place = address(stranger)
    host = place.partition("/")[0]
    assert host == foreign_place.partition("/")[0]
    assert "refs/heads/agent1" in git(stranger, f"git ls-remote {scheme}://agent1:{token}@{place}")
    for pretender, url in {
        "of another pair": f"agent1:{foreign_token}@{place}",
        "of a colleague": f"agent2:{token}@{place}",
        "wrong": f"agent1:wrong@{place}",
        "nobody": place,
        "a pair that is not there": f"agent1:{token}@{host}/{'0' * 32}.git",
    }.items():
        said = git(stranger, f"git ls-remote {scheme}://{url}")
        assert "refs/heads" not in said, pretender
        assert "code 128" in said, pretender


def check_that_it_was_shared_alike(served: dict[str, Any], carried: dict[str, Any]) -> None:
    """The records of one pair that shared through a server, and again through the harness."""
    for name in ("pushes", "refused", "commits"):
        assert served["git"][name] == carried["git"][name], name
    assert served["git"]["pushes"] == dict.fromkeys(AGENTS, 1)


def talk_and_share(first: dict[str, Any], second: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """The steps of two agents, each with a change of its own: both end with both, however they share."""
    return [
        first,
        {"run": f"{COMMIT}; git push -q team HEAD:agent1 2>&1; echo code $?"},
        {"run": "git push team HEAD:agent2 2>&1; git push team :agent1 2>&1"},
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
    pushed, refused, sent, read, pulled = left.observations("agent1")[1:]
    assert "code 0" in pushed
    assert "agent2 is your colleague's branch" in refused
    assert "agent1 cannot be deleted" in refused
    assert sent == "Message sent.\n"
    assert "From agent2:\n" in read
    assert pulled.strip() == "agent2"
    assert left.patch("agent1") == left.patch("agent2")
    assert (left.folder / "team.bundle").is_file()
    messages = left.json("conversation.json")["messages"]
    assert [message["message"] for message in messages] == ["it is pushed", "merged"]


def write_waiting_script(path: Path) -> str:
    """Both agents of the buildable task say `AT_WORK`, and push when they are told to `GO`."""
    push = f"echo done >>app.txt; {COMMIT}; timeout 5 git push -q team HEAD:$(git config user.name)"
    steps = [{"run": f"touch {AT_WORK}; until [ -e {GO} ]; do sleep 0.05; done; {push}"}]
    path.write_text(yaml.safe_dump({"repos": {"tiny_task": {7: {"coop": {1: steps, 2: steps}}}}}))
    return str(path)


def check_that_it_was_run_again(left: Left) -> None:
    assert (left.result["status"], left.result["attempt"]) == ("completed", 2)
    assert left.result["git"]["pushes"] == dict.fromkeys(AGENTS, 1)
