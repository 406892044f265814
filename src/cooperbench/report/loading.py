"""Runs as reports see them: everything under logs/<run>/ that can be read, and a line for everything that cannot.

`load_run` reads config.json, and result.json and eval.json of each pair. Trajectories, conversations, patches and test
outputs are read by `PairData` when asked for: a run of 652 pairs has gigabytes of them. `pair_rows` are a flat row for
each pair, for CSV, Parquet and other tables.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cooperbench import records
from cooperbench.errors import UserError
from cooperbench.models import MAX_AGENTS, SETTINGS, Setting
from cooperbench.records.config import RunRecord
from cooperbench.records.evaluation import Evaluation
from cooperbench.records.result import PairResult
from cooperbench.records.study import StudyRecord
from cooperbench.records.summary import SettingSummary, Summary
from cooperbench.report.pairs import VERDICTS, PairData, PairKey
from cooperbench.storage import ExperimentPaths, PairPaths
from cooperbench.text import names_for_error, plural

_FOLDER = re.compile(r"f[0-9]{1,18}(?:_f[0-9]{1,18})*")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_OF_AN_AGENT: dict[str, type] = {
    "agent": str, "model": str, "status": str, "success": bool, "cost": float, "steps": int,
}  # fmt: skip
_BEFORE: dict[str, type] = {
    "run": str, "dataset": str, "dataset_revision": str, "setting": str, "repo": str, "task_id": int, "features": str,
    "state": str, **dict.fromkeys(VERDICTS, bool), "merge_status": str, "messages": int, "cost": float, "steps": int,
    "prompt_tokens": int, "completion_tokens": int, "duration_seconds": float,
}  # fmt: skip
_AFTER: dict[str, type] = {"error": str, "unsound": str, "network": str, "suspicious": int}


@dataclass(frozen=True)
class Run:
    """One experiment as it is on disk now."""

    name: str
    root: Path
    config: RunRecord | None
    """config.json; None if there is none that can be read."""
    pairs: tuple[PairData, ...]
    """In the order of settings, repositories, tasks, features."""
    problems: tuple[str, ...] = ()
    """What could not be read, a line each; those of pairs are among them."""
    unsound_left_out: int | None = None
    """How many pairs `sound_only` took out; None: it was not asked for."""

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Those of which there are pairs."""
        return tuple(
            setting for setting in SETTINGS if any(pair.setting == setting for pair in self.pairs)
        )

    def of(self, setting: Setting) -> tuple[PairData, ...]:
        return tuple(pair for pair in self.pairs if pair.setting == setting)

    @property
    def dataset(self) -> tuple[str | None, str | None]:
        """Name and revision: runs are compared only where both agree."""
        if self.config is None:
            return None, None
        return self.config.dataset or None, self.config.dataset_revision or None

    @property
    def configuration(self) -> str:
        """Model and agent, for people; the run's name if config.json does not say."""
        if self.config is None:
            return self.name
        parts = [part for part in (self.config.model_name, self.config.agent) if part]
        return " · ".join(parts) or self.name


@dataclass(frozen=True)
class Side:
    """One setting of one run."""

    run: Run
    setting: Setting

    @property
    def label(self) -> str:
        return f"{self.run.name}:{self.setting}"

    @property
    def pairs(self) -> dict[PairKey, PairData]:
        return {pair.key: pair for pair in self.run.of(self.setting)}


def sides_of(runs: Sequence[Run]) -> list[Side]:
    return [Side(run, setting) for run in runs for setting in run.settings]


def load_run(logs_dir: Path, name: str) -> Run:
    paths = ExperimentPaths(logs_dir, name)
    if not paths.root.is_dir():
        there = names_for_error(run_names(logs_dir), name)
        raise UserError(f"no run {name!r} in {logs_dir}; there are: {there}")
    config, problem = records.read_or_problem(paths.config, RunRecord)
    problems = [] if config is not None else [problem or "config.json is missing"]
    problems += _schema_problems(config, paths.config)
    summary = records.read(paths.summary, Summary)
    pairs: list[PairData] = []
    for setting in SETTINGS:
        part = summary.settings.get(setting) if summary else None
        pairs += read_pairs(paths, setting, _expected_pairs(part) if part else ())
    if not pairs:
        problems.append("there are no pairs in it")
    problems += [f"{pair.setting} {pair.label}: {line}" for pair in pairs for line in pair.problems]
    return Run(name, paths.root, config, tuple(pairs), tuple(problems))


