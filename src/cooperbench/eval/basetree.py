"""The base commit of a task, read out of an untouched sandbox."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from cooperbench.errors import SandboxError
from cooperbench.eval.gittree import CommitTree
from cooperbench.models import REPO_DIR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cooperbench.sandbox.contract import RichSandbox

_SCRATCH = "/tmp/cooperbench-base"  # noqa: S108  # inside a sandbox
_SECONDS = 300
_GIT = (
    "GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null "
    f"git -c safe.directory='*' -c core.fsmonitor=false -C {REPO_DIR}"
)


class SandboxBaseTree(CommitTree):
    """HEAD of a sandbox's repository. It is listed at once; files are read when asked for."""

    def __init__(self, sandbox: RichSandbox) -> None:
        def call(words: Sequence[str], stdin: bytes) -> bytes:
            # By way of a file: what a command prints is capped, a file is not.
            script = f"{_GIT} {shlex.join(words)} >{_SCRATCH}"
            done = sandbox.run(["bash", "-c", script], stdin=stdin, timeout_seconds=_SECONDS)
            if done.returncode != 0:
                raise SandboxError(f"{REPO_DIR} cannot be read: {done.stderr_read().strip()[-300:]}")
            output = sandbox.read_file(_SCRATCH)
            sandbox.run(["rm", "-f", _SCRATCH], timeout_seconds=60)
            return output

        super().__init__("HEAD", REPO_DIR, call)
