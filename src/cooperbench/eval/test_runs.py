"""Test runs: one patch against one feature's tests, in a fresh sandbox, and the same question only once.

The runner's exit code decides first, then what its test framework printed: no success without every test that passes
with the golden patch, none with one that failed. Also the image that keeps what a runner installs.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
import weakref
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cooperbench.errors import SandboxDestroyed, UserError
from cooperbench.eval.protected_files import ProtectedFiles, feature_paths
from cooperbench.eval.test_logs import first_error, read_counts, read_outcomes
from cooperbench.eval.trees import base_folder, load_base, read_base
from cooperbench.models import REPO_DIR
from cooperbench.retry import SingleFlight, with_retries
from cooperbench.sandbox.contract import (
    CommandResult,
    SandboxOptions,
    check_network,
)
from cooperbench.temporary import owned_prefix, remove_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cooperbench.eval.log_parsers import Counts, Outcome
    from cooperbench.eval.reference import Reference
    from cooperbench.eval.trees import Base, TreeStore
    from cooperbench.models import EvalNetwork, Feature, Image, Task
    from cooperbench.sandbox.contract import Capabilities, NetworkPolicy, Sandbox
    from cooperbench.sandbox.manager import SandboxManager

T = TypeVar("T")

RUNNER = "/usr/local/bin/runner.sh"
SPARE_SECONDS = 300
"""How much longer than the tests a sandbox may live."""
_PATCHES_DIR = "/patches"
_TESTS_NAME = "tests.patch"
_FEATURE_NAME = "feature.patch"
_WHEELS_DIR = "/cooperbench/wheels"
"""Where an image with installs has what pip fetched."""
_INSTALLED = {"npm_config_store_dir": "/cooperbench/pnpm-store"}
"""For every call in an image with installs. By itself pnpm keeps its store on the file system of the repository."""
_OFFLINE = {
    **_INSTALLED,
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": _WHEELS_DIR,
    "UV_OFFLINE": "1",
    "npm_config_offline": "true",
    "GOPROXY": "off",
    "CARGO_NET_OFFLINE": "true",
}
"""Tells package managers to take what the image with installs has, since there is no network."""
_PIP_LOG = "/cooperbench/pip.log"
# Empty counts as not set: an image that switches the cache off for its own size would fetch everything twice.
_INSTALLING = {**_INSTALLED, "PIP_LOG": _PIP_LOG, "PIP_NO_CACHE_DIR": ""}
_DEPENDENCY_LAYER_FORMAT = 2
_NAME_ALL_TESTS = """
export PYTEST_ADDOPTS="-vv -rpfEsxX${PYTEST_ADDOPTS:+ $PYTEST_ADDOPTS}" NEXTEST_STATUS_LEVEL=pass
if command -v go >/dev/null; then export GOFLAGS="$(go env GOFLAGS) -v"; fi
[ ! -r "${BASH_ENV-}" ] || . "$BASH_ENV"
(. "$0" "$@")
code=$?
exit $((code == 137 ? 1 : code))
"""
"""Asks frameworks that can be asked by their environment to name every test, also those that pass; then the runner.

The runner is sourced, not executed: bash reads it whole before it runs it, so that code under test that rewrites it
changes nothing, and a bash that no other process may trace stays one. Such a bash does not read BASH_ENV by itself.
A killed runner ends with 1, so that a backend can tell it from a sandbox that was killed from outside.
"""
_KILLED = 137
_OUTPUT_LIMIT = 8_000_000
_KEPT_OUTPUT_CHARACTERS = 1_000_000
"""An answer with more output is not kept for others who ask the same: a whole experiment's would fill the memory."""
_REMOVERS = 2


class Conditions(NamedTuple):
    """Under what tests run; a verdict is compared only with a reference under the same."""

    network: NetworkPolicy | None
    """None: the backend takes no options, and whoever wrote it decides."""
    installed: bool = False
    """In the image that keeps what the runner installs."""

    @property
    def env(self) -> Mapping[str, str]:
        if not self.installed:
            return {}
        return _OFFLINE if self.network == "none" else _INSTALLED


