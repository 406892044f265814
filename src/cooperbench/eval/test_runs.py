"""Test runs: one patch with the tests of one feature, in a sandbox.

The exit code of the runner decides first, then the output of the test framework: a run with a
failed test is not a success, nor is one without every test that passes with the golden patch.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cooperbench.bounded import UnreadableInput, call_bounded
from cooperbench.errors import SandboxDestroyed
from cooperbench.eval.log_parsers import Counts
from cooperbench.eval.test_logs import LogReading, read_log, short_name
from cooperbench.records.evaluation import FeatureTestRun
from cooperbench.sandbox.contract import CommandResult

if TYPE_CHECKING:
    from cooperbench.eval.log_parsers import Outcome
    from cooperbench.records.reference import ReferenceRecord
    from cooperbench.sandbox.base_sandbox import Sandbox

RUNNER = "/usr/local/bin/runner.sh"
PATCHES_DIR = "/patches"
TESTS_NAME = "tests.patch"
_FEATURE_NAME = "feature.patch"
RUNNER_WRAPPER = """
export PYTEST_ADDOPTS="-vv -rpfEsxX${PYTEST_ADDOPTS:+ $PYTEST_ADDOPTS}" NEXTEST_STATUS_LEVEL=pass
if command -v go >/dev/null; then export GOFLAGS="$(go env GOFLAGS) -v"; fi
if [ -n "${COOPERBENCH_USE_BUILD_PACKAGES-}" ] && [ -e /cooperbench/build-packages ]; then
  # In the first variable 0 means "no isolation".
  export PIP_NO_BUILD_ISOLATION=0 PIP_CHECK_BUILD_DEPENDENCIES=1
fi
unset COOPERBENCH_USE_BUILD_PACKAGES
[ ! -r "${BASH_ENV-}" ] || . "$BASH_ENV"
(. "$0" "$@")
code=$?
exit $((code == 137 ? 1 : code))
"""
"""Script that runs the runner, with frameworks set to name every test, also those that pass.

