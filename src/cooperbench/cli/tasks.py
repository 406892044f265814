"""`cooperbench tasks`: what there is to be solved."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, NamedTuple

from cooperbench.cli.arguments import add_selection_arguments
from cooperbench.dataset.discovery import discover, resolve_dataset_dir, scan_tasks
from cooperbench.dataset.subsets import load_subset, subset_names
from cooperbench.errors import UserError
from cooperbench.text import plural, printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from cooperbench.dataset.stats import Stats
    from cooperbench.models import Task

_STATS_TITLES = (
    *("repository", "language", "tests", "tasks", "features", "pairs"),
    *("golden +", "golden -", "test lines", "conflicts"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selection_arguments(parser)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--subsets", action="store_true", help="list the subsets instead")
    instead.add_argument(
        "--stats", action="store_true", help="a row per repository instead: language, sizes, golden conflicts"
    )
    parser.add_argument("--json", action="store_true", help="for machines: one JSON object on stdout")


def execute(args: argparse.Namespace) -> int:
    dataset_dir = resolve_dataset_dir(args.dataset_dir)
    if args.subsets:
        return _show_subsets(dataset_dir, args)
    rows, notes = _rows(dataset_dir, args)
    if args.stats:
        return _show_stats(dataset_dir, rows, notes, as_json=args.json)
    if args.json:
        _print_json(_as_json(dataset_dir, rows, notes))
    else:
        _show_rows(rows)
        _show_notes(notes)
    return 0


class _Row(NamedTuple):
    """A task, and the features and pairs of it that were asked for."""

    task: Task
    feature_ids: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]


def _rows(dataset_dir: Path, args: argparse.Namespace) -> tuple[list[_Row], tuple[str, ...]]:
    if args.subset is None and args.features is None:
        # A task with a single feature has no pairs, and is listed all the same.
        scan = scan_tasks(dataset_dir, args.repo, args.task_id)
        every = [
            _Row(task, task.feature_ids, tuple(pair.feature_ids for pair in task.pairs))
            for task in scan.tasks
        ]
        return every, scan.notes
    found = discover(
        dataset_dir, subset=args.subset, repo=args.repo, task_id=args.task_id, features=args.features
    )
    grouped: dict[Task, list[tuple[int, ...]]] = {}
    for pair in found.pairs:
        grouped.setdefault(pair.task, []).append(pair.feature_ids)
    rows = [
        _Row(task, tuple(sorted({number for group in groups for number in group})), tuple(groups))
        for task, groups in grouped.items()
    ]
    return rows, found.notes


def _totals(rows: list[_Row]) -> dict[str, int]:
    return {
        "repositories": len({row.task.repo for row in rows}),
        "tasks": len(rows),
        "features": sum(len(row.feature_ids) for row in rows),
        "pairs": sum(len(row.groups) for row in rows),
    }


def _as_json(dataset_dir: Path, rows: list[_Row], notes: tuple[str, ...]) -> dict[str, object]:
    tasks = [
        {"repo": row.task.repo, "task_id": row.task.task_id, "features": row.feature_ids, "pairs": row.groups}
        for row in rows
    ]
    return {"dataset_dir": str(dataset_dir), "totals": _totals(rows), "tasks": tasks, "notes": notes}


def _show_rows(rows: list[_Row]) -> None:
    totals = _totals(rows)
    cells = [
        (row.task.repo, f"task{row.task.task_id}", _ranges(row.feature_ids), str(len(row.groups)))
        for row in rows
    ]
    _show_table(("repository", "task", "features", "pairs"), cells, numbers={3})
    counted = (
        plural(totals["repositories"], "repository", "repositories"),
        plural(totals["tasks"], "task"),
        plural(totals["features"], "feature"),
        plural(totals["pairs"], "pair"),
    )
    _print(", ".join(counted))


def _show_stats(dataset_dir: Path, rows: list[_Row], notes: tuple[str, ...], *, as_json: bool) -> int:
    from cooperbench.dataset.stats import dataset_stats
    from cooperbench.eval.conflicts import REPORT_NAME, known_conflicts

    by_repo, total, unread = dataset_stats(rows, known_conflicts(dataset_dir))
    said = [*notes, *unread]
    if total.conflicts is None:
        report = f"--conflicts-only --report {dataset_dir / REPORT_NAME}"
        said.append(
            f"no golden conflicts are known: cooperbench validate --dataset-dir {dataset_dir} {report}"
        )
    if as_json:
        repositories = [{"repo": repo, **asdict(stats)} for repo, stats in by_repo.items()]
        content = {"dataset_dir": str(dataset_dir), "repositories": repositories, "total": asdict(total)}
        _print_json({**content, "notes": said})
        return 0
    cells = [_stats_cells(repo, stats) for repo, stats in by_repo.items()]
    cells.append(_stats_cells("total", replace(total, language="", framework="")))
    _show_table(_STATS_TITLES, cells, numbers=set(range(3, len(_STATS_TITLES))))
    _print(
        "golden +, golden -, test lines: median lines of a feature; conflicts: of golden pairs that were merged"
    )
    _show_notes(said)
    return 0


def _stats_cells(name: str, stats: Stats) -> tuple[str, ...]:
    conflicts = None if stats.conflicts is None else f"{stats.conflicts}/{stats.judged_pairs}"
    numbers = (stats.tasks, stats.features, stats.pairs)
    medians = (stats.lines_added, stats.lines_removed, stats.test_lines)
    shown = [stats.language, stats.framework, *map(str, numbers)]
    shown += [None if value is None else f"{value:g}" for value in medians]
    return (name, *("–" if cell is None else cell for cell in (*shown, conflicts)))


def _ranges(numbers: Sequence[int]) -> str:
    """`1-3, 5`."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _show_subsets(dataset_dir: Path, args: argparse.Namespace) -> int:
    if args.repo is not None or args.task_id is not None or args.features is not None:
        raise UserError("--subsets lists whole subsets; leave out --repo, --task and --features")
    found: list[dict[str, object]] = []
    broken: list[str] = []
    for name in subset_names(dataset_dir) if args.subset is None else (args.subset,):
        try:
            subset = load_subset(dataset_dir, name)
            pairs = discover(dataset_dir, subset=name).pairs
        except UserError as error:
            broken.append(str(error))
            continue
        tasks = len({pair.task for pair in pairs})
        found.append({"name": name, "description": subset.description, "tasks": tasks, "pairs": len(pairs)})
    if args.json:
        _print_json({"dataset_dir": str(dataset_dir), "subsets": found, "broken": broken})
    elif found:
        cells = [tuple(str(value) for value in row.values()) for row in found]
        order = [(name, tasks, pairs, description) for name, description, tasks, pairs in cells]
        _show_table(("subset", "tasks", "pairs", "description"), order, numbers={1, 2})
    elif not broken:
        _print(f"no subsets in {dataset_dir}")
    for line in broken:
        sys.stderr.write(f"error: {line}\n")
    return 2 if broken else 0


def _show_table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: set[int]) -> None:
    clean = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _show_rich_table(titles, clean, numbers)
        return
    widths = [max(len(row[column]) for row in [titles, *clean]) for column in range(len(titles))]
    for row in [titles, *clean]:
        padded = (
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        _print("  ".join(padded).rstrip())


def _show_rich_table(titles: Sequence[str], rows: list[list[str]], numbers: set[int]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, title in enumerate(titles):
        table.add_column(title, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def _show_notes(notes: Iterable[str]) -> None:
    for note in notes:
        sys.stderr.write(f"note: {note}\n")


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


def _print_json(content: dict[str, object]) -> None:
    _print(json.dumps(content, indent=2))
