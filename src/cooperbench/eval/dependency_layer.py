"""The dependency layer: a task's image with the packages that its runner installs.

With it, tests that would otherwise need a package index run without a network. For Go it also has
what was compiled, so that each test run compiles only what a patch changes.
"""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from typing import NamedTuple

from cooperbench.errors import InfraError, SandboxRefused
from cooperbench.eval.conditions import (
    BUILD_PACKAGES,
    INSTALL_ENV,
    LAYER_FORMAT,
    PIP_LOG,
    WHEELS_DIR,
    Conditions,
)
from cooperbench.eval.package_index import Outage, find_outage
from cooperbench.eval.test_runs import PATCHES_DIR, TESTS_NAME, TestRun, run_tests
from cooperbench.models import REPO_DIR, Task
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.sandbox.manager import SandboxManager

_SCRIPTS = ("keep_wheels.sh", "install_build_packages.sh")
_RUNS_GO = re.compile(r"^(?!\s*(?:\#|echo\b)).*\bgo\s+(?:test|build|vet)\b", re.MULTILINE)
_DOES_NOT_COMPILE = re.compile(
    r"^(?:error\[E\d+\]: |error: could not compile |[^\n]{1,300}error TS\d+: )", re.MULTILINE
)
"""Errors of compilers, which start when everything is installed."""


class DependencyLayerError(InfraError):
    """A dependency layer could not be made, because the runner did not get as far as the tests."""

    def __init__(self, reason: str, outage: Outage | None = None) -> None:
        """Create the error; `outage` is the server that was unreachable, if that was the cause."""
        super().__init__(str(outage) if outage else reason)
        self.outage = outage


class DependencyLayer(NamedTuple):
    """A dependency layer, or why it could not be made."""

    image_ref: str
    error: DependencyLayerError | None = None


def compiles_outside_repository(task: Task) -> bool:
    """Whether a task's runner uses Go, which keeps what it compiles outside of the repository."""
    try:
        return bool(_RUNS_GO.search(task.runner_script.read_text(errors="replace")))
    except OSError:
        return False


def make_dependency_layer(
    task: Task, sandboxes: SandboxManager, timeout_seconds: int
) -> DependencyLayer:
    """Return a task's dependency layer; make it if it does not exist.

    It is kept only if the runner got as far as the tests.
    """
    backend = sandboxes.backend
    image = sandboxes.image(task)
    image_ref = image.evaluation_ref or image.ref
    tests = task.features[0].tests.read_bytes()

    digest = hashlib.sha256(f"{LAYER_FORMAT} {image.digest} {image_ref}".encode())
    for part in (task.runner_script.read_bytes(), tests, *map(_script, _SCRIPTS)):
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
            return DependencyLayer(existing)
        with sandboxes.sandbox(
            image_ref, timeout_seconds=4 * timeout_seconds, options=options
        ) as sandbox:
            run = run_tests(sandbox, tests, None, timeout_seconds, INSTALL_ENV, last=False)
            error = _install_error(run, sandbox)
            if error:
                return DependencyLayer("", error)
            _keep_wheels(sandbox, task, timeout_seconds)
            _prepare_builds(sandbox, tests, run, timeout_seconds)
            _keep_wheels(sandbox, task, timeout_seconds)
            return DependencyLayer(backend.take_snapshot(sandbox, task, key))


def _script(name: str) -> bytes:
    return resources.files(__package__).joinpath(name).read_bytes()


def _keep_wheels(sandbox: Sandbox, task: Task, timeout_seconds: int) -> None:
    """Keep what pip has downloaded, and remove the traces of the test run."""
    argv = ["bash", "-c", _script("keep_wheels.sh").decode(), "keep-wheels"]
    argv += [PIP_LOG, WHEELS_DIR, f"{PATCHES_DIR}/{TESTS_NAME}"]
    failed = f"{task.label}: cannot keep the packages that pip downloaded"
    sandbox.run_checked(argv, failed, timeout_seconds)


def _prepare_builds(
    sandbox: Sandbox, tests: bytes, install_run: TestRun, timeout_seconds: int
) -> None:
    """Install the packages with which pip builds, if the runner ends in the same way with them."""
    argv = ["bash", "-c", _script("install_build_packages.sh").decode(), "build", WHEELS_DIR]
    result = sandbox.run(argv, timeout_seconds=timeout_seconds)
    names = result.stdout_read().split()
    if result.returncode or not names:
        return
    sandbox.write_file(BUILD_PACKAGES, result.stdout)
    env = Conditions("none", installed=True).env_for(b"")
    run = run_tests(sandbox, tests, None, timeout_seconds, env, last=False)
    if _ending(run) != _ending(install_run):
        argv = ["bash", "-c", f'rm {BUILD_PACKAGES}; pip uninstall -y "$@"', "undo", *names]
        sandbox.run(argv, timeout_seconds=timeout_seconds)


def _ending(run: TestRun) -> tuple[object, ...]:
    """Return what must not differ between two runs of the same tests on the same code."""
    counts = (run.tests_passed, run.tests_failed, run.tests_skipped)
    return run.exit_code, counts, dict(run.outcomes)


def _install_error(run: TestRun, sandbox: Sandbox) -> DependencyLayerError | None:
    """Return why a runner did not install everything; None if it did.

    The result of the tests does not matter: the feature is missing, so they fail, and in some
    languages do not compile.
    """
    if run.success:
        return None
    has_tests = bool(run.framework or run.outcomes)
    outage = find_outage(run.output, _read_pip_log(sandbox))
    if outage and (outage.is_of_package_manager or not has_tests):
        return DependencyLayerError("", outage)
    if has_tests or _DOES_NOT_COMPILE.search(run.output):
        return None
    return DependencyLayerError(f"its runner fails before the tests: {run.error}")


def _read_pip_log(sandbox: Sandbox) -> str:
    try:
        return sandbox.read_file(PIP_LOG).decode(errors="replace")
    except (OSError, SandboxRefused):
        return ""  # the runner does not use pip
