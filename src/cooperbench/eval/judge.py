"""The verdict on a pair: each patch alone, all of them merged, everything tested in fresh sandboxes.

Computed on the host from exit codes and counts. Every test run has a sandbox of its own, so that code of one patch
cannot prepare the ground for another. Files that the hidden tests touch, and test-runner configuration, are taken out
of the patches first and come from the dataset.
"""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cooperbench._version import __version__
from cooperbench.eval.basetree import SandboxBaseTree
from cooperbench.eval.brokenfile import broken_place
from cooperbench.eval.diff import PatchError, check_safe_paths, parse_diff, paths_of
from cooperbench.eval.hygiene import clean_patch
from cooperbench.eval.merge import PatchRepo, merge_patches
from cooperbench.eval.record import SCHEMA, evaluation_key
from cooperbench.eval.testrun import TestRun, not_run, run_tests
from cooperbench.models import seats_of
from cooperbench.storage import utc_now

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cooperbench.eval.backends.base import RichSandbox
    from cooperbench.eval.hygiene import DroppedFile
    from cooperbench.eval.merge import BaseTree
    from cooperbench.models import Image, MergeResult, Pair, Setting


@dataclass(frozen=True)
class HandedIn:
    """An agent's patch, after hygiene."""

    status: str
    """`applied`, `empty`, `failed` (does not apply, or is no patch) or `missing`."""
    patch: bytes | None
    """What is tested; None where there is nothing usable."""
    dropped: tuple[DroppedFile, ...] = ()
    error: str | None = None


@dataclass
class Evaluation:
    """eval.json, and the files that lie beside it."""

    record: dict[str, Any]
    merged_patch: bytes = b""
    outputs: dict[tuple[str, int], str] = field(default_factory=dict)
    """What the tests printed, by subject and feature."""


def hidden_paths_of(pair: Pair) -> frozenset[str]:
    """What the tests of the pair touch: these files come from the dataset, whoever changed them."""
    return frozenset(path for feature in pair.features for path in paths_of(feature.tests.read_bytes()))


def examine(patch: bytes | None, hidden: frozenset[str], base: BaseTree) -> HandedIn:
    """Is it a patch, does it apply, and what of it may reach the tests?"""
    if patch is None:
        return HandedIn("missing", None, error="no patch was handed in")
    try:
        check_safe_paths(parse_diff(patch))
    except PatchError as error:
        return HandedIn("failed", None, error=str(error))
    with PatchRepo(base, [patch]) as repo:
        applied = repo.apply(patch)
        if applied.status == "empty":
            return HandedIn("empty", b"", error="the patch is empty")
        if applied.tree is None:
            return HandedIn("failed", None, error=f"the patch does not apply: {applied.error}")
        tree = applied.tree

        def before(path: str) -> bytes | None:
            found = base.read([path]).get(path)
            return found.data if found else None

        clean = clean_patch(patch, hidden, before, lambda path: repo.file(tree, path))
        if not clean.dropped:
            return HandedIn("applied", patch)
        rest = repo.apply(clean.patch)
        if rest.status == "empty":
            return HandedIn("empty", b"", clean.dropped, "nothing is left of the patch without test files")
        if rest.tree is None:
            return HandedIn(
                "failed", None, clean.dropped, f"without test files it does not apply: {rest.error}"
            )
        return HandedIn("applied", clean.patch, clean.dropped)


class _Bench:
    """Runs tests, each in a sandbox of its own, the same question only once.

    The first sandbox serves for reading the base before its test run. Starting and removing one takes a while in some
    backends: the next one may start while a test runs, and the next test does not wait for a removal, but `close` does.
    """

    def __init__(
        self,
        pair: Pair,
        make_sandbox: Callable[[], RichSandbox],
        expect_sandbox: Callable[[], Callable[[], None]],
        timeout_seconds: int,
    ) -> None:
        self._pair = pair
        self._make_sandbox = make_sandbox
        self._expect_sandbox = expect_sandbox
        self._call_off: Callable[[], None] = lambda: None
        self._questions: set[tuple[int, bytes]] = set()
        self._timeout_seconds = timeout_seconds
        self._answers: dict[tuple[int, bytes], TestRun] = {}
        self._first: RichSandbox | None = make_sandbox()
        self._removals = ThreadPoolExecutor(1, thread_name_prefix="removal")
        self.base = SandboxBaseTree(self._first)

    def will_be_asked(self, feature_ids: Sequence[int], patch: bytes | None) -> None:
        """What `test` will be called with."""
        if patch:
            self._questions.update((number, patch) for number in feature_ids)

    def test(self, feature_id: int, patch: bytes) -> TestRun:
        question = (feature_id, patch)
        if question not in self._answers:
            self._questions.discard(question)
            sandbox, self._first = self._first or self._make_sandbox(), None
            try:
                if self._questions:
                    self._call_off = self._expect_sandbox()
                tests = self._pair.task.feature(feature_id).tests.read_bytes()
                self._answers[question] = run_tests(sandbox, tests, patch, self._timeout_seconds)
            finally:
                self._removals.submit(sandbox.terminate)
        return self._answers[question]

    def close(self) -> None:
        self._removals.submit(self._call_off)
        if self._first is not None:
            self._removals.submit(self._first.terminate)
        self._removals.shutdown()


