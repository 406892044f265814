"""`PatchTester`: runs patches with the tests of features, each combination once per experiment."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore
from typing import TypeVar

from cooperbench.errors import InfraError
from cooperbench.eval.base_commit import Base, base_folder, load_base, read_base
from cooperbench.eval.conditions import Conditions
from cooperbench.eval.dependency_layer import make_dependency_layer
from cooperbench.eval.fail_fast import change_runner
from cooperbench.eval.protected_files import FeaturePaths, feature_paths, hidden_tests_patch
from cooperbench.eval.protected_paths import ProtectedFiles
from cooperbench.eval.test_runs import TestRun, run_tests
from cooperbench.eval.trees import TreeStore
from cooperbench.models import Feature, Image, Task
from cooperbench.retry import SingleFlight, pause_before_retry, with_retries
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.contract import (
    Capabilities,
    NetworkPolicy,
    SandboxOptions,
)
from cooperbench.sandbox.manager import SandboxManager
from cooperbench.temporary import owned_prefix, remove_tree

SPARE_SECONDS = 300
"""Seconds by which a sandbox may outlive the time limit of the tests."""
_MAX_KEPT_OUTPUT = 1_000_000
"""Maximum output, in characters, of a run that is kept in memory for the same question."""
_REMOVAL_THREADS = 2
T = TypeVar("T")


class PatchTester:
    """Test runs and base commits for one experiment on one backend. All methods are thread-safe."""

    __test__ = False

    def __init__(self, sandboxes: SandboxManager, timeout_seconds: int, run_name: str = "") -> None:
        self.timeout_seconds = timeout_seconds
        self.stop = sandboxes.stop
        self._sandboxes = sandboxes
        self._run_name = run_name
        self._bases: SingleFlight[Task, Base] = SingleFlight()
        self._feature_paths: SingleFlight[Feature, FeaturePaths] = SingleFlight()
        self._tests: SingleFlight[Feature, bytes] = SingleFlight()
        self._dependency_layers: SingleFlight[Task, str] = SingleFlight()
        self._runs: SingleFlight[tuple[Feature, str, Conditions], TestRun] = SingleFlight()
        # Some backends need seconds to remove a sandbox, and no test has to wait for that.
        self._removals = sandboxes.pool(_REMOVAL_THREADS, "removal")
        # One thread more for each processor than pairs are evaluated at once.
        spare_threads = os.cpu_count() or 1
        self._spare_threads = BoundedSemaphore(spare_threads)
        self._helpers = sandboxes.pool(spare_threads, "test")

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the backend."""
        return self._sandboxes.backend.capabilities

    def image(self, task: Task) -> Image:
        """Return the image of a task."""
        return self._sandboxes.image(task)

    def base(self, task: Task) -> Base:
        """Return a task's base commit; read it from the image if it is not in the cache."""
        return self._bases.get(task, partial(self._load_or_read_base, task))

    def protected_files(self, features: Iterable[Feature], store: TreeStore) -> ProtectedFiles:
        """Return the files that patches for these features may not change."""
        hidden: set[str] = set()
        golden: set[str] = set()
        for feature in features:
            paths = self._feature_paths.get(feature, partial(feature_paths, feature, store))
            hidden |= paths.hidden
            golden |= paths.golden
        return ProtectedFiles(
            hidden=frozenset(hidden),
            golden=frozenset(golden),
            base=store.base.paths,
            installed_modules=store.base.installed_modules,
        )

    def run_once(
        self, feature: Feature, patch: bytes, tree: str, conditions: Conditions
    ) -> TestRun:
        """Run a feature's tests with a patch, or return the run of an equal patch.

        `tree` is the id of the git tree that the patch leads to.
        """
        key = (feature, tree, conditions)
        run = self._runs.get(key, partial(self.run, feature, patch, conditions))
        if len(run.output) > _MAX_KEPT_OUTPUT:
            self._runs.forget(key)
        return run

    def run(
        self,
        feature: Feature,
        patch: bytes | None,
        conditions: Conditions,
        tests: bytes | None = None,
        timeout_seconds: int | None = None,
    ) -> TestRun:
        """Run a feature's tests in a new sandbox; without a patch, on the base.

        `tests` take the place of the feature's tests, `timeout_seconds` that of the usual limit. A
        runner that would stop at the first failure does not: confirmations need every outcome, and
        no run may look different from another.
        After an infrastructure error the tests run again in another sandbox.

        Raises:
            DependencyLayerError: The conditions need a dependency layer, and it cannot be made.
        """
        hidden_tests = tests
        if hidden_tests is None:
            hidden_tests = self._tests.get(feature, partial(self._make_tests_patch, feature))
        timeout_seconds = timeout_seconds or self.timeout_seconds
        task = feature.task
        runner = change_runner(task.runner_script.read_bytes())
        image = self.image(task)
        image_ref = image.evaluation_ref or image.ref
        if conditions.installed:
            image_ref = self._dependency_layers.get(task, partial(self._make_layer, task))

        attempt = 1
        while True:
            try:
                with self._sandbox_for_tests(
                    task, image_ref, conditions, timeout_seconds
                ) as sandbox:
                    return run_tests(
                        sandbox,
                        hidden_tests,
                        patch,
                        timeout_seconds,
                        conditions.env_for(patch or b""),
                        runner=runner,
                    )
            except InfraError as error:
                pause_before_retry(attempt, error, self.stop)
            attempt += 1

    def _make_tests_patch(self, feature: Feature) -> bytes:
        with TreeStore(self.base(feature.task)) as store:
            return hidden_tests_patch(feature, store)

    def run_suites(
        self,
        feature: Feature,
        patch: bytes,
        conditions: Conditions,
        suites: Sequence[bytes],
        timeout_seconds: int | None = None,
    ) -> list[TestRun]:
        """Run a patch with several suites at the same time, each in a new sandbox."""
        run_suite = partial(self.run, feature, patch, conditions, timeout_seconds=timeout_seconds)
        return self.run_parallel([partial(run_suite, suite) for suite in suites])

    def run_parallel(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """Run jobs, some of them in other threads if the machine has processors to spare.

        The last job, and each one for which there is no thread, is run by the caller. So jobs may
        run jobs. An error is raised when all jobs that were started have ended.
        """
        if not jobs:
            return []
        futures: list[Future[T]] = []
        try:
            for job in jobs[:-1]:
                if self._spare_threads.acquire(blocking=False):
                    futures.append(self._helpers.submit(self._run_in_spare_thread, job))
                else:
                    future: Future[T] = Future()
                    future.set_result(job())
                    futures.append(future)
            last_result = jobs[-1]()
        finally:
            wait(futures)
        return [*(future.result() for future in futures), last_result]

    def _run_in_spare_thread(self, job: Callable[[], T]) -> T:
        try:
            return job()
        finally:
            self._spare_threads.release()

    def forget(self, feature: Feature, tree: str, conditions: Conditions) -> None:
        """Let `run_once` run the tests again."""
        self._runs.forget((feature, tree, conditions))

    def _make_layer(self, task: Task) -> str:
        """Return the name of the image with a task's dependency layer.

        Raises:
            DependencyLayerError: The runner could not install everything. It is not retried here.
        """
        layer = with_retries(
            lambda _: make_dependency_layer(task, self._sandboxes, self.timeout_seconds), self.stop
        )
        if layer.error:
            raise layer.error
        return layer.image_ref

    @contextmanager
    def _sandbox_for_tests(
        self, task: Task, image_ref: str, conditions: Conditions, timeout_seconds: int
    ) -> Iterator[Sandbox]:
        is_prepared = bool(self.image(task).evaluation_ref)
        network = conditions.network or "none"
        with self._sandbox(
            task, image_ref, network, timeout_seconds, for_test_run=is_prepared
        ) as sandbox:
            if not is_prepared:
                sandbox.run_script("strip_future_commits.sh")
            yield sandbox

    @contextmanager
    def _sandbox(
        self,
        task: Task,
        image_ref: str,
        network: NetworkPolicy,
        timeout_seconds: int,
        *,
        for_test_run: bool,
    ) -> Iterator[Sandbox]:
        """Open a sandbox, and remove it in the background at the end."""
        labels = {"task": task.label}
        if self._run_name:
            labels = {"run": self._run_name, "task": task.label}
        options = SandboxOptions("evaluation", network, labels, for_test_run=for_test_run)
        lifetime_seconds = timeout_seconds + SPARE_SECONDS
        sandbox = self._sandboxes.open(image_ref, timeout_seconds=lifetime_seconds, options=options)
        try:
            yield sandbox
        finally:
            self._removals.submit(self._sandboxes.end, sandbox)

    def _load_or_read_base(self, task: Task) -> Base:
        image = self.image(task)
        if image.digest:
            folder = base_folder(image.digest)
        else:
            # Without a digest it cannot be found again, so it lives as long as this object.
            scratch = Path(tempfile.mkdtemp(prefix=owned_prefix("base")))
            weakref.finalize(self, remove_tree, scratch)
            folder = scratch / "base"
        base = load_base(folder)
        if base:
            return base
        network: NetworkPolicy = "none" if "none" in self.capabilities.networks else "public"
        image_ref = image.evaluation_ref or image.ref

        def attempt(_: int) -> Base:
            with self._sandbox(
                task, image_ref, network, self.timeout_seconds, for_test_run=False
            ) as sandbox:
                return read_base(sandbox, folder)

        return with_retries(attempt, self.stop)
