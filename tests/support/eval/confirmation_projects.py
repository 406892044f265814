"""Projects of real test programs, whose hidden tests are made into confirmation suites."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from cooperbench.eval.canaries import Suite, new_suites
from cooperbench.eval.confirmation import are_useful, find_disagreement, record_golden_run
from cooperbench.eval.test_runs import TestRun, read_test_run
from cooperbench.eval.trees import TreeStore
from cooperbench.models import Task
from cooperbench.records.reference import ReferenceRecord, SuiteRecord
from cooperbench.sandbox.contract import CommandResult
from tests.support.eval.lab import new_file
from tests.support.eval.realgit import base_with, file_in, text

_NO_TESTS = re.compile(r"(?!)")


@dataclass(frozen=True)
class Project:
    """A folder in which a program runs the tests of one file."""

    folder: Path
    argv: Sequence[str]
    tests_path: str
    source_path: str
    env: Mapping[str, str] | None = None

    def run(self, tests: bytes, source: str) -> TestRun:
        """Run tests with some code under test."""
        for path, content in ((self.tests_path, tests), (self.source_path, source.encode())):
            file = self.folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        process = subprocess.run(
            self.argv,
            cwd=self.folder,
            env={**os.environ, **(self.env or {})},
            capture_output=True,
            check=False,
        )
        result = CommandResult(process.returncode, process.stdout, process.stderr)
        return read_test_run(result, duration_seconds=1.0, timeout_seconds=60)


@dataclass(frozen=True)
class RecordedSuite:
    """A suite that works with the golden patch."""

    suite: Suite
    record: SuiteRecord
    tests: bytes
    """The test file."""


@dataclass(frozen=True)
class Confirmations:
    """The suites of a project's hidden tests."""

    project: Project
    reference: ReferenceRecord
    suites: tuple[RecordedSuite, ...]

    def agree(self, source: str) -> bool:
        """Whether code does in all suites what the golden patch does."""
        for recorded in self.suites:
            run = self.project.run(recorded.tests, source)
            if find_disagreement(recorded.record, run, ()):
                return False
        return True


def make_confirmations(
    project: Project, hidden: str, golden: str, *, seed: int = 1
) -> Confirmations:
    """Make suites of hidden tests, and run the golden code with them."""
    golden_run = project.run(hidden.encode(), golden)
    assert golden_run.success, golden_run.output
    reference = ReferenceRecord(
        question="q",
        task="x/task1",
        feature_id=1,
        image_digest="",
        network="none",
        installed=False,
        golden=golden_run.to_record(),
        passed_tests=list(golden_run.outcomes),
    )
    scratch = Path(tempfile.mkdtemp(dir=project.folder.parent))
    feature = Task("r", 1, scratch, (1,)).feature(1)
    feature.path.mkdir()
    feature.tests.write_bytes(new_file(project.tests_path, hidden))
    feature.patch.write_bytes(b"")
    try:
        with TreeStore(base_with(scratch, {"README": text("x\n")})) as store:
            for suites in new_suites(feature, store, Random(seed)):
                recorded = []
                for suite in suites:
                    tests = file_in(store, store.apply(suite.tests).tree, project.tests_path) or b""
                    record = record_golden_run(
                        suite, project.run(tests, golden), reference, _NO_TESTS
                    )
                    if record:
                        recorded.append(RecordedSuite(suite, record, tests))
                if len(recorded) == len(suites) and are_useful([one.record for one in recorded]):
                    return Confirmations(project, reference, tuple(recorded))
    finally:
        shutil.rmtree(scratch)
    raise AssertionError("no suite works with the golden patch")
