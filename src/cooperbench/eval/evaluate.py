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
from cooperbench.eval.suspicious_lines import find_suspicious_lines
from cooperbench.eval.test_runs import not_run
from cooperbench.eval.trees import Applied, TreeStore
from cooperbench.models import Feature, MergeResult, Pair, Setting, agent_slots
from cooperbench.records.evaluation import Evaluation, Suspicion

_UNCONFIRMED = "the tests pass as well where they must fail (canary)"


@dataclass(frozen=True)
class PairEvaluation:
    """eval.json of a pair, and the files next to it."""

    record: Evaluation
    merged_patch: bytes = b""
    outputs: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """Output of the tests by subject (an agent's id, `merged` or `lead`) and feature id."""


class TestedPatch(NamedTuple):
    """A patch that is tested: one agent's, or the merge."""

    patch: bytes
    """Empty if there is nothing to test."""
    tree: str
    error: str
    """Why there is nothing to test."""


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
    slots = agent_slots(pair, setting)
    first_agent = slots[0].agent_id
    with TreeStore(references.tester.base(pair.task)) as store:
        # Apply each patch to the base commit, without changes of protected files.
        protected = references.tester.protected_files(pair.features, store)
        applied = {
            agent_id: drop_protected_files(patch, protected, store)
            for agent_id, patch in patches.items()
        }

        # Merge the patches of all agents.
        merge = _merge_patches(list(applied.values()), protected, store)

        # Run the tests: each patch alone with the tests of its own features, the merge with all.
        # Every run is compared with the reference, the recorded run of the golden patch.
        alone: dict[str, Runs] = {}
        for slot in slots:
            patch = _tested_patch(applied[slot.agent_id])
            alone[slot.agent_id] = _run_tests(patch, slot.features, references)
        if setting == "solo":
            together = alone[first_agent]  # one agent's patch is its own merge
        else:
            merged_patch = TestedPatch(merge.patch, merge.tree, merge.detail or "nothing to merge")
            together = _run_tests(merged_patch, pair.features, references)
        subjects = dict(alone) if setting == "solo" else {**alone, "merged": together}

        # Confirm a success: the tests must be able to fail. Each patch is confirmed alone too,
        # because its effect on the tests may depend on whether the others are there.
        confirmations: dict[int, str] = {}
        if canary and all(_all_passed(runs) for runs in subjects.values()):
            to_confirm = [(feature, merge.patch) for feature in pair.features]
            for slot in slots:
                own_patch = applied[slot.agent_id].patch
                to_confirm += [(feature, own_patch) for feature in slot.features]
            confirmations = _confirm(to_confirm, references)
        unconfirmed = [number for number, answer in confirmations.items() if answer == "suspicious"]
        for runs in subjects.values():
            _fail_unconfirmed(runs, unconfirmed)

        # Decide.
        agents = {
            agent_id: make_agent_evaluation(each, alone[agent_id])
            for agent_id, each in applied.items()
        }
        merged = make_merge_evaluation(merge, together)
        if merge.status == "conflict" and len(applied) > 2:
            merged = add_clean_order(merged, applied, store)
        individual_success = all(agent.success for agent in agents.values())
        overall_success = individual_success and bool(merged.success)
        record = replace_fields(
            record,
            agents=agents,
            merged=merged,
            individual_success=individual_success,
            merge_success=merge.status in ("clean", "identical"),
            overall_success=overall_success,
            overall_success_strict=overall_success and merge.strategy == "plain",
            canary=confirmations if canary else "off",
            suspicious=_find_suspicions(applied, unconfirmed),
        )

        # In setting team the lead may have merged the work of the members. That is recorded, but
        # not part of any verdict.
        if setting == "team":
            others = [feature for slot in slots[1:] for feature in slot.features]
            subjects["lead"] = _run_tests(_tested_patch(applied[first_agent]), others, references)
            lead = make_totals(subjects["lead"])
            integrated = bool(agents[first_agent].success and lead.success)
            record = replace_fields(record, integrated_by_lead=integrated, lead=lead)
    return PairEvaluation(
        record=_add_duration(record, started),
        merged_patch=b"" if setting == "solo" else merge.patch,
        outputs=_collect_outputs(subjects),
    )


def _merge_patches(
    applied: Sequence[Applied], protected: ProtectedFiles, store: TreeStore
) -> MergeResult:
    merge = store.merge(applied)
    if merge.patch and len(applied) > 1:
        # Two patches together can make a protected file that neither has alone.
        allowed = drop_protected_files(merge.patch, protected, store)
        return replace(merge, patch=allowed.patch, tree=allowed.tree)
    return merge


def _tested_patch(applied: Applied) -> TestedPatch:
    return TestedPatch(applied.patch, applied.tree, applied.error)


def _run_tests(patch: TestedPatch, features: Iterable[Feature], references: References) -> Runs:
    """Run the tests of each feature with a patch, and compare them with the references."""
    runs = {}
    for feature in features:
        if patch.patch:
            runs[feature.feature_id] = references.test(feature, patch.patch, patch.tree)
        else:
            runs[feature.feature_id] = not_run(patch.error)
    return runs


def _all_passed(runs: Runs) -> bool:
    return all(run.success for run in runs.values())


def _confirm(successes: Iterable[tuple[Feature, bytes]], references: References) -> dict[int, str]:
    """Return, by feature id, whether canaries confirm that these patches pass the tests."""
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


def _fail_unconfirmed(runs: Runs, unconfirmed: Iterable[int]) -> None:
    """Turn the runs of features whose success is not confirmed into failures."""
    for number in unconfirmed:
        if number in runs:
            runs[number] = replace(runs[number], success=False, error=_UNCONFIRMED)


def _find_suspicions(applied: Mapping[str, Applied], unconfirmed: Iterable[int]) -> list[Suspicion]:
    suspicions = []
    for agent_id, each in applied.items():
        suspicions += find_suspicious_lines(each.patch, agent_id)
    suspicions += [Suspicion(reason="canary", feature=number) for number in sorted(unconfirmed)]
    return suspicions


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
