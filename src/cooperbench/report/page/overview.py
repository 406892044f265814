"""The first page as data: series (one setting of one run), their rates, cost and time, and a line for each pair.

Only result.json and eval.json are needed for it, so it is quick enough to be made again while a run goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cooperbench._version import __version__
from cooperbench.report.loading import left_out_lines
from cooperbench.report.page.numbers import curves_of, deficits_of, rate_of, rates_json, spread, without_solo
from cooperbench.report.page.outcomes import OUTCOMES, outcome_of
from cooperbench.report.states import ENDED, unsound_text
from cooperbench.storage import utc_now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cooperbench.models import Setting
    from cooperbench.report.loading import PairData, PairKey, Run

SCHEMA = "cooperbench.page/1"
_MOST_PROBLEMS = 2_000
_MOST_ERROR_CHARACTERS = 300


@dataclass(frozen=True)
class Series:
    """One setting of one run: what a mark or a column of the page stands for."""

    series_id: str
    run: Run
    setting: Setting
    pairs: tuple[PairData, ...]


def series_of(runs: Sequence[Run]) -> list[Series]:
    """In the order of the runs."""
    both = [(run, setting) for run in runs for setting in run.settings]
    return [Series(f"{run.name}:{setting}", run, setting, run.of(setting)) for run, setting in both]


def numbered_pairs(series: Sequence[Series]) -> list[PairData]:
    """Every attempt that there is something to show of; its place in this list is its number on the page."""
    return [pair for one in series for pair in one.pairs]


def make_overview(runs: Sequence[Run]) -> dict[str, Any]:
    """Everything but what has to be read from trajectories."""
    series = series_of(runs)
    keys = sorted({pair.key for one in series for pair in one.pairs})
    return {
        "schema": SCHEMA,
        "version": __version__,
        "time": utc_now(),
        "outcomes": {name: one.to_json(name) for name, one in OUTCOMES.items()},
        "series": [_series(one) for one in series],
        "deficits": deficits_of(series),
        "without_solo": without_solo(series),
        "left_out": left_out_lines(runs),
        "difficulty": curves_of(series),
        "coordination": [],
        "repos": sorted({key.repo for key in keys}),
        "pairs": _pairs(series, keys),
        "problems": [f"{run.name}: {line}" for run in runs for line in run.problems][:_MOST_PROBLEMS],
        "finished": not any(_is_under_way(pair) for one in series for pair in one.pairs),
    }


def _is_under_way(pair: PairData) -> bool:
    return outcome_of(pair) in ("running", "missing", "unevaluated")


def title_of(runs: Sequence[Run]) -> str:
    return "CooperBench: " + ", ".join(run.name for run in runs)


def _series(series: Series) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for pair in series.pairs:
        outcome = outcome_of(pair)
        counts[outcome] = counts.get(outcome, 0) + 1
    ended = [pair for pair in series.pairs if pair.state in ENDED]
    sound = [pair for pair in series.pairs if not pair.unsound]
    unsound = len(series.pairs) - len(sound)
    by_repo: dict[str, list[PairData]] = {}
    for pair in series.pairs:
        by_repo.setdefault(pair.key.repo, []).append(pair)
    return {
        "id": series.series_id,
        "run": series.run.name,
        "setting": series.setting,
        "agent": series.run.agent,
        "model": series.run.model,
        "counts": counts,
        "rates": rates_json(series.pairs, series.setting),
        "unsound": {"pairs": unsound, "rates": rates_json(sound, series.setting)} if unsound else None,
        "by_repo": {repo: rate_of(pairs, "overall") for repo, pairs in by_repo.items()},
        "cost": spread([pair.cost for pair in ended]),
        "seconds": spread([pair.duration_seconds for pair in ended]),
    }


def _pairs(series: Sequence[Series], keys: Sequence[PairKey]) -> list[dict[str, Any]]:
    numbers = {id(pair): number for number, pair in enumerate(numbered_pairs(series))}
    by_series = [{pair.key: pair for pair in one.pairs} for one in series]
    return [
        {
            "order": order,
            "repo": key.repo,
            "task": key.task_id,
            "features": list(key.features),
            "name": "_".join(f"f{number}" for number in key.features),
            "cells": [
                _cell(found, numbers[id(found)]) if (found := pairs.get(key)) is not None else None
                for pairs in by_series
            ],
        }
        for order, key in enumerate(keys)
    ]


def _cell(pair: PairData, number: int) -> dict[str, Any]:
    cell: dict[str, Any] = {
        "id": number,
        "outcome": outcome_of(pair),
        "ended": pair.state in ENDED,
        "messages": pair.messages,
        "steps": pair.steps,
        "cost": round(pair.cost, 6),
        "seconds": round(pair.duration_seconds, 1),
    }
    error = pair.error
    if error is None and pair.state == "failed":
        merged = (pair.evaluation or {}).get("merged")
        error = merged.get("error") if isinstance(merged, dict) else None
    if pair.unsound:
        cell["unsound"] = unsound_text(pair.unsound)
    if error:
        cell["error"] = str(error)[:_MOST_ERROR_CHARACTERS]
    return cell
