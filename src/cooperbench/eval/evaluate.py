"""The evaluation of a pair, computed on the host: `evaluate_pair` tells the story of a verdict."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from msgspec.structs import replace as replace_fields

from cooperbench.eval.evaluation_records import (
    Runs,
    add_clean_order,
    make_agent_evaluation,
    make_merge_evaluation,
    make_totals,
    start_record,
)
from cooperbench.eval.protected_files import drop_protected_files
from cooperbench.eval.protected_paths import ProtectedFiles
from cooperbench.eval.references import References
from cooperbench.eval.review_notes import find_review_notes
from cooperbench.eval.test_runs import not_run
from cooperbench.eval.trees import Applied, TreeStore
from cooperbench.models import AgentSlot, Feature, MergeResult, Pair, Setting, agent_slots
from cooperbench.records.evaluation import Evaluation, ReviewNote, Suspicion, TestTotals

_UNCONFIRMED = "the tests pass as well where they must fail (canary)"


@dataclass(frozen=True)
class PairEvaluation:
    """eval.json of a pair, and the files next to it."""

    record: Evaluation
    merged_patch: bytes = b""
    outputs: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """Output of the tests by subject (an agent's id, `merged` or `lead`) and feature id."""


class _TestedPatch(NamedTuple):
    """A patch that is tested: one agent's, or the merge."""

    patch: bytes
    """Empty if there is nothing to test."""
    tree: str
    error: str
    """Why there is nothing to test."""


@dataclass(frozen=True)
class _Patches:
    """Patches of the agents of a pair, without protected files."""

    slots: tuple[AgentSlot, ...]
    applied: dict[str, Applied]
    """Patches by agent id."""
    merge: MergeResult

    def of_agent(self, agent_id: str) -> _TestedPatch:
        """Return the patch of one agent."""
        applied = self.applied[agent_id]
        return _TestedPatch(applied.patch, applied.tree, applied.error)

    def merged(self) -> _TestedPatch:
        """Return the merge of all patches."""
        error = self.merge.detail or "nothing to merge"
        return _TestedPatch(self.merge.patch, self.merge.tree, error)


class _PairRuns(NamedTuple):
    """Test runs of a pair."""

    alone: dict[str, Runs]
    """Runs of each agent's patch with the tests of its own features, by agent id."""
    together: Runs
    """Runs of the merge with the tests of all features."""

    def are_successful(self) -> bool:
        """Whether every run is a success."""
        every_run = list(self.together.values())
        for runs in self.alone.values():
            every_run += runs.values()
        return all(run.success for run in every_run)


def evaluate_pair(
    pair: Pair,
    setting: Setting,
    patches: Mapping[str, bytes | None],
    references: References,
    *,
    canary: bool = True,
) -> PairEvaluation:
    """Evaluate the patches of a pair's agents, given by agent id; None means no patch.

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
        applied = _apply_patches(patches, protected, store)

        # Merge the patches of all agents.
        merge = _merge_patches(list(applied.values()), protected, store)
        work = _Patches(agent_slots(pair, setting), applied, merge)

        # Run the tests: each patch alone, and the merge. Every run is compared with the reference,
        # the recorded run of the golden patch.
        runs = _run_all_tests(pair, work, references)

        # Confirm a success with canaries: the tests must be able to fail.
        confirmations: dict[int, str] = {}
        if canary and runs.are_successful():
            confirmations = _confirm(pair, work, references)
        unconfirmed = [number for number, answer in confirmations.items() if answer == "suspicious"]
        _fail_unconfirmed(runs, unconfirmed)

        # Decide.
        record = _decide(record, work, runs, store)
        record = replace_fields(
            record,
            canary=confirmations if canary else "off",
            suspicious=_list_suspicions(unconfirmed),
            review_notes=_collect_review_notes(applied),
        )
    outputs = _collect_outputs(runs.alone)
    if setting == "solo":
        return PairEvaluation(_add_duration(record, started), outputs=outputs)
    outputs |= _collect_outputs({"merged": runs.together})
    if setting == "team":
        lead_runs = _test_lead(work, references)
        record = _add_lead(record, make_totals(lead_runs))
        outputs |= _collect_outputs({"lead": lead_runs})
    return PairEvaluation(_add_duration(record, started), merge.patch, outputs)


def _apply_patches(
    patches: Mapping[str, bytes | None], protected: ProtectedFiles, store: TreeStore
) -> dict[str, Applied]:
    applied = {}
    for agent_id, patch in patches.items():
        applied[agent_id] = drop_protected_files(patch, protected, store)
    return applied


def _merge_patches(
    applied: Sequence[Applied], protected: ProtectedFiles, store: TreeStore
) -> MergeResult:
    merge = store.merge(applied)
    if merge.patch and len(applied) > 1:
        # Two patches together can make a protected file that neither has alone.
        allowed = drop_protected_files(merge.patch, protected, store)
        return replace(merge, patch=allowed.patch, tree=allowed.tree)
    return merge


def _run_all_tests(pair: Pair, work: _Patches, references: References) -> _PairRuns:
    alone = {}
    for slot in work.slots:
        patch = work.of_agent(slot.agent_id)
        alone[slot.agent_id] = _run_tests(patch, slot.features, references)
    if len(work.slots) == 1:
        # One agent's patch is its own merge.
        return _PairRuns(alone, together=alone[work.slots[0].agent_id])
    return _PairRuns(alone, together=_run_tests(work.merged(), pair.features, references))


def _run_tests(patch: _TestedPatch, features: Iterable[Feature], references: References) -> Runs:
    """Run the tests of each feature with a patch, and compare them with the references."""
    runs = {}
    for feature in features:
        if patch.patch:
            runs[feature.feature_id] = references.test(feature, patch.patch, patch.tree)
        else:
            runs[feature.feature_id] = not_run(patch.error)
    return runs


def _confirm(pair: Pair, work: _Patches, references: References) -> dict[int, str]:
    """Return, by feature id, whether canaries confirm the success of all patches.

    Each patch is confirmed alone too, because its effect on the tests may depend on whether the
    others are there.
    """
    successes = [(feature, work.merge.patch) for feature in pair.features]
    for slot in work.slots:
        own_patch = work.applied[slot.agent_id].patch
        successes += [(feature, own_patch) for feature in slot.features]
    answers: dict[int, str] = {}
    for feature, patch in dict.fromkeys(successes):
        if answers.get(feature.feature_id) == "suspicious":
            continue
        answer = references.confirm(feature, patch)
        answers[feature.feature_id] = answer
        if answer not in ("confirmed", "suspicious"):
            text = f"successes cannot be confirmed by a canary: {answer}"
            references.note_once(feature.task, "canary", text)
    return answers


def _fail_unconfirmed(runs: _PairRuns, unconfirmed: Iterable[int]) -> None:
    """Turn the runs of features whose success is not confirmed into failures."""
    for number in unconfirmed:
        for tested in (*runs.alone.values(), runs.together):
            if number in tested:
                tested[number] = replace(tested[number], success=False, error=_UNCONFIRMED)


def _decide(record: Evaluation, work: _Patches, runs: _PairRuns, store: TreeStore) -> Evaluation:
    agents = {}
    for agent_id, applied in work.applied.items():
        agents[agent_id] = make_agent_evaluation(applied, runs.alone[agent_id])
    merged = make_merge_evaluation(work.merge, runs.together)
    if work.merge.status == "conflict" and len(work.applied) > 2:
        merged = add_clean_order(merged, work.applied, store)
    individual_success = all(agent.success for agent in agents.values())
    overall_success = individual_success and bool(merged.success)
    return replace_fields(
        record,
        agents=agents,
        merged=merged,
        individual_success=individual_success,
        merge_success=work.merge.status in ("clean", "identical"),
        overall_success=overall_success,
        overall_success_strict=overall_success and work.merge.strategy == "plain",
    )


def _test_lead(work: _Patches, references: References) -> Runs:
    """Run the tests of the members' features with the lead's patch.

    In setting team the lead may have merged their work. That is recorded, but decides nothing.
    """
    lead, *members = work.slots
    features: list[Feature] = []
    for member in members:
        features += member.features
    return _run_tests(work.of_agent(lead.agent_id), features, references)


def _add_lead(record: Evaluation, lead: TestTotals) -> Evaluation:
    first_agent = next(iter(record.agents.values()))
    integrated = bool(first_agent.success and lead.success)
    return replace_fields(record, integrated_by_lead=integrated, lead=lead)


def _list_suspicions(unconfirmed: Iterable[int]) -> list[Suspicion]:
    return [Suspicion(reason="canary", feature=number) for number in sorted(unconfirmed)]


def _collect_review_notes(applied: Mapping[str, Applied]) -> list[ReviewNote]:
    notes = []
    for agent_id, applied_patch in applied.items():
        notes += find_review_notes(applied_patch.patch, agent_id)
    return notes


def _collect_outputs(subjects: Mapping[str, Runs]) -> dict[tuple[str, int], str]:
    """Return the outputs of all test runs that took place."""
    outputs = {}
    for subject, runs in subjects.items():
        for number, run in runs.items():
            if run.exit_code is not None:
                outputs[subject, number] = run.output
    return outputs


def _add_duration(record: Evaluation, started: float) -> Evaluation:
    return replace_fields(record, duration_seconds=round(time.monotonic() - started, 3))
