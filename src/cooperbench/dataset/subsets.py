"""Named selections of pairs: `<dataset>/subsets/<name>.json`.

A file is read and its form checked here; whether the dataset has what it names is discovery's to say.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cooperbench.errors import UserError
from cooperbench.models import MOST_AGENTS
from cooperbench.text import names_for_error, printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDER = "subsets"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_NUMBER = re.compile(r"(?:task|feature)?([0-9]{1,18})")


@dataclass(frozen=True)
class SubsetTask:
    """What a subset takes from one task."""

    repo: str
    """As the file says it: with or without `_task`."""
    task_id: int
    groups: tuple[tuple[int, ...], ...] | None
    """Features that are worked on together, each group in numeric order; None: all pairs of the task."""


@dataclass(frozen=True)
class Subset:
    """A named selection of pairs."""

    name: str
    """The file's name: what `--subset` takes."""
    description: str
    tasks: tuple[SubsetTask, ...]


def subset_names(dataset_dir: Path) -> tuple[str, ...]:
    """The subsets there are, by file name; nothing is read."""
    try:
        found = [path.name for path in (dataset_dir / FOLDER).iterdir()]
    except OSError:
        return ()
    names = (name.removesuffix(".json") for name in found if name.endswith(".json"))
    return tuple(sorted(name for name in names if _NAME.fullmatch(name)))


def load_subset(dataset_dir: Path, name: str) -> Subset:
    if not _NAME.fullmatch(name):
        there_is = names_for_error(subset_names(dataset_dir))
        raise UserError(f"subset {printable(name)!r} is not a name; there is: {there_is}")
    path = dataset_dir / FOLDER / f"{name}.json"
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        there_is = names_for_error(subset_names(dataset_dir), name)
        raise UserError(f"no subset {name!r} in {dataset_dir / FOLDER}; there is: {there_is}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {printable(str(error))}") from None
    try:
        return _subset(name, content)
    except (_FormError, RecursionError) as error:
        raise UserError(f"{path}: {error}") from None


class _FormError(Exception):
    """Where in the file, and what is wrong there."""

    def __init__(self, where: str, wanted: str, value: object) -> None:
        shown = printable(json.dumps(value, ensure_ascii=False, default=str))
        super().__init__(f"{where} must be {wanted}, not {shown if len(shown) <= 60 else shown[:57] + '…'}")


def _subset(name: str, content: object) -> Subset:
    if not isinstance(content, dict):
        raise _FormError("it", "an object with a list `tasks`", content)
    description = content.get("description", "")
    if not isinstance(description, str):
        raise _FormError("`description`", "a text", description)
    return Subset(name, description, tuple(_task(*item) for item in _items(content, "tasks")))


def _task(entry: object, where: str) -> SubsetTask:
    if not isinstance(entry, dict):
        raise _FormError(where, "an object with `repo` and `task_id`", entry)
    repo = entry.get("repo")
    if not isinstance(repo, str) or not repo:
        raise _FormError(f"{where}.repo", "a repository's name", repo)
    task_id = _number(entry.get("task_id"), f"{where}.task_id")
    chosen = [key for key in ("pairs", "groups") if entry.get(key) is not None]
    if not chosen:
        return SubsetTask(repo, task_id, None)
    groups = {
        _group(*item, pair=key == "pairs") for key in chosen for item in _items(entry, key, f"{where}.")
    }
    return SubsetTask(repo, task_id, tuple(sorted(groups)))


def _items(entry: dict[str, Any], key: str, where: str = "") -> Iterator[tuple[object, str]]:
    """Each with its place in the file."""
    items = entry.get(key)
    if not isinstance(items, list):
        raise _FormError(f"{where}{key}", "a list", items)
    return ((item, f"{where}{key}[{place}]") for place, item in enumerate(items))


def _group(item: object, where: str, *, pair: bool) -> tuple[int, ...]:
    most = 2 if pair else MOST_AGENTS
    wanted = f"a list of {'two' if pair else f'2 to {most}'} different features"
    if not isinstance(item, list) or not 2 <= len(item) <= most:
        raise _FormError(where, wanted, item)
    ids = {_number(value, where) for value in item}
    if len(ids) != len(item):
        raise _FormError(where, wanted, item)
    return tuple(sorted(ids))


def _number(value: object, where: str) -> int:
    """Also `task12` and `feature1`."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise _FormError(where, "a number", value)
    return int(match[1])
