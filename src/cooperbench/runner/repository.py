"""The repository in an agent's sandbox: its preparation, and its collection as a patch."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from cooperbench.agents.base import REPO_DIR
from cooperbench.errors import AgentFailure, SandboxError, SandboxRefused
from cooperbench.eval.trees import MAX_PATCH_BYTES
from cooperbench.sandbox import sandbox_script
from cooperbench.sandbox.base_sandbox import SCRIPT_SECONDS, Sandbox

PREPARED_GIT_DIR = "/cooperbench/base.git"
"""The base commit in sandboxes of backends that prepare images for agents."""
STRIPPED_GIT_DIR = "/cooperbench/stripped.git"
"""The base commit in sandboxes of other backends; `strip_history.sh` creates it."""
PATCH_FILE = "/cooperbench/work.patch"
ARCHIVE_FILE = "/cooperbench/work.tar"
_CHANGES_DIR = "/cooperbench/changes"
SNAPSHOT_SECONDS = 120
PATCH_LOST = "patch_lost"
"""Status of an agent whose patch could not be collected."""
_REPLACE_WORK_TREE = """
set -e
find "$2" -mindepth 1 -maxdepth 1 -not -name .git -exec rm -rf {} +
if [ -d "$1" ]; then
    tar --create --directory="$1" --exclude=./.git . |
        tar --extract --directory="$2" --no-same-owner
    exit "${PIPESTATUS[0]}"
fi
tar --extract --file="$1" --directory="${2%/*}" --exclude="${2##*/}/.git" --no-same-owner
"""
"""Script that replaces the files of repository $2 with those of the folder or archive $1."""


@runtime_checkable
class CanShowFolder(Protocol):
    """A sandbox that can hand its files to another one without running a command inside."""

    def show_folder(self, path: str, other: Sandbox, target: str) -> None:
        """Copy a folder to `target` in the other sandbox, as a folder or an archive."""
        ...


def prepare_repository(sandbox: Sandbox, git_dir: str) -> str:
    """Reduce the repository to one commit without history or remotes and return the commit's id.

    `git_dir` keeps that commit outside of the repository, where the agent does not work.
    """
    if git_dir == STRIPPED_GIT_DIR:
        return sandbox.run_script("strip_history.sh", git_dir)
    argv = ["git", f"--git-dir={git_dir}", "rev-parse", "HEAD"]
    return sandbox.run_checked(argv, f"the image has no {git_dir}", SCRIPT_SECONDS).strip()


def take_patch(sandbox: Sandbox, git_dir: str) -> bytes:
    """Return the difference between the base commit and the work tree, committed or not.

    Raises:
        AgentFailure: The agent broke the tools in its sandbox, or the patch is too large.
    """
    script = sandbox_script("work_tree.sh") + sandbox_script("snapshot.sh")
    arguments = (REPO_DIR, git_dir, PATCH_FILE, str(MAX_PATCH_BYTES))
    argv = ["bash", "-c", script, "snapshot", *arguments]
    result = sandbox.run(argv, timeout_seconds=SNAPSHOT_SECONDS)
    problem: object = result.stderr_read().strip()[-300:]
    if result.timed_out:
        problem = f"timeout after {SNAPSHOT_SECONDS} s"
    elif result.returncode == 0:
        try:
            return sandbox.read_file(PATCH_FILE)
        except (SandboxRefused, FileNotFoundError) as error:
            # A process that the agent left running has replaced the file.
            problem = error
    raise AgentFailure(PATCH_LOST, f"the patch could not be collected: {problem}")


def take_patch_elsewhere(
    sandbox: CanShowFolder,
    spare_sandbox: AbstractContextManager[Sandbox],
    git_dir: str,
    failure: AgentFailure,
) -> bytes:
    """Copy the work tree to a spare sandbox, whose tools are intact; return the patch from there.

    `failure` is why the patch could not be taken in the agent's own sandbox.
    """
    with spare_sandbox as spare:
        prepare_repository(spare, git_dir)
        try:
            sandbox.show_folder(REPO_DIR, spare, ARCHIVE_FILE)
        except SandboxRefused:
            raise failure from None
        argv = ["bash", "-c", _REPLACE_WORK_TREE, "unpack", ARCHIVE_FILE, REPO_DIR]
        result = spare.run(argv, timeout_seconds=SNAPSHOT_SECONDS)
        if result.returncode != 0:
            reason = result.stderr_read().strip()[-300:]
            raise AgentFailure(PATCH_LOST, f"the work tree could not be copied: {reason}")
        return take_patch(spare, git_dir)


def list_changes(sandbox: Sandbox, git_dir: str, agent_id: str) -> dict[str, str] | None:
    """Return the files that differ from the base commit, each with its mode, blob and status.

    It is part of a recording, which must not end the agent: None if the files cannot be listed.
    Agents that share a sandbox may list the files at the same time.
    """
    script = sandbox_script("work_tree.sh") + sandbox_script("changed_files.sh")
    arguments = (REPO_DIR, git_dir, f"{_CHANGES_DIR}/{agent_id}")
    argv = ["bash", "-c", script, "changed_files", *arguments]
    try:
        result = sandbox.run(argv, timeout_seconds=SNAPSHOT_SECONDS)
    except SandboxError:
        return None
    if result.returncode != 0 or result.timed_out:
        return None
    changes = {}
    for line in result.stdout_read().splitlines():
        content, _, path = line.partition("\t")
        changes[path] = content
    return changes
