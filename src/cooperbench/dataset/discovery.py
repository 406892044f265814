"""Finds the tasks of a dataset and the pairs that are to be run.

A task is a folder `<repo>/task<id>/` with at least one complete `feature<N>/`. Other files are
ignored. Incomplete features and tasks are reported in notes, and so are pairs that cannot be won.
Of the files of a task only pairs.json is opened, unless pairs are selected by their coupling.
"""

from __future__ import annotations

import argparse
import os
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import comb
from pathlib import Path
from typing import NamedTuple, Protocol

from cooperbench.dataset.coupling import COUPLINGS, Coupling, CouplingReader
from cooperbench.dataset.golden_groups import unsolvable_reason
from cooperbench.dataset.subsets import SubsetTask, load_subset, subset_names
from cooperbench.errors import UserError
from cooperbench.models import MAX_AGENTS, Pair, Task
from cooperbench.text import names_for_error, printable

ENVIRONMENT_VARIABLE = "COOPERBENCH_DATASET_DIR"
DEFAULT_DATASET_DIR = "dataset"
DEMO = "demo"
"""Name of the dataset in the package; `./demo` is a folder of that name."""
EVERYTHING = "full"
"""The subset that every dataset has, with or without a file for it."""

_FEATURE_FILES = ("feature.md", "feature.patch", "tests.patch")
_PAIR_SIZE = 2

Group = tuple[int, ...]
"""Feature ids that are worked on together, in numeric order."""
Scan = tuple[tuple[Task, ...], tuple[str, ...]]
"""Tasks in the order of repository and id, and a note for each thing that was skipped in them."""


class Selection(NamedTuple):
    """The selected pairs, in the order of repository, task and features."""

    pairs: tuple[Pair, ...]
    notes: tuple[str, ...]
    """What was skipped in their tasks."""


class PairFilters(Protocol):
    """The options that select pairs; None means no restriction."""

    @property
    def subset(self) -> str | None:
        """Name of a subset."""

    @property
    def repo(self) -> str | None:
        """Name of a repository."""

    @property
    def task_id(self) -> int | None:
        """Id of a task."""

    @property
    def features(self) -> Sequence[int] | None:
        """Feature ids."""

    @property
    def group_sizes(self) -> Sequence[int] | None:
        """Sizes of groups."""

    @property
    def groups_per_task(self) -> int | None:
        """Maximum number of groups of each size per task."""

    @property
    def seed(self) -> int:
        """Random seed for sampling groups."""

    @property
    def coupling(self) -> Sequence[str] | None:
        """Classes of coupling."""


@dataclass(frozen=True)
class PairFilter:
    """A `PairFilters` from the command line."""

    subset: str | None = None
    repo: str | None = None
    task_id: int | None = None
    features: Sequence[int] | None = None
    group_sizes: Sequence[int] | None = None
    groups_per_task: int | None = None
    seed: int = 0
    coupling: Sequence[str] | None = None

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> PairFilter:
        """Return the filter of parsed arguments that have all selection options."""
        return cls(
            subset=args.subset,
            repo=args.repo,
            task_id=args.task_id,
            features=args.features,
            group_sizes=args.group_sizes,
            groups_per_task=args.groups_per_task,
            seed=args.seed,
            coupling=args.coupling,
        )


def demo_dir() -> Path:
    """Return the folder of the dataset in the package."""
    return Path(__file__).with_name(DEMO)


def is_demo_task(task: Task) -> bool:
    """Whether a task belongs to the demo, whose images are in no registry."""
    return task.path.resolve().is_relative_to(demo_dir().resolve())


def resolve_dataset_dir(dataset_dir: str | Path | None) -> Path:
    """Return the folder of a dataset.

    `demo` is the dataset in the package. The default is $COOPERBENCH_DATASET_DIR, then `dataset`.
    """
    name = str(dataset_dir or os.environ.get(ENVIRONMENT_VARIABLE) or DEFAULT_DATASET_DIR)
    if name == DEMO:
        return demo_dir()
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    path = printable(name if folder.is_absolute() else f"./{name.removeprefix('./')}")
    problem = f"{path} is not a folder" if folder.exists() else f"no dataset at {path}"
    raise UserError(
        f"{problem}; download it with `cooperbench prepare`,"
        " use another --dataset-dir, or try `--dataset-dir demo`"
    )


def load_tasks(
    dataset_dir: Path, repo: str | None = None, task_id: int | None = None
) -> tuple[Task, ...]:
    """Return the complete tasks of a dataset, perhaps only of one repository or with one id."""
    return scan_tasks(dataset_dir, repo, task_id)[0]


def scan_tasks(dataset_dir: Path, repo: str | None = None, task_id: int | None = None) -> Scan:
    """Return the same tasks as `load_tasks`, with notes on what was skipped in them."""
    return _filter_tasks(_scan(dataset_dir), repo, task_id)


