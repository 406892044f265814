"""Runs as reports see them: everything under logs/<run>/ that can be read, and a line for everything that cannot.

`load_run` reads config.json, and result.json and eval.json of each pair. Trajectories, conversations, patches and test
outputs are read by `PairData` when asked for: a run of 652 pairs has gigabytes of them. `pair_rows` are a flat row for
each pair, for CSV, Parquet and other tables.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cooperbench.errors import UserError
from cooperbench.models import MAX_AGENTS, SETTINGS, Setting
from cooperbench.report.fields import flag, listed, mapping, text_or_none
from cooperbench.report.pairs import VERDICTS, PairData, PairKey, is_completed
from cooperbench.storage import ExperimentPaths, PairPaths, read_json, read_json_or_problem
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
    config: Mapping[str, Any]
    """config.json; empty where there is none."""
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
        return text_or_none(self.config, "dataset"), text_or_none(self.config, "dataset_revision")

    @property
    def configuration(self) -> str:
        parts = (text_or_none(self.config, name) for name in ("model_name", "agent"))
        return " · ".join(filter(None, parts)) or self.name


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
    config, problem = read_json_or_problem(paths.config)
    problems = [] if config is not None else [problem or "config.json is missing"]
    problems += _schema_problems(config, "config")
    summary = mapping(read_json(paths.summary), "settings")
    pairs = [
        pair
        for setting in SETTINGS
        for pair in read_pairs(paths, setting, _announced(mapping(summary, setting)))
    ]
    if not pairs:
        problems.append("there are no pairs in it")
    problems += [f"{pair.setting} {pair.label}: {line}" for pair in pairs for line in pair.problems]
    return Run(name, paths.root, config or {}, tuple(pairs), tuple(problems))


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
    """Of the arms of an ablation; empty where the folder is none."""
    arms = listed(read_json(study / "study.json"), "arms", dict)
    names = [name for name in (text_or_none(arm, "name") for arm in arms) if name]
    return [
        folder for name in names if Path(name).name == name and (folder := study / name).is_dir()
    ]


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


def _announced(summary: Mapping[str, Any]) -> set[PairKey]:
    """Pairs that were asked for, by summary.json: those that have not been started have no folder."""
    keys = set()
    for line in listed(summary, "results", dict):
        repo, task_id, features = (
            line.get("repo"),
            line.get("task_id"),
            listed(line, "features", int),
        )
        if (
            isinstance(repo, str)
            and Path(repo).name == repo
            and isinstance(task_id, int)
            and features
        ):
            keys.add(PairKey(repo, task_id, tuple(features)))
    return keys


def _read_pair(paths: PairPaths, setting: Setting, key: PairKey) -> PairData:
    """The two small files of a pair, and a line for everything in them that cannot be used."""
    result, no_result = read_json_or_problem(paths.result)
    evaluation, no_evaluation = read_json_or_problem(paths.evaluation)
    unread = [problem for problem in (no_result, no_evaluation) if problem]
    problems = [*unread, *_schema_problems(result, "result"), *_schema_problems(evaluation, "eval")]
    if is_completed(result) and not mapping(result, "agents"):
        problems.append("result.json tells nothing about the agents: no cost, steps or models")
    if is_completed(evaluation) and flag(evaluation, "overall_success") is None:
        problems.append("eval.json has no overall_success")
    return PairData(key, setting, paths, result, evaluation, tuple(problems), bool(unread))


def _schema_problems(record: Mapping[str, Any] | None, kind: str) -> list[str]:
    """Another schema is read as far as it goes, and said. What ended in an error has none."""
    schema = (record or {}).get("schema")
    if record is None or record.get("status") == "error" or schema == f"cooperbench.{kind}/1":
        return []
    return [f"{kind}.json is of another schema ({schema or 'none given'}), read as far as it goes"]


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