The runner is sourced, not executed. Bash reads it completely before it runs it, so code under test
cannot change it while it runs; and a bash that other processes may not trace stays protected. Such
a bash does not read BASH_ENV by itself.
A killed runner ends with 1. So a backend can tell it from a sandbox that was killed from outside.
"""
_CHANGED_RUNNER = f"{PATCHES_DIR}/runner.sh"
_CHANGED_RUNNER_WRAPPER = RUNNER_WRAPPER.replace('. "$0"', f". {_CHANGED_RUNNER}")
_KILLED = 137
_OUTPUT_LIMIT = 8_000_000


@dataclass(frozen=True)
class TestRun:
    """Result of one run of the tests of one feature."""

    __test__ = False

    success: bool
    tests_passed: int
    tests_failed: int
    tests_skipped: int
    framework: str | None
    exit_code: int | None
    """None if nothing was run."""
    timed_out: bool
    duration_seconds: float
    error: str | None
    """One line; None on success."""
    outcomes: Mapping[str, Outcome] = field(default_factory=dict, compare=False, repr=False)
    """Outcome of each test that the output names."""
    output: str = ""
    output_is_cut: bool = False
    """Whether a part of the output is missing because it was too long."""
    flaky_failures: tuple[str, ...] = ()
    """Failed tests that are not required: they also fail sometimes with the golden patch."""
    missing_tests: tuple[str, ...] = ()
    """Tests that pass with the golden patch and are not in the output of this run."""
    skipped_tests: tuple[str, ...] = ()
    """Tests that pass with the golden patch and were skipped in this run."""

    def to_record(self) -> FeatureTestRun:
        """Return the run as it is written to disk, without its output."""
        return FeatureTestRun(
            success=self.success,
            tests_passed=self.tests_passed,
            tests_failed=self.tests_failed,
            tests_skipped=self.tests_skipped,
            framework=self.framework,
            exit_code=self.exit_code,
            timed_out=self.timed_out,
            duration_seconds=self.duration_seconds,
            error=self.error,
            flaky_failures=list(self.flaky_failures),
            missing_tests=list(self.missing_tests),
            skipped_tests=list(self.skipped_tests),
        )

    def compare_with_reference(self, reference: ReferenceRecord) -> TestRun:
        """Return the run with the verdict that follows from the run of the golden patch.

        A success needs every test that passes with the golden patch, except flaky ones. A run in
        which only flaky tests failed becomes a success. If the framework does not name tests,
        their numbers decide.
        """
        if self.exit_code is None or self.timed_out:
            return self
        flaky = set(reference.flaky_tests)
        absent = set()
        for test in reference.passed_tests:
            if test not in flaky and self.outcomes.get(test) != "passed":
                absent.add(test)
        if not self.success:
            return self if absent else self.forgive_flaky_failures(flaky)
        error = self._error_of_missing_tests(reference, absent)
        if error is None:
            return self
        skipped = {test for test in absent if self.outcomes.get(test) == "skipped"}
        return replace(
            self,
            success=False,
            error=error,
            missing_tests=tuple(sorted(absent - skipped)),
            skipped_tests=tuple(sorted(skipped)),
        )

    def forgive_flaky_failures(self, flaky: set[str]) -> TestRun:
        """Return a failed run as a success if only flaky tests failed."""
        failures = {test for test, outcome in self.outcomes.items() if outcome == "failed"}
        only_flaky_failed = failures and failures <= flaky
        if only_flaky_failed and self.tests_passed:
            return replace(self, success=True, error=None, flaky_failures=tuple(sorted(failures)))
        return self

    def counts_include(
        self, tests: Collection[str], expected: Collection[str], passed_count: int
    ) -> bool:
        """Whether tests whose outcome cannot be read have passed, judging by the summary.

        Code under test can print something into the line of a test, so that its name or its
        outcome cannot be read. Then it counts how many tests have passed.

        Args:
            tests: Tests that should have passed and did not do so in a line that can be read.
            expected: All tests that should have passed.
            passed_count: Number of tests that passed with the golden patch.
        """
        if any(test in self.outcomes for test in tests):
            return False  # they failed or were skipped
        names = tuple(short_name(test, self.framework) for test in tests)
        if not self.output_is_cut and any(name not in self.output for name in names):
            return False  # they did not run
        passed = {test for test, outcome in self.outcomes.items() if outcome == "passed"}
        others = [test for test in passed.difference(expected) if not test.endswith(names)]
        return self.tests_passed - len(others) >= passed_count

    def _error_of_missing_tests(self, reference: ReferenceRecord, absent: set[str]) -> str | None:
        """Return why a run that exited with 0 has too few tests; None if it has enough."""
        golden = reference.golden
        flaky_count = len(set(reference.flaky_tests))
        if absent and self.counts_include(absent, reference.passed_tests, golden.tests_passed):
            return None
        if absent:
            expected = len(reference.passed_tests)
            return f"{len(absent)} of {expected} expected tests did not run: {min(absent)}"
        if self.tests_passed + flaky_count < golden.tests_passed:
            return (
                f"only {self.tests_passed} tests passed,"
                f" {golden.tests_passed} do with the golden patch"
            )
        has_more_skipped = self.tests_skipped > golden.tests_skipped + flaky_count
        if has_more_skipped and not reference.passed_tests:
            return (
                f"{self.tests_skipped} tests were skipped,"
                f" {golden.tests_skipped} are with the golden patch"
            )
        return None


def not_run(reason: str) -> TestRun:
    """Return the result of a test run that could not take place, which is a failure."""
    return TestRun(
        success=False,
        tests_passed=0,
        tests_failed=0,
        tests_skipped=0,
        framework=None,
        exit_code=None,
        timed_out=False,
        duration_seconds=0.0,
        error=reason,
    )


def run_tests(  # noqa: PLR0913  # the last three are rarely needed
    sandbox: Sandbox,
    tests: bytes,
    patch: bytes | None,
    timeout_seconds: int,
    env: Mapping[str, str] | None = None,
    *,
    last: bool = True,
    runner: bytes | None = None,
) -> TestRun:
    """Run hidden tests with a patch; without one, on the base commit.

    With `last`, this is the last command in the sandbox. `runner` is a script that takes the place
    of the image's runner.sh.
    """
    wrapper = RUNNER_WRAPPER
    if runner is not None:
        sandbox.write_file(_CHANGED_RUNNER, runner)
        wrapper = _CHANGED_RUNNER_WRAPPER
    sandbox.write_file(f"{PATCHES_DIR}/{TESTS_NAME}", tests)
    argv = ["bash", "-c", wrapper, RUNNER, TESTS_NAME]
    if patch:
        sandbox.write_file(f"{PATCHES_DIR}/{_FEATURE_NAME}", patch)
        argv.append(_FEATURE_NAME)
    started = time.monotonic()
    # `run_last` sees the exit code from outside the sandbox, except on third-party backends, whose
    # exit codes cannot be verified.
    run = sandbox.run_last if last else sandbox.run
    try:
        result = run(argv, timeout_seconds=timeout_seconds, env=env, output_limit=_OUTPUT_LIMIT)
    except SandboxDestroyed as error:
        result = CommandResult(_KILLED, stderr=f"{error}\n".encode())
    duration_seconds = result.duration_seconds or time.monotonic() - started
    return read_test_run(result, round(duration_seconds, 3), timeout_seconds)


def read_test_run(result: CommandResult, duration_seconds: float, timeout_seconds: int) -> TestRun:
    """Return what the exit code and the output of a runner mean."""
    output = result.stdout_read()
    if result.stderr:
        if output and not output.endswith("\n"):
            output += "\n"
        output += result.stderr_read()
    try:
        log = call_bounded(read_log, output, result.returncode)
        error = _error_of(result, log, timeout_seconds)
    except UnreadableInput as problem:
        log = LogReading(Counts(), {}, None)
        error = f"the output of the tests cannot be read: {problem}"
    counts = log.counts
    return TestRun(
        success=error is None,
        tests_passed=counts.passed,
        tests_failed=counts.failed,
        tests_skipped=counts.skipped,
        framework=counts.framework,
        exit_code=result.returncode,
        timed_out=result.timed_out,
        duration_seconds=duration_seconds,
        error=error,
        outcomes=log.outcomes,
        output=output,
        output_is_cut=bool(result.stdout_cut or result.stderr_cut),
    )


def _error_of(result: CommandResult, log: LogReading, timeout_seconds: int) -> str | None:
    """Return why a run is not a success; None if it is one."""
    if result.timed_out:
        return f"the tests did not end within {timeout_seconds} s"
    if result.returncode != 0:
        return log.error or f"exit code {result.returncode}"
    if log.counts.failed:
        return log.error or f"{log.counts.failed} failed, although the exit code is 0"
    if not log.counts.passed:
        return "no test passed, although the exit code is 0"
    return None
