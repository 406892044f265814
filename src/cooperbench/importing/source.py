"""The pairs in a folder that is to be imported, by the names of its folders and files.

Symbolic links are not followed: they could lead to any file of the user.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cooperbench.errors import UserError
from cooperbench.models import SETTINGS, Setting
from cooperbench.text import names_for_error, printable

Layout = Literal["public", "public_without_setting", "quick_start", "trajectories"]
_MAX_DEPTH = 12
_MAX_FEATURES = 64
_MIN_PARTS = 3
"""Parts of a path that a pair with repository and task has more than."""
_TASK = re.compile(r"(?:task)?([0-9]{1,18})")
_PUBLIC_PAIR = re.compile(r"f[0-9]{1,18}(?:_f[0-9]{1,18})*")
_QUICK_START_PAIR = re.compile(r"features(?:_[0-9]{1,18})+")
_PAIR_FILES = ("result.json", "conversation.json", "eval.json")
_AGENT_FILE = re.compile(r"(?:agent([0-9]{1,18})|solo)(?:\.patch|_traj\.json)")
_AGENT_FOLDER = re.compile(r"agent([0-9]{1,18})|solo")


@dataclass(frozen=True)
class SourcePair:
    """The folder of one pair."""

    folder: Path
    name: str
    """The folder relative to the one that is imported."""
    prefix: str
    """What stands before setting and repository in `name`; empty if the folder is that of a run."""
    names: frozenset[str]
    """Names of the files and folders in it."""
    layout: Layout
    setting: Setting | None
    """None if the path does not say."""
    repo: str | None
    """None if only the files say which task it is; then so are the next two."""
    task_id: int | None
    features: tuple[int, ...] | None


@dataclass
class SourceRun:
    """The pairs of a folder, and the rest of its content."""

    folder: Path
    pairs: list[SourcePair] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """One line for each thing that is not read."""


def find_source_run(folder: Path) -> SourceRun:
    """Return the pairs in a folder.

    Raises:
        UserError: There is no such folder, there are no pairs in it, or those of several runs.
    """
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; name the folder of one run")
    run = SourceRun(folder)
    for path, file_names, folder_names in _walk(folder, run.left_out):
        pair = _pair_in(folder, path, file_names, folder_names)
        if pair is not None:
            run.pairs.append(pair)
    if not run.pairs:
        raise UserError(
            f"there are no pairs in {folder}: a run has folders like "
            "coop/REPO/TASK/f1_f2 with patches or trajectories of agents"
        )
    prefixes = sorted({pair.prefix for pair in run.pairs})
    if len(prefixes) > 1:
        names = names_for_error([prefix or "." for prefix in prefixes])
        raise UserError(f"{folder} contains several runs; import each by its folder: {names}")
    run.folder = folder / prefixes[0]
    return run


def _walk(root: Path, left_out: list[str]) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield every folder with the names of its files and folders, without symbolic links."""
    pending = [root]
    while pending:
        path = pending.pop()
        files: list[str] = []
        folders: list[str] = []
        try:
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
        except OSError as error:
            left_out.append(f"{_relative(path, root)} cannot be read: {error.strerror}")
            continue
        for entry in entries:
            if entry.is_symlink() and entry.name != "patch.diff":
                name = _relative(Path(entry.path), root)
                left_out.append(f"{name} is a symbolic link, which is not followed")
            elif entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                files.append(entry.name)
        yield path, files, folders
        if len(path.relative_to(root).parts) < _MAX_DEPTH:
            pending += [path / name for name in reversed(folders)]


def _relative(path: Path, root: Path) -> str:
    return printable(path.relative_to(root).as_posix())


def _pair_in(
    root: Path, path: Path, file_names: Sequence[str], folder_names: Sequence[str]
) -> SourcePair | None:
    """Return the pair of a folder; None if the folder is not one of a pair."""
    has_agent_files = any(_AGENT_FILE.fullmatch(name) for name in file_names)
    has_agent_folders = any(_AGENT_FOLDER.fullmatch(name) for name in folder_names)
    features = _features_of(path.name)
    parts = path.absolute().parts
    task_id = _task_id_of(parts)
    if features is None or task_id is None:
        return _unnamed_pair(root, path, file_names) if has_agent_files else None
    if not (has_agent_files or has_agent_folders or set(_PAIR_FILES) & set(file_names)):
        return None
    setting = _setting_of(parts[-4])
    return SourcePair(
        folder=path,
        name=path.relative_to(root).as_posix(),
        prefix=_prefix(path.relative_to(root), 4 if setting else 3),
        names=frozenset((*file_names, *folder_names)),
        layout=_layout_of(
            setting, has_agent_files=has_agent_files, has_agent_folders=has_agent_folders
        ),
        setting=setting,
        repo=parts[-3],
        task_id=task_id,
        features=features,
    )


