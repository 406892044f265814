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
        _require(isinstance(content, dict), "it", "an object with a list `tasks`", content)
        description = content.get("description", "")
        _require(isinstance(description, str), "`description`", "a text", description)
        tasks = tuple(_task(entry, where) for entry, where in _items(content, "tasks"))
    except (_FormError, RecursionError) as error:
        raise UserError(f"{path}: {error}") from None
    return Subset(name, description, tasks)


class _FormError(Exception):
    """Where in the file, and what is wrong there."""


def _require(met: bool, where: str, wanted: str, value: object) -> None:
    if not met:
        shown = printable(json.dumps(value, ensure_ascii=False, default=str))
        shown = shown if len(shown) <= 60 else shown[:57] + "…"
        raise _FormError(f"{where} must be {wanted}, not {shown}")


def _task(entry: Any, where: str) -> SubsetTask:
    _require(isinstance(entry, dict), where, "an object with `repo` and `task_id`", entry)
    repo = entry.get("repo")
    _require(isinstance(repo, str) and repo != "", f"{where}.repo", "a repository's name", repo)
    task_id = _number(entry.get("task_id"), f"{where}.task_id")
    sizes = {"pairs": (2, "two"), "groups": (MOST_AGENTS, f"2 to {MOST_AGENTS}")}
    chosen = [key for key in sizes if entry.get(key) is not None]
    groups = {_group(*item, *sizes[key]) for key in chosen for item in _items(entry, key, f"{where}.")}
    return SubsetTask(repo, task_id, tuple(sorted(groups)) if chosen else None)


def _items(entry: dict[str, Any], key: str, where: str = "") -> Iterator[tuple[Any, str]]:
    """Each with its place in the file."""
    items = entry.get(key)
    _require(isinstance(items, list), f"{where}{key}", "a list", items)
    return ((item, f"{where}{key}[{place}]") for place, item in enumerate(items or ()))


def _group(item: Any, where: str, most: int, words: str) -> tuple[int, ...]:
    wanted = f"a list of {words} different features"
    _require(isinstance(item, list) and 2 <= len(item) <= most, where, wanted, item)
    ids = {_number(value, where) for value in item}
    _require(len(ids) == len(item), where, wanted, item)
    return tuple(sorted(ids))


def _number(value: Any, where: str) -> int:
    """Also `task12` and `feature1`."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    _require(match is not None, where, "a number", value)
    return int(match[1]) if match else 0
