"""Success by how closely the features of a pair are coupled, as far as the dataset is at hand.

The classes are those of `dataset.coupling`. They tell whether agents fail at merging text or at
agreeing on meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from cooperbench.dataset.coupling import COUPLINGS, UNKNOWN, CouplingReader
from cooperbench.models import Pair, Setting, Task
from cooperbench.report import Method
from cooperbench.report.compare import compare_sides, match_solo_and_coop
from cooperbench.report.dataset_files import find_dataset
from cooperbench.report.loading import Run, Side, sides_of
from cooperbench.report.pairs import PairKey
from cooperbench.report.statistics import Estimate, observe_verdict, rate


@dataclass(frozen=True)
class CouplingRow:
    """The pairs with one class of coupling on one side with several agents."""

    run: str
    setting: Setting
    coupling: str
    """A class of `dataset.coupling`, or `unknown`."""
    pairs: int
    merge: Estimate
    """Share of pairs whose patches merge plainly."""
    overall: Estimate
    solo: Estimate | None
    """Overall success of solo over the pairs that both evaluated; None without a solo side."""
    coordination_deficit: Estimate | None


def coupling_rows(runs: Sequence[Run], method: Method = "clustered") -> list[CouplingRow]:
    """Return a row for each class of each side with several agents; none without the dataset."""
    folder = find_dataset(runs)
    sides = [side for side in sides_of(runs) if side.setting != "solo"]
    if folder is None or not sides:
        return []
    couplings = _read_couplings(folder, chain.from_iterable(side.pairs for side in sides))
    if set(couplings.values()) <= {UNKNOWN}:
        return []
    solo_by_label: dict[str, Side] = {}
    for solo, side in match_solo_and_coop(runs).matched:
        solo_by_label.setdefault(side.label, solo)
    rows = []
    for side in sides:
        for coupling in (*COUPLINGS, UNKNOWN):
            keys = {key for key in side.pairs if couplings[key] == coupling}
            if keys:
                rows.append(_row(side, solo_by_label.get(side.label), coupling, keys, method))
    return rows


def _read_couplings(folder: Path, keys: Iterable[PairKey]) -> dict[PairKey, str]:
    reader = CouplingReader()
    couplings: dict[PairKey, str] = {}
    tasks: dict[tuple[str, int], Task] = {}
    for key in keys:
        name = (key.repo, key.task_id)
        if name not in tasks:
            path = folder / key.repo / f"task{key.task_id}"
            tasks[name] = Task(key.repo, key.task_id, path, ())
        couplings[key] = reader.coupling_of(Pair(tasks[name], key.features)) or UNKNOWN
    return couplings


def _row(
    side: Side, solo: Side | None, coupling: str, keys: set[PairKey], method: Method
) -> CouplingRow:
    part = _part_of(side, keys)
    pairs = list(part.pairs.values())
    comparison = None
    if solo is not None:
        comparison = compare_sides(_part_of(solo, keys), part, method=method)
    return CouplingRow(
        run=side.run.name,
        setting=side.setting,
        coupling=coupling,
        pairs=len(pairs),
        merge=rate(observe_verdict(pairs, "merge"), method),
        overall=rate(observe_verdict(pairs), method),
        solo=comparison.first_rate if comparison else None,
        coordination_deficit=comparison.coordination_deficit if comparison else None,
    )


def _part_of(side: Side, keys: set[PairKey]) -> Side:
    """Return a side with only these pairs."""
    pairs = tuple(pair for pair in side.run.pairs if pair.key in keys)
    return replace(side, run=replace(side.run, pairs=pairs))
