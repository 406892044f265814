"""Named selections of pairs: `<dataset>/subsets/<name>.json`.

A file is read and its form checked here; whether the dataset has what it names is discovery's to say.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cooperbench.errors import UserError
from cooperbench.text import names_for_error, printable

if TYPE_CHECKING:
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
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {printable(str(error))}") from None
    try:
        return _subset(name, content)
    except _FormError as error:
        raise UserError(f"{path}: {error}") from None
    except RecursionError:
        raise UserError(f"{path} is nested too deeply") from None


class _FormError(Exception):
    """Where in the file, and what is wrong there."""


def _subset(name: str, content: object) -> Subset:
    if not isinstance(content, dict):
        raise _FormError(f"must be an object with a list `tasks`, not {_kind(content)}")
    description = content.get("description", "")
    if not isinstance(description, str):
        raise _FormError(f"`description` must be a text, not {_kind(description)}")
    entries = content.get("tasks")
    if not isinstance(entries, list):
        raise _FormError(f"`tasks` must be a list, not {_kind(entries)}")
    tasks = tuple(_task(entry, f"tasks[{place}]") for place, entry in enumerate(entries))
    return Subset(name, description, tasks)


def _task(entry: object, where: str) -> SubsetTask:
    if not isinstance(entry, dict):
        raise _FormError(f"{where} must be an object with `repo` and `task_id`, not {_kind(entry)}")
    repo = entry.get("repo")
    if not isinstance(repo, str) or not repo:
        raise _FormError(f"{where}.repo must be a repository's name, not {_kind(repo)}")
    task_id = _number(entry.get("task_id"), f"{where}.task_id")
    if entry.get("pairs") is None and entry.get("groups") is None:
        return SubsetTask(repo, task_id, None)
    pairs = [_group(item, f"{where}.pairs[{place}]", 2) for place, item in _items(entry, "pairs", where)]
    groups = [_group(item, f"{where}.groups[{place}]") for place, item in _items(entry, "groups", where)]
    return SubsetTask(repo, task_id, tuple(sorted({*pairs, *groups})))


def _items(entry: dict[str, Any], key: str, where: str) -> enumerate[Any]:
    items = entry.get(key)
    if items is not None and not isinstance(items, list):
        raise _FormError(f"{where}.{key} must be a list, not {_kind(items)}")
    return enumerate(items or [])


def _group(item: object, where: str, size: int | None = None) -> tuple[int, ...]:
    wanted = "two features" if size == 2 else "two or more features"
    if not isinstance(item, list) or len(item) < 2 or (size is not None and len(item) != size):
        raise _FormError(f"{where} must be a list of {wanted}, not {_shown(item)}")
    ids = {_number(value, where) for value in item}
    if len(ids) != len(item):
        raise _FormError(f"{where} names a feature twice: {_shown(item)}")
    return tuple(sorted(ids))


def _number(value: object, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise _FormError(f"{where} must be a number, not {_shown(value)}")
    return int(match[1])


def _kind(value: object) -> str:
    if value is None:
        return "missing"
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return kinds.get(type(value), "a number")


def _shown(value: object) -> str:
    """A value of the file, short enough for one line."""
    text = printable(json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= 60 else text[:57] + "…"