def conditions_to_try(can: Capabilities, asked: EvalNetwork) -> tuple[Conditions, ...]:
    """From the strictest to what was asked for at most; UserError where the backend cannot give that."""
    if not can.networks:
        if asked != "auto":
            raise UserError(
                f"this backend cannot be asked for a network of evaluation ({asked}): it takes no options;"
                " use --eval-network auto"
            )
        return (Conditions(None),)
    steps = [Conditions("none"), Conditions("public", installed=can.snapshots)]
    if asked == "auto" and can.snapshots:
        steps.insert(1, Conditions("none", installed=True))
    steps = [one for one in steps if asked in ("auto", one.network)]
    if all(one.network not in can.networks for one in steps):
        check_network(can, SandboxOptions(network=steps[0].network or "none"))
    return tuple(one for one in steps if one.network in can.networks)


@dataclass(frozen=True)
class TestRun:
    """How the tests of one feature went."""

    __test__ = False

    success: bool
    tests_passed: int
    tests_failed: int
    tests_skipped: int
    framework: str | None
    exit_code: int | None
    """None where nothing was run."""
    timed_out: bool
    duration_seconds: float
    error: str | None
    """One line; None on success."""
    output: str = ""
    flaky_failures: tuple[str, ...] = ()
    """Tests that failed and are not required, as they fail now and then with the golden patch too."""
    missing_tests: tuple[str, ...] = ()
    """Tests that pass with the golden patch and were not even named here."""
    skipped_tests: tuple[str, ...] = ()
    """Tests that pass with the golden patch and were skipped here."""

    @cached_property
    def outcomes(self) -> Mapping[str, Outcome]:
        """Of each test that the output names."""
        return read_outcomes(self.output)

    def to_json(self) -> dict[str, Any]:
        """Without its output."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "output"}

    def compare_with_reference(self, reference: Reference) -> TestRun:
        """A success needs every test that passes with the golden patch to have passed here, but for flaky ones.

        It is a success, too, where only flaky tests failed. Where the framework names no tests, their numbers decide.
        """
        if self.exit_code is None or self.timed_out:
            return self
        outcomes, flaky, golden = self.outcomes, set(reference.flaky_tests), reference.golden
        absent = {test for test in reference.passed_tests if outcomes.get(test) != "passed"} - flaky
        if not self.success:
            failures = {test for test, outcome in outcomes.items() if outcome == "failed"}
            if absent or not failures or not failures <= flaky or not self.tests_passed:
                return self
            return replace(self, success=True, error=None, flaky_failures=tuple(sorted(failures)))
        passed, skipped, expected = (
            self.tests_passed,
            self.tests_skipped,
            len(reference.passed_tests),
        )
        if absent:
            error = f"{len(absent)} of {expected} expected tests did not run: {min(absent)}"
        elif passed + len(flaky) < golden.tests_passed:
            error = f"only {passed} tests passed, {golden.tests_passed} do with the golden patch"
        elif skipped > golden.tests_skipped + len(flaky) and not reference.passed_tests:
            error = (
                f"{skipped} tests were skipped, {golden.tests_skipped} are with the golden patch"
            )
        else:
            return self
        not_run = tuple(sorted(test for test in absent if outcomes.get(test) == "skipped"))
        missing = tuple(sorted(absent - set(not_run)))
        return replace(
            self, success=False, error=error, missing_tests=missing, skipped_tests=not_run
        )


def not_run(reason: str) -> TestRun:
    """A test run that could not take place, and so was no success."""
    return TestRun(False, 0, 0, 0, None, None, False, 0.0, reason)


def run_tests(
    sandbox: Sandbox,
    tests: bytes,
    patch: bytes | None,
    timeout_seconds: int,
    env: Mapping[str, str] | None = None,
    *,
    last: bool = True,
) -> TestRun:
    """`patch` None or empty means the base as it is. Unless `last` is off, the sandbox has then served its purpose."""
    sandbox.write_file(f"{_PATCHES_DIR}/{_TESTS_NAME}", tests)
    argv = ["bash", "-c", _NAME_ALL_TESTS, RUNNER, _TESTS_NAME]
    if patch:
        sandbox.write_file(f"{_PATCHES_DIR}/{_FEATURE_NAME}", patch)
        argv.append(_FEATURE_NAME)
    started = time.monotonic()
    # A backend of somebody else has only its word for it.
    run = sandbox.run_last if last else sandbox.run
    try:
        result = run(argv, timeout_seconds=timeout_seconds, env=env, output_limit=_OUTPUT_LIMIT)
    except SandboxDestroyed as error:
        result = CommandResult(_KILLED, stderr=f"{error}\n".encode())
    return read_test_run(
        result, round(result.duration_seconds or time.monotonic() - started, 3), timeout_seconds
    )


def read_test_run(result: CommandResult, duration_seconds: float, timeout_seconds: int) -> TestRun:
    output = result.stdout_read()
    if result.stderr:
        output += ("" if output.endswith("\n") or not output else "\n") + result.stderr_read()
    counts = read_counts(output)
    error = _reason(result, counts, output, timeout_seconds)
    how = (result.returncode, result.timed_out, duration_seconds)
    return TestRun(error is None, *counts, *how, error, output)


def _reason(result: CommandResult, counts: Counts, output: str, timeout_seconds: int) -> str | None:
    """Why it is no success; None if it is one."""
    if result.timed_out:
        return f"the tests did not end within {timeout_seconds} s"
    if result.returncode != 0:
        return first_error(output) or f"exit code {result.returncode}"
    if counts.failed:
        return first_error(output) or f"{counts.failed} failed, although the exit code is 0"
    return None if counts.passed else "no test passed, although the exit code is 0"


class PatchTester:
    """For one experiment on one backend; also gives base commits. All methods may be called from several threads."""

    __test__ = False

    def __init__(self, sandboxes: SandboxManager, timeout_seconds: int, run_name: str = "") -> None:
        self.timeout_seconds = timeout_seconds
        self.stop = sandboxes.stop
        self._sandboxes = sandboxes
        self._labels = {"run": run_name} if run_name else {}
        self._bases: SingleFlight[Task, Base] = SingleFlight()
        self._paths: SingleFlight[Feature, tuple[frozenset[str], frozenset[str]]] = SingleFlight()
        self._installed: SingleFlight[Task, str] = SingleFlight()
        self._answers: SingleFlight[tuple[object, ...], TestRun] = SingleFlight()
        # A removal takes a while in some backends, and no test has to wait for it. What is left ends with the manager.
        self._removals = sandboxes.pool(_REMOVERS, "removal")

    @property
    def backend_can(self) -> Capabilities:
        return self._sandboxes.backend.capabilities

    def image(self, task: Task) -> Image:
        return self._sandboxes.image(task)

    def base(self, task: Task) -> Base:
        """The task's base commit, read from its image unless that was done on this machine before."""
        return self._bases.get(task, lambda: self._read_base(task))

    def protected_files(self, features: Iterable[Feature], store: TreeStore) -> ProtectedFiles:
        """What patches that are to implement these features are held against."""
        found = [self._paths.get(one, partial(feature_paths, one, store)) for one in features]
        hidden, golden = (frozenset[str]().union(*paths) for paths in zip(*found, strict=True))
        return ProtectedFiles(hidden, golden, store.base.paths, store.base.installed_modules)

    def ask(self, feature: Feature, patch: bytes, tree: str, conditions: Conditions) -> TestRun:
        """Run the feature's tests with a patch, unless that was done already. `tree` identifies what it makes."""
        question = (feature, tree, conditions)
        run = self._answers.get(question, lambda: self.run(feature, patch, conditions))
        if len(run.output) > _KEPT_OUTPUT_CHARACTERS:
            self._answers.forget(question)
        return run

    def run(
        self,
        feature: Feature,
        patch: bytes | None,
        conditions: Conditions,
        tests: bytes | None = None,
    ) -> TestRun:
        """The same without asking whether it was done before, with other `tests` than the feature's if given.

        Without a patch it is the base as it is.
        """
        given = feature.tests.read_bytes() if tests is None else tests
        return self._in_sandbox(
            feature.task,
            conditions,
            lambda sandbox: run_tests(sandbox, given, patch, self.timeout_seconds, conditions.env),
        )

    def _read_base(self, task: Task) -> Base:
        if digest := self.image(task).digest:
            folder = base_folder(digest)
        else:
            # Nobody could say later what it was read from: it is kept as long as this object.
            scratch = Path(tempfile.mkdtemp(prefix=owned_prefix("base")))
            weakref.finalize(self, remove_tree, scratch)
            folder = scratch / "base"
        if known := load_base(folder):
            return known
        network: NetworkPolicy = "none" if "none" in self.backend_can.networks else "public"
        return self._in_sandbox(
            task, Conditions(network), lambda sandbox: read_base(sandbox, folder), judged=False
        )

    def _in_sandbox(
        self,
        task: Task,
        conditions: Conditions,
        work: Callable[[Sandbox], T],
        *,
        judged: bool = True,
    ) -> T:
        """In a fresh one; again in another where that fails through nobody's fault."""
        labels = {**self._labels, "task": task.label}

        def attempt(_: int) -> T:
            clean = self.image(task).evaluation_ref
            image = clean or self.image(task).ref
            if conditions.installed:
                image = self._installed.get(task, lambda: self._dependency_layer(task))
            seconds, network = self.timeout_seconds + SPARE_SECONDS, conditions.network or "none"
            options = SandboxOptions(
                "evaluation", network, labels, for_test_run=judged and bool(clean)
            )
            sandbox = self._sandboxes.open(image, timeout_seconds=seconds, options=options)
            try:
                if judged and not clean:
                    sandbox.run_script("strip_future_commits.sh")
                return work(sandbox)
            finally:
                self._removals.submit(self._sandboxes.end, sandbox)

        return with_retries(attempt, self.stop)

    def _dependency_layer(self, task: Task) -> str:
        """The reference of the image, made now if it is not there yet."""
        backend, seconds = self._sandboxes.backend, self.timeout_seconds
        image = self.image(task)
        tests = task.features[0].tests.read_bytes()
        keep_wheels = resources.files(__package__).joinpath("keep_wheels.sh").read_bytes()
        reference = image.evaluation_ref or image.ref
        made_of = hashlib.sha256(f"{_DEPENDENCY_LAYER_FORMAT} {image.digest} {reference}".encode())
        for part in (task.runner_script.read_bytes(), tests, keep_wheels):
            made_of.update(hashlib.sha256(part).digest())
        key = made_of.hexdigest()[:16]
        options = SandboxOptions(
            "setup", "public", {"task": task.label}, snapshot_excludes=(REPO_DIR,)
        )
        with backend.locked_snapshot(task, key) as found:
            if found:
                return found
            with self._sandboxes.sandbox(
                reference, timeout_seconds=3 * seconds, options=options
            ) as sandbox:
                # Its verdict does not matter: tests of a feature that is not there fail.
                run_tests(sandbox, tests, None, seconds, _INSTALLING, last=False)
                words = (_PIP_LOG, _WHEELS_DIR, f"{_PATCHES_DIR}/{_TESTS_NAME}")
                argv = ["bash", "-c", keep_wheels.decode(), "keep-wheels", *words]
                sandbox.run_checked(argv, f"{task.label}: what pip fetched cannot be kept", seconds)
                return backend.take_snapshot(sandbox, task, key)
