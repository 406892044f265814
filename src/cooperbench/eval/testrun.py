"""One patch against one feature's tests, in a sandbox that no agent has touched.

The runner's exit code decides first, then what its test framework printed: no success without every test that passes
with the golden patch, none with one that failed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from cooperbench.errors import SandboxDestroyed, UserError
from cooperbench.eval.counts import first_error, read_counts, read_outcomes
from cooperbench.models import TestCounts
from cooperbench.sandbox.contract import CommandResult, SandboxOptions, check_network

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cooperbench.eval.reference import Reference
    from cooperbench.models import EvalNetwork
    from cooperbench.sandbox.contract import Capabilities, NetworkPolicy, RichSandbox

RUNNER = "/usr/local/bin/runner.sh"
PATCHES_DIR = "/patches"
TESTS_NAME = "tests.patch"
FEATURE_NAME = "feature.patch"
WHEELS_DIR = "/cooperbench/wheels"
"""Where an image with installs has what pip fetched."""
INSTALLED = {"npm_config_store_dir": "/cooperbench/pnpm-store"}
"""For every call in an image with installs. By itself pnpm keeps its store on the file system of the repository."""
OFFLINE = {
    **INSTALLED,
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": WHEELS_DIR,
    "UV_OFFLINE": "1",
    "npm_config_offline": "true",
    "GOPROXY": "off",
    "CARGO_NET_OFFLINE": "true",
}
"""Tells package managers to take what the image with installs has, since there is no network."""
_NAME_ALL_TESTS = """
export PYTEST_ADDOPTS="-rpfEsxX${PYTEST_ADDOPTS:+ $PYTEST_ADDOPTS}" NEXTEST_STATUS_LEVEL=pass
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
        return OFFLINE if self.network == "none" else INSTALLED


def conditions_to_try(can: Capabilities, asked: EvalNetwork) -> tuple[Conditions, ...]:
    """From the strictest to what was asked for at most; UserError where the backend cannot give that."""
    if not can.networks:
        if asked != "auto":
            raise UserError(
                f"this backend cannot be asked for a network of evaluation ({asked}): it takes no options;"
                " use --eval-network auto"
            )
        return (Conditions(None),)
    if asked == "none" or asked == "public":
        check_network(can, SandboxOptions(network=asked))
        return (Conditions(asked, installed=asked == "public" and can.snapshots),)
    steps = [Conditions("none"), Conditions("public", installed=can.snapshots)]
    if can.snapshots:
        steps.insert(1, Conditions("none", installed=True))
    return tuple(one for one in steps if one.network in can.networks)


@dataclass(frozen=True)
class TestRun:
    """How the tests of one feature went."""

    __test__ = False

    success: bool
    counts: TestCounts
    exit_code: int | None
    """None where nothing was run."""
    timed_out: bool
    duration_seconds: float
    error: str | None
    """One line; None on success."""
    output: str
    flaky_failures: tuple[str, ...] = ()
    """Tests that failed and are not required, as they fail now and then with the golden patch too."""
    missing_tests: tuple[str, ...] = ()
    """Tests that pass with the golden patch and were not even named here."""
    skipped_tests: tuple[str, ...] = ()
    """Tests that pass with the golden patch and were skipped here."""

    def to_json(self) -> dict[str, Any]:
        return {
            "success": self.success,
            "tests_passed": self.counts.passed,
            "tests_failed": self.counts.failed,
            "tests_skipped": self.counts.skipped,
            "framework": self.counts.framework,
            "exit_code": self.exit_code,
            "timed_out": self.timed_out,
            "duration_seconds": self.duration_seconds,
            "error": self.error,
            "flaky_failures": list(self.flaky_failures),
            "missing_tests": list(self.missing_tests),
            "skipped_tests": list(self.skipped_tests),
        }

    def held_against(self, reference: Reference) -> TestRun:
        """A success needs every test that passes with the golden patch to have passed here, but for flaky ones.

        It is a success, too, where only flaky tests failed. Where the framework names no tests, their numbers decide.
        """
        if self.exit_code is None or self.timed_out:
            return self
        outcomes = read_outcomes(self.output)
        flaky = set(reference.flaky_tests)
        absent = {test for test in reference.passed_tests if outcomes.get(test) != "passed"} - flaky
        if not self.success:
            failures = {test for test, outcome in outcomes.items() if outcome == "failed"}
            if absent or not failures or not failures <= flaky or not self.counts.passed:
                return self
            return replace(self, success=True, error=None, flaky_failures=tuple(sorted(failures)))
        skipped = tuple(sorted(test for test in absent if outcomes.get(test) == "skipped"))
        missing = tuple(sorted(absent - set(skipped)))
        error = None
        if absent:
            error = (
                f"{len(absent)} of {len(reference.passed_tests)} expected tests did not run: {min(absent)}"
            )
        elif self.counts.passed + len(flaky) < reference.tests_passed:
            error = (
                f"only {self.counts.passed} tests passed, {reference.tests_passed} do with the golden patch"
            )
        elif self.counts.skipped > reference.tests_skipped + len(flaky):
            error = f"{self.counts.skipped} tests were skipped, {reference.tests_skipped} are with the golden patch"
        if error is None:
            return self
        return replace(self, success=False, error=error, missing_tests=missing, skipped_tests=skipped)


def not_run(reason: str) -> TestRun:
    """A test run that could not take place, and so was no success."""
    return TestRun(False, TestCounts(), None, False, 0.0, reason, "")


def run_tests(
    sandbox: RichSandbox,
    tests: bytes,
    patch: bytes | None,
    timeout_seconds: int,
    env: Mapping[str, str] | None = None,
    *,
    last: bool = True,
) -> TestRun:
    """`patch` None or empty means the base as it is. Unless `last` is off, the sandbox has then served its purpose."""
    sandbox.write_file(f"{PATCHES_DIR}/{TESTS_NAME}", tests)
    argv = ["bash", "-c", _NAME_ALL_TESTS, RUNNER, TESTS_NAME]
    if patch:
        sandbox.write_file(f"{PATCHES_DIR}/{FEATURE_NAME}", patch)
        argv.append(FEATURE_NAME)
    started = time.monotonic()
    # A backend of somebody else has only its word for it.
    run = getattr(sandbox, "run_last", sandbox.run) if last else sandbox.run
    try:
        result = run(argv, timeout_seconds=timeout_seconds, env=env, output_limit=_OUTPUT_LIMIT)
    except SandboxDestroyed as error:
        result = CommandResult(_KILLED, stderr=f"{error}\n".encode())
    return judge(result, round(result.duration_seconds or time.monotonic() - started, 3), timeout_seconds)


def judge(result: CommandResult, duration_seconds: float, timeout_seconds: int) -> TestRun:
    output = result.stdout_read()
    if result.stderr:
        output += ("" if output.endswith("\n") or not output else "\n") + result.stderr_read()
    counts = read_counts(output)
    error = _reason(result, counts, output, timeout_seconds)
    return TestRun(
        error is None, counts, result.returncode, result.timed_out, duration_seconds, error, output
    )


def _reason(result: CommandResult, counts: TestCounts, output: str, timeout_seconds: int) -> str | None:
    """Why it is no success; None if it is one."""
    if result.timed_out:
        return f"the tests did not end within {timeout_seconds} s"
    if result.returncode != 0:
        return first_error(output) or f"exit code {result.returncode}"
    if counts.failed:
        return first_error(output) or f"{counts.failed} failed, although the exit code is 0"
    if not counts.passed:
        return "no test passed, although the exit code is 0"
    return None
