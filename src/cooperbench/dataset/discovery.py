"""From a dataset's folder to the pairs that are to be run.

A task is `<repo>/task<id>/` with at least one whole `feature<N>/`. Whatever else lies in a dataset is passed over; what
looks like a feature or task but is not whole is told in the notes. No task file is opened.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from math import comb
from pathlib import Path
from typing import Any, NamedTuple

from cooperbench.dataset.subsets import SubsetTask, load_subset, subset_names
from cooperbench.errors import UserError
from cooperbench.models import MAX_AGENTS, Pair, Task
from cooperbench.text import names_for_error, printable

ENVIRONMENT_VARIABLE = "COOPERBENCH_DATASET_DIR"
DEFAULT_DATASET_DIR = "dataset"
DEMO = "demo"
"""The dataset in the package, wherever a dataset's folder is asked for; `./demo` is a folder of that name."""
EVERYTHING = "full"
"""The subset that every dataset has, whether or not there is a file for it."""

_FEATURE_FILES = ("feature.md", "feature.patch", "tests.patch")


Scan = tuple[tuple[Task, ...], tuple[str, ...]]
"""The tasks that were asked for, by repository and number, and a line for all that was passed over in them."""


class Selection(NamedTuple):
    """The pairs that were asked for, by repository, task and features, and the notes of their tasks."""

    pairs: tuple[Pair, ...]
    notes: tuple[str, ...]


def demo_dir() -> Path:
    return Path(__file__).with_name(DEMO)


def is_demo_task(task: Task) -> bool:
    """The demo's tasks are in no registry: an image with their name there is not ours."""
    return task.path.resolve().is_relative_to(demo_dir().resolve())


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


def load_tasks(
    dataset_dir: Path, repo: str | None = None, task_id: int | None = None
) -> tuple[Task, ...]:
    return scan_tasks(dataset_dir, repo, task_id)[0]


def scan_tasks(dataset_dir: Path, repo: str | None = None, task_id: int | None = None) -> Scan:
    """The tasks of a dataset, of one repository, or of one id."""
    return _narrowed(_scan(dataset_dir), repo, task_id)


def discover(
    dataset_dir: Path,
    *,
    subset: str | None = None,
    repo: str | None = None,
    task_id: int | None = None,
    features: Sequence[int] | None = None,
    group_sizes: Sequence[int] | None = None,
    groups_per_task: int | None = None,
    seed: int = 0,
) -> Selection:
    """The pairs that match every filter; UserError where there is none, or where a filter names nothing.

    `group_sizes`: groups of so many features each instead of pairs, of all features of a task or of `features`. There
    are at most `groups_per_task` of a size, by default as many as the task has pairs: more are drawn with the seed.
    """
    group = _feature_group(features)
    sizes = _group_sizes(group_sizes) or ((len(group),) if group else ())

    def groups_of(task: Task) -> list[tuple[int, ...]]:
        chosen = group or task.feature_ids
        if not set(chosen) <= set(task.feature_ids):
            return []
        return [
            one
            for size in sizes or (2,)
            for one in _groups(task, chosen, size, groups_per_task, seed)
        ]

    every_task = _scan(dataset_dir)
    tasks, notes = _narrowed(every_task, repo, task_id)
    if subset is None or (subset == EVERYTHING and EVERYTHING not in subset_names(dataset_dir)):
        pairs = [Pair(task, one) for task in tasks for one in groups_of(task)]
        where = str(dataset_dir)
        there_is = [f"{task.label}: {_ids(task.feature_ids)}" for task in tasks]
    else:
        named = load_subset(dataset_dir, subset)
        if groups_per_task is not None and any(entry.groups is not None for entry in named):
            raise UserError(f"subset {subset!r} names its groups itself: leave out --groups")
        every = _subset_pairs(
            subset, named, [task for task in every_task if task.feature_ids], groups_of
        )
        pairs = [
            pair
            for pair in every
            if pair.task in tasks
            and (not sizes or len(pair.feature_ids) in sizes)
            and (group is None or set(pair.feature_ids) <= set(group))
        ]
        where = f"subset {subset!r}"
        there_is = [pair.label for pair in every]
    if not pairs:
        what = f" with features {_ids(group)}" if group else ""
        what += f" of {_ids(sizes or (2,))} features" if group_sizes or not group else ""
        raise UserError(
            f"no pair{what} of the tasks asked for in {where}; there is: {names_for_error(there_is)}"
        )
    return Selection(tuple(pairs), notes)


def select_pairs(dataset_dir: Path, chosen: Any) -> Selection:
    """`discover` with filters that are attributes: options of a run, or arguments of the command line."""
    names = ("subset", "repo", "task_id", "features", "group_sizes", "groups_per_task", "seed")
    return discover(dataset_dir, **{name: getattr(chosen, name) for name in names})


def _feature_group(features: Sequence[int] | None) -> tuple[int, ...] | None:
    if features is None:
        return None
    if len(set(features)) != len(features) or not 2 <= len(features) <= MAX_AGENTS:
        shown = _ids(features) or "(none)"
        raise UserError(
            f"features {shown}: name two or more, up to {MAX_AGENTS}, each once, e.g. 1,2"
        )
    return tuple(sorted(features))