def select_pairs(
    dataset_dir: Path, filters: PairFilters, *, with_unsolvable: bool = False
) -> Selection:
    """Return the pairs that match the options of a run or a command."""
    return discover(
        dataset_dir,
        subset=filters.subset,
        repo=filters.repo,
        task_id=filters.task_id,
        features=filters.features,
        group_sizes=filters.group_sizes,
        groups_per_task=filters.groups_per_task,
        seed=filters.seed,
        coupling=filters.coupling,
        with_unsolvable=with_unsolvable,
    )


def discover(  # noqa: PLR0913  # the documented signature
    dataset_dir: Path,
    *,
    subset: str | None = None,
    repo: str | None = None,
    task_id: int | None = None,
    features: Sequence[int] | None = None,
    group_sizes: Sequence[int] | None = None,
    groups_per_task: int | None = None,
    seed: int = 0,
    coupling: Sequence[str] | None = None,
    with_unsolvable: bool = False,
) -> Selection:
    """Return the pairs that match every filter.

    Args:
        dataset_dir: The folder of the dataset.
        subset: The name of a subset of the dataset.
        repo: A repository; `_task` at its end may be left out.
        task_id: The id of a task, in any repository.
        features: Feature ids; without `group_sizes` exactly this group.
        group_sizes: Sizes of groups to use instead of pairs, from all features or `features`.
        groups_per_task: Maximum number of groups of each size per task. The default is the number
            of pairs of the task. If there are more groups, they are sampled with the seed.
        seed: Random seed for sampling groups.
        coupling: Classes of `dataset.coupling`; of a group that of its tightest pair.
        with_unsolvable: Whether to return pairs that no golden patch can win (pairs.json).

    Raises:
        UserError: No pair matches, or a filter names something that does not exist.
    """
    group = _check_features(features)
    sizes = _check_group_sizes(group_sizes)
    grouping = _Grouping(group, sizes, groups_per_task, seed, _check_couplings(coupling))
    scanned = _scan(dataset_dir)
    tasks, notes = _filter_tasks(scanned, repo, task_id)
    if subset is None or (subset == EVERYTHING and EVERYTHING not in subset_names(dataset_dir)):
        candidates = _all_pairs(dataset_dir, tasks, grouping)
    else:
        complete = [task for task in scanned if task.feature_ids]
        candidates = _subset_candidates(dataset_dir, subset, complete, grouping)
    pairs = [pair for pair in candidates.pairs if pair.task in tasks and grouping.matches(pair)]
    if not with_unsolvable:
        pairs, left_out = _without_unsolvable(pairs)
        notes += left_out
        if left_out and not pairs:
            raise UserError(f"all selected pairs are left out; {left_out[0]}")
    if not pairs:
        raise UserError(
            f"no pair{grouping.description} of the selected tasks in {candidates.source};"
            f" available: {names_for_error(candidates.available)}"
        )
    return Selection(tuple(pairs), notes)


def _without_unsolvable(pairs: Sequence[Pair]) -> tuple[list[Pair], tuple[str, ...]]:
    """Return the pairs that golden patches can win, and a note for each of the others."""
    solvable = []
    notes = []
    for pair in pairs:
        reason = unsolvable_reason(pair)
        if reason is None:
            solvable.append(pair)
        else:
            notes.append(f"{pair.label} left out: it cannot be won: {reason}")
    return solvable, tuple(notes)


class _Candidates(NamedTuple):
    """Pairs to choose from."""

    pairs: list[Pair]
    source: str
    """The dataset or the subset, for error messages."""
    available: list[str]
    """What it contains, for error messages."""


def _all_pairs(dataset_dir: Path, tasks: Sequence[Task], grouping: _Grouping) -> _Candidates:
    pairs: list[Pair] = []
    for task in tasks:
        pairs += [Pair(task, feature_ids) for feature_ids in grouping.groups_of(task)]
    available = [f"{task.label}: {_ids(task.feature_ids)}" for task in tasks]
    return _Candidates(pairs, str(dataset_dir), available)


def _subset_candidates(
    dataset_dir: Path, name: str, tasks: Sequence[Task], grouping: _Grouping
) -> _Candidates:
    entries = load_subset(dataset_dir, name)
    has_groups = any(entry.groups is not None for entry in entries)
    if grouping.max_groups is not None and has_groups:
        raise UserError(f"subset {name!r} defines its own groups: leave out --groups")
    pairs = _subset_pairs(name, entries, tasks, grouping)
    return _Candidates(pairs, f"subset {name!r}", [pair.label for pair in pairs])


