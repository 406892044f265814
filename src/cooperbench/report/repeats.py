"""Several runs of one configuration: how much is luck? pass@k, and the pairs that now pass and now fail."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING, Any

from cooperbench.report.statistics.clusters import Observation
from cooperbench.report.statistics.intervals import Estimate, rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.models import Setting
    from cooperbench.report.choices import Method
    from cooperbench.report.loading import Run
    from cooperbench.report.summary import PairKey

_NOT_IDENTITY = {"schema", "run_name", "setting", "invocations", "backend"}
"""Of config.json, what may differ between repetitions of one experiment."""


@dataclass(frozen=True)
class Repeats:
    """Runs that differ in nothing but their names, in one setting."""

    runs: tuple[str, ...]
    setting: Setting
    tries: Mapping[PairKey, tuple[int, int]]
    """Passed, and of how many verdicts."""
    pass_at: Mapping[int, Estimate]
    """By k: the chance that at least one of k tries passes, over the pairs that have at least k verdicts."""
    flaky: tuple[PairKey, ...]
    """Passed in some runs and failed in others."""

    def to_json(self) -> dict[str, Any]:
        return {
            "runs": list(self.runs),
            "setting": self.setting,
            "pass_at": {str(k): estimate.to_json() for k, estimate in self.pass_at.items()},
            "flaky": [
                {
                    "repo": key.repo,
                    "task_id": key.task_id,
                    "features": list(key.features),
                    "passed": self.tries[key][0],
                    "of": self.tries[key][1],
                }
                for key in self.flaky
            ],
        }


def pass_at_k(tries: int, passed: int, k: int) -> float:
    """Unbiased: of all ways to choose k of the tries, the share that has a passed one among them."""
    if not 0 <= passed <= tries or not 1 <= k <= tries:
        raise ValueError(f"no pass@{k} from {passed} of {tries} tries")
    return 1.0 - comb(tries - passed, k) / comb(tries, k)


def find_repeats(runs: Sequence[Run], method: Method = "clustered") -> list[Repeats]:
    """Groups of two or more runs of the same configuration, by setting. A run without config.json is in none."""
    groups: dict[tuple[str, Setting], list[Run]] = {}
    for run in runs:
        identity = {key: value for key, value in run.config.items() if key not in _NOT_IDENTITY}
        for setting in run.settings if identity else ():
            group = groups.setdefault((json.dumps(identity, sort_keys=True), setting), [])
            if all(run.root.resolve() != other.root.resolve() for other in group):
                group.append(run)
    return [_repeats(group, setting, method) for (_, setting), group in groups.items() if len(group) > 1]


def _repeats(runs: Sequence[Run], setting: Setting, method: Method) -> Repeats:
    outcomes: dict[PairKey, list[bool]] = {}
    for run in runs:
        for pair in run.of(setting):
            if pair.verdicts is not None:
                outcomes.setdefault(pair.key, []).append(pair.verdicts.overall)
    tries = {key: (sum(values), len(values)) for key, values in sorted(outcomes.items())}
    most = max((of for _, of in tries.values()), default=0)
    pass_at = {
        k: rate(
            [Observation(key, pass_at_k(of, passed, k)) for key, (passed, of) in tries.items() if of >= k],
            method,
        )
        for k in range(1, most + 1)
    }
    flaky = tuple(key for key, (passed, of) in tries.items() if 0 < passed < of)
    return Repeats(tuple(run.name for run in runs), setting, tries, pass_at, flaky)
