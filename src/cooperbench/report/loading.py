"""Runs as reports see them: everything under logs/<run>/ that can be read, and a line for everything that cannot.

`load_run` reads config.json, and result.json and eval.json of each pair. Trajectories, conversations, patches and test
outputs are read by `PairData` when asked for: a run of 652 pairs has gigabytes of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cooperbench.errors import UserError
from cooperbench.models import SETTINGS
from cooperbench.report.records import (
    AgentData,
    Conversation,
    PairData,
    SentMessage,
    Trajectory,
    Verdicts,
    is_list,
    is_object,
    load_pair,
    mapping,
    read_object,
    schema_problems,
    text_or_none,
)
from cooperbench.report.summary import PairKey, pair_keys
from cooperbench.storage import DEFAULT_LOGS_DIR, ExperimentPaths
from cooperbench.text import names_for_error, plural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.models import Setting

__all__ = [
    "AgentData",
    "Conversation",
    "PairData",
    "PairKey",
    "Run",
    "SentMessage",
    "Trajectory",
    "Verdicts",
    "left_out_lines",
    "load_run",
    "resolve_run",
    "run_names",
    "sound_only",
]


@dataclass(frozen=True)
class Run:
    """One experiment as it is on disk now."""

    name: str
    root: Path
    config: Mapping[str, Any]
    """config.json; empty where there is none."""
    settings: tuple[Setting, ...]
    """Those of which there are pairs."""
    pairs: tuple[PairData, ...]
    """In the order of settings, repositories, tasks, features."""
    problems: tuple[str, ...] = ()
    """What could not be read, a line each; those of pairs are among them."""
    unsound_left_out: int | None = None
    """How many pairs `sound_only` took out; None: it was not asked for."""

    def of(self, setting: Setting) -> tuple[PairData, ...]:
        return tuple(pair for pair in self.pairs if pair.setting == setting)

    @property
    def dataset(self) -> tuple[str | None, str | None]:
        """Name and revision: runs are compared only where both agree."""
        return text_or_none(self.config, "dataset"), text_or_none(self.config, "dataset_revision")

    @property
    def agent(self) -> str | None:
        return text_or_none(self.config, "agent")

    @property
    def model(self) -> str | None:
        return text_or_none(self.config, "model_name")


def load_run(logs_dir: Path, name: str) -> Run:
    """Everything small about a run. Raises UserError only where there is no such run at all."""
    paths = ExperimentPaths(logs_dir, name)
    if not paths.root.is_dir():
        there = names_for_error(run_names(logs_dir), name)
        raise UserError(f"no run {name!r} in {logs_dir}; there are: {there}")
    config, problem = read_object(paths.config)
    problems = [] if config is not None else [problem or "config.json is missing"]
    problems += schema_problems(config, "config")
    summary, _ = read_object(paths.summary)
    pairs: list[PairData] = []
    for setting in SETTINGS:
        pairs += _load_setting(paths, setting, summary)
    if not pairs:
        older = next(iter(sorted(paths.root.glob("*/task*/features_*"))), None)
        layout = f", only an older layout ({older.relative_to(paths.root)})" if older else ""
        problems.append(f"there are no pairs in it{layout}")
    problems += [f"{pair.setting} {pair.label}: {line}" for pair in pairs for line in pair.problems]
    settings = tuple(setting for setting in SETTINGS if any(pair.setting == setting for pair in pairs))
    return Run(name, paths.root, config or {}, settings, tuple(pairs), tuple(problems))


def run_names(logs_dir: Path) -> list[str]:
    """Folders that look like runs, the newest first."""
    if not logs_dir.is_dir():
        return []
    folders = [
        folder
        for folder in logs_dir.iterdir()
        if (folder / "config.json").is_file() or any((folder / setting).is_dir() for setting in SETTINGS)
    ]
    return [folder.name for folder in sorted(folders, key=lambda one: (-one.stat().st_mtime, one.name))]


def resolve_run(text: str, logs_dir: Path | None = None) -> Run:
    """A run by its name in the logs folder, or by its path as a shell completes it."""
    if "/" in text:
        path = Path(text)
        return load_run(path.parent, path.name)
    return load_run(logs_dir or Path(DEFAULT_LOGS_DIR), text)


def sound_only(runs: Sequence[Run]) -> list[Run]:
    """Without the pairs that any of these runs marks as unsound: their tests are the dataset's, not the run's."""
    unsound = {(run.dataset, pair.key) for run in runs for pair in run.pairs if pair.unsound}
    return [_without(run, {key for dataset, key in unsound if dataset == run.dataset}) for run in runs]


def left_out_lines(runs: Sequence[Run]) -> list[str]:
    """What `--sound-only` took out of each run."""
    return [
        f"{run.name}: {plural(run.unsound_left_out, 'unsound pair')} left out"
        for run in runs
        if run.unsound_left_out is not None
    ]


def _without(run: Run, keys: set[PairKey]) -> Run:
    kept = tuple(pair for pair in run.pairs if pair.key not in keys)
    settings = tuple(setting for setting in run.settings if any(pair.setting == setting for pair in kept))
    left_out = len({pair.key for pair in run.pairs} & keys)
    return replace(run, settings=settings, pairs=kept, unsound_left_out=left_out)


def _load_setting(
    paths: ExperimentPaths, setting: Setting, summary: Mapping[str, Any] | None
) -> list[PairData]:
    keys = sorted(pair_keys(paths, setting) | _announced(summary, setting))
    return [
        load_pair(paths.pair_named(setting, key.repo, key.task_id, key.features), setting, key)
        for key in keys
    ]


def _announced(summary: Mapping[str, Any] | None, setting: Setting) -> set[PairKey]:
    """Pairs that were asked for, by summary.json: those that have not been started have no folder."""
    lines = mapping(mapping(summary, "settings"), setting).get("results")
    keys = set()
    for line in lines if is_list(lines) else []:
        if not is_object(line):
            continue
        repo, task_id, features = line.get("repo"), line.get("task_id"), line.get("features")
        if not isinstance(repo, str) or Path(repo).name != repo or not isinstance(task_id, int):
            continue
        if is_list(features) and features and all(isinstance(one, int) for one in features):
            keys.add(PairKey(repo, task_id, tuple(features)))
    return keys