def evaluate_pair(
    pair: Pair,
    setting: Setting,
    patches: Mapping[str, bytes | None],
    image: Image,
    make_sandbox: Callable[[], RichSandbox],
    timeout_seconds: int,
    expect_sandbox: Callable[[], Callable[[], None]] = lambda: lambda: None,
) -> Evaluation:
    """The whole verdict. InfraErrors of sandboxes pass through: they are nobody's failure.

    `expect_sandbox` says that `make_sandbox` will be called once more, and returns what calls that off.
    """
    started_at, started = utc_now(), time.monotonic()
    evaluation = Evaluation({})
    bench = _Bench(pair, make_sandbox, expect_sandbox, timeout_seconds)
    try:
        hidden = hidden_paths_of(pair)
        handed_in = {agent_id: examine(patch, hidden, bench.base) for agent_id, patch in patches.items()}
        # Everything is read and merged before the first test runs: its sandbox is no longer untouched then.
        merge = None
        if setting != "solo":
            merge = merge_patches(bench.base, [work.patch for work in handed_in.values()])
            bench.will_be_asked(pair.feature_ids, merge.patch)
        for seat in seats_of(pair, setting):
            bench.will_be_asked(seat.feature_ids, handed_in[seat.agent_id].patch)
        agents = {}
        for seat in seats_of(pair, setting):
            work = handed_in[seat.agent_id]
            runs = _test_all(bench, seat.feature_ids, work.patch, work.error)
            _keep_outputs(evaluation, seat.agent_id, runs)
            agents[seat.agent_id] = _agent_record(work, runs)
        if merge is None:
            merged = _solo_merged(handed_in["solo"], agents["solo"])
        else:
            evaluation.merged_patch = merge.patch
            runs = _test_all(bench, pair.feature_ids, merge.patch, merge.detail or "nothing to merge")
            _keep_outputs(evaluation, "merged", runs)
            merged = _merged_record(merge, runs)
    finally:
        bench.close()
    alone = all(agent["success"] for agent in agents.values())
    overall = alone and merged["success"]
    evaluation.record = {
        "schema": SCHEMA,
        "status": "completed",
        "repo": pair.task.repo,
        "task_id": pair.task.task_id,
        "features": list(pair.feature_ids),
        "setting": setting,
        **agents,
        "merged": merged,
        "individual_success": alone,
        "merge_success": merged["merge_status"] in ("clean", "identical"),
        "overall_success": overall,
        "overall_success_strict": overall and merged["strategy"] == "plain",
        "key": evaluation_key(pair, patches, image.digest, timeout_seconds),
        "image": image.reference,
        "image_digest": image.digest,
        "test_timeout_seconds": timeout_seconds,
        "started_at": started_at,
        "duration_seconds": round(time.monotonic() - started, 3),
        "version": __version__,
    }
    return evaluation


def _test_all(
    bench: _Bench, feature_ids: Sequence[int], patch: bytes | None, reason: str | None
) -> dict[int, TestRun]:
    """Each feature's tests; where there is nothing to test, that is said of each."""
    if not patch:
        return {number: not_run(reason or "nothing to test") for number in feature_ids}
    return {number: bench.test(number, patch) for number in feature_ids}


def _keep_outputs(evaluation: Evaluation, subject: str, runs: Mapping[int, TestRun]) -> None:
    for feature_id, run in runs.items():
        if run.exit_code is not None:
            evaluation.outputs[subject, feature_id] = run.output


def _totals(runs: Mapping[int, TestRun]) -> dict[str, Any]:
    exit_codes = [run.exit_code for run in runs.values()]
    return {
        "tests_passed": sum(run.counts.passed for run in runs.values()),
        "tests_failed": sum(run.counts.failed for run in runs.values()),
        "tests_skipped": sum(run.counts.skipped for run in runs.values()),
        "success": all(run.success for run in runs.values()),
        "error": next((run.error for run in runs.values() if run.error), None),
        "exit_code": next((code for code in exit_codes if code), exit_codes[0]),
        "duration_seconds": round(sum(run.duration_seconds for run in runs.values()), 3),
        "features": {str(number): run.to_json() for number, run in runs.items()},
    }


def _agent_record(work: HandedIn, runs: Mapping[int, TestRun]) -> dict[str, Any]:
    return {
        **_totals(runs),
        "apply_status": work.status,
        "dropped_files": [{"path": file.path, "reason": file.reason} for file in work.dropped],
        "patch_sha256": hashlib.sha256(work.patch or b"").hexdigest(),
    }


def _merged_record(merge: MergeResult, runs: Mapping[int, TestRun]) -> dict[str, Any]:
    totals = _totals(runs)
    conflict = merge.status == "conflict"
    if conflict and merge.strategy == "none":
        totals["error"] = f"Merge conflict in {', '.join(merge.conflicting_files) or merge.detail}"
    if merge.strategy == "union":
        failed = (run for run in runs.values() if not run.success and not run.timed_out)
        places = (broken_place(run.output, merge.conflicting_files) for run in failed)
        totals["error"] = next((f"{place} (union merge)" for place in places if place), totals["error"])
    return {
        **totals,
        "merge_conflict": conflict,
        "merge_status": merge.status,
        "strategy": merge.strategy,
        "conflicting_files": list(merge.conflicting_files),
        "detail": merge.detail,
    }


def _solo_merged(work: HandedIn, agent: Mapping[str, Any]) -> dict[str, Any]:
    """One agent's patch is its own merge: the same answers under the documented name."""
    usable = work.status == "applied"
    shared = (
        "tests_passed",
        "tests_failed",
        "tests_skipped",
        "success",
        "error",
        "exit_code",
        "duration_seconds",
    )
    return {
        **{key: agent[key] for key in (*shared, "features")},
        "merge_conflict": False,
        "merge_status": "clean" if usable else "missing_input",
        "strategy": "plain" if usable else "none",
        "conflicting_files": [],
        "detail": work.error or "",
    }
