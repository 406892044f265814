"""An agent's repository: made the same for everybody at the start, taken as a patch by the harness at the end."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from cooperbench.agents.base import REPO_DIR
from cooperbench.errors import SandboxError

if TYPE_CHECKING:
    from cooperbench.eval.backends.base import RichSandbox

BASE_GIT_DIR = "/cooperbench/base.git"
PATCH_FILE = "/cooperbench/work.patch"
SCRUB_SECONDS = 900
SNAPSHOT_SECONDS = 900


def prepare_repository(sandbox: RichSandbox, *, already_scrubbed: bool) -> str:
    """Leave one commit, without history or remotes; its id, which is the same in every sandbox of a task."""
    if already_scrubbed:
        done = sandbox.run(["git", f"--git-dir={BASE_GIT_DIR}", "rev-parse", "HEAD"], timeout_seconds=60)
    else:
        script = (files("cooperbench.eval.backends") / "scrub.sh").read_text()
        done = sandbox.run(
            ["bash", "-c", script, "scrub", REPO_DIR, BASE_GIT_DIR], timeout_seconds=SCRUB_SECONDS
        )
    commit = done.stdout_read().strip().rpartition("\n")[2]
    if done.returncode != 0 or len(commit) < 40:
        reason = done.stderr_read().strip() or done.stdout_read().strip()
        raise SandboxError(f"the repository at {REPO_DIR} could not be prepared: {reason[-300:]}")
    return commit


def take_patch(sandbox: RichSandbox) -> bytes:
    """What the agent has done so far, whether it committed it or not."""
    script = (files("cooperbench.runner") / "snapshot.sh").read_text()
    done = sandbox.run(
        ["bash", "-c", script, "snapshot", REPO_DIR, BASE_GIT_DIR, PATCH_FILE],
        timeout_seconds=SNAPSHOT_SECONDS,
    )
    if done.returncode != 0:
        raise SandboxError(f"the patch could not be taken: {done.stderr_read().strip()[-300:]}")
    return sandbox.read_file(PATCH_FILE)