def _check_features(features: Sequence[int] | None) -> Group | None:
    if features is None:
        return None
    is_unique = len(set(features)) == len(features)
    if not is_unique or not _PAIR_SIZE <= len(features) <= MAX_AGENTS:
        ids = _ids(features) or "(none)"
        raise UserError(
            f"features {ids}: choose {_PAIR_SIZE} to {MAX_AGENTS} different features, e.g. 1,2"
        )
    return tuple(sorted(features))


def _check_group_sizes(sizes: Sequence[int] | None) -> tuple[int, ...]:
    if sizes is None:
        return ()
    invalid = [size for size in sizes if not _PAIR_SIZE <= size <= MAX_AGENTS]
    if invalid or not sizes:
        raise UserError(
            f"invalid group size {_ids(invalid) or '(none)'}: "
            f"a group has {_PAIR_SIZE} to {MAX_AGENTS} agents"
        )
    return tuple(sorted(set(sizes)))


def _check_couplings(couplings: Sequence[str] | None) -> frozenset[Coupling] | None:
    if couplings is None:
        return None
    unknown = [name for name in couplings if name not in COUPLINGS]
    if unknown or not couplings:
        raise UserError(
            f"coupling {names_for_error(unknown) if unknown else '(none)'}:"
            f" choose from {', '.join(COUPLINGS)}"
        )
    return frozenset(name for name in COUPLINGS if name in couplings)


@dataclass(frozen=True)
class _Grouping:
    """How the features of a task are put into groups."""

    features: Group | None
    """Features to choose from; None: all of a task."""
    sizes: tuple[int, ...]
    """Sizes that were asked for; empty: one group of `features`, or pairs."""
    max_groups: int | None
    seed: int
    couplings: frozenset[Coupling] | None = None
    """Classes of coupling; None: all."""
    reader: CouplingReader = field(default_factory=CouplingReader, compare=False)

    @property
    def description(self) -> str:
        """The features and sizes, for error messages."""
        text = f" with features {_ids(self.features)}" if self.features else ""
        if self.sizes or not self.features:
            text += f" of {_ids(self.sizes or (_PAIR_SIZE,))} features"
        if self.couplings:
            classes = [name for name in COUPLINGS if name in self.couplings]
            text += f" with coupling {', '.join(classes)}"
        return text

    def matches(self, pair: Pair) -> bool:
        """Whether a pair of a subset has the right size, features and coupling."""
        if self.couplings is not None and self.reader.coupling_of(pair) not in self.couplings:
            return False
        if self.sizes and len(pair.feature_ids) not in self.sizes:
            return False
        if self.features is None:
            return True
        if not self.sizes and len(pair.feature_ids) != len(self.features):
            return False
        return set(pair.feature_ids) <= set(self.features)

    def groups_of(self, task: Task) -> list[Group]:
        """Return the groups of a task; none if it lacks one of the features."""
        features = self.features or task.feature_ids
        if not set(features) <= set(task.feature_ids):
            return []
        default = len(self.features) if self.features else _PAIR_SIZE
        groups: list[Group] = []
        for size in self.sizes or (default,):
            groups += self._groups_of_size(task, features, size)
        return groups

    def _groups_of_size(self, task: Task, features: Group, size: int) -> list[Group]:
        """Return all groups of a size, or a sample of them.

        A sampled group is the beginning of a random order of all features, so groups of different
        sizes that are sampled with one seed are nested.
        """
        max_groups = self.max_groups or comb(len(features), _PAIR_SIZE)
        if self.couplings is not None:
            return self._groups_with_coupling(task, features, size, max_groups)
        if comb(len(features), size) <= max_groups:
            return list(combinations(features, size))
        seed = f"{self.seed} {task.label}"
        generator = random.Random(seed)  # noqa: S311  # reproducible, not secret
        sampled: set[Group] = set()
        while len(sampled) < max_groups:
            order = generator.sample(features, len(features))
            sampled.add(tuple(sorted(order[:size])))
        return sorted(sampled)

    def _groups_with_coupling(
        self, task: Task, features: Group, size: int, max_groups: int
    ) -> list[Group]:
        """Return the groups with one of the classes of coupling, or a sample of them."""
        groups = [
            group
            for group in combinations(features, size)
            if self.reader.coupling_of(Pair(task, group)) in (self.couplings or ())
        ]
        if len(groups) <= max_groups:
            return groups
        seed = f"{self.seed} {task.label}"
        generator = random.Random(seed)  # noqa: S311  # reproducible, not secret
        return sorted(generator.sample(groups, max_groups))


