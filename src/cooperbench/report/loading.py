"""Runs as reports see them: everything under logs/<run>/ that can be read, and what cannot.

`load_run` reads config.json, and result.json and eval.json of each pair. `PairData` reads
trajectories, conversations, patches and test outputs on demand, because a run of 652 pairs has
gigabytes of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cooperbench import records
from cooperbench.errors import UserError
from cooperbench.models import SETTINGS, Setting
from cooperbench.records.config import ImportSource, RunRecord
from cooperbench.records.evaluation import Evaluation
from cooperbench.records.forks import ForksRecord
from cooperbench.records.result import PairResult
from cooperbench.records.study import StudyRecord
from cooperbench.records.summary import SettingSummary, Summary
from cooperbench.report.consistency import find_mismatches
from cooperbench.report.history_check import parse_pair_folder
from cooperbench.report.mismatch import Mismatch
from cooperbench.report.pairs import PairData, PairKey
from cooperbench.storage import ExperimentPaths, PairPaths
from cooperbench.text import names_for_error, plural

_FEATURES_FOLDER = re.compile(r"f[0-9]{1,18}(?:_f[0-9]{1,18})*")
_STUDY_FILE = "study.json"
_FORKS_FILE = "forks.json"

Dataset = tuple[str | None, str | None]
"""Name and revision of a dataset."""


@dataclass(frozen=True)
class Run:
    """One experiment as it is on disk now."""

    name: str
    root: Path
    config: RunRecord | None
    """config.json; None if there is none that can be read."""
    pairs: tuple[PairData, ...]
    """The pairs in the order of settings, repositories, tasks, features."""
    problems: tuple[str, ...] = ()
    """One line for everything that could not be read, also in the files of pairs."""
    unsound_left_out: int | None = None
    """Number of pairs that `sound_only` left out; None if it was not used."""
    mismatches: tuple[Mismatch, ...] = ()
    """What does not fit together in the whole run, and what cannot be checked."""

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The settings that have pairs."""
        used = {pair.setting for pair in self.pairs}
        return tuple(setting for setting in SETTINGS if setting in used)

    def of(self, setting: Setting) -> tuple[PairData, ...]:
        """Return the pairs of a setting."""
        return tuple(pair for pair in self.pairs if pair.setting == setting)

    @property
    def dataset(self) -> Dataset:
        """Name and revision of the dataset. Runs are compared only if both agree."""
        if self.config is None:
            return None, None
        return self.config.dataset or None, self.config.dataset_revision or None

    @property
    def configuration(self) -> str:
        """Model and agent, for people; the run's name if config.json does not say."""
        if self.config is None:
            return self.name
        parts = [part for part in (self.config.model_name, self.config.agent) if part]
        text = " · ".join(parts) or self.name
        return f"{text} (imported)" if self.imported else text

    @property
    def imported(self) -> ImportSource | None:
        """The origin of an imported run; None for runs of our own."""
        return self.config.imported if self.config is not None else None


@dataclass(frozen=True)
class Side:
    """One setting of one run."""

    run: Run
    setting: Setting

    @property
    def label(self) -> str:
        """The name of the side: `run:coop`."""
        return f"{self.run.name}:{self.setting}"

    @property
    def pairs(self) -> dict[PairKey, PairData]:
        """The pairs by key, in order."""
        return {pair.key: pair for pair in self.run.of(self.setting)}


def sides_of(runs: Sequence[Run]) -> list[Side]:
    """Return every setting of every run."""
    sides: list[Side] = []
    for run in runs:
        sides += [Side(run, setting) for setting in run.settings]
    return sides


