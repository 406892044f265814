"""How results change with the number of agents: groups of 2, 3, 4 … of the same features.

Only nested groups count. Each of the largest groups has a value at every size: the mean over the groups of that size
that lie in it. So all points rest on the same features with the same weights, and sizes are compared within a group.
Beside them stands how often golden patches of the same groups merge, as far as the dataset's report knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from cooperbench.dataset.discovery import DEMO, resolve_dataset_dir
from cooperbench.errors import UserError
from cooperbench.eval.conflicts import known_conflicts
from cooperbench.report.records import PairKey
from cooperbench.report.states import applicable_verdicts
from cooperbench.report.statistics import Estimate, Observation, cluster_of, mean, rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.models import Setting
    from cooperbench.report import Method
    from cooperbench.report.loading import Run


@dataclass(frozen=True)
class CurvePoint:
    agents: int
    groups: int
    """Judged groups of this size that count."""
    rates: Mapping[str, Estimate]
    """Overall, and merge where there is something to merge; n: largest groups."""
    change: Estimate
    """Of overall since the fewest agents."""
    golden: Estimate | None
    """The share whose golden patches merge plainly; None where that is not known of all of them."""


@dataclass(frozen=True)
class AgentCurve:
    """Of runs of one configuration in one setting; of solo by the number of features."""

    runs: tuple[str, ...]
    setting: Setting
    points: tuple[CurvePoint, ...]
    left_out: int
    """Judged groups that are not nested with groups of all other sizes."""


def agent_curve(runs: Sequence[Run], setting: Setting, method: Method) -> AgentCurve | None:
    """None where all groups have one size, or none are nested. `runs` differ in nothing but their names."""
    names = [name for name in ("overall", "merge") if name in applicable_verdicts(setting)]
    verdicts = {name: _values(runs, setting, name) for name in names}
    overall = verdicts["overall"]
    sizes = sorted({len(key.features) for key in overall})
    by_task: dict[tuple[str, int], list[PairKey]] = {}
    for key in overall:
        by_task.setdefault(cluster_of(key), []).append(key)

    def inside(largest: PairKey, size: int) -> list[PairKey]:
        alike = (key for key in by_task[cluster_of(largest)] if len(key.features) == size)
        return [key for key in alike if {*key.features} <= {*largest.features}]

    if len(sizes) < 2:
        return None
    largest = [key for key in sorted(overall) if len(key.features) == sizes[-1]]
    every = {key: {size: inside(key, size) for size in sizes} for key in largest}
    nested = {key: groups for key, groups in every.items() if all(groups.values())}
    if not nested:
        return None
    golden = {key: 1.0 - conflict for key, conflict in _golden(runs).items()}
    points = []
    first: list[Observation] = []
    used: set[PairKey] = set()
    for size in sizes:
        groups = {key for inner in nested.values() for key in inner[size]}
        used |= groups

        def observed(values: Mapping[PairKey, float], size: int = size) -> list[Observation]:
            return [
                Observation(key, fmean(values[one] for one in inner[size])) for key, inner in nested.items()
            ]

        now = observed(overall)
        first = first or now
        changes = [
            Observation(one.key, one.value - before.value) for one, before in zip(now, first, strict=True)
        ]
        points.append(
            CurvePoint(
                size,
                len(groups),
                {name: rate(observed(values), method) for name, values in verdicts.items()},
                mean(changes, (-1.0, 1.0), "clustered" if method == "wilson" else method),
                rate(observed(golden), method) if groups <= golden.keys() else None,
            )
        )
    return AgentCurve(tuple(run.name for run in runs), setting, tuple(points), len(overall) - len(used))


def _values(runs: Sequence[Run], setting: Setting, verdict: str) -> dict[PairKey, float]:
    """The mean of each group over the runs that judged it."""
    found: dict[PairKey, list[float]] = {}
    for pair in (pair for run in runs for pair in run.of(setting)):
        value = pair.verdict(verdict)
        if value is not None:
            found.setdefault(pair.key, []).append(float(value))
    return {key: fmean(values) for key, values in found.items()}


def _golden(runs: Sequence[Run]) -> dict[PairKey, bool]:
    """From the report of the dataset in its usual place, if that is the dataset of these runs."""
    names = {run.dataset[0] for run in runs}
    try:
        folder = resolve_dataset_dir(DEMO if names == {DEMO} else None)
    except UserError:
        return {}
    known = known_conflicts(folder) if names == {folder.name} else {}
    return {PairKey(*place): conflict for place, conflict in known.items()}
