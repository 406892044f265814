"""An agent's repository: made the same for everybody at the start, taken as a patch by the harness at the end."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from cooperbench.agents.base import REPO_DIR
from cooperbench.errors import SandboxError
from cooperbench.sandbox import scrub_script

if TYPE_CHECKING:
    from cooperbench.sandbox.contract import RichSandbox

PREPARED_GIT_DIR = "/cooperbench/base.git"
"""Where a backend that prepares images puts the base commit."""
SCRUBBED_GIT_DIR = "/cooperbench/scrubbed.git"
"""Where the harness puts it in sandboxes of other backends."""
PATCH_FILE = "/cooperbench/work.patch"
SCRUB_SECONDS = 900
SNAPSHOT_SECONDS = 900


class Start(NamedTuple):
    """The state that an agent starts from."""

    commit: str
    """The same in every sandbox of a task."""
    git_dir: str
    """A bare repository with that commit, beside the agent's own."""


def prepare_repository(sandbox: RichSandbox, *, already_scrubbed: bool) -> Start:
    """Leave one commit in the repository, without history or remotes."""
    git_dir = PREPARED_GIT_DIR if already_scrubbed else SCRUBBED_GIT_DIR
    if already_scrubbed:
        argv = ["git", f"--git-dir={git_dir}", "rev-parse", "HEAD"]
    else:
        argv = ["bash", "-c", scrub_script().decode(), "scrub", REPO_DIR, git_dir]
    done = sandbox.run(argv, timeout_seconds=SCRUB_SECONDS)
    commit = done.stdout_read().strip().rpartition("\n")[2]
    if done.returncode != 0 or len(commit) < 40:
        reason = done.stderr_read().strip() or done.stdout_read().strip()
        raise SandboxError(f"the repository at {REPO_DIR} could not be prepared: {reason[-300:]}")
    return Start(commit, git_dir)


def take_patch(sandbox: RichSandbox, start: Start) -> bytes:
    """What the agent has done so far, whether it committed it or not."""
    script = (files("cooperbench.runner") / "snapshot.sh").read_text()
    argv = ["bash", "-c", script, "snapshot", REPO_DIR, start.git_dir, PATCH_FILE]
    done = sandbox.run(argv, timeout_seconds=SNAPSHOT_SECONDS)
    if done.returncode != 0:
        raise SandboxError(f"the patch could not be taken: {done.stderr_read().strip()[-300:]}")
    return sandbox.read_file(PATCH_FILE)