def load_run(logs_dir: Path, name: str) -> Run:
    """Read a run.

    Raises:
        UserError: There is no such run.
    """
    paths = ExperimentPaths(logs_dir, name)
    if not paths.root.is_dir():
        available = names_for_error(run_names(logs_dir), name)
        raise UserError(f"no run {name!r} in {logs_dir}; available: {available}")
    config, problem = records.read_or_problem(paths.config, RunRecord)
    problems = [] if config is not None else [problem or "config.json is missing"]
    problems += _schema_problems(config, paths.config)
    summary = records.read(paths.summary, Summary)
    pairs: list[PairData] = []
    for setting in SETTINGS:
        part = summary.settings.get(setting) if summary else None
        expected = _expected_pairs(part) if part else set()
        expected |= _requested_pairs(config, setting)
        pairs += read_pairs(paths, setting, expected, _agent_count(config))
    if not pairs:
        problems.append("there are no pairs in it")
    for pair in pairs:
        problems += [f"{pair.setting} {pair.label}: {line}" for line in pair.problems]
    run = Run(name, paths.root, config, tuple(pairs), tuple(problems))
    return replace(run, mismatches=tuple(find_mismatches(run)))


def run_names(logs_dir: Path) -> list[str]:
    """Return the names of the folders that look like runs, the newest first."""
    if not logs_dir.is_dir():
        return []
    folders = []
    for path in logs_dir.iterdir():
        candidates = arm_folders(path) or [path]
        folders += [candidate for candidate in candidates if _looks_like_run(candidate)]
    folders.sort(key=lambda folder: (-folder.stat().st_mtime, folder.name))
    return [folder.relative_to(logs_dir).as_posix() for folder in folders]


def _looks_like_run(folder: Path) -> bool:
    if (folder / "config.json").is_file():
        return True
    return any((folder / setting).is_dir() for setting in SETTINGS)


def arm_folders(study: Path) -> list[Path]:
    """Return the folders of the arms of a study; empty if the folder is not a study."""
    record = records.read(study / _STUDY_FILE, StudyRecord)
    names = [arm.name for arm in record.arms] if record else []
    forks = records.read(study / _FORKS_FILE, ForksRecord)
    if forks is not None:
        names += [arm.name for arm in forks.arms]
    folders = [study / name for name in names if name and Path(name).name == name]
    return [folder for folder in folders if folder.is_dir()]


def _has_arms(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (_STUDY_FILE, _FORKS_FILE))


def run_folder(text: str, logs_dir: Path) -> Path:
    """Return the folder of a run.

    Args:
        text: The run's name in the logs folder (`study/no-git` for an arm), or its path as a shell
            completes it.
        logs_dir: The logs folder.
    """
    folder = logs_dir / text
    is_arm = _has_arms(folder.parent)
    return folder if "/" not in text or is_arm else Path(text)


def run_folders(names: Sequence[str], logs_dir: Path) -> list[Path]:
    """Return the folders of several runs; of a study, the folders of its arms.

    A run that is named twice, by name and by path, is returned once.
    """
    folders: dict[Path, Path] = {}
    for name in names:
        folder = run_folder(name, logs_dir)
        for part in arm_folders(folder) or [folder]:
            folders[part.resolve()] = part
    return list(folders.values())


def load_folder(folder: Path) -> Run:
    """Read the run in a folder. The name of an arm includes the study."""
    if _has_arms(folder.parent):
        return load_run(folder.parent.parent, f"{folder.parent.name}/{folder.name}")
    return load_run(folder.parent, folder.name)


def resolve_run(text: str, logs_dir: Path) -> Run:
    """Read the run with a name or path; see `run_folder`."""
    folder = run_folder(text, logs_dir)
    arms = arm_folders(folder)
    if arms:
        example = f"{text}/{arms[0].name}"
        raise UserError(f"{text} is a study: name one of its arms, for example {example}")
    return load_folder(folder)


def check_same_dataset(runs: Sequence[Run], *, anyway: bool = False) -> None:
    """Raise UserError if runs are of different datasets, unless the user wants it `anyway`.

    Runs whose common pairs have the same files are of the same dataset, whatever its name is.
    """
    run_by_dataset: dict[Dataset, Run] = {}
    for run in runs:
        if not any(_has_same_content(run, other) for other in run_by_dataset.values()):
            run_by_dataset.setdefault(run.dataset, run)
    if len(run_by_dataset) < 2 or anyway:
        return
    descriptions = []
    for (name, revision), run in run_by_dataset.items():
        text = f"{run.name} has {name or 'an unknown dataset'}"
        descriptions.append(f"{text} at revision {revision}" if revision else text)
    raise UserError(
        f"these runs are of different datasets ({'; '.join(descriptions)}); "
        "add --anyway to show them together"
    )


