"""The parts of eval.json, made from test runs, merges and references."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from cooperbench._version import __version__
from cooperbench.bounded import UnreadableInput, call_bounded
from cooperbench.dataset.content_hash import pair_content_sha256
from cooperbench.eval.evaluation_key import EvaluationOptions, evaluation_key
from cooperbench.eval.merge_order import find_clean_order
from cooperbench.eval.references import References
from cooperbench.eval.test_logs import find_named_file
from cooperbench.eval.test_runs import TestRun
from cooperbench.eval.trees import Applied, TreeStore
from cooperbench.models import MergeResult, Pair, Setting
from cooperbench.records.evaluation import (
    AgentEvaluation,
    DroppedFile,
    Evaluation,
    MergeEvaluation,
    ReferenceOutcome,
    TestTotals,
)
from cooperbench.records.reference import ReferenceRecord
from cooperbench.storage import utc_now

Runs = dict[int, TestRun]
"""Test runs of one patch, by feature id."""


def start_record(
    pair: Pair,
    setting: Setting,
    patches: Mapping[str, bytes | None],
    references: References,
    *,
    canary: bool,
) -> Evaluation:
    """Return eval.json without a verdict: pair, references, key, image.

    Its status is `no_reference` if a golden patch does not pass. That is a problem of the dataset
    or of the machine, so nothing can be said about the agents.
    """
    started_at = utc_now()
    recorded = {feature.feature_id: references.get(feature) for feature in pair.features}
    tester = references.tester
    image = tester.image(pair.task)
    options = EvaluationOptions(tester.timeout_seconds, references.policy, canary)
    networks = {reference.network for reference in recorded.values()}
    record = Evaluation(
        repo=pair.task.repo,
        task_id=pair.task.task_id,
        features=list(pair.feature_ids),
        setting=setting,
        eval_network=references.policy,
        network="public" if "public" in networks else next(iter(networks)),
        references={number: _outcome_of(reference) for number, reference in recorded.items()},
        unsound=references.store.unsound_of(pair),
        key=evaluation_key(pair, patches, image.digest, options),
        patches={agent_id: _sha256(patch) for agent_id, patch in patches.items()},
        dataset_sha256=pair_content_sha256(pair),
        image=image.ref,
        image_digest=image.digest,
        test_timeout_seconds=tester.timeout_seconds,
        started_at=started_at,
        duration_seconds=0.0,
        version=__version__,
    )
    failed = {}
    for number, reference in recorded.items():
        if not reference.golden.success:
            failed[number] = reference.golden.error or "unknown"
    if not failed:
        return record
    number, reason = next(iter(failed.items()))
    return msgspec.structs.replace(
        record,
        status="no_reference",
        error=f"feature {number}: the golden patch does not pass: {reason}",
        no_reference=failed,
    )


def _sha256(patch: bytes | None) -> str | None:
    return None if patch is None else hashlib.sha256(patch).hexdigest()


def _outcome_of(reference: ReferenceRecord) -> ReferenceOutcome:
    return ReferenceOutcome(
        success=reference.golden.success,
        network=reference.network,
        installed=reference.installed,
        tests_passed=reference.golden.tests_passed,
        flaky_tests=reference.flaky_tests,
        error=reference.golden.error,
    )


def make_totals(runs: Runs) -> TestTotals:
    """Return the sums over the test runs of one patch."""
    return TestTotals(**_totals(runs))


def _totals(runs: Runs) -> dict[str, Any]:
    every_run = list(runs.values())
    return {
        "tests_passed": sum(run.tests_passed for run in every_run),
        "tests_failed": sum(run.tests_failed for run in every_run),
        "tests_skipped": sum(run.tests_skipped for run in every_run),
        "success": all(run.success for run in every_run),
        "error": _first_error(every_run),
        "exit_code": _first_failed_exit_code(every_run),
        "duration_seconds": round(sum(run.duration_seconds for run in every_run), 3),
        "features": {number: run.to_record() for number, run in runs.items()},
    }


def _first_error(runs: Sequence[TestRun]) -> str | None:
    for run in runs:
        if run.error:
            return run.error
    return None


def _first_failed_exit_code(runs: Sequence[TestRun]) -> int | None:
    for run in runs:
        if run.exit_code:
            return run.exit_code
    return runs[0].exit_code


def make_agent_evaluation(applied: Applied, runs: Runs) -> AgentEvaluation:
    """Return the part about one agent: its patch, and the runs of its own features."""
    dropped = [DroppedFile(path=file.path, reason=file.reason) for file in applied.dropped]
    return AgentEvaluation(
        **_totals(runs),
        apply_status=applied.status,
        dropped_files=dropped,
        patch_sha256=hashlib.sha256(applied.patch).hexdigest(),
    )


def make_merge_evaluation(merge: MergeResult, runs: Runs) -> MergeEvaluation:
    """Return the part about the merge of all patches and its runs."""
    evaluation = MergeEvaluation(
        **_totals(runs),
        merge_conflict=merge.status == "conflict",
        merge_status=merge.status,
        strategy=merge.strategy,
        conflicting_files=list(merge.conflicting_files),
        detail=merge.detail,
    )
    if merge.status == "conflict" and merge.strategy == "none":
        files = ", ".join(merge.conflicting_files) or merge.detail
        return msgspec.structs.replace(evaluation, error=f"Merge conflict in {files}")
    if merge.strategy == "union":
        file = _file_broken_by_union(merge, runs)
        if file:
            error = f"union merge of {file}: {evaluation.error}"
            return msgspec.structs.replace(evaluation, error=error)
    return evaluation


def make_shared_evaluation(runs: Runs) -> MergeEvaluation:
    """Return the part about the work of all agents in a shared workspace, without a merge."""
    return MergeEvaluation(
        **_totals(runs),
        merge_conflict=False,
        merge_status=None,
        strategy=None,
        conflicting_files=[],
        detail="",
    )


def _file_broken_by_union(merge: MergeResult, runs: Runs) -> str | None:
    """Return the first conflicting file that the stack trace of a failed run names."""
    for run in runs.values():
        if run.success or run.timed_out:
            continue
        try:
            file = call_bounded(find_named_file, run.output, merge.conflicting_files)
        except UnreadableInput:
            continue
        if file:
            return file
    return None


def add_clean_order(
    evaluation: MergeEvaluation, applied: Mapping[str, Applied], store: TreeStore
) -> MergeEvaluation:
    """Return the part about the merge with an order in which the patches merge cleanly."""
    agent_ids: Sequence[str] = list(applied)
    search = find_clean_order(store, [patch.tree for patch in applied.values()])
    order = None
    if search.order is not None:
        order = [agent_ids[index] for index in search.order]
    return msgspec.structs.replace(
        evaluation, clean_order=order, all_orders_tried=search.is_complete
    )
