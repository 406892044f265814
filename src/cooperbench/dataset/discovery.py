"""From a dataset's folder to the pairs that are to be run.

A task is `<repo>/task<id>/` with at least one whole `feature<N>/`. Whatever else lies in a dataset is passed
over; what looks like a feature or task but is not whole is told in the notes. Only folders are read here, and
subsets; no task file is opened.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cooperbench.dataset.subsets import load_subset, subset_names
from cooperbench.errors import UserError
from cooperbench.models import Pair, Task
from cooperbench.text import names_for_error, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cooperbench.dataset.subsets import Subset

ENVIRONMENT_VARIABLE = "COOPERBENCH_DATASET_DIR"
DEFAULT_DATASET_DIR = "dataset"
DEMO = "demo"
"""The dataset in the package, wherever a dataset's folder is asked for; `./demo` is a folder of that name."""
EVERYTHING = "full"
"""The subset that every dataset has, whether or not there is a file for it."""

_REPO_SUFFIX = "_task"
_FEATURE_FILES = frozenset({"feature.md", "feature.patch", "tests.patch"})
# No leading zeros: `feature01` and `feature1` would be the same feature at two places.
_TASK = re.compile(r"task(0|[1-9][0-9]{0,17})")
_FEATURE = re.compile(r"feature(0|[1-9][0-9]{0,17})")


@dataclass(frozen=True)
class Scan:
    """The tasks that were asked for."""

    tasks: tuple[Task, ...]
    """By repository, then by number."""
    notes: tuple[str, ...]
    """What was passed over in them, one line each."""


@dataclass(frozen=True)
class Selection:
    """The pairs that were asked for."""

    pairs: tuple[Pair, ...]
    """By repository, task and features; numbers in numeric order."""
    notes: tuple[str, ...]
    """What was passed over in the tasks asked for, one line each."""


def demo_dir() -> Path:
    """The packaged dataset as a folder on disk."""
    from importlib.resources import files

    folder = files("cooperbench.dataset").joinpath(DEMO)
    if isinstance(folder, Path) and folder.is_dir():
        return folder
    raise UserError("the demo dataset is missing from this installation; install cooperbench again, unzipped")


def resolve_dataset_dir(dataset_dir: str | Path | None) -> Path:
    """The folder meant: `demo` is the packaged dataset, None is $COOPERBENCH_DATASET_DIR or `dataset`."""
    wanted = str(dataset_dir or os.environ.get(ENVIRONMENT_VARIABLE) or DEFAULT_DATASET_DIR)
    if wanted == DEMO:
        return demo_dir()
    folder = Path(wanted).expanduser()
    if folder.is_dir():
        return folder
    problem = "is not a folder" if folder.exists() else "does not exist"
    raise UserError(
        f"dataset {printable(wanted)} {problem}; download it with `cooperbench prepare`,"
        " name another with --dataset-dir, or try `--dataset-dir demo`"
    )


def load_tasks(dataset_dir: Path, repo: str | None = None, task_id: int | None = None) -> tuple[Task, ...]:
    """The tasks of a dataset, of one repository, or of one id; by repository, then by number."""
    return scan_tasks(dataset_dir, repo, task_id).tasks


def scan_tasks(dataset_dir: Path, repo: str | None = None, task_id: int | None = None) -> Scan:
    """`load_tasks`, with the notes."""
    return _narrow(*_scan(dataset_dir), repo, task_id)


def discover(
    dataset_dir: Path,
    *,
    subset: str | None = None,
    repo: str | None = None,
    task_id: int | None = None,
    features: Sequence[int] | None = None,
) -> Selection:
    """The pairs that match every filter; UserError where there is none, or where a filter names nothing."""
    group = _feature_group(features)
    if subset == EVERYTHING and EVERYTHING not in subset_names(dataset_dir):
        subset = None
    tasks, notes = _scan(dataset_dir)
    scan = _narrow(tasks, notes, repo, task_id)
    if subset is not None:
        pairs = _subset_pairs(load_subset(dataset_dir, subset), tasks, set(scan.tasks))
        if group is not None:
            pairs = _with_features(pairs, group, f"subset {subset!r}")
    elif group is not None:
        pairs = [Pair(task, group) for task in scan.tasks if set(group) <= set(task.feature_ids)]
        if not pairs:
            there_is = names_for_error(f"{task.label}: {_ids(task.feature_ids)}" for task in scan.tasks)
            raise UserError(f"no task asked for has features {_ids(group)}; there is: {there_is}")
    else:
        pairs = [pair for task in scan.tasks for pair in task.pairs]
    if not pairs:
        raise UserError(f"no pairs: no task asked for in {dataset_dir} has two features")
    return Selection(tuple(pairs), scan.notes)


def _feature_group(features: Sequence[int] | None) -> tuple[int, ...] | None:
    if features is None:
        return None
    if len(set(features)) != len(features):
        raise UserError(f"features {_ids(features)} name one twice; name each once, e.g. 1,2")
    if len(features) < 2:
        raise UserError(f"features {_ids(features) or '(none)'}: name two or more, e.g. 1,2")
    return tuple(sorted(features))


