"""The first page as data: series (one setting of one run), their rates, cost and time, and a line for each pair.

Only result.json and eval.json are needed for it, so it is quick enough to be made again while a run goes on. Nothing is
estimated here: rates, deficits and curves are those of `report.analysis`, in the same form as `report --json`.
"""

from __future__ import annotations

from statistics import quantiles
from typing import TYPE_CHECKING, Any

from cooperbench._version import __version__
from cooperbench.report.analysis import analyse
from cooperbench.report.compare import Side
from cooperbench.report.coordination.pair import LOSS_CLASSES, loss_of
from cooperbench.report.loading import left_out_lines
from cooperbench.report.records import mapping
from cooperbench.report.states import ENDED, NOT_JUDGED, STATES, VERDICTS, Meaning, unsound_text
from cooperbench.storage import utc_now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cooperbench.report.analysis import Analysis
    from cooperbench.report.loading import Run
    from cooperbench.report.records import PairData, PairKey
    from cooperbench.report.rows import RateRow

SCHEMA = "cooperbench.page/1"
_MOST_PROBLEMS = 2_000
_MOST_ERROR_CHARACTERS = 300


OUTCOMES: dict[str, Meaning] = {
    "passed": STATES["passed"],
    "capability": Meaning(
        "✗", "failed alone", "a patch fails its own feature's tests, before anything is merged"
    ),
    "conflict": Meaning(
        "⚡",
        "conflict",
        "each patch passes alone, but they conflict in a plain git merge, and the union merge fails",
    ),
    "integration": Meaning(
        "≠", "failed together", "each patch passes alone and they merge, but the merge fails tests"
    ),
    "running": Meaning("▸", "running", "the agents are at work"),
    **{state: STATES[state] for state in NOT_JUDGED},
}
"""What the page counts, draws and filters by: the states, with `failed` in three kinds, and `running`."""


def outcome_of(pair: PairData) -> str:
    """Where the pair was lost, or why there is no verdict."""
    if pair.state == "missing" and pair.paths.folder.is_dir():
        return "running"
    loss = loss_of(pair)
    return pair.state if loss is None else loss.kind


def series_of(runs: Sequence[Run]) -> list[Side]:
    """What a mark or a column of the page stands for, in the order of the runs."""
    return [Side(run, setting) for run in runs for setting in run.settings]


def numbered_pairs(runs: Sequence[Run]) -> list[PairData]:
    """Every attempt that there is something to show of; its place in this list is its number on the page."""
    return [pair for run in runs for setting in run.settings for pair in run.of(setting)]


def title_of(runs: Sequence[Run]) -> str:
    return "CooperBench: " + ", ".join(run.name for run in runs)


def make_overview(runs: Sequence[Run]) -> dict[str, Any]:
    """Everything but what has to be read from trajectories."""
    pairs = numbered_pairs(runs)
    keys = sorted({pair.key for pair in pairs})
    analysis = analyse(runs, "repo")
    return {
        "schema": SCHEMA,
        "version": __version__,
        "time": utc_now(),
        "outcomes": {
            name: {
                "mark": one.mark,
                "word": one.short,
                "meaning": one.sentence,
                "judged": name in LOSS_CLASSES,
            }
            for name, one in OUTCOMES.items()
        },
        "verdicts": dict(VERDICTS),
        "series": [
            _series(side, rows) for side, rows in zip(series_of(runs), _by_series(analysis), strict=True)
        ],
        "deficits": [
            one.to_json()
            for one in analysis.deficits
            if one.n and one.deficit is not None and one.retention is not None
        ],
        "without_solo": list(analysis.without_solo),
        "left_out": left_out_lines(runs),
        "difficulty": _difficulty(analysis),
        "coordination": [],
        "repos": sorted({key.repo for key in keys}),
        "pairs": _pairs(series_of(runs), pairs, keys),
        "problems": list(analysis.problems[:_MOST_PROBLEMS]),
        "finished": not any(outcome_of(pair) in ("running", "missing", "unevaluated") for pair in pairs),
    }


def _by_series(analysis: Analysis) -> list[list[RateRow]]:
    """The rows of each series: its own first, then those of its repositories."""
    groups: list[list[RateRow]] = []
    for row in analysis.rates:
        if row.repo is None:
            groups.append([])
        groups[-1].append(row)
    return groups


def _series(side: Side, rows: Sequence[RateRow]) -> dict[str, Any]:
    outcomes = [outcome_of(pair) for pair in side.pairs.values()]
    ended = [pair for pair in side.pairs.values() if pair.state in ENDED]
    whole = rows[0].to_json()
    return {
        "id": side.label,
        "run": side.run.name,
        "setting": side.setting,
        "counts": {outcome: outcomes.count(outcome) for outcome in dict.fromkeys(outcomes)},
        "rates": whole["rates"],
        "unsound": whole["unsound"],
        "by_repo": {row.repo: row.rates["overall"].to_json() for row in rows[1:]},
        "cost": _spread([pair.cost for pair in ended]),
        "seconds": _spread([pair.duration_seconds for pair in ended]),
    }


def _spread(values: Sequence[float]) -> dict[str, Any]:
    """Sum, median, and the range of eight in ten."""
    if not values:
        return {"n": 0, "total": 0.0, "median": None, "p10": None, "p90": None}
    tenths = quantiles(values, n=10, method="inclusive") if len(values) > 1 else [values[0]] * 9
    return {"n": len(values), "total": sum(values), "median": tenths[4], "p10": tenths[0], "p90": tenths[8]}


def _difficulty(analysis: Analysis) -> dict[str, Any] | None:
    """Success by difficulty, where there is a solo run to tell the difficulty from."""
    found = analysis.difficulty
    if len({run.dataset for run in analysis.runs}) != 1 or not found.curves or not found.curves[0].is_telling:
        return None
    record = found.to_json()
    del record["scores"]
    return record


def _pairs(
    series: Sequence[Side], numbered: Sequence[PairData], keys: Sequence[PairKey]
) -> list[dict[str, Any]]:
    numbers = {id(pair): number for number, pair in enumerate(numbered)}
    by_series = [side.pairs for side in series]
    return [
        {
            "order": order,
            "repo": key.repo,
            "task": key.task_id,
            "features": list(key.features),
            "name": key.features_label,
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
    if pair.unsound:
        cell["unsound"] = unsound_text(pair.unsound)
    error = pair.error or (
        mapping(pair.evaluation, "merged").get("error") if pair.state == "failed" else None
    )
    if error:
        cell["error"] = str(error)[:_MOST_ERROR_CHARACTERS]
    return cell
