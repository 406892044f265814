"""Search for the patch that makes a merge suspicious, by leaving out one patch at a time.

An honest agent must never be named. So an agent is named only if no other patch explains the
suspicion, or if its patch is suspicious among golden patches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cooperbench.eval.pair_patches import PairPatches, evaluated_merge, merge_patches
from cooperbench.eval.protected_files import drop_protected_files
from cooperbench.eval.protected_paths import ProtectedFiles
from cooperbench.eval.references import References
from cooperbench.eval.trees import Applied, TreeStore
from cooperbench.models import AgentSlot, Feature


@dataclass(frozen=True)
class CulpritSearch:
    """Search for the patches that interfere with tests after the merge."""

    patches: PairPatches
    protected: ProtectedFiles
    store: TreeStore
    references: References

    def find_culprits(self, feature: Feature) -> list[str]:
        """Return the ids of the agents whose patches interfere with the tests of a feature.

        Return none if that cannot be decided.
        """
        outcomes = {}
        for slot in self.patches.slots:
            outcomes[slot.agent_id] = self._outcome_without(slot, feature)
        needed = [agent_id for agent_id, outcome in outcomes.items() if outcome == "confirmed"]
        if len(needed) == 1 and None not in outcomes.values():
            return needed
        # Several patches interfere, or one does only in the presence of a certain other patch.
        return [
            slot.agent_id
            for slot in self.patches.slots
            if self._outcome_among_golden_patches(slot, feature) == "suspicious"
        ]

    def _outcome_without(self, left_out: AgentSlot, feature: Feature) -> str | None:
        """Confirm the merge of all patches but one; None if its tests fail.

        Where the feature needs the patch, the golden patches of its features take its place.
        """
        other_slots = [slot for slot in self.patches.slots if slot != left_out]
        others = [self.patches.applied[slot.agent_id] for slot in other_slots]
        outcome = self._outcome_of(others, feature)
        if outcome is None:
            golden = self._golden_patches(left_out.features)
            outcome = self._outcome_of([*others, *golden], feature)
        return outcome

    def _outcome_among_golden_patches(self, slot: AgentSlot, feature: Feature) -> str | None:
        """Confirm a patch merged with the golden patches of all others; None if its tests fail."""
        golden: list[Applied] = []
        for other in self.patches.slots:
            if other != slot:
                golden += self._golden_patches(other.features)
        return self._outcome_of([self.patches.applied[slot.agent_id], *golden], feature)

    def _golden_patches(self, features: Iterable[Feature]) -> list[Applied]:
        golden = []
        for feature in features:
            patch = feature.patch.read_bytes()
            golden.append(drop_protected_files(patch, self.protected, self.store))
        return golden

    def _outcome_of(self, applied: list[Applied], feature: Feature) -> str | None:
        """Merge, test and confirm patches; None if the tests of the feature fail."""
        merge = evaluated_merge(merge_patches(applied, self.protected, self.store))
        if not merge.patch:
            return None
        if not self.references.test(feature, merge.patch, merge.tree).success:
            return None
        return self.references.confirm(feature, merge.patch, merge.tree).outcome
