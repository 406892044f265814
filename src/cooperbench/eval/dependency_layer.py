"""The dependency layer: a task's image with the packages that its runner installs.

With it, tests that would otherwise need a package index run without a network.
"""

from __future__ import annotations

import hashlib
from importlib import resources

from cooperbench.eval.conditions import INSTALL_ENV, PIP_LOG, WHEELS_DIR
from cooperbench.eval.test_runs import PATCHES_DIR, TESTS_NAME, run_tests
from cooperbench.models import REPO_DIR, Task
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.sandbox.manager import SandboxManager

_FORMAT = 2
"""Increased when layers are made differently: layers of other formats are not used."""


def make_dependency_layer(task: Task, sandboxes: SandboxManager, timeout_seconds: int) -> str:
    """Return the name of the image with a task's dependency layer; make it if it does not exist."""
    backend = sandboxes.backend
    image = sandboxes.image(task)
    image_ref = image.evaluation_ref or image.ref
    tests = task.features[0].tests.read_bytes()
    keep_wheels = resources.files(__package__).joinpath("keep_wheels.sh").read_bytes()

    digest = hashlib.sha256(f"{_FORMAT} {image.digest} {image_ref}".encode())
    for part in (task.runner_script.read_bytes(), tests, keep_wheels):
        digest.update(hashlib.sha256(part).digest())
    key = digest.hexdigest()[:16]

    options = SandboxOptions(
        purpose="setup",
        network="public",
        labels={"task": task.label},
        snapshot_excludes=(REPO_DIR,),
    )
    with backend.locked_snapshot(task, key) as existing:
        if existing:
            return existing
        with sandboxes.sandbox(
            image_ref, timeout_seconds=3 * timeout_seconds, options=options
        ) as sandbox:
            # The result does not matter: the feature is missing, so its tests fail.
            run_tests(sandbox, tests, None, timeout_seconds, INSTALL_ENV, last=False)
            argv = ["bash", "-c", keep_wheels.decode(), "keep-wheels"]
            argv += [PIP_LOG, WHEELS_DIR, f"{PATCHES_DIR}/{TESTS_NAME}"]
            sandbox.run_checked(
                argv, f"{task.label}: cannot keep the packages that pip downloaded", timeout_seconds
            )
            return backend.take_snapshot(sandbox, task, key)
