"""What a task's runner installs, kept: run once on the base, so that later calls find their packages there.

Runners resolve, fetch and build on every call. The runner is run on the base commit with a network (tests, but no
feature: nothing of a golden patch may stay behind), and what it changed outside the repository becomes a layer on top
of the task's image: packages, and the caches of pip, uv, npm, pnpm, go and cargo. Each test run has a sandbox of its
own on top of that, so code under test can never write to what others will use. The runner still does its installs.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import TYPE_CHECKING, cast

from cooperbench.errors import SandboxError
from cooperbench.eval.testrun import INSTALLED, PATCHES_DIR, WHEELS_DIR, run_tests
from cooperbench.models import REPO_DIR
from cooperbench.sandbox.contract import SandboxOptions

if TYPE_CHECKING:
    from cooperbench.models import Task
    from cooperbench.sandbox.contract import FullBackend
    from cooperbench.sandbox.session import SandboxSession

_FORMAT = 1
_PIP_LOG = "/cooperbench/pip.log"
_ENVIRONMENT = {
    **INSTALLED,
    "PIP_LOG": _PIP_LOG,
    # Empty counts as not set: an image that switches the cache off for its own size would fetch everything twice.
    "PIP_NO_CACHE_DIR": "",
}


def image_with_installs(session: SandboxSession, task: Task, timeout_seconds: int) -> str:
    """The reference of the image, made now if it is not there yet."""
    backend = cast("FullBackend", session.backend)
    image = session.image(task)
    tests = task.features[0].tests.read_bytes()
    made_of = hashlib.sha256(f"{_FORMAT} {image.digest}".encode())
    for part in (task.runner_script.read_bytes(), tests, _keep_wheels()):
        made_of.update(hashlib.sha256(part).digest())
    key = made_of.hexdigest()[:16]
    with backend.making_snapshot(task, key) as found:
        if found:
            return found
        options = SandboxOptions("setup", "public", {"task": task.label}, left_out=(REPO_DIR,))
        with session.sandbox(
            image.reference, timeout_seconds=3 * timeout_seconds, options=options
        ) as sandbox:
            # Its verdict does not matter: tests of a feature that is not there fail.
            run_tests(sandbox, tests, None, timeout_seconds, _ENVIRONMENT, last=False)
            done = sandbox.run(
                ["bash", "-c", _keep_wheels().decode(), "keep-wheels", _PIP_LOG, WHEELS_DIR],
                timeout_seconds=timeout_seconds,
            )
            if done.returncode:
                raise SandboxError(
                    f"{task.label}: what pip fetched cannot be kept: {done.stderr_read()[-300:]}"
                )
            sandbox.run(["bash", "-c", f"rm -rf {PATCHES_DIR}/* {_PIP_LOG}"], timeout_seconds=60)
            return backend.take_snapshot(sandbox, task, key)


def _keep_wheels() -> bytes:
    return resources.files(__package__).joinpath("keep_wheels.sh").read_bytes()
