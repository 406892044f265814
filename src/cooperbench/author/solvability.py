"""Joint solvability: whether golden patches pass the tests of several features at once.

A pair that no golden patch can win says nothing about agents, so it is left out of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple

from cooperbench.dataset.content_hash import pair_content_sha256
from cooperbench.dataset.golden_groups import GoldenGroup
from cooperbench.eval.protected_files import drop_protected_files
from cooperbench.eval.references import References
from cooperbench.eval.trees import Applied, TreeStore
from cooperbench.models import Feature, MergeResult, Pair, Task
from cooperbench.storage import read_bytes
from cooperbench.text import names_for_error

_PAIR_SIZE = 2


class _GoldenMerge(NamedTuple):
    """The golden patches of a group: merged plainly, and as combined.patch has them."""

    merge: MergeResult
    combined: Applied


def groups_to_measure(task: Task) -> list[Pair]:
    """Return the pairs of a task, and all its features together."""
    groups = list(task.pairs)
    if len(task.feature_ids) > _PAIR_SIZE:
        groups.append(Pair(task, task.feature_ids))
    return groups


def measure_groups(
    groups: Sequence[Pair],
    references: References,
    pool: Executor,
    on_measured: Callable[[Pair], None] = lambda _: None,
) -> list[GoldenGroup]:
    """Test the golden patches of each group together, several groups at a time."""

    def measure(group: Pair) -> GoldenGroup:
        measured = measure_group(group, references)
        on_measured(group)
        return measured

    return list(pool.map(measure, groups))


def measure_group(group: Pair, references: References) -> GoldenGroup:
    """Test the golden patches of a group together: merged plainly, else with combined.patch."""
    make_record = partial(
        GoldenGroup,
        features=list(group.feature_ids),
        content_sha256=pair_content_sha256(group),
    )
    for feature in group.features:
        if not references.get(feature).golden.success:
            reason = f"the golden patch of feature {feature.feature_id} fails alone"
            return make_record(merge="clean", reason=reason)
    merge, combined = _merge_golden_patches(group, references)
    failed: list[int] = []
    if merge.status == "conflict":
        reason = f"the golden patches conflict in {names_for_error(merge.conflicting_files)}"
    elif merge.status == "missing_input":
        reason = merge.detail
    else:
        failed = _failed_features(group.features, merge.patch, merge.tree, references)
        if not failed:
            return make_record(merge="clean", solved_by="merge")
        reason = f"the golden patches together fail the tests of {_list_features(failed)}"
    make_record = partial(
        make_record, merge="conflict" if merge.status == "conflict" else "clean", failed=failed
    )
    if not combined.patch:
        return make_record(reason=f"{reason}, and combined.patch is not a resolution")
    still_failed = _failed_features(group.features, combined.patch, combined.tree, references)
    if not still_failed:
        return make_record(solved_by="combined.patch")
    return make_record(
        reason=f"{reason}, and combined.patch fails those of {_list_features(still_failed)}"
    )


def _merge_golden_patches(group: Pair, references: References) -> _GoldenMerge:
    tester = references.tester
    with TreeStore(tester.base(group.task)) as store:
        protected = tester.protected_files(group.features, store)
        applied = []
        for feature in group.features:
            golden = drop_protected_files(feature.patch.read_bytes(), protected, store)
            applied.append(golden)
        # The same for all groups, so that its test runs are shared.
        all_protected = tester.protected_files(group.task.features, store)
        combined_patch = read_bytes(group.task.combined_patch, follow_link=True)
        combined = drop_protected_files(combined_patch, all_protected, store)
        return _GoldenMerge(store.merge(applied), combined)


def _failed_features(
    features: Sequence[Feature], patch: bytes, tree: str, references: References
) -> list[int]:
    failed = []
    for feature in features:
        if not references.test(feature, patch, tree).success:
            failed.append(feature.feature_id)  # noqa: PERF401  # a test run, not a computation
    return failed


def _list_features(feature_ids: Sequence[int]) -> str:
    numbers = ", ".join(str(number) for number in feature_ids)
    return f"feature {numbers}" if len(feature_ids) == 1 else f"features {numbers}"
