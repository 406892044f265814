"""Test runs of one experiment: each in a fresh sandbox, and the same question only once, also across pairs.

A question is a feature's tests on one tree under some conditions. Also gives the base commits of tasks.
"""

from __future__ import annotations

import tempfile
import weakref
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.eval.base import cached_base, read_base
from cooperbench.eval.canary import add_canary
from cooperbench.eval.installs import image_with_installs
from cooperbench.eval.test_side import feature_paths, side_of
from cooperbench.eval.testrun import Conditions, run_tests
from cooperbench.retry import Once
from cooperbench.sandbox.contract import SandboxOptions, capabilities_of
from cooperbench.temporary import owned_prefix, remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cooperbench.eval.base import Base
    from cooperbench.eval.canary import Canary
    from cooperbench.eval.test_side import FeaturePaths, TestSide
    from cooperbench.eval.testrun import TestRun
    from cooperbench.eval.trees import TreeStore
    from cooperbench.models import Feature, Image, Task
    from cooperbench.sandbox.contract import Capabilities, NetworkPolicy, RichSandbox
    from cooperbench.sandbox.session import SandboxSession

SPARE_SECONDS = 300
"""How much longer than the tests a sandbox may live."""
_KEPT_OUTPUT_CHARACTERS = 1_000_000
"""An answer with more output is not kept for others who ask the same: a whole experiment's would fill the memory."""
_REMOVERS = 2


class TestExecutor:
    """For one experiment on one backend; all methods may be called from several threads."""

    __test__ = False

    def __init__(self, session: SandboxSession, timeout_seconds: int, run_name: str = "") -> None:
        self.timeout_seconds = timeout_seconds
        self.stop = session.stop
        self._session = session
        self._labels = {"run": run_name} if run_name else {}
        self._bases: Once[Task, Base] = Once()
        self._paths: Once[tuple[Task, int], FeaturePaths] = Once()
        self._canaries: Once[tuple[Task, int, bool], Canary | None] = Once()
        self._installed: Once[Task, str] = Once()
        self._answers: Once[tuple[object, ...], TestRun] = Once()
        # A removal takes a while in some backends, and no test has to wait for it. What is left ends with the session.
        self._removals = session.pool(_REMOVERS, "removal")

    @property
    def backend_can(self) -> Capabilities:
        return capabilities_of(self._session.backend)

    def image(self, task: Task) -> Image:
        return self._session.image(task)

    def base(self, task: Task) -> Base:
        """The task's base commit, read from its image unless that was done on this machine before."""
        return self._bases.get(task, lambda: self._read_base(task))

    def test_side(self, task: Task, features: Iterable[Feature], store: TreeStore) -> TestSide:
        """What patches that are to implement these features are held against."""
        paths = [
            self._paths.get((task, one.feature_id), lambda one=one: feature_paths(one, store))  # type: ignore[misc]
            for one in features
        ]
        return side_of(paths, store)

    def canary(self, task: Task, feature: Feature, store: TreeStore, *, breaks_tests: bool) -> Canary | None:
        """A canary for the feature's tests with a name of its own; None where none can be added."""
        known = self._canaries.get(
            (task, feature.feature_id, breaks_tests),
            lambda: add_canary(feature, store, breaks_tests=breaks_tests),
        )
        return known and known.renamed()

    def ask(
        self, task: Task, feature: Feature, patch: bytes, tree: str, conditions: Conditions, label: str = ""
    ) -> TestRun:
        """Run the feature's tests with a patch, unless that was done already. `tree` identifies what it makes."""
        question = (task, feature.feature_id, tree, conditions)
        run = self._answers.get(question, lambda: self.run(task, feature, patch, conditions, label))
        if len(run.output) > _KEPT_OUTPUT_CHARACTERS:
            self._answers.forget(question)
        return run

    def run(
        self,
        task: Task,
        feature: Feature,
        patch: bytes | None,
        conditions: Conditions,
        label: str = "",
        tests: bytes | None = None,
    ) -> TestRun:
        """The same without asking whether it was done before, with other `tests` than the feature's if given.

        Without a patch it is the base as it is.
        """
        with self._sandbox(task, conditions, label) as sandbox:
            tests = feature.tests.read_bytes() if tests is None else tests
            return run_tests(sandbox, tests, patch, self.timeout_seconds, conditions.env)

    def _read_base(self, task: Task) -> Base:
        digest = self.image(task).digest
        if known := cached_base(digest):
            return known
        scratch = Path(tempfile.gettempdir())
        if not digest:
            # Nobody could say later what it was read from: it is kept as long as this object.
            scratch = Path(tempfile.mkdtemp(prefix=owned_prefix("base")))
            weakref.finalize(self, remove_tree, scratch)
        network: NetworkPolicy = "none" if "none" in self.backend_can.networks else "public"
        with self._sandbox(task, Conditions(network), judged=False) as sandbox:
            return read_base(sandbox, digest, scratch)

    @contextmanager
    def _sandbox(
        self, task: Task, conditions: Conditions, label: str = "", *, judged: bool = True
    ) -> Iterator[RichSandbox]:
        image = self.image(task).reference
        if conditions.installed:
            image = self._installed.get(
                task, lambda: image_with_installs(self._session, task, self.timeout_seconds)
            )
        labels = {**self._labels, "pair": label or task.label}
        sandbox = self._session.open(
            image,
            timeout_seconds=self.timeout_seconds + SPARE_SECONDS,
            options=SandboxOptions("evaluation", conditions.network or "none", labels, judged=judged),
        )
        try:
            yield sandbox
        finally:
            self._removals.submit(self._session.end, sandbox)
