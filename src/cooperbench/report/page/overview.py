"""The data of the page's first view.

It only needs result.json and eval.json of each pair, so it is fast enough to be made again while a
run goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cooperbench._version import __version__
from cooperbench.errors import UserError
from cooperbench.models import Setting
from cooperbench.report.analysis import TEAM_SUMS, RateRow, TeamRow, analyse
from cooperbench.report.compare import Comparison
from cooperbench.report.coupling import CouplingRow
from cooperbench.report.curves import AgentCurve, Curve, Difficulty
from cooperbench.report.dataset_files import FeatureKey, read_feature_titles
from cooperbench.report.failures import failure_reason
from cooperbench.report.fork_tree import ForkTree, fork_trees
from cooperbench.report.forks import analyse_forks, forks_table
from cooperbench.report.formatting import Table
from cooperbench.report.llm_judge import CAUSES, SYMPTOMS
from cooperbench.report.loading import Run, Side, left_out_lines, sides_of
from cooperbench.report.mismatch import Mismatch, mismatch_lines, unchecked_lines
from cooperbench.report.pairs import (
    ENDED,
    LOSSES,
    NOT_EVALUATED,
    STATES,
    VERDICTS,
    Meaning,
    PairData,
    PairKey,
)
from cooperbench.report.statistics import Estimate
from cooperbench.report.studies import FactorCurve, analyse_studies
from cooperbench.report.study_table import effects_table, level_table
from cooperbench.report.tables import coupling_table
from cooperbench.report.workload import WorkloadCurve
from cooperbench.report.workload_table import workload_table
from cooperbench.storage import utc_now

SCHEMA = "cooperbench.page/4"
_MAX_PROBLEMS = 2_000
_UNFINISHED = frozenset({"running", "missing", "unevaluated"})
_RUNNING = Meaning("▸", "running", "the agents are at work")


@dataclass(frozen=True)
class OutcomeMeaning:
    """How the page shows an outcome."""

    mark: str
    short: str
    sentence: str
    judged: bool
    """Whether pairs with this outcome have a verdict."""


@dataclass(frozen=True)
class Series:
    """One setting of one run."""

    id: str
    run: str
    setting: Setting


@dataclass(frozen=True)
class DeficitRow:
    """The comparison of solo and several agents for one model."""

    label: str
    """The model; with the run where a model has several rows."""
    setting: Setting
    first: str
    """Series of the solo pairs."""
    second: str
    """Series of the pairs with several agents."""
    n: int
    first_rate: Estimate
    second_rate: Estimate
    mcnemar_p: float
    unsound: int
    """Number of unsound pairs among them."""
    affected: bool
    """Whether a mismatch affects one of the two rates."""
    coordination_deficit: Estimate | None
    retention: Estimate | None


@dataclass(frozen=True)
class DifficultyCurves:
    """Success by the difficulty of pairs."""

    configurations: tuple[str, ...]
    scores: int
    """Number of pairs with a difficulty."""
    unscored: int
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class TextTable:
    """A table of the terminal; the first row has the headings."""

    title: str
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]


@dataclass(frozen=True)
class WorkloadFigure:
    """Results over the number of agents at constant workload: a curve, and all of its numbers."""

    curve: WorkloadCurve
    table: TextTable


@dataclass(frozen=True)
class LevelFigure:
    """Results over the levels of a factor: a curve, and all of its numbers."""

    curve: FactorCurve
    table: TextTable


@dataclass(frozen=True)
class StudyFigures:
    """A study: the factors with more than two levels, and the effects of all."""

    study: str
    factors: tuple[LevelFigure, ...]
    effects: TextTable


@dataclass(frozen=True)
class PageBranch:
    """One fork in the tree of a pair."""

    arm: str
    series: str
    outcome: str
    divergence: str


@dataclass(frozen=True)
class PageTree:
    """The forks of one pair from one point."""

    run: str
    fork_point: str
    repo: str
    task: int
    name: str
    replayed: str
    branches: tuple[PageBranch, ...]


@dataclass(frozen=True)
class ForkFigures:
    """The effects of interventions, and the trees of forks."""

    tables: tuple[TextTable, ...]
    trees: tuple[PageTree, ...]


@dataclass(frozen=True)
class TeamTable:
    """Use of the tools of setting team, by run."""

    columns: Mapping[str, str]
    rows: tuple[TeamRow, ...]


@dataclass(frozen=True)
class MeasureText:
    """A coordination measure of one series."""

    name: str
    value: str
    n: str


@dataclass(frozen=True)
class CoordinationTable:
    """The coordination measures of one series."""

    series: str
    rows: tuple[MeasureText, ...]


@dataclass(frozen=True)
class PairCell:
    """A pair in one series."""

    id: int
    """Number of its details."""
    outcome: str
    ended: bool
    """Whether the agents came to an end, so that the numbers are complete."""
    messages: int | None
    steps: int | None
    """Steps of all agents together; so is the cost. None for what is not known."""
    cost: float | None
    seconds: float | None
    unsound: str
    suspicious: int
    mismatches: tuple[int, ...]
    """Indexes of the lines in `Overview.mismatches` that are about it."""
    reason: str | None
    """Why it did not pass."""


@dataclass(frozen=True)
class PairRow:
    """A pair, with a cell for each series."""

    order: int
    repo: str
    task: int
    features: tuple[int, ...]
    name: str
    titles: tuple[str | None, ...]
    """Titles of the features; None without the dataset at hand."""
    cells: tuple[PairCell | None, ...]
    """None in a series that does not have the pair."""


@dataclass(frozen=True)
class Overview:
    """Everything that the first view shows."""

    schema: str
    version: str
    time: str
    outcomes: Mapping[str, OutcomeMeaning]
    verdicts: Mapping[str, str]
    labels: Mapping[str, str]
    """Meanings of the labels of an LLM judge."""
    series: tuple[Series, ...]
    rates: tuple[RateRow, ...]
    deficits: tuple[DeficitRow, ...]
    without_solo: tuple[str, ...]
    left_out: Sequence[str]
    difficulty: DifficultyCurves | None
    agent_curves: tuple[AgentCurve, ...]
    workload: tuple[WorkloadFigure, ...]
    """Results over the number of agents that had the same features."""
    coupling: tuple[TextTable, ...]
    """At most one table."""
    studies: tuple[StudyFigures, ...]
    forks: ForkFigures
    team: TeamTable
    repos: tuple[str, ...]
    pairs: tuple[PairRow, ...]
    mismatches: Sequence[str]
    """What does not fit together, a line each."""
    unchecked: Sequence[str]
    """What cannot be checked, a line each."""
    problems: Sequence[str]
    finished: bool
    coordination: tuple[CoordinationTable, ...] = ()
    """Empty in `view`: it takes reading every trajectory."""
    mode: str = ""
    """Where the details of pairs are; see `build.Mode`."""
    folder: str = ""
    """Folder with the details of pairs, beside the page."""
    tag: str = ""
    """ETag of the overview in `view`."""


def _outcome_meanings() -> dict[str, OutcomeMeaning]:
    """Return the states, with `failed` split into its causes, and `running`."""
    meanings: dict[str, Meaning] = {str(loss): meaning for loss, meaning in LOSSES.items()}
    meanings["running"] = _RUNNING
    for state in NOT_EVALUATED:
        meanings[state] = STATES[state]
    return {
        name: OutcomeMeaning(*meaning, judged=name in LOSSES) for name, meaning in meanings.items()
    }


def outcome_of(pair: PairData) -> str:
    """Return how a pair ended, in the terms that the page counts and filters by."""
    if pair.state == "missing" and pair.paths.folder.is_dir():
        return "running"
    return pair.loss or pair.state


def numbered_pairs(runs: Sequence[Run]) -> list[PairData]:
    """Return all pairs of all runs; the index of a pair is its number on the page."""
    pairs: list[PairData] = []
    for side in sides_of(runs):
        pairs += side.pairs.values()
    return pairs


def page_title(runs: Sequence[Run]) -> str:
    """Return the title of the window."""
    return "CooperBench: " + ", ".join(run.name for run in runs)


def make_overview(runs: Sequence[Run]) -> Overview:
    """Analyse the runs for the first view."""
    sides = sides_of(runs)
    analysis = analyse(runs, "repo")
    is_one_dataset = len({run.dataset for run in runs}) == 1
    mismatches = [line for line in analysis.mismatches if not line.is_unchecked]
    pairs = _pair_rows(runs, sides, mismatches)
    return Overview(
        schema=SCHEMA,
        version=__version__,
        time=utc_now(),
        outcomes=_outcome_meanings(),
        verdicts=VERDICTS,
        labels={**CAUSES, **SYMPTOMS},
        series=tuple(Series(side.label, side.run.name, side.setting) for side in sides),
        rates=analysis.rates,
        deficits=_deficit_rows(analysis.coordination_deficits, sides),
        without_solo=analysis.coop_without_solo,
        left_out=left_out_lines(runs),
        difficulty=_difficulty_curves(analysis.difficulty) if is_one_dataset else None,
        agent_curves=analysis.agent_curves,
        workload=_workload_figures(analysis.workload_curves) if is_one_dataset else (),
        coupling=_coupling_tables(analysis.coupling) if is_one_dataset else (),
        studies=_study_figures(runs),
        forks=_fork_figures(runs),
        team=TeamTable(TEAM_SUMS, analysis.team),
        repos=tuple(sorted({pair.repo for pair in pairs})),
        pairs=pairs,
        mismatches=mismatch_lines(mismatches),
        unchecked=unchecked_lines(analysis.mismatches),
        problems=analysis.problems[:_MAX_PROBLEMS],
        finished=not any(_is_unfinished(pair) for pair in pairs),
    )


def _is_unfinished(pair: PairRow) -> bool:
    return any(cell is not None and cell.outcome in _UNFINISHED for cell in pair.cells)


def _difficulty_curves(difficulty: Difficulty) -> DifficultyCurves | None:
    """Return the curves, if there are pairs of enough difficulties to draw them."""
    if not difficulty.curves or not difficulty.curves[0].has_enough_difficulties:
        return None
    return DifficultyCurves(
        configurations=difficulty.configurations,
        scores=len(difficulty.scores),
        unscored=difficulty.unscored,
        curves=difficulty.curves,
    )


def _workload_figures(curves: Sequence[WorkloadCurve]) -> tuple[WorkloadFigure, ...]:
    return tuple(WorkloadFigure(curve, _text_table(workload_table(curve))) for curve in curves)


def _deficit_rows(
    comparisons: Sequence[Comparison], sides: Sequence[Side]
) -> tuple[DeficitRow, ...]:
    """Return a row for each model; its label names the run where a model has several rows."""
    nonempty = [comparison for comparison in comparisons if comparison.n]
    side_by_label = {side.label: side for side in sides}
    models = [side_by_label[comparison.second].run.configuration for comparison in nonempty]
    rows = []
    for comparison, model in zip(nonempty, models, strict=True):
        is_only_row = models.count(model) == 1
        row = DeficitRow(
            label=model if is_only_row else f"{model} ({comparison.second})",
            setting=side_by_label[comparison.second].setting,
            first=comparison.first,
            second=comparison.second,
            n=comparison.n,
            first_rate=comparison.first_rate,
            second_rate=comparison.second_rate,
            mcnemar_p=comparison.mcnemar_p,
            unsound=len(comparison.unsound),
            affected=bool(comparison.affected),
            coordination_deficit=comparison.coordination_deficit,
            retention=comparison.retention,
        )
        rows.append(row)
    return tuple(rows)


def _study_figures(runs: Sequence[Run]) -> tuple[StudyFigures, ...]:
    """Return the figures of studies; none if the arms of a study cannot be compared."""
    try:
        studies = analyse_studies(runs)
    except UserError:
        return ()
    figures = []
    for study in studies:
        factors = [
            LevelFigure(curve, _text_table(level_table(study.study, curve)))
            for curve in study.factors
            if len(curve.points) > 2
        ]
        effects = _text_table(effects_table(study))
        figures.append(StudyFigures(study.study, tuple(factors), effects))
    return tuple(figures)


def _text_table(table: Table) -> TextTable:
    return TextTable(table.title, table.texts, table.notes)


def _fork_figures(runs: Sequence[Run]) -> ForkFigures:
    tables = [forks_table(analysis) for analysis in analyse_forks(runs) if analysis.effects]
    texts = tuple(_text_table(table) for table in tables)
    return ForkFigures(texts, tuple(_page_tree(tree) for tree in fork_trees(runs)))


def _page_tree(tree: ForkTree) -> PageTree:
    branches = [
        PageBranch(
            arm=branch.arm,
            series=f"{branch.run}:{branch.pair.setting}",
            outcome=outcome_of(branch.pair),
            divergence=branch.divergence,
        )
        for branch in tree.branches
    ]
    key = tree.branches[0].pair.key
    return PageTree(
        run=tree.run,
        fork_point=tree.fork_point,
        repo=key.repo,
        task=key.task_id,
        name=key.group,
        replayed=tree.replayed,
        branches=tuple(branches),
    )


def _coupling_tables(rows: Sequence[CouplingRow]) -> tuple[TextTable, ...]:
    if not rows:
        return ()
    table = coupling_table(rows)
    return (TextTable("", table.texts, table.notes),)


def _pair_rows(
    runs: Sequence[Run], sides: Sequence[Side], mismatches: Sequence[Mismatch]
) -> tuple[PairRow, ...]:
    """Return all pairs; their cells are numbered as in `numbered_pairs`."""
    cells_by_side: list[dict[PairKey, PairCell]] = []
    number = 0
    for side in sides:
        cells = {}
        for key, pair in side.pairs.items():
            indexes = [
                index
                for index, mismatch in enumerate(mismatches)
                if side.run.name in mismatch.runs and mismatch.is_about(pair)
            ]
            cells[key] = replace(_pair_cell(number, pair), mismatches=tuple(indexes))
            number += 1
        cells_by_side.append(cells)
    keys: set[PairKey] = set()
    for cells in cells_by_side:
        keys.update(cells)
    titles = read_feature_titles(runs, keys)
    rows = []
    for order, key in enumerate(sorted(keys)):
        row_cells = [cells.get(key) for cells in cells_by_side]
        rows.append(_pair_row(order, key, titles, row_cells))
    return tuple(rows)


def _pair_row(
    order: int, key: PairKey, titles: Mapping[FeatureKey, str], cells: Sequence[PairCell | None]
) -> PairRow:
    return PairRow(
        order=order,
        repo=key.repo,
        task=key.task_id,
        features=key.features,
        name=key.group,
        titles=tuple(titles.get((key.repo, key.task_id, feature)) for feature in key.features),
        cells=tuple(cells),
    )


def _pair_cell(number: int, pair: PairData) -> PairCell:
    return PairCell(
        id=number,
        outcome=outcome_of(pair),
        ended=pair.state in ENDED,
        messages=pair.messages,
        steps=pair.steps,
        cost=None if pair.cost is None else round(pair.cost, 6),
        seconds=None if pair.duration_seconds is None else round(pair.duration_seconds, 1),
        unsound=pair.unsound_text,
        suspicious=len(pair.suspicious),
        mismatches=(),
        reason=failure_reason(pair) or None,
    )
