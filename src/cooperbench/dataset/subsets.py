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
_FORM = '{"tasks": [{"repo": NAME, "task_id": NUMBER, "pairs": [[1, 2], …], "groups": [[1, 2, 3], …]}, …]}'


class SubsetTask(NamedTuple):
    """What a subset takes from one task."""

    repo: str
    """As the file says it: with or without `_task`."""
    task_id: int
    groups: tuple[tuple[int, ...], ...] | None
    """Features that are worked on together, each group in numeric order; None: all pairs of the task."""


def subset_names(dataset_dir: Path) -> tuple[str, ...]:
    """The subsets there are, by file name; nothing is read."""
    names = (path.stem for path in (dataset_dir / _FOLDER).glob("*.json"))
    return tuple(sorted(name for name in names if _NAME.fullmatch(name)))


def load_subset(dataset_dir: Path, name: str) -> tuple[SubsetTask, ...]:
    if not _NAME.fullmatch(name):
        there_is = names_for_error(subset_names(dataset_dir))
        raise UserError(f"subset {printable(name)!r} is not a name; there is: {there_is}")
    path = dataset_dir / _FOLDER / f"{name}.json"
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        there_is = names_for_error(subset_names(dataset_dir), name)
        raise UserError(
            f"no subset {name!r} in {dataset_dir / _FOLDER}; there is: {there_is}"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {printable(str(error))}") from None
    wrong, tasks = content, []
    try:
        entries = content["tasks"]
        for wrong in entries if isinstance(entries, list) else [entries]:
            tasks.append(_subset_task(wrong))
    except (AttributeError, KeyError, TypeError, ValueError):
        shown = printable(json.dumps(wrong, ensure_ascii=False))
        shown = shown if len(shown) <= 60 else shown[:57] + "…"
        raise UserError(f"{path}: a subset is {_FORM}, not {shown}") from None
    return tuple(tasks)


def _subset_task(entry: Any) -> SubsetTask:
    if not isinstance(entry["repo"], str) or not entry["repo"]:
        raise TypeError
    limits = {"pairs": 2, "groups": MAX_AGENTS}
    chosen = [key for key in limits if entry.get(key) is not None]
    groups = {_subset_group(ids, limits[key]) for key in chosen for ids in entry[key]}
    return SubsetTask(
        entry["repo"], _number(entry["task_id"]), tuple(sorted(groups)) if chosen else None
    )


def _subset_group(ids: Any, most: int) -> tuple[int, ...]:
    group = tuple(sorted({_number(value) for value in ids}))
    if not 2 <= len(group) == len(ids) <= most:
        raise ValueError
    return group


def _number(value: Any) -> int:
    """Also `task12` and `feature1`."""
    match = _NUMBER.fullmatch(str(value))
    if match is None:
        raise ValueError
    return int(match[1])
