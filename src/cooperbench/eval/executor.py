"""Test runs of one experiment: each in a fresh sandbox, and the same question only once, also across pairs.

A question is a feature's tests on one tree under some conditions. Also reads the base commits of tasks, out of
sandboxes that nothing has run in.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from cooperbench.eval.installs import image_with_installs
from cooperbench.eval.testrun import run_tests
from cooperbench.eval.trees import SandboxBaseTree
from cooperbench.retry import Once
from cooperbench.sandbox.contract import SandboxOptions, capabilities_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from cooperbench.eval.testrun import Conditions, TestRun
    from cooperbench.eval.trees import BaseFile
    from cooperbench.models import Feature, Image, Task
    from cooperbench.sandbox.contract import Capabilities, NetworkPolicy, RichSandbox
    from cooperbench.sandbox.session import SandboxSession

SPARE_SECONDS = 300
"""How much longer than the tests a sandbox may live."""
_KEPT_OUTPUT_CHARACTERS = 1_000_000
"""An answer with more output is not kept for others who ask the same: a whole experiment's would fill the memory."""
_REMOVERS = 2
_LIST_MODULES = (
    "find / -xdev -type d '(' -name site-packages -o -name dist-packages ')' -not -path '/proc/*'"
    " -exec ls {} ';' 2>/dev/null | sort -u"
)


class TestExecutor:
    """For one experiment on one backend; all methods may be called from several threads."""

    __test__ = False

    def __init__(self, session: SandboxSession, timeout_seconds: int, run_name: str = "") -> None:
        self.timeout_seconds = timeout_seconds
        self.stop = session.stop
        self._session = session
        self._labels = {"run": run_name} if run_name else {}
        self._bases: Once[Task, _CachedBase] = Once()
        self._installed: Once[Task, str] = Once()
        self._answers: Once[tuple[object, ...], TestRun] = Once()
        # A removal takes a while in some backends, and no test has to wait for it. What is left ends with the session.
        self._removals = session.pool(_REMOVERS, "removal")

    @property
    def backend_can(self) -> Capabilities:
        return capabilities_of(self._session.backend)

    def image(self, task: Task) -> Image:
        return self._session.image(task)

    def base(self, task: Task) -> _CachedBase:
        """The task's base commit. Files are read when first asked for, and kept."""
        return self._bases.get(task, lambda: _CachedBase(partial(self._sandbox, task, self._base_network())))

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
        with self._sandbox(task, conditions.network, installed=conditions.installed, label=label) as sandbox:
            tests = feature.tests.read_bytes() if tests is None else tests
            return run_tests(sandbox, tests, patch, self.timeout_seconds, conditions.env)

    def _base_network(self) -> NetworkPolicy:
        return "none" if "none" in self.backend_can.networks else "public"

    @contextmanager
    def _sandbox(
        self, task: Task, network: NetworkPolicy | None, *, installed: bool = False, label: str = ""
    ) -> Iterator[RichSandbox]:
        image = self.image(task).reference
        if installed:
            image = self._installed.get(
                task, lambda: image_with_installs(self._session, task, self.timeout_seconds)
            )
        labels = {**self._labels, "pair": label or task.label}
        sandbox = self._session.open(
            image,
            timeout_seconds=self.timeout_seconds + SPARE_SECONDS,
            options=SandboxOptions("evaluation", network or "none", labels),
        )
        try:
            yield sandbox
        finally:
            self._removals.submit(self._session.end, sandbox)


class _CachedBase:
    """A `BaseTree` that opens a sandbox only for what it has not read yet."""

    def __init__(self, sandbox: Callable[[], AbstractContextManager[RichSandbox]]) -> None:
        self._sandbox = sandbox
        self._lock = threading.Lock()
        self._listing: Mapping[str, str] | None = None
        self._files: dict[str, BaseFile] = {}
        self._modules: frozenset[str] | None = None

    def listing(self) -> Mapping[str, str]:
        self.read([])
        assert self._listing is not None
        return self._listing

    def installed_modules(self) -> frozenset[str]:
        """Names of the Python modules in the image's site-packages."""
        with self._lock:
            if self._modules is None:
                with self._sandbox() as sandbox:
                    done = sandbox.run(["bash", "-c", _LIST_MODULES], timeout_seconds=300)
                names = (name.partition(".")[0] for name in done.stdout_read().split("\n"))
                self._modules = frozenset(filter(None, names))
            return self._modules

    def read(self, paths: Sequence[str]) -> Mapping[str, BaseFile]:
        with self._lock:
            if self._listing is None or any(
                path in self._listing and path not in self._files for path in paths
            ):
                with self._sandbox() as sandbox:
                    tree = SandboxBaseTree(sandbox)
                    self._listing = tree.listing()
                    self._files.update(tree.read([path for path in paths if path not in self._files]))
            return {path: self._files[path] for path in paths if path in self._files}