def run_names(logs_dir: Path) -> list[str]:
    """Folders that look like runs, the newest first."""
    if not logs_dir.is_dir():
        return []
    folders = [
        folder
        for place in logs_dir.iterdir()
        for folder in (arm_folders(place) or [place])
        if (folder / "config.json").is_file()
        or any((folder / setting).is_dir() for setting in SETTINGS)
    ]
    ordered = sorted(folders, key=lambda one: (-one.stat().st_mtime, one.name))
    return [folder.relative_to(logs_dir).as_posix() for folder in ordered]


def arm_folders(study: Path) -> list[Path]:
    """Return the folders of the arms of an ablation; empty if the folder is not an ablation."""
    record = records.read(study / "study.json", StudyRecord)
    names = [arm.name for arm in record.arms] if record else []
    folders = [study / name for name in names if name and Path(name).name == name]
    return [folder for folder in folders if folder.is_dir()]


def run_folder(text: str, logs_dir: Path) -> Path:
    """By its name in the logs folder (of an arm: `study/no-git`), or by its path as a shell completes it."""
    here = logs_dir / text
    is_name = "/" not in text or (here.parent / "study.json").is_file()
    return here if is_name else Path(text)


def run_folders(names: Sequence[str], logs_dir: Path) -> list[Path]:
    """Of an ablation those of its arms. Named twice, by name and by path, a run would count twice."""
    named = [run_folder(name, logs_dir) for name in names]
    folders = [folder for one in named for folder in (arm_folders(one) or [one])]
    return list({folder.resolve(): folder for folder in folders}.values())


def load_folder(folder: Path) -> Run:
    """The run in a folder; an arm is called by its study, too."""
    if (folder.parent / "study.json").is_file():
        return load_run(folder.parent.parent, f"{folder.parent.name}/{folder.name}")
    return load_run(folder.parent, folder.name)


def resolve_run(text: str, logs_dir: Path) -> Run:
    folder = run_folder(text, logs_dir)
    if arms := arm_folders(folder):
        raise UserError(f"{text} is an ablation: name one of its arms, e.g. {text}/{arms[0].name}")
    return load_folder(folder)


def check_same_dataset(runs: Sequence[Run], *, anyway: bool = False) -> None:
    """Numbers of different datasets do not belong into one table."""
    different = {run.dataset: run.name for run in reversed(runs)}
    if len(different) > 1 and not anyway:
        shown = "; ".join(
            f"{name} has {dataset or 'an unknown dataset'}"
            + (f" at revision {revision}" if revision else "")
            for (dataset, revision), name in reversed(different.items())
        )
        raise UserError(
            f"these runs are of different datasets ({shown}); add --anyway to go on all the same"
        )


def sound_only(runs: Sequence[Run]) -> list[Run]:
    """Without the pairs that any of these runs marks as unsound: their tests are the dataset's, not the run's."""
    unsound = {(run.dataset, pair.key) for run in runs for pair in run.pairs if pair.unsound}
    sound = []
    for run in runs:
        kept = tuple(pair for pair in run.pairs if (run.dataset, pair.key) not in unsound)
        left_out = len({pair.key for pair in run.pairs} - {pair.key for pair in kept})
        sound.append(replace(run, pairs=kept, unsound_left_out=left_out))
    return sound


def left_out_lines(runs: Sequence[Run]) -> list[str]:
    """What `--sound-only` took out of each run."""
    return [
        f"{run.name}: {plural(run.unsound_left_out, 'unsound pair')} left out"
        for run in runs
        if run.unsound_left_out is not None
    ]


def read_pairs(
    paths: ExperimentPaths, setting: Setting, expected: Iterable[PairKey] = ()
) -> list[PairData]:
    """Every pair that has a folder, and those that should have one."""
    keys = set(expected)
    for folder in (paths.root / setting).glob("*/*/f*"):
        task = folder.parent.name
        if task.isascii() and task.isdigit() and _FOLDER.fullmatch(folder.name):
            features = tuple(int(part[1:]) for part in folder.name.split("_"))
            keys.add(PairKey(folder.parent.parent.name, int(task), features))
    return [
        _read_pair(paths.pair_named(setting, key.repo, key.task_id, key.features), setting, key)
        for key in sorted(keys)
    ]


