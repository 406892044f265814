"""The verdict on a pair: each patch alone, all of them merged, everything tested in fresh sandboxes.

Computed on the host from exit codes and test output. Every test run has a sandbox of its own, so that code of one patch
cannot prepare the ground for another. The test side is taken out of the patches first and comes from the dataset. Where
a golden patch does not pass there is no verdict.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from cooperbench._version import __version__
from cooperbench.errors import Interrupted
from cooperbench.eval.counts import broken_place
from cooperbench.eval.evidence import suspicious_lines
from cooperbench.eval.record import SCHEMA, evaluation_key, read_evaluation, read_patches
from cooperbench.eval.test_side import judged_patch
from cooperbench.eval.testrun import TestRun, not_run
from cooperbench.eval.trees import Applied, TreeStore, merge_all
from cooperbench.models import seats_of
from cooperbench.retry import with_retries
from cooperbench.storage import error_record, utc_now, write_bytes, write_json, write_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cooperbench.eval.executor import TestExecutor
    from cooperbench.eval.reference import Reference, References, ReferenceStore
    from cooperbench.eval.test_side import JudgedPatch
    from cooperbench.models import Feature, MergeResult, Pair, Setting, Task
    from cooperbench.storage import ExperimentPaths, PairPaths

_Runs: TypeAlias = Mapping[int, TestRun]


@dataclass
class Evaluation:
    """eval.json, and the files that lie beside it."""

    record: dict[str, Any]
    merged_patch: bytes = b""
    outputs: dict[tuple[str, int], str] = field(default_factory=dict)
    """What the tests printed, by subject and feature."""


def evaluate_pair(
    pair: Pair,
    setting: Setting,
    patches: Mapping[str, bytes | None],
    executor: TestExecutor,
    references: References,
    *,
    canary: bool = True,
) -> Evaluation:
    """The whole verdict. InfraErrors of sandboxes pass through: they are nobody's failure."""
    started_at, started = utc_now(), time.monotonic()
    found = {feature.feature_id: references.get(pair.task, feature) for feature in pair.features}
    evaluation = Evaluation({})
    missing = {number: reference.error for number, reference in found.items() if not reference.success}
    if missing:
        outcome = _no_reference(missing)
    else:
        with TreeStore(executor.base(pair.task)) as store:
            outcome = _judge(pair, setting, patches, store, executor, references, evaluation, canary=canary)
    image = executor.image(pair.task)
    networks = {reference.network for reference in found.values()}
    evaluation.record = {
        "schema": SCHEMA,
        "status": "no_reference" if missing else "completed",
        "repo": pair.task.repo,
        "task_id": pair.task.task_id,
        "features": list(pair.feature_ids),
        "setting": setting,
        **outcome,
        "eval_network": references.asked,
        "network": "public" if "public" in networks else next(iter(networks)),
        "references": {str(number): _reference_record(reference) for number, reference in found.items()},
        "unsound": references.store.unsound_of(pair),
        "key": evaluation_key(
            pair, patches, image.digest, executor.timeout_seconds, references.asked, canary
        ),
        "image": image.reference,
        "image_digest": image.digest,
        "test_timeout_seconds": executor.timeout_seconds,
        "started_at": started_at,
        "duration_seconds": round(time.monotonic() - started, 3),
        "version": __version__,
    }
    return evaluation


def _no_reference(missing: Mapping[int, str | None]) -> dict[str, Any]:
    """The dataset's or the machine's fault: nothing can be said about the agents."""
    reasons = {str(number): reason or "unknown" for number, reason in missing.items()}
    number, reason = next(iter(reasons.items()))
    return {
        "error": f"feature {number}: the golden patch does not pass: {reason}",
        "no_reference": reasons,
    }


