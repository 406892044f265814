"""Named parts of a dataset: `<dataset>/subsets/<name>.json`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from cooperbench.errors import UserError
from cooperbench.models import MAX_AGENTS
from cooperbench.text import names_for_error, printable

_FOLDER = "subsets"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_NUMBER = re.compile(r"(?:task|feature)?([0-9]{1,18})")
_FORMAT = (
    '{"tasks": [{"repo": NAME, "task_id": NUMBER,'
    ' "pairs": [[1, 2], …], "groups": [[1, 2, 3], …]}, …]}'
)
_MAX_GROUP_SIZES = {"pairs": 2, "groups": MAX_AGENTS}
_MAX_CHARACTERS = 60


class SubsetTask(NamedTuple):
    """The part of one task that belongs to a subset."""

    repo: str
    """Name in the file, with or without `_task`."""
    task_id: int
    groups: tuple[tuple[int, ...], ...] | None
    """Groups of features, each in numeric order; None: all pairs of the task."""


def subset_names(dataset_dir: Path) -> tuple[str, ...]:
    """Return the names of all subsets. Their files are not opened."""
    names = (path.stem for path in (dataset_dir / _FOLDER).glob("*.json"))
    return tuple(sorted(name for name in names if _NAME.fullmatch(name)))


def load_subset(dataset_dir: Path, name: str) -> tuple[SubsetTask, ...]:
    """Return the tasks of a subset; UserError if there is none or its file is invalid."""
    if not _NAME.fullmatch(name):
        names = names_for_error(subset_names(dataset_dir))
        raise UserError(f"subset {printable(name)!r} is not a valid name; available: {names}")
    path = dataset_dir / _FOLDER / f"{name}.json"
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        names = names_for_error(subset_names(dataset_dir), name)
        raise UserError(
            f"no subset {name!r} in {dataset_dir / _FOLDER}; available: {names}"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {printable(str(error))}") from None
    return _parse_tasks(path, content)


def _parse_tasks(path: Path, content: Any) -> tuple[SubsetTask, ...]:
    if not isinstance(content, dict) or "tasks" not in content:
        raise _invalid(path, content)
    if not isinstance(content["tasks"], list):
        raise _invalid(path, content["tasks"])
    tasks = []
    for entry in content["tasks"]:
        try:
            tasks.append(_parse_task(entry))
        except (AttributeError, KeyError, TypeError, ValueError):
            raise _invalid(path, entry) from None
    return tuple(tasks)


def _invalid(path: Path, content: Any) -> UserError:
    text = printable(json.dumps(content, ensure_ascii=False))
    if len(text) > _MAX_CHARACTERS:
        text = text[: _MAX_CHARACTERS - 3] + "…"
    return UserError(f"{path}: a subset is {_FORMAT}, not {text}")


def _parse_task(entry: Any) -> SubsetTask:
    repo = entry["repo"]
    if not isinstance(repo, str) or not repo:
        raise TypeError("repo is not a name")
    keys = [key for key in _MAX_GROUP_SIZES if entry.get(key) is not None]
    groups: set[tuple[int, ...]] = set()
    for key in keys:
        groups.update(_parse_group(ids, _MAX_GROUP_SIZES[key]) for ids in entry[key])
    task_id = _parse_number(entry["task_id"])
    return SubsetTask(repo, task_id, tuple(sorted(groups)) if keys else None)


def _parse_group(ids: Any, max_size: int) -> tuple[int, ...]:
    group = tuple(sorted({_parse_number(value) for value in ids}))
    if len(group) != len(ids) or not 2 <= len(group) <= max_size:
        raise ValueError("a group has different features, two or more")
    return group


def _parse_number(value: Any) -> int:
    """Return a number, also from `task12` and `feature1`."""
    match = _NUMBER.fullmatch(str(value))
    if match is None:
        raise ValueError("not a number")
    return int(match[1])