def _has_same_content(run: Run, other: Run) -> bool:
    """Whether all common pairs have the same files in both datasets, by their checksums.

    Names and revisions say less: a copy has another name, and an imported run has neither.
    """
    checksums = _dataset_checksums(run)
    other_checksums = _dataset_checksums(other)
    common = checksums.keys() & other_checksums.keys()
    if not common:
        return False
    return all(checksums[key] == other_checksums[key] for key in common)


def _dataset_checksums(run: Run) -> dict[PairKey, str]:
    """Return the checksum of the dataset's files for each pair that has one."""
    checksums = {}
    for pair in run.pairs:
        checksum = pair.dataset_sha256
        if checksum is not None:
            checksums[pair.key] = checksum
    return checksums


def sound_only(runs: Sequence[Run]) -> list[Run]:
    """Return the runs without the pairs that any of them marks as unsound.

    The tests belong to the dataset, so what one run found is true for all.
    """
    unsound: set[tuple[Dataset, PairKey]] = set()
    for run in runs:
        unsound.update((run.dataset, pair.key) for pair in run.pairs if pair.unsound)
    sound_runs = []
    for run in runs:
        kept = tuple(pair for pair in run.pairs if (run.dataset, pair.key) not in unsound)
        left_out = {pair.key for pair in run.pairs} - {pair.key for pair in kept}
        sound_runs.append(replace(run, pairs=kept, unsound_left_out=len(left_out)))
    return sound_runs


def left_out_lines(runs: Sequence[Run]) -> list[str]:
    """Return a line for each run that says how many pairs `--sound-only` left out."""
    return [
        f"{run.name}: {plural(run.unsound_left_out, 'unsound pair')} left out"
        for run in runs
        if run.unsound_left_out is not None
    ]


def read_pairs(
    paths: ExperimentPaths,
    setting: Setting,
    expected: Iterable[PairKey] = (),
    agent_count: int | None = None,
) -> list[PairData]:
    """Read every pair that has a folder, and those that are expected to have one.

    `agent_count` is the number of agents in config.json.
    """
    keys = set(expected)
    for folder in (paths.root / setting).glob("*/*/f*"):
        task = folder.parent.name
        if task.isascii() and task.isdigit() and _FEATURES_FOLDER.fullmatch(folder.name):
            features = tuple(int(part[1:]) for part in folder.name.split("_"))
            keys.add(PairKey(folder.parent.parent.name, int(task), features))
    pairs = []
    for key in sorted(keys):
        pair = read_pair(paths, setting, key)
        pairs.append(replace(pair, agent_count=agent_count))
    return pairs


def read_pair(paths: ExperimentPaths, setting: Setting, key: PairKey) -> PairData:
    """Read the pair with a key, which need not have a folder."""
    return _read_pair(paths.pair_named(setting, key.repo, key.task_id, key.features), setting, key)


def _agent_count(config: RunRecord | None) -> int | None:
    """Return the number of agents in config.json; None if it is that of the features."""
    count = config.agent_count if config is not None else None
    return count if isinstance(count, int) else None


def _expected_pairs(summary: SettingSummary) -> set[PairKey]:
    """Return the pairs that summary.json lists. Those that were not started have no folder."""
    keys = set()
    for pair in summary.results:
        is_folder_name = bool(pair.repo) and Path(pair.repo).name == pair.repo
        if is_folder_name and pair.task_id is not None and pair.features:
            keys.add(PairKey(pair.repo, pair.task_id, tuple(pair.features)))
    return keys


def _requested_pairs(config: RunRecord | None, setting: Setting) -> set[PairKey]:
    """Return the pairs that any call asked for. Those that were deleted have no folder."""
    requested = (config.requested if config else None) or {}
    folders = [parse_pair_folder(name) for name in requested]
    return {folder.key for folder in folders if folder and folder.setting == setting}


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
