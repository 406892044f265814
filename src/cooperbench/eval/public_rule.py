"""The merged verdict by the rule of the public release, beside ours. It enters none of our rates.

Identical patches are tested once. Otherwise the plain merge is tested. After a conflict, or if a
patch is missing or does not apply, the first agent's patch alone is tested with all features.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from cooperbench.eval.evaluation_records import Runs, make_totals
from cooperbench.eval.pair_patches import PairPatches
from cooperbench.eval.references import References
from cooperbench.records.evaluation import PublicMergeEvaluation


def evaluate_by_public_rule(
    work: PairPatches, runs: Mapping[str, Runs], references: References
) -> PublicMergeEvaluation:
    """Return the verdict of the public rule, from the runs that there are where possible.

    Args:
        work: The patches of the pair.
        runs: Test runs by subject, compared with the references and not yet with confirmations:
            the public release has none.
        references: For the test runs that are missing: those of the first agent's patch with the
            features of the other agents, after a conflict.
    """
    first_agent_id = work.slots[0].agent_id
    if work.merge.status in ("clean", "identical"):
        strategy = "identical" if work.merge.status == "identical" else "plain"
        return _make_record(strategy, runs.get("merged", runs[first_agent_id]))
    return _make_record("first_agent", _run_first_patch(work, runs[first_agent_id], references))


def _run_first_patch(work: PairPatches, own_runs: Runs, references: References) -> Runs:
    """Test the first agent's patch with all features, unless it fails its own already."""
    if not all(run.success for run in own_runs.values()):
        return own_runs
    applied = work.applied[work.slots[0].agent_id]
    features = []
    for slot in work.slots[1:]:
        features += [feature for feature in slot.features if feature.feature_id not in own_runs]
    jobs = [partial(references.test, feature, applied.patch, applied.tree) for feature in features]
    results = references.tester.run_parallel(jobs)
    other_runs = {feature.feature_id: run for feature, run in zip(features, results, strict=True)}
    return {**own_runs, **other_runs}


def _make_record(strategy: str, runs: Runs) -> PublicMergeEvaluation:
    totals = make_totals(runs)
    return PublicMergeEvaluation(
        success=bool(totals.success),
        strategy=strategy,
        tests_passed=totals.tests_passed,
        tests_failed=totals.tests_failed,
        error=totals.error,
        tested_features=sorted(runs),
    )