def _task_id_of(parts: Sequence[str]) -> int | None:
    """Return the task in the path of a pair; None without any."""
    if len(parts) <= _MIN_PARTS:
        return None
    task = _TASK.fullmatch(parts[-2])
    return None if task is None else int(task[1])


def _layout_of(
    setting: Setting | None, *, has_agent_files: bool, has_agent_folders: bool
) -> Layout:
    if has_agent_folders and not has_agent_files:
        return "quick_start"
    return "public" if setting else "public_without_setting"


def _unnamed_pair(root: Path, path: Path, names: Iterable[str]) -> SourcePair:
    """Return the pair of a folder of trajectories, whose path says nothing about it."""
    return SourcePair(
        folder=path,
        name=path.relative_to(root).as_posix(),
        prefix="",
        names=frozenset(names),
        layout="trajectories",
        setting=None,
        repo=None,
        task_id=None,
        features=None,
    )


def _features_of(name: str) -> tuple[int, ...] | None:
    """Return the features in the name of a folder, `f1_f2` or `features_1_2`; None without any."""
    if _PUBLIC_PAIR.fullmatch(name):
        numbers = [part[1:] for part in name.split("_")]
    elif _QUICK_START_PAIR.fullmatch(name):
        numbers = name.split("_")[1:]
    else:
        return None
    features = tuple(sorted({int(number) for number in numbers}))
    return features if len(features) == len(numbers) <= _MAX_FEATURES else None


def _setting_of(name: str) -> Setting | None:
    for setting in SETTINGS:
        if name == setting:
            return setting
    return None


def _prefix(relative: Path, depth: int) -> str:
    """Return what stands before the last folders of a path."""
    return "/".join(relative.parts[:-depth])


@dataclass(frozen=True)
class AgentFiles:
    """The files of one agent."""

    agent_id: str
    """Its id in our records: `agent1`, `agent2`, … in the order of features, or `solo`."""
    feature_ids: tuple[int, ...]
    patch: Path
    trajectory: Path


def agent_files(pair: SourcePair, setting: Setting, features: Sequence[int]) -> list[AgentFiles]:
    """Return the files of each agent of a pair.

    In the public layout the number in a name is that of the feature. Some files have the number of
    the agent: this is so if a number is not one of the features.
    """
    if setting == "solo":
        return [_files_named(pair, "solo", "solo", tuple(features))]
    counts_agents = pair.layout == "quick_start" or _counts_agents(pair.names, features)
    files = []
    for number, feature_id in enumerate(features, 1):
        name = f"agent{number}" if counts_agents else f"agent{feature_id}"
        files.append(_files_named(pair, f"agent{number}", name, (feature_id,)))
    return files


def _files_named(
    pair: SourcePair, agent_id: str, name: str, feature_ids: tuple[int, ...]
) -> AgentFiles:
    folder = pair.folder
    if pair.layout == "quick_start":
        patch, trajectory = folder / name / "patch.diff", folder / name / "trajectory.json"
    else:
        patch, trajectory = folder / f"{name}.patch", folder / f"{name}_traj.json"
    return AgentFiles(agent_id, feature_ids, patch, trajectory)


def _counts_agents(names: Iterable[str], features: Sequence[int]) -> bool:
    """Whether the numbers in the names of files are those of agents."""
    numbers = set()
    for name in names:
        match = _AGENT_FILE.fullmatch(name)
        if match and match[1]:
            numbers.add(int(match[1]))
    agent_numbers = set(range(1, len(features) + 1))
    return not numbers <= set(features) and numbers <= agent_numbers


def unused_files(pair: SourcePair, agents: Sequence[AgentFiles]) -> list[str]:
    """Return the names of agents' files that belong to no feature of the pair."""
    used = {agent.patch.name for agent in agents} | {agent.trajectory.name for agent in agents}
    return [name for name in sorted(pair.names) if _AGENT_FILE.fullmatch(name) and name not in used]