def _judge(
    pair: Pair,
    setting: Setting,
    patches: Mapping[str, bytes | None],
    store: TreeStore,
    executor: TestExecutor,
    references: References,
    evaluation: Evaluation,
    *,
    canary: bool,
) -> dict[str, Any]:
    """What eval.json says of the agents; puts what was tested and printed beside it."""
    side = executor.test_side(pair.task, pair.features, store)
    judged = {agent_id: judged_patch(patch, side, store) for agent_id, patch in patches.items()}
    merge = merge_all(store, [_applied(work) for work in judged.values()])

    def test(feature: Feature, patch: bytes, tree: str) -> TestRun:
        reference = references.get(pair.task, feature)
        run = executor.ask(pair.task, feature, patch, tree, reference.conditions, pair.label)
        held = run.held_against(reference)
        if run.success and not held.success:
            # Before that counts: some frameworks name their tests differently each time.
            held = run.held_against(references.confirm(pair.task, feature))
        return held

    def test_all(feature_ids: Sequence[int], patch: bytes | None, tree: str, reason: str | None) -> _Runs:
        """Each feature's tests; where there is nothing to test, that is said of each."""
        if not patch:
            return {number: not_run(reason or "nothing to test") for number in feature_ids}
        return {number: test(pair.task.feature(number), patch, tree) for number in feature_ids}

    agents = {}
    for seat in seats_of(pair, setting):
        work = judged[seat.agent_id]
        runs = test_all(seat.feature_ids, work.patch, work.tree, work.error)
        _keep_outputs(evaluation, seat.agent_id, runs)
        agents[seat.agent_id] = _agent_record(work, runs)
    if setting == "solo":
        merged = _solo_merged(judged["solo"], agents["solo"])
    else:
        evaluation.merged_patch = merge.patch
        runs = test_all(pair.feature_ids, merge.patch, merge.tree, merge.detail or "nothing to merge")
        _keep_outputs(evaluation, "merged", runs)
        merged = _merged_record(merge, runs)
        if merge.status == "conflict" and len(judged) > 2:
            merged |= _other_order(store, judged)
    alone = all(agent["success"] for agent in agents.values())
    overall = alone and merged["success"]
    suspicious = [
        {"reason": "test_process", "agent": agent_id, **line._asdict()}
        for agent_id, work in judged.items()
        for line in suspicious_lines(work.patch)
    ]
    confirmation: dict[str, str] = {}
    if overall and canary:
        confirmation = {
            str(one.feature_id): confirm(pair.task, one, merge.patch, store, executor, references)
            for one in pair.features
        }
    for number, answer in confirmation.items():
        if answer == "suspicious":
            overall = False
            suspicious.append({"reason": "canary", "feature": int(number)})
        elif answer != "confirmed":
            references.tell(pair.task, "canary", f"successes cannot be confirmed by a canary: {answer}")
    return {
        **agents,
        "merged": merged,
        "individual_success": alone,
        "merge_success": merged["merge_status"] in ("clean", "identical"),
        "overall_success": overall,
        "overall_success_strict": overall and merged["strategy"] == "plain",
        "canary": confirmation if canary else "off",
        "suspicious": suspicious,
    }


def _other_order(store: TreeStore, judged: Mapping[str, JudgedPatch]) -> dict[str, Any]:
    """Whether the conflict is one of the order in which the patches are merged."""
    agents = list(judged)
    found = store.clean_order([judged[agent_id].tree for agent_id in agents])
    order = None if found.order is None else [agents[at] for at in found.order]
    return {"clean_order": order, "all_orders_tried": found.complete}


def _applied(work: JudgedPatch) -> Applied | None:
    """As what is merged; an agent without a patch that applies has nothing to merge."""
    if work.status == "applied" or work.status == "empty":
        return Applied(work.status, work.tree)
    return None


def confirm(
    task: Task,
    feature: Feature,
    patch: bytes,
    store: TreeStore,
    executor: TestExecutor,
    references: References,
) -> str:
    """The tests once more with one that must fail: `confirmed`, `suspicious`, or why it cannot be told."""
    conditions = references.get(task, feature).conditions
    # A runner that stops at the first failure does not come to the canary when other tests are made to fail.
    for breaks_tests in (True, False):
        canary = executor.canary(task, feature, store, breaks_tests=breaks_tests)
        if canary is None:
            return "no test can be added to these tests"
        run = executor.run(task, feature, patch, conditions, task.label, canary.tests)
        if not canary.was_seen(run) and run.exit_code != 0:
            # Neither green nor seen: something else went wrong.
            run = executor.run(task, feature, patch, conditions, task.label, canary.tests)
        seen = canary.was_seen(run)
        if seen and canary.all_failed(run):
            return "confirmed"
        expected = references.canary_failures(task, feature, breaks_tests=breaks_tests)
        if expected is not None:
            return "confirmed" if seen and expected <= canary.failed_tests(run) else "suspicious"
    return "a test that is added is not run with the golden patch either"


