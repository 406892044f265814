"""Everything that a report says about a set of runs, computed once for the terminal, for JSON and for the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cooperbench._version import __version__
from cooperbench.report.compare import Comparison, Side, compare_sides
from cooperbench.report.crossplay import CrossPlay, cross_play
from cooperbench.report.difficulty import Difficulty, analyse_difficulty, configuration_of
from cooperbench.report.rates import Level, RateRow, rate_rows
from cooperbench.report.repeats import Repeats, find_repeats
from cooperbench.storage import utc_now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cooperbench.report.loading import Run
    from cooperbench.report.statistics.intervals import Method

SCHEMA = "cooperbench.report/1"


@dataclass(frozen=True)
class Analysis:
    """Of runs of one dataset."""

    runs: tuple[Run, ...]
    method: Method
    rates: tuple[RateRow, ...]
    deficits: tuple[Comparison, ...]
    """Solo against coop of each configuration that has both."""
    difficulty: Difficulty
    repeats: tuple[Repeats, ...]
    cross_play: CrossPlay

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(f"{run.name}: {line}" for run in self.runs for line in run.problems)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "version": __version__,
            "time": utc_now(),
            "interval": self.method,
            "runs": [
                {
                    "name": run.name,
                    "dataset": run.dataset[0],
                    "dataset_revision": run.dataset[1],
                    "agent": run.agent,
                    "model": run.model,
                    "settings": list(run.settings),
                    "problems": list(run.problems),
                }
                for run in self.runs
            ],
            "rates": [row.to_json() for row in self.rates],
            "coordination_deficits": [comparison.to_json() for comparison in self.deficits],
            "difficulty": self.difficulty.to_json(),
            "repeats": [repeats.to_json() for repeats in self.repeats],
            "cross_play": self.cross_play.to_json(),
        }


def analyse(runs: Sequence[Run], level: Level = "setting", method: Method = "clustered") -> Analysis:
    """All of it. Whether the runs belong together is for the caller to check (`check_same_dataset`)."""
    return Analysis(
        runs=tuple(runs),
        method=method,
        rates=tuple(rate_rows(runs, level, method)),
        deficits=tuple(compare_sides(solo, coop, method=method) for solo, coop in solo_and_coop(runs)),
        difficulty=analyse_difficulty(runs),
        repeats=tuple(find_repeats(runs, method)),
        cross_play=cross_play(runs, method),
    )


def solo_and_coop(runs: Sequence[Run]) -> list[tuple[Side, Side]]:
    """For each coop side its solo side: of the same run, or of the runs with the same agent and model."""
    found = []
    for run in (run for run in runs if "coop" in run.settings):
        alone = (
            [run]
            if "solo" in run.settings
            else [
                other
                for other in runs
                if "solo" in other.settings and configuration_of(other) == configuration_of(run)
            ]
        )
        found += [(Side(other, "solo"), Side(run, "coop")) for other in alone]
    return found