def _subset_pairs(subset: Subset, tasks: tuple[Task, ...], chosen: set[Task]) -> list[Pair]:
    """The subset's pairs of the chosen tasks. All of the subset must be in the dataset, chosen or not."""
    every = {(task.repo, task.task_id): task for task in tasks}
    repos = list(dict.fromkeys(repo for repo, _ in every))
    wanted: set[Pair] = set()
    missing: list[str] = []
    for entry in subset.tasks:
        task = every.get((_repo_named(entry.repo, repos) or entry.repo, entry.task_id))
        if task is None:
            missing.append(f"{entry.repo}/task{entry.task_id}")
            continue
        groups = [pair.feature_ids for pair in task.pairs] if entry.groups is None else entry.groups
        unknown = {number for group in groups for number in group} - set(task.feature_ids)
        missing += [f"{task.label}/feature{number}" for number in sorted(unknown)]
        wanted.update(Pair(task, group) for group in groups)
    if missing:
        raise UserError(f"subset {subset.name!r} names what the dataset lacks: {names_for_error(missing)}")
    pairs = [pair for pair in wanted if pair.task in chosen]
    if not pairs:
        there_is = names_for_error(dict.fromkeys(pair.task.label for pair in _in_order(wanted)))
        raise UserError(f"subset {subset.name!r} has no pairs of what was asked for; it has: {there_is}")
    return _in_order(pairs)


def _with_features(pairs: list[Pair], group: tuple[int, ...], whose: str) -> list[Pair]:
    chosen = [pair for pair in pairs if pair.feature_ids == group]
    if not chosen:
        there_is = names_for_error(pair.label for pair in pairs)
        raise UserError(f"{whose} has no pair of features {_ids(group)} there; it has: {there_is}")
    return chosen


def _in_order(pairs: Iterable[Pair]) -> list[Pair]:
    return sorted(pairs, key=lambda pair: (pair.task.repo, pair.task.task_id, pair.feature_ids))


def _ids(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


class _Note(NamedTuple):
    """What was passed over in a task."""

    repo: str
    task_id: int
    text: str


def _scan(dataset_dir: Path) -> tuple[tuple[Task, ...], list[_Note]]:
    tasks: list[Task] = []
    notes: list[_Note] = []
    for repo_name, repo_path in _folders(dataset_dir):
        for task_name, task_path in _folders(repo_path):
            match = _TASK.fullmatch(task_name)
            if match is None:
                continue
            number = int(match[1])
            whole, broken = _feature_ids(task_path)
            notes += [_Note(repo_name, number, f"{repo_name}/{task_name}/{what}") for what in broken]
            if whole:
                tasks.append(Task(repo_name, number, Path(task_path), whole))
            else:
                skipped = f"{repo_name}/{task_name} skipped: it has no whole feature"
                notes.append(_Note(repo_name, number, skipped))
    if not tasks:
        raise UserError(
            f"no tasks in {dataset_dir} (looked for <repo>_task/task<id>/feature<N>/ with feature.md,"
            " feature.patch and tests.patch); download them with"
            " `cooperbench prepare`, or try `--dataset-dir demo`"
        )
    tasks.sort(key=lambda task: (task.repo, task.task_id))
    return tuple(tasks), sorted(notes)


def _narrow(tasks: tuple[Task, ...], notes: list[_Note], repo: str | None, task_id: int | None) -> Scan:
    chosen = _chosen(tasks, repo, task_id)
    repos = {task.repo for task in chosen}
    kept = (
        printable(note.text)
        for note in notes
        if (repo is None or note.repo in repos) and task_id in (None, note.task_id)
    )
    return Scan(chosen, tuple(kept))


def _chosen(tasks: tuple[Task, ...], repo: str | None, task_id: int | None) -> tuple[Task, ...]:
    where = ""
    if repo is not None:
        repos = list(dict.fromkeys(task.repo for task in tasks))
        name = _repo_named(repo, repos)
        if name is None:
            raise UserError(f"no repository {printable(repo)!r}; there is: {names_for_error(repos, repo)}")
        tasks = tuple(task for task in tasks if task.repo == name)
        where = f" in {name}"
    if task_id is None:
        return tasks
    chosen = tuple(task for task in tasks if task.task_id == task_id)
    if not chosen:
        labels = [str(task.task_id) if where else f"{task.repo} {task.task_id}" for task in tasks]
        raise UserError(f"no task {task_id}{where}; there is: {names_for_error(labels)}")
    return chosen


def _repo_named(name: str, repos: list[str]) -> str | None:
    """`llama_index` means `llama_index_task`, unless there is a folder of exactly that name."""
    return next((repo for repo in (name, name + _REPO_SUFFIX) if repo in repos), None)


def _feature_ids(task_path: str) -> tuple[tuple[int, ...], list[str]]:
    """The whole features' numbers in order, and what is wrong with the others."""
    whole: list[int] = []
    broken: list[str] = []
    for name, path in _folders(task_path):
        match = _FEATURE.fullmatch(name)
        if match is None:
            continue
        missing = sorted(_FEATURE_FILES - _file_names(path))
        if missing:
            broken.append(f"{name} skipped: no {', '.join(missing)}")
        else:
            whole.append(int(match[1]))
    return tuple(sorted(whole)), broken


def _folders(path: str | Path) -> Iterator[tuple[str, str]]:
    """Name and path of each folder that could be part of a dataset; none where the folder cannot be read."""
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and entry.name.isprintable() and _is(entry, "dir"):
                    yield entry.name, entry.path
    except OSError:
        return


def _file_names(path: str) -> set[str]:
    try:
        with os.scandir(path) as entries:
            return {entry.name for entry in entries if entry.name in _FEATURE_FILES and _is(entry, "file")}
    except OSError:
        return set()


def _is(entry: os.DirEntry[str], kind: str) -> bool:
    try:
        return entry.is_dir() if kind == "dir" else entry.is_file()
    except OSError:  # a loop of symbolic links
        return False
