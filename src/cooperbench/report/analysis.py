"""Everything that a report says about a set of runs, computed once for the terminal, for JSON and for the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cooperbench._version import __version__
from cooperbench.report.compare import Comparison, compare_sides
from cooperbench.report.crossplay import CrossPlay, cross_play
from cooperbench.report.difficulty import Difficulty, analyse_difficulty
from cooperbench.report.opposites import solo_and_coop
from cooperbench.report.rates import RateRow, rate_rows
from cooperbench.report.repeats import Repeats, find_repeats
from cooperbench.storage import utc_now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cooperbench.report.choices import Level, Method
    from cooperbench.report.loading import Run

SCHEMA = "cooperbench.report/1"


@dataclass(frozen=True)
class Analysis:
    """Of runs of one dataset."""

    runs: tuple[Run, ...]
    method: Method
    rates: tuple[RateRow, ...]
    deficits: tuple[Comparison, ...]
    """Solo against coop of each configuration that has both."""
    without_solo: tuple[str, ...]
    """Coop sides that no solo run of the same agent and model is given for."""
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
                    "unsound_left_out": run.unsound_left_out,
                }
                for run in self.runs
            ],
            "rates": [row.to_json() for row in self.rates],
            "coordination_deficits": [comparison.to_json() for comparison in self.deficits],
            "coop_without_solo": list(self.without_solo),
            "difficulty": self.difficulty.to_json(),
            "repeats": [repeats.to_json() for repeats in self.repeats],
            "cross_play": self.cross_play.to_json(),
        }


def analyse(runs: Sequence[Run], level: Level = "setting", method: Method = "clustered") -> Analysis:
    """All of it. Whether the runs belong together is for the caller to check (`check_same_dataset`)."""
    opposites = solo_and_coop(runs)
    return Analysis(
        runs=tuple(runs),
        method=method,
        rates=tuple(rate_rows(runs, level, method)),
        deficits=tuple(compare_sides(solo, coop, method=method) for solo, coop in opposites.found),
        without_solo=tuple(side.label for side in opposites.alone),
        difficulty=analyse_difficulty(runs),
        repeats=tuple(find_repeats(runs, method)),
        cross_play=cross_play(runs, method),
    )