def _subset_pairs(
    name: str, entries: Sequence[SubsetTask], tasks: Sequence[Task], grouping: _Grouping
) -> list[Pair]:
    """Return the pairs of a subset. Everything in it must be in the dataset."""
    tasks_by_name = {(task.repo, task.task_id): task for task in tasks}
    repos = {task.repo for task in tasks}
    pairs: set[Pair] = set()
    missing: list[str] = []
    for entry in entries:
        repo = _find_repo(entry.repo, repos) or entry.repo
        task = tasks_by_name.get((repo, entry.task_id))
        if task is None:
            missing.append(f"{entry.repo}/task{entry.task_id}")
            continue
        groups = grouping.groups_of(task) if entry.groups is None else entry.groups
        unknown = set().union(*groups) - set(task.feature_ids)
        missing += [f"{task.label}/feature{number}" for number in sorted(unknown)]
        pairs.update(Pair(task, group) for group in groups)
    if missing:
        raise UserError(
            f"subset {name!r} names what is not in the dataset: {names_for_error(missing)}"
        )
    return sorted(pairs, key=lambda pair: (pair.task.repo, pair.task.task_id, pair.feature_ids))


def _ids(numbers: Iterable[int]) -> str:
    return ",".join(str(number) for number in numbers)


def _scan(dataset_dir: Path) -> dict[Task, list[str]]:
    """Return every task folder, even without a complete feature, with notes on what is skipped."""
    tasks: dict[Task, list[str]] = {}
    for repo in _entries(dataset_dir, Path.is_dir):
        for task_id, path in _numbered_folders(repo, "task"):
            task, notes = _scan_task(repo.name, task_id, path)
            tasks[task] = notes
    if not any(task.feature_ids for task in tasks):
        raise UserError(
            f"no tasks in {dataset_dir} (looked for <repo>_task/task<id>/feature<N>/ with"
            f" {', '.join(_FEATURE_FILES)}); download them with"
            " `cooperbench prepare`, or try `--dataset-dir demo`"
        )
    return tasks


def _scan_task(repo: str, task_id: int, path: Path) -> tuple[Task, list[str]]:
    complete = []
    skipped = {}
    for feature_id, folder in _numbered_folders(path, "feature"):
        names = {entry.name for entry in _entries(folder, Path.is_file)}
        missing = [name for name in _FEATURE_FILES if name not in names]
        if missing:
            skipped[f"/feature{feature_id}"] = f"no {', '.join(missing)}"
        else:
            complete.append(feature_id)
    if not complete:
        skipped[""] = "it has no complete feature"
    task = Task(repo, task_id, path, tuple(complete))
    return task, [f"{task.label}{name} skipped: {reason}" for name, reason in skipped.items()]


def _filter_tasks(tasks: dict[Task, list[str]], repo: str | None, task_id: int | None) -> Scan:
    if repo is not None:
        tasks = _filter_by_repo(tasks, repo)
    complete = [task for task in tasks if task.feature_ids]
    selected = [task for task in tasks if task_id in (None, task.task_id)]
    if task_id is not None and not set(selected) & set(complete):
        raise _no_such_task(task_id, complete, repo)
    notes: list[str] = []
    for task in selected:
        notes += tasks[task]
    return tuple(task for task in selected if task.feature_ids), tuple(notes)


def _no_such_task(task_id: int, tasks: Sequence[Task], repo: str | None) -> UserError:
    if repo is None:
        source = ""
        available = [f"{task.repo} {task.task_id}" for task in tasks]
    else:
        source = f" in {tasks[0].repo}"
        available = [str(task.task_id) for task in tasks]
    return UserError(f"no task {task_id}{source}; available: {names_for_error(available)}")


def _filter_by_repo(tasks: dict[Task, list[str]], repo: str) -> dict[Task, list[str]]:
    repos = dict.fromkeys(task.repo for task in tasks if task.feature_ids)
    name = _find_repo(repo, repos)
    if name is None:
        available = names_for_error(repos, repo)
        raise UserError(f"no repository {printable(repo)!r}; available: {available}")
    return {task: notes for task, notes in tasks.items() if task.repo == name}


def _find_repo(name: str, repos: Iterable[str]) -> str | None:
    """Return the repository of a name: `llama_index` also means `llama_index_task`."""
    return next((repo for repo in (name, f"{name}_task") if repo in repos), None)


def _numbered_folders(folder: Path, prefix: str) -> list[tuple[int, Path]]:
    """Return the subfolders `<prefix><number>` in numeric order.

    Leading zeros are not accepted: `feature1` and `feature01` would be the same feature.
    """
    pattern = re.compile(rf"{prefix}(0|[1-9][0-9]{{0,17}})")
    folders = [path for path in _entries(folder, Path.is_dir) if pattern.fullmatch(path.name)]
    return sorted((int(path.name.removeprefix(prefix)), path) for path in folders)


def _entries(folder: Path, is_wanted: Callable[[Path], bool]) -> list[Path]:
    """Return the visible entries of a folder by name; none if it cannot be read."""
    try:
        return [
            path
            for path in sorted(folder.iterdir())
            if not path.name.startswith(".") and path.name.isprintable() and is_wanted(path)
        ]
    except OSError:
        return []
