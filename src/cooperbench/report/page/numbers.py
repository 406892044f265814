"""The page's numbers: all from `report.rates`, `compare` and `difficulty`, nothing is estimated here."""

from __future__ import annotations

from statistics import quantiles
from typing import TYPE_CHECKING, Any

from cooperbench.report.compare import compare_sides
from cooperbench.report.difficulty import analyse_difficulty
from cooperbench.report.opposites import solo_and_coop
from cooperbench.report.rates import applicable, observations
from cooperbench.report.statistics.intervals import rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cooperbench.models import Setting
    from cooperbench.report.difficulty import Curve
    from cooperbench.report.loading import PairData, Run
    from cooperbench.report.page.overview import Series
    from cooperbench.report.statistics.intervals import Estimate


def rates_json(pairs: Sequence[PairData], setting: Setting) -> dict[str, dict[str, Any]]:
    return {verdict: rate_of(pairs, verdict) for verdict in applicable(setting)}


def rate_of(pairs: Sequence[PairData], verdict: str) -> dict[str, Any]:
    seen = observations(pairs, verdict)
    return {**_estimate(rate(seen)), "passed": int(sum(one.value for one in seen))}


def _estimate(one: Estimate) -> dict[str, Any]:
    record = one.to_json()
    record["rate"] = record.pop("value")
    return record


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Sum, median, and the range of eight in ten."""
    if not values:
        return {"n": 0, "total": 0.0, "median": None, "p10": None, "p90": None}
    tenths = quantiles(values, n=10, method="inclusive") if len(values) > 1 else [values[0]] * 9
    return {"n": len(values), "total": sum(values), "median": tenths[4], "p10": tenths[0], "p90": tenths[8]}


def deficits_of(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Solo minus coop for every coop series that has a solo one to stand against, over the pairs that both judged."""
    found = []
    for solo, coop in solo_and_coop(_runs_of(series)).found:
        compared = compare_sides(solo, coop)
        if compared.n and compared.deficit is not None and compared.retention is not None:
            found.append(
                {
                    "solo": solo.label,
                    "coop": coop.label,
                    "n": compared.n,
                    "clusters": compared.deficit.clusters,
                    "solo_rate": compared.first_rate.value,
                    "coop_rate": compared.second_rate.value,
                    "deficit": compared.deficit.value,
                    "low": compared.deficit.low,
                    "high": compared.deficit.high,
                    "note": compared.deficit.note,
                    "retention": compared.retention.value,
                    "retention_low": compared.retention.low,
                    "retention_high": compared.retention.high,
                    "p": compared.p_value,
                    "lost": len(compared.lost),
                    "gained": len(compared.gained),
                    "unsound": len(compared.unsound),
                    "sound_deficit": compared.sound.deficit.value
                    if compared.sound and compared.sound.deficit
                    else None,
                }
            )
    return found


def without_solo(series: Sequence[Series]) -> list[str]:
    """Coop series that have none."""
    return [side.label for side in solo_and_coop(_runs_of(series)).alone]


def _runs_of(series: Sequence[Series]) -> list[Run]:
    return list({one.run.name: one.run for one in series}.values())


def curves_of(series: Sequence[Series]) -> dict[str, Any] | None:
    """Success by difficulty, where there is a solo run to tell the difficulty from."""
    runs = _runs_of(series)
    if len({run.dataset for run in runs}) != 1:
        return None
    found = analyse_difficulty(runs)
    if not found.curves or not found.curves[0].is_telling:
        return None
    together = found.curves[0]
    return {
        "curves": [
            _points(setting, together, area)
            for setting, area in (("solo", together.solo_area), ("coop", together.coop_area))
        ],
        "areas": [
            {
                "configuration": curve.configuration,
                "solo": curve.solo_area,
                "coop": curve.coop_area,
                "lost": curve.lost_area,
                "retention": curve.retention,
            }
            for curve in found.curves
        ],
        "pairs": len(found.scores),
        "models": len(found.configurations),
        "unscored": found.unscored,
    }


def _points(setting: str, curve: Curve, area: float | None) -> dict[str, Any]:
    points = [
        {**_estimate(bucket.solo if setting == "solo" else bucket.coop), "x": bucket.centre}
        for bucket in curve.buckets
    ]
    return {"setting": setting, "label": setting, "area": area, "points": points}
