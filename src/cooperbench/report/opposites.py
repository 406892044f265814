"""Which solo run a coop run is held against: the one place that decides it, for tables, JSON and the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cooperbench.report.compare import Side
from cooperbench.report.difficulty import configuration_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cooperbench.report.loading import Run


class Opposites(NamedTuple):
    found: list[tuple[Side, Side]]
    """Solo and coop."""
    alone: list[Side]
    """Coop sides that have no solo side to stand against."""


def solo_and_coop(runs: Sequence[Run]) -> Opposites:
    """Each coop side with the solo side of its own run, or else with that of every run of the same agent and model.

    Only on the same dataset. What another agent or model does alone says nothing about cooperation: then there is none.
    """
    opposites = Opposites([], [])
    for run in (run for run in runs if "coop" in run.settings):
        coop = Side(run, "coop")
        chosen = [run] if "solo" in run.settings else _alike(run, runs)
        opposites.found.extend((Side(one, "solo"), coop) for one in chosen)
        if not chosen:
            opposites.alone.append(coop)
    return opposites


def _alike(run: Run, runs: Sequence[Run]) -> list[Run]:
    return [
        other
        for other in runs
        if "solo" in other.settings
        and configuration_of(other) == configuration_of(run)
        and other.dataset == run.dataset
    ]