def _reference_record(reference: Reference) -> dict[str, Any]:
    """What eval.json says of the golden patch."""
    return {
        "success": reference.success,
        "network": reference.network,
        "installed": reference.installed,
        "tests_passed": reference.tests_passed,
        "flaky_tests": list(reference.flaky_tests),
        "error": reference.error,
    }


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


def _agent_record(work: JudgedPatch, runs: Mapping[int, TestRun]) -> dict[str, Any]:
    return {
        **_totals(runs),
        "apply_status": work.status,
        "dropped_files": [{"path": file.path, "reason": file.reason} for file in work.dropped],
        "patch_sha256": hashlib.sha256(work.patch).hexdigest(),
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


def _solo_merged(work: JudgedPatch, agent: Mapping[str, Any]) -> dict[str, Any]:
    """One agent's patch is its own merge: the same answers under the documented name."""
    usable = work.status == "applied"
    of_patch = ("apply_status", "dropped_files", "patch_sha256")
    return {
        **{key: value for key, value in agent.items() if key not in of_patch},
        "merge_conflict": False,
        "merge_status": "clean" if usable else "missing_input",
        "strategy": "plain" if usable else "none",
        "conflicting_files": [],
        "detail": work.error or "",
    }


class Evaluator:
    """For one experiment and one backend; `evaluate` may be called from several threads."""

    def __init__(
        self,
        paths: ExperimentPaths,
        executor: TestExecutor,
        references: References,
        *,
        canary: bool = True,
    ) -> None:
        self._paths = paths
        self._canary = canary
        self._executor = executor
        self._references = references

    def evaluate(self, pair: Pair, setting: Setting) -> dict[str, Any]:
        """The record that now is eval.json; `status` tells whether it is a verdict or an error of ours."""
        paths = self._paths.pair(pair, setting)

        def judge(attempt: int) -> Evaluation:  # noqa: ARG001  # each attempt is like the first
            patches = read_patches(paths, pair, setting)
            executor, references = self._executor, self._references
            return evaluate_pair(pair, setting, patches, executor, references, canary=self._canary)

        try:
            evaluation = with_retries(judge, self._executor.stop)
        except Interrupted:
            raise
        except Exception as error:
            if self._executor.stop.is_set():
                raise Interrupted("stopped") from error
            return write_failure(self._paths, pair, setting, error)
        write_evaluation(paths, evaluation)
        return evaluation.record


def write_evaluation(paths: PairPaths, evaluation: Evaluation) -> None:
    """The verdict last: where it is, everything that it speaks of is there too."""
    shutil.rmtree(paths.folder / "tests", ignore_errors=True)
    for (subject, feature_id), output in evaluation.outputs.items():
        write_text(paths.test_output(subject, feature_id), output)
    if evaluation.merged_patch:
        write_bytes(paths.merged_patch, evaluation.merged_patch)
    else:
        paths.merged_patch.unlink(missing_ok=True)
    write_json(paths.evaluation, evaluation.record)


def mark_unsound(paths: PairPaths, pair: Pair, store: ReferenceStore) -> None:
    """What `validate` has found since stands in a verdict without judging again."""
    record, unsound = read_evaluation(paths), store.unsound_of(pair)
    if record is not None and record.get("unsound", []) != unsound:
        write_json(paths.evaluation, record | {"unsound": unsound})


def write_failure(paths: ExperimentPaths, pair: Pair, setting: Setting, error: Exception) -> dict[str, Any]:
    """eval.json for a pair that could not be judged; it is judged again next time."""
    record = {"schema": SCHEMA} | error_record(paths, pair, setting, error)
    write_json(paths.pair(pair, setting).evaluation, record)
    return record