def _group_sizes(sizes: Sequence[int] | None) -> tuple[int, ...]:
    wrong = [size for size in sizes or () if not 2 <= size <= MAX_AGENTS]
    if wrong or (sizes is not None and not sizes):
        raise UserError(
            f"groups of {_ids(wrong) or 'no'} agents: from 2 to {MAX_AGENTS} work together"
        )
    return tuple(sorted(set(sizes or ())))


def _groups(
    task: Task, feature_ids: Sequence[int], size: int, most: int | None, seed: int
) -> list[tuple[int, ...]]:
    """All groups of a size, or `most` drawn with the seed.

    A draw is an order of the features, of which a group takes the first: draws of one seed are nested over sizes.
    """
    most = most or comb(len(feature_ids), 2)
    if comb(len(feature_ids), size) <= most:
        return list(combinations(feature_ids, size))
    source = random.Random(f"{seed} {task.label}")  # noqa: S311  # no secret: it has to be the same each time
    drawn: set[tuple[int, ...]] = set()
    while len(drawn) < most:
        drawn.add(tuple(sorted(source.sample(feature_ids, len(feature_ids))[:size])))
    return sorted(drawn)


def _subset_pairs(
    name: str,
    subset: Sequence[SubsetTask],
    tasks: Sequence[Task],
    groups_of: Callable[[Task], Sequence[tuple[int, ...]]],
) -> list[Pair]:
    """All of the subset must be in the dataset."""
    every = {(task.repo, task.task_id): task for task in tasks}
    repos = {task.repo for task in tasks}
    wanted: set[Pair] = set()
    missing: list[str] = []
    for entry in subset:
        task = every.get((_repo_named(entry.repo, repos) or entry.repo, entry.task_id))
        if task is None:
            missing.append(f"{entry.repo}/task{entry.task_id}")
            continue
        groups = groups_of(task) if entry.groups is None else entry.groups
        unknown = {number for group in groups for number in group} - set(task.feature_ids)
        missing += [f"{task.label}/feature{number}" for number in sorted(unknown)]
        wanted.update(Pair(task, group) for group in groups)
    if missing:
        raise UserError(f"subset {name!r} names what the dataset lacks: {names_for_error(missing)}")
    return sorted(wanted, key=lambda pair: (pair.task.repo, pair.task.task_id, pair.feature_ids))


def _ids(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _scan(dataset_dir: Path) -> dict[Task, list[str]]:
    """What looks like a task, also where it has no whole feature, with a line for all that is passed over in it."""
    found: dict[Task, list[str]] = {}
    for repo in _entries(dataset_dir, Path.is_dir):
        for task_id, path in _numbered(repo, "task"):
            lacking = {}
            for feature_id, feature in _numbered(path, "feature"):
                there = {entry.name for entry in _entries(feature, Path.is_file)}
                lacking[feature_id] = [name for name in _FEATURE_FILES if name not in there]
            task = Task(
                repo.name, task_id, path, tuple(one for one, names in lacking.items() if not names)
            )
            skipped = {
                f"/feature{one}": f"no {', '.join(names)}"
                for one, names in lacking.items()
                if names
            }
            if not task.feature_ids:
                skipped[""] = "it has no whole feature"
            found[task] = [f"{task.label}{name} skipped: {why}" for name, why in skipped.items()]
    if not any(task.feature_ids for task in found):
        raise UserError(
            f"no tasks in {dataset_dir} (looked for <repo>_task/task<id>/feature<N>/ with"
            f" {', '.join(_FEATURE_FILES)}); download them with"
            " `cooperbench prepare`, or try `--dataset-dir demo`"
        )
    return found


def _narrowed(found: dict[Task, list[str]], repo: str | None, task_id: int | None) -> Scan:
    where = ""
    if repo is not None:
        repos = dict.fromkeys(task.repo for task in found if task.feature_ids)
        name = _repo_named(repo, repos)
        if name is None:
            raise UserError(
                f"no repository {printable(repo)!r}; there is: {names_for_error(repos, repo)}"
            )
        found = {task: notes for task, notes in found.items() if task.repo == name}
        where = f" in {name}"
    whole = [task for task in found if task.feature_ids]
    if task_id is not None:
        labels = [str(task.task_id) if where else f"{task.repo} {task.task_id}" for task in whole]
        whole = [task for task in whole if task.task_id == task_id]
        if not whole:
            raise UserError(f"no task {task_id}{where}; there is: {names_for_error(labels)}")
    looked_at = [task for task in found if task_id in (None, task.task_id)]
    return tuple(whole), tuple(note for task in looked_at for note in found[task])


def _repo_named(name: str, repos: Iterable[str]) -> str | None:
    """`llama_index` means `llama_index_task`, unless there is a folder of exactly that name."""
    return next((repo for repo in (name, f"{name}_task") if repo in repos), None)


def _numbered(folder: Path, word: str) -> list[tuple[int, Path]]:
    """The subfolders `<word><number>` in numeric order; `feature01` would be the same feature at two places."""
    named = re.compile(rf"{word}(0|[1-9][0-9]{{0,17}})")
    found = ((named.fullmatch(path.name), path) for path in _entries(folder, Path.is_dir))
    return sorted((int(match[1]), path) for match, path in found if match)


def _entries(folder: Path, wanted: Callable[[Path], bool]) -> list[Path]:
    """What could be part of a dataset, by name; nothing where the folder cannot be read."""
    try:
        return [
            path
            for path in sorted(folder.iterdir())
            if not path.name.startswith(".") and path.name.isprintable() and wanted(path)
        ]
    except OSError:
        return []
