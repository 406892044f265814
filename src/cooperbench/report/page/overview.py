"""The first page as data: rates, deficits and curves as in `report --json`, and a line for each pair.

Only result.json and eval.json are needed for it, so it is quick enough to be made again while a run goes on.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_args

from cooperbench._version import __version__
from cooperbench.report.analysis import analyse
from cooperbench.report.compare import Side
from cooperbench.report.coordination.llm_judge import CAUSES, SYMPTOMS
from cooperbench.report.loading import left_out_lines
from cooperbench.report.records import mapping
from cooperbench.report.states import ENDED, NOT_JUDGED, STATES, VERDICTS, Loss, Meaning, unsound_text
from cooperbench.storage import utc_now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cooperbench.report.analysis import Analysis
    from cooperbench.report.loading import Run
    from cooperbench.report.records import PairData

SCHEMA = "cooperbench.page/2"
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
        "≠",
        "failed together",
        "each patch passes alone and they merge, but the merge fails tests, or they did not decide",
    ),
    "running": Meaning("▸", "running", "the agents are at work"),
    **{state: STATES[state] for state in NOT_JUDGED},
}
"""What the page counts, draws and filters by: the states, with `failed` in three kinds, and `running`."""


def outcome_of(pair: PairData) -> str:
    """Where the pair was lost, or why there is no verdict."""
    if pair.state == "missing" and pair.paths.folder.is_dir():
        return "running"
    return pair.loss or pair.state


def series_of(runs: Sequence[Run]) -> list[Side]:
    """What a mark or a column of the page stands for, in the order of the runs."""
    return [Side(run, setting) for run in runs for setting in run.settings]


def numbered_pairs(runs: Sequence[Run]) -> list[PairData]:
    """Every attempt that there is something to show of; its place in this list is its number on the page."""
    return [pair for side in series_of(runs) for pair in side.pairs.values()]


def title_of(runs: Sequence[Run]) -> str:
    return "CooperBench: " + ", ".join(run.name for run in runs)


def make_overview(runs: Sequence[Run]) -> dict[str, Any]:
    """Everything but what has to be read from trajectories."""
    series = series_of(runs)
    analysis = analyse(runs, "repo")
    pairs = _pairs(series)
    outcomes = [cell["outcome"] for pair in pairs for cell in pair["cells"] if cell]
    return {
        "schema": SCHEMA,
        "version": __version__,
        "time": utc_now(),
        "outcomes": {
            name: {**one._asdict(), "judged": name in get_args(Loss)} for name, one in OUTCOMES.items()
        },
        "verdicts": dict(VERDICTS),
        "labels": {**CAUSES, **SYMPTOMS},
        "series": [{"id": side.label, "run": side.run.name, "setting": side.setting} for side in series],
        "rates": [asdict(row) for row in analysis.rates],
        "deficits": [asdict(one) for one in analysis.deficits if one.n],
        "without_solo": analysis.without_solo,
        "left_out": left_out_lines(runs),
        "difficulty": _difficulty(analysis),
        "coordination": [],
        "repos": sorted({pair["repo"] for pair in pairs}),
        "pairs": pairs,
        "problems": analysis.problems[:_MOST_PROBLEMS],
        "finished": not {"running", "missing", "unevaluated"}.intersection(outcomes),
    }


def _difficulty(analysis: Analysis) -> dict[str, Any] | None:
    """Success by difficulty, where there is a solo run to tell the difficulty from."""
    found = analysis.difficulty
    if len({run.dataset for run in analysis.runs}) != 1 or not found.curves or not found.curves[0].is_telling:
        return None
    return asdict(found) | {"scores": len(found.scores)}


def _pairs(series: Sequence[Side]) -> list[dict[str, Any]]:
    """Each with a cell for each series, None where it is not in it."""
    by_series = [side.pairs for side in series]
    cells = iter(range(sum(map(len, by_series))))
    numbered = [{key: (next(cells), pair) for key, pair in pairs.items()} for pairs in by_series]
    return [
        {
            "order": order,
            "repo": key.repo,
            "task": key.task_id,
            "features": key.features,
            "name": key.features_label,
            "cells": [_cell(*pairs[key]) if key in pairs else None for pairs in numbered],
        }
        for order, key in enumerate(sorted({key for pairs in by_series for key in pairs}))
    ]


def _cell(number: int, pair: PairData) -> dict[str, Any]:
    cell: dict[str, Any] = {
        "id": number,
        "outcome": outcome_of(pair),
        "ended": pair.state in ENDED,
        "messages": pair.messages,
        "steps": pair.steps,
        "cost": round(pair.cost, 6),
        "seconds": round(pair.duration_seconds, 1),
        "unsound": unsound_text(pair.unsound) if pair.unsound else "",
        "suspicious": len(pair.suspicious),
    }
    error = pair.error or (mapping(pair.evaluation, "merged").get("error") if pair.state == "failed" else "")
    if error:
        cell["error"] = str(error)[:_MOST_ERROR_CHARACTERS]
    return cell
