"""Repositories in sandboxes, as the harness handles them: what a script does there, and packs taken out of them."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from cooperbench.errors import SandboxError
from cooperbench.team.sandbox_rpc import script_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cooperbench.sandbox.contract import CommandResult, RichSandbox

LARGEST_BASE_BYTES = 250_000_000
_SCRIPT_SECONDS = 240.0


class Unpackable(Exception):
    """Why something could not be taken out of a repository, as it can be said to an agent."""


def run_git_script(sandbox: RichSandbox, script: str, *words: str) -> CommandResult:
    """Run the text of a script that uses `clean_git.sh`, in a sandbox."""
    argv = ["bash", "-c", script_text("clean_git.sh") + script, "script", *words]
    return sandbox.run(argv, timeout_seconds=_SCRIPT_SECONDS)


def in_repository(sandbox: RichSandbox, command: str, git_dir: str, *words: str) -> CommandResult:
    return run_git_script(sandbox, script_text("gitremote.sh"), command, git_dir, *words)


def join_team(
    sandbox: RichSandbox, repo_dir: str, url: str, commit: str, own_id: str, agent_ids: Iterable[str]
) -> None:
    """Give an agent's repository the remote `team`, with every branch at the commit that they start from."""
    done = in_repository(sandbox, "join", repo_dir, url, commit, own_id, *agent_ids)
    if done.returncode != 0:
        raise SandboxError(f"the agent's repository got no remote: {done.stderr_read().strip()[-300:]}")


def read_pack(
    sandbox: RichSandbox,
    git_dir: str,
    commits: Sequence[str],
    *,
    limit_bytes: int,
    known: Iterable[str] = (),
    folder: str | None = None,
) -> bytes:
    """What commits in a sandbox have beyond the known ones. `folder`: for a passing file, else the repository."""
    file = f"{folder or git_dir}/outgoing-{secrets.token_hex(8)}.pack"
    done = in_repository(sandbox, "pack", git_dir, str(limit_bytes), file, *commits, "--", *known)
    size = done.stdout_read().strip()
    if done.returncode != 0 or not size.isdigit():
        raise Unpackable(f"git could not pack it: {done.stderr_read().strip()[-200:]}")
    pack = b"" if int(size) > limit_bytes else sandbox.read_file(file)
    sandbox.run(["rm", "-f", "--", file], timeout_seconds=60)
    if int(size) > limit_bytes or len(pack) > limit_bytes:
        raise Unpackable(f"too large: only {limit_bytes} more bytes (packed) may be pushed")
    return pack
