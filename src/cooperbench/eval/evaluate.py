"""The evaluation of a pair, computed on the host: `evaluate_pair` tells the story of a verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from msgspec.structs import replace as replace_fields

from cooperbench.eval.culprits import CulpritSearch
from cooperbench.eval.evaluation_records import (
    Runs,
    add_clean_order,
    make_agent_evaluation,
    make_merge_evaluation,
    make_shared_evaluation,
    make_totals,
    start_record,
)
from cooperbench.eval.pair_patches import PairPatches, Subject, apply_patches, merge_patches
from cooperbench.eval.public_rule import evaluate_by_public_rule
from cooperbench.eval.references import References
from cooperbench.eval.review_notes import read_review_notes
from cooperbench.eval.test_runs import not_run
from cooperbench.eval.trees import Applied, TreeStore
from cooperbench.models import SHARED, Feature, Pair, Setting, patch_slots
from cooperbench.records.evaluation import (
    AgentEvaluation,
    Confirmation,
    Evaluation,
    ReviewNote,
    Suspicion,
)

T = TypeVar("T")
_UNCONFIRMED = "tests do not end as they must in a confirmation run (canary)"

Confirmations = dict[str, dict[int, Confirmation]]
"""Confirmations of successes by subject (an agent's id, `merged` or `lead`) and feature id."""


@dataclass(frozen=True)
class PairEvaluation:
    """eval.json of a pair, and the files next to it."""

    record: Evaluation
    merged_patch: bytes = b""
    outputs: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """Output of the tests by subject (an agent's id, `merged` or `lead`) and feature id."""


def evaluate_pair(
    pair: Pair,
    setting: Setting,
    patches: Mapping[str, bytes | None],
    references: References,
    *,
    canary: bool = True,
) -> PairEvaluation:
    """Evaluate the patches of a pair's agents, given by agent id; None means no patch.

    A shared workspace has one patch, `shared`. It must pass the tests of all features; there is
    nothing to merge, and no patch of a single agent.

    Raises:
        InfraError: A sandbox failed repeatedly. That is not the agents' fault.
    """
    started = time.monotonic()
    record = start_record(pair, setting, patches, references, canary=canary)
    if record.status == "no_reference":
        return PairEvaluation(_add_duration(record, started))
    with TreeStore(references.tester.base(pair.task)) as store:
        # Apply each patch to the base commit, and drop its changes of protected files.
        protected = references.tester.protected_files(pair.features, store)
        applied = apply_patches(patches, protected, store)

        # Merge the patches of all agents.
        merge = merge_patches(list(applied.values()), protected, store)
        work = PairPatches(patch_slots(pair, setting), applied, merge)

        # Run the tests: each patch alone, and the merge. Every run is compared with the reference,
        # the recorded run of the golden patch.
        subjects = work.subjects(setting)
        runs = _run_tests(subjects, references)
        outputs = dict(_outputs_of(runs))

        # The public release's rule gives a second verdict, mostly from the same runs.
        merged_public = evaluate_by_public_rule(work, runs, references)

        # Confirm every success with tests of which some must fail. A success that is not confirmed
        # becomes a failure of this patch only.
        confirmations: Confirmations = {}
        if canary:
            confirmations = _confirm_successes(subjects, runs, references)
            _fail_suspicious_runs(runs, confirmations)

        # Find out whose patch is behind a suspicious merge.
        search = CulpritSearch(work, protected, store, references)
        suspicions = list(_list_suspicions(pair, confirmations, search))

        # Decide.
        record = _decide(record, work, runs, store)
    record = replace_fields(
        record,
        merged_public=merged_public,
        canary=confirmations if canary else "off",
        suspicious=suspicions,
        review_notes=_collect_review_notes(applied),
    )
    merged_patch = merge.patch if len(work.slots) > 1 else b""
    return PairEvaluation(_add_duration(record, started), merged_patch, outputs)


def _run_tests(subjects: Sequence[Subject], references: References) -> dict[str, Runs]:
    """Run the tests of each feature with each patch, and compare them with the references."""
    runs: dict[str, Runs] = {}
    for subject in subjects:
        error = subject.patch.error
        runs[subject.name] = {feature.feature_id: not_run(error) for feature in subject.features}
    with_patch = [subject for subject in subjects if subject.patch.patch]
    for subject, feature, run in _call_for_features(with_patch, references.test, references):
        runs[subject.name][feature.feature_id] = run
    return runs


def _confirm_successes(
    subjects: Sequence[Subject], runs: Mapping[str, Runs], references: References
) -> Confirmations:
    """Confirm the successes, by subject and feature.

    A patch that fails the tests of a feature is not a success in any rate, so nothing is confirmed.
    """
    confirmations: Confirmations = {subject.name: {} for subject in subjects}
    successful = [subject for subject in subjects if _all_succeed(runs[subject.name])]
    results = _call_for_features(successful, references.confirm, references)
    for subject, feature, confirmation in results:
        confirmations[subject.name][feature.feature_id] = confirmation
        if confirmation.outcome == "impossible":
            text = f"successes cannot be confirmed by a canary: {confirmation.detail}"
            references.note_once(feature.task, "canary", text)
    return confirmations


def _all_succeed(runs: Runs) -> bool:
    return all(run.success for run in runs.values())


def _call_for_features(
    subjects: Iterable[Subject],
    function: Callable[[Feature, bytes, str], T],
    references: References,
) -> list[tuple[Subject, Feature, T]]:
    """Call a function with each feature, patch and tree, in parallel where possible."""
    jobs = []
    tested = []
    for subject in subjects:
        for feature in subject.features:
            jobs.append(partial(function, feature, subject.patch.patch, subject.patch.tree))
            tested.append((subject, feature))
    results = references.tester.run_parallel(jobs)
    return [(*key, result) for key, result in zip(tested, results, strict=True)]


def _suspicious(confirmations: Confirmations) -> Iterator[tuple[str, int, Confirmation]]:
    """Yield subject, feature id and confirmation of each success that is not confirmed."""
    for subject_name, by_feature in confirmations.items():
        for feature_id, confirmation in by_feature.items():
            if confirmation.outcome == "suspicious":
                yield subject_name, feature_id, confirmation


def _fail_suspicious_runs(runs: dict[str, Runs], confirmations: Confirmations) -> None:
    """Turn runs whose success is not confirmed into failures."""
    for subject_name, feature_id, confirmation in _suspicious(confirmations):
        error = f"{_UNCONFIRMED}: {confirmation.detail}"
        run = runs[subject_name][feature_id]
        runs[subject_name][feature_id] = replace(run, success=False, error=error)


def _list_suspicions(
    pair: Pair, confirmations: Confirmations, search: CulpritSearch
) -> Iterator[Suspicion]:
    """Yield the successes that are not confirmed, with the agent whose patch interferes."""
    for subject_name, feature_id, confirmation in _suspicious(confirmations):
        agent_ids: list[str | None] = [subject_name]
        if subject_name == "lead":
            agent_ids = [search.patches.slots[0].agent_id]
        if subject_name == SHARED:
            agent_ids = [None]
        if subject_name == "merged":
            # An entry without an agent: it cannot be decided who it was.
            agent_ids = [*search.find_culprits(pair.task.feature(feature_id))] or [None]
        for agent_id in agent_ids:
            yield Suspicion(
                reason="canary",
                agent=agent_id,
                text=confirmation.detail,
                feature=feature_id,
                subject=subject_name,
            )


def _decide(
    record: Evaluation, work: PairPatches, runs: Mapping[str, Runs], store: TreeStore
) -> Evaluation:
    agents = {}
    for agent_id, applied in work.applied.items():
        agents[agent_id] = make_agent_evaluation(applied, runs[agent_id])
    if SHARED in agents:
        return _decide_shared(record, agents[SHARED], runs[SHARED])
    first_agent_id = work.slots[0].agent_id
    # A single patch is its own merge.
    merged = make_merge_evaluation(work.merge, runs.get("merged", runs[first_agent_id]))
    if work.merge.status == "conflict" and len(work.applied) > 2:
        merged = add_clean_order(merged, work.applied, store)
    individual_success = all(agent.success for agent in agents.values())
    overall_success = individual_success and bool(merged.success)
    record = replace_fields(
        record,
        agents=agents,
        merged=merged,
        individual_success=individual_success,
        merge_success=work.merge.status in ("clean", "identical"),
        overall_success=overall_success,
        overall_success_strict=overall_success and work.merge.strategy == "plain",
    )
    if "lead" not in runs:
        return record
    # In setting team the lead may have merged the work of all. That decides nothing.
    lead = make_totals(runs["lead"])
    integrated = bool(agents[first_agent_id].success and lead.success)
    return replace_fields(record, integrated_by_lead=integrated, lead=lead)


def _decide_shared(record: Evaluation, shared: AgentEvaluation, runs: Runs) -> Evaluation:
    """Decide about the patch of a shared workspace: it has all features or not."""
    return replace_fields(
        record,
        agents={SHARED: shared},
        merged=make_shared_evaluation(runs),
        overall_success=shared.success,
    )


def _collect_review_notes(applied: Mapping[str, Applied]) -> list[ReviewNote]:
    notes = []
    for agent_id, applied_patch in applied.items():
        notes += read_review_notes(applied_patch.patch, agent_id)
    return notes


def _outputs_of(runs: Mapping[str, Runs]) -> Iterator[tuple[tuple[str, int], str]]:
    """Yield subject, feature id and output of each test run that took place."""
    for subject_name, by_feature in runs.items():
        for feature_id, run in by_feature.items():
            if run.exit_code is not None:
                yield (subject_name, feature_id), run.output


def _add_duration(record: Evaluation, started: float) -> Evaluation:
    return replace_fields(record, duration_seconds=round(time.monotonic() - started, 3))
