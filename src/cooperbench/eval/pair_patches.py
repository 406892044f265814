"""The patches of a pair: each agent's alone, and their merge, all without protected files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cooperbench.eval.protected_files import drop_protected_files
from cooperbench.eval.protected_paths import ProtectedFiles
from cooperbench.eval.trees import Applied, TreeStore
from cooperbench.models import AgentSlot, Feature, MergeResult, Setting


class EvaluatedPatch(NamedTuple):
    """A patch that is evaluated: one agent's, or a merge."""

    patch: bytes
    """Empty if there is nothing to test."""
    tree: str
    error: str
    """Why there is nothing to test."""


class Subject(NamedTuple):
    """A patch of a pair, and the features whose tests it must pass."""

    name: str
    """An agent's id, `merged` or `lead`."""
    patch: EvaluatedPatch
    features: tuple[Feature, ...]


@dataclass(frozen=True)
class PairPatches:
    """Patches of the agents of a pair, without protected files."""

    slots: tuple[AgentSlot, ...]
    applied: dict[str, Applied]
    """Patches by agent id."""
    merge: MergeResult

    def subjects(self, setting: Setting) -> list[Subject]:
        """Return what is tested: each patch alone, the merge, and in setting team the lead's patch.

        The lead may have merged the work of all members, so it is tested for their features too.
        """
        subjects = []
        all_features: list[Feature] = []
        for slot in self.slots:
            applied = self.applied[slot.agent_id]
            patch = EvaluatedPatch(applied.patch, applied.tree, applied.error)
            subjects.append(Subject(slot.agent_id, patch, slot.features))
            all_features += slot.features
        if len(self.slots) == 1:
            return subjects  # the only patch is its own merge
        lead = subjects[0]
        subjects.append(Subject("merged", evaluated_merge(self.merge), tuple(all_features)))
        if setting == "team":
            members_features = tuple(all_features[len(lead.features) :])
            subjects.append(Subject("lead", lead.patch, members_features))
        return subjects


def evaluated_merge(merge: MergeResult) -> EvaluatedPatch:
    """Return a merge as a patch to test."""
    return EvaluatedPatch(merge.patch, merge.tree, merge.detail or "nothing to merge")


def apply_patches(
    patches: Mapping[str, bytes | None], protected: ProtectedFiles, store: TreeStore
) -> dict[str, Applied]:
    """Apply each patch to the base commit, without its changes of protected files."""
    applied = {}
    for agent_id, patch in patches.items():
        applied[agent_id] = drop_protected_files(patch, protected, store)
    return applied


def merge_patches(
    applied: Sequence[Applied], protected: ProtectedFiles, store: TreeStore
) -> MergeResult:
    """Merge patches, without changes of protected files."""
    merge = store.merge(applied)
    if merge.patch and len(applied) > 1:
        # Two patches together can make a protected file that neither has alone.
        allowed = drop_protected_files(merge.patch, protected, store)
        return replace(merge, patch=allowed.patch, tree=allowed.tree)
    return merge