def _expected_pairs(summary: SettingSummary) -> set[PairKey]:
    """Return the pairs that summary.json lists. Those that were not started have no folder."""
    keys = set()
    for pair in summary.results:
        is_folder_name = bool(pair.repo) and Path(pair.repo).name == pair.repo
        if is_folder_name and pair.task_id is not None and pair.features:
            keys.add(PairKey(pair.repo, pair.task_id, tuple(pair.features)))
    return keys


def _read_pair(paths: PairPaths, setting: Setting, key: PairKey) -> PairData:
    """Read the two small files of a pair, and list everything in them that cannot be used."""
    result, result_problem = records.read_or_problem(paths.result, PairResult)
    evaluation, evaluation_problem = records.read_or_problem(paths.evaluation, Evaluation)
    unreadable = [problem for problem in (result_problem, evaluation_problem) if problem]
    problems = [
        *unreadable,
        *_schema_problems(result, paths.result),
        *_schema_problems(evaluation, paths.evaluation),
    ]
    if result is not None and result.is_completed and not result.agents:
        problems.append("result.json does not describe the agents: no cost, steps or models")
    has_verdict = evaluation is not None and evaluation.is_completed
    if evaluation is not None and has_verdict and evaluation.overall_success is None:
        problems.append("eval.json has no overall_success")
    return PairData(key, setting, paths, result, evaluation, tuple(problems), bool(unreadable))


def _schema_problems(record: RunRecord | PairResult | Evaluation | None, path: Path) -> list[str]:
    """Return a line if a file has another schema. It is still read as far as possible."""
    if record is None or record.schema == record.SCHEMA:
        return []
    if not isinstance(record, RunRecord) and record.status == "error":
        return []  # errors of older versions have no schema
    schema = record.schema or "none given"
    return [f"{path.name} is of another schema ({schema}), read as far as it goes"]


def columns(agents: int = 2) -> dict[str, type]:
    """Names and types, for so many agents, at least two; any value may be missing. Solo's one agent is agent1."""
    places = range(1, max(2, agents) + 1)
    of_agents = {f"agent{at}_{name}": kind for at in places for name, kind in _OF_AN_AGENT.items()}
    return _BEFORE | of_agents | _AFTER


def pair_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Every pair of every run, also those without a verdict: the column `state` tells."""
    empty = dict.fromkeys(
        columns(max((len(pair.agents) for run in runs for pair in run.pairs), default=2))
    )
    return [empty | _pair_row(run, pair) for run in runs for pair in run.pairs]


def _pair_row(run: Run, pair: PairData) -> dict[str, Any]:
    agents = pair.agents
    row: dict[str, Any] = {
        "run": run.name,
        "dataset": run.dataset[0],
        "dataset_revision": run.dataset[1],
        "repo": pair.key.repo,
        "task_id": pair.key.task_id,
        "features": ",".join(map(str, pair.key.features)),
        "unsound": ",".join(map(str, pair.unsound)) or None,
        **{
            name: getattr(pair, name)
            for name in ("setting", "state", "merge_status", "error", "network")
        },
    }
    if pair.verdicts:
        row |= {**pair.verdicts, "suspicious": len(pair.suspicious)}
    if agents:
        row |= {
            name: getattr(pair, name) for name in ("messages", "cost", "steps", "duration_seconds")
        }
        for name in ("prompt_tokens", "completion_tokens"):
            row[name] = sum(getattr(agent, name) for agent in agents)
    for place, agent in enumerate(agents, 1):
        row |= {f"agent{place}_{name}": getattr(agent, name) for name in _OF_AN_AGENT}
    return row


def csv_bytes(rows: Sequence[dict[str, Any]]) -> bytes:
    """With a heading; empty where a value is missing; text that a spreadsheet would compute gets a `'` in front."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0] if rows else columns()), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _csv_cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue().encode("utf-8", "backslashreplace")


def _csv_cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def parquet_bytes(rows: Sequence[dict[str, Any]]) -> bytes:
    """Typed columns, also where all values are missing."""
    from importlib import import_module

    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise UserError(
            "Parquet needs pyarrow, which is not installed; pip install 'cooperbench[report]', or write --csv"
        ) from None
    types = {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    known = columns(MAX_AGENTS)
    schema = arrow.schema([(name, types[known[name]]) for name in (rows[0] if rows else columns())])
    clean = [{name: _utf8(value) for name, value in row.items()} for row in rows]
    target = io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist(clean, schema=schema), target)
    return target.getvalue()


def _utf8(value: object) -> object:
    """Unpaired surrogates have no UTF-8."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
