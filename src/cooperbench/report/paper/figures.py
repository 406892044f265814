"""Figures of a paper, as PDF and SVG. They need matplotlib, the extra `paper`."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from cooperbench.errors import UserError
from cooperbench.report.analysis import RateRow
from cooperbench.report.mismatch import MARK
from cooperbench.report.pairs import LOSSES
from cooperbench.report.paper.tables import PaperData
from cooperbench.report.statistics import Estimate
from cooperbench.report.workload import WorkloadCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN_INCHES = 3.33
"""Width of a column in a two-column paper."""
_COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
"""Colors that people with color blindness can tell apart (Paul Tol's)."""
_SETTING_STYLES = {"solo": ("s", "white"), "coop": ("o", _COLORS[0]), "team": ("^", _COLORS[2])}
_HATCHES = ("", "///", "xxx", "...")
_LOSS_COLORS = {
    "passed": _COLORS[2],
    "capability": _COLORS[3],
    "conflict": _COLORS[1],
    "integration": _COLORS[0],
}
_STYLE: Any = {
    "font.size": 7,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "cooperbench",
}


def require_matplotlib() -> None:
    """Raise UserError if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise UserError(
            "--paper needs matplotlib, which is not installed. "
            "Run pip install 'cooperbench[paper]'."
        )


@dataclass(frozen=True)
class PaperFigure:
    """A figure as files."""

    name: str
    caption: str
    pdf: bytes
    svg: bytes


def draw_figures(data: PaperData) -> list[PaperFigure]:
    """Return all figures that there is data for."""
    import matplotlib as mpl

    figures = []
    with mpl.rc_context(_STYLE):
        for name, caption, figure in _figures(data):
            pdf, svg = _encode(figure, "pdf"), _encode(figure, "svg")
            figures.append(PaperFigure(name, caption, pdf, svg))
    return figures


def _encode(figure: Figure, extension: str) -> bytes:
    """Return a figure as a file without a time, so that the same data gives the same bytes."""
    metadata = {"CreationDate": None} if extension == "pdf" else {"Date": None}
    file = io.BytesIO()
    figure.savefig(file, format=extension, metadata=metadata)
    return file.getvalue()


def _figures(data: PaperData) -> Iterator[tuple[str, str, Figure]]:
    rated = [row for _, row in data.rate_rows if row.rates["overall"].n]
    yield "success", "Overall success with 95 % intervals", _success_figure(data, rated)
    deficits = _deficit_rows(data)
    if deficits:
        yield "deficit", "Coordination deficit with 95 % intervals", _deficit_figure(deficits)
    losses = {name: run.loss for name, run in data.coordination.items() if sum(run.loss.values())}
    if losses:
        labels = [_label(data, name, data.is_affected([name])) for name in losses]
        yield "outcomes", "How pairs ended", _outcomes_figure(labels, list(losses.values()))
    if data.analysis.agent_curves:
        yield "agents", "Overall success over the number of agents", _agents_figure(data)
    for number, curve in enumerate(data.analysis.workload_curves, 1):
        yield f"workload-{number}", "Success at constant workload", _workload_figure(data, curve)


def _deficit_rows(data: PaperData) -> list[tuple[str, Estimate | None]]:
    """Return label and deficit of each side that has pairs in common with solo."""
    rows = []
    for entry in data.analysis.coordination_deficits:
        if entry.n:
            label = _label(data, entry.second, bool(entry.affected))
            rows.append((label, entry.coordination_deficit))
    return rows


def _new_figure(height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(COLUMN_INCHES, height), layout="constrained")
    return figure, figure.add_subplot()


def _label(data: PaperData, side: str, is_affected: bool) -> str:
    run_name, colon, setting = side.rpartition(":")
    name = run_name if colon else side
    title = f"{data.configuration(name)}\n{name}"
    if colon:
        title += f" ({setting})"
    text = title + (f" {MARK}" if is_affected else "")
    # Without this, matplotlib would take it for a formula.
    return text.replace("$", r"\$")


def _rows_height(rows: int) -> float:
    return 0.8 + 0.34 * max(rows, 1)


def _success_figure(data: PaperData, rows: Sequence[RateRow]) -> Figure:
    """Draw overall success of each side with its interval."""
    figure, axes = _new_figure(_rows_height(len(rows)))
    for position, row in enumerate(rows):
        marker, color = _SETTING_STYLES[row.setting]
        _draw_estimate(axes, position, row.rates["overall"], marker, color)
    labels = [_label(data, row.name, "overall" in row.affected) for row in rows]
    _finish_rows(axes, labels)
    axes.set_xlim(0, 100)
    axes.set_xlabel("overall success, % of pairs", loc="right")
    return figure


def _deficit_figure(rows: Sequence[tuple[str, Estimate | None]]) -> Figure:
    """Draw the coordination deficit of each side with its interval."""
    figure, axes = _new_figure(_rows_height(len(rows)))
    for position, (_, estimate) in enumerate(rows):
        if estimate is not None:
            _draw_estimate(axes, position, estimate, "o", _COLORS[0])
    axes.axvline(0, color="gray", linewidth=0.6, zorder=0)
    _finish_rows(axes, [label for label, _ in rows])
    axes.set_xlabel("coordination deficit, points", loc="right")
    return figure


def _draw_estimate(
    axes: Axes, position: float, estimate: Estimate, marker: str, color: str
) -> None:
    if estimate.value is None:
        return
    if estimate.low is not None and estimate.high is not None:
        ends = [100 * estimate.low, 100 * estimate.high]
        axes.plot(ends, [position, position], color="black", linewidth=0.8)
    axes.plot(
        [100 * estimate.value],
        [position],
        marker=marker,
        markerfacecolor=color,
        markeredgecolor="black",
        markersize=4,
        linestyle="none",
    )


def _finish_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Name the rows; the first one is on top."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)


def _outcomes_figure(labels: Sequence[str], losses: Sequence[dict[Any, int]]) -> Figure:
    """Draw how pairs ended, as shares of a bar for each run."""
    figure, axes = _new_figure(_rows_height(len(labels)) + 0.3)
    starts = [0.0] * len(labels)
    for index, (loss, meaning) in enumerate(LOSSES.items()):
        shares = [100 * counts[loss] / sum(counts.values()) for counts in losses]
        axes.barh(
            range(len(labels)),
            shares,
            left=starts,
            color=_LOSS_COLORS[loss],
            hatch=_HATCHES[index],
            edgecolor="black",
            linewidth=0.4,
            height=0.6,
            label=meaning.short,
        )
        starts = [start + share for start, share in zip(starts, shares, strict=True)]
    _finish_rows(axes, labels)
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of pairs with a verdict", loc="right")
    figure.legend(loc="outside upper center", ncols=len(LOSSES), fontsize=6, columnspacing=1)
    return figure


def _agents_figure(data: PaperData) -> Figure:
    """Draw overall success over the size of groups, a line for each configuration."""
    figure, axes = _new_figure(2.2)
    for index, curve in enumerate(data.analysis.agent_curves):
        rates = [(point.agents, point.rates["overall"]) for point in curve.points]
        label = _label(data, f"{curve.runs[0]}:{curve.setting}", data.is_affected(curve.runs))
        _draw_curve(axes, rates, _COLORS[index % len(_COLORS)], label.replace("\n", ", "))
    axes.set_ylim(0, 100)
    _finish_curves(axes, "number of agents", "overall success, %")
    return figure


def _workload_figure(data: PaperData, curve: WorkloadCurve) -> Figure:
    """Draw overall and merge success over the number of agents at constant workload."""
    figure, axes = _new_figure(2.2)
    for index, measure in enumerate(("overall", "merge")):
        rates = [
            (point.agents, point.means[measure]) for point in curve.points if measure in point.means
        ]
        _draw_curve(axes, rates, _COLORS[index], measure)
    mark = f" {MARK}" if data.is_affected(curve.runs) else ""
    axes.set_title(f"{curve.features} features, {curve.setting}{mark}")
    axes.set_ylim(0, 100)
    _finish_curves(axes, "number of agents", "% of groups")
    return figure


def _draw_curve(axes: Axes, points: Sequence[tuple[int, Estimate]], color: str, label: str) -> None:
    points_with_value = [(size, rate) for size, rate in points if rate.value is not None]
    sizes = [size for size, _ in points_with_value]
    values = [100 * (rate.value or 0.0) for _, rate in points_with_value]
    axes.plot(sizes, values, color=color, marker="o", markersize=3, linewidth=1, label=label)
    for size, rate in points_with_value:
        if rate.low is not None and rate.high is not None:
            axes.plot([size, size], [100 * rate.low, 100 * rate.high], color=color, linewidth=0.6)


def _finish_curves(axes: Axes, x_title: str, y_title: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(x_title)
    axes.set_ylabel(y_title)
    axes.legend(fontsize=6)
