"""`cooperbench tasks`: what there is to be solved."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from cooperbench.cli.arguments import (
    add_json_argument,
    add_selection_arguments,
    print_json,
    print_line,
    print_note,
    selected_pairs,
)
from cooperbench.dataset.discovery import discover, load_subset, resolve_dataset_dir, scan_tasks, subset_names
from cooperbench.errors import UserError
from cooperbench.report.formatting import NOTHING, Table, print_tables
from cooperbench.text import plural

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from cooperbench.dataset.stats import Stats
    from cooperbench.models import Task

_STATS_HEADINGS = (
    *("repository", "language", "tests", "tasks", "features", "pairs"),
    *("golden +", "golden -", "test lines", "conflicts"),
)
_STATS_NOTE = (
    "golden +, golden -, test lines: median lines of a feature; conflicts: of golden pairs that were merged"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selection_arguments(parser)
    add = parser.add_mutually_exclusive_group().add_argument
    add("--subsets", action="store_true", help="list the subsets instead")
    stats = "a row per repository instead: language, sizes, golden conflicts"
    add("--stats", action="store_true", help=stats)
    tests = "for each feature the tests that have to pass, as far as known"
    add("--tests", action="store_true", help=tests)
    add_json_argument(parser)


class _Row(NamedTuple):
    """A task, and the features and pairs of it that were asked for."""

    task: Task
    feature_ids: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]


def execute(args: argparse.Namespace) -> int:
    dataset_dir = resolve_dataset_dir(args.dataset_dir)
    if args.subsets:
        return _show_subsets(dataset_dir, args)
    rows, notes = _rows(dataset_dir, args)
    if args.tests:
        content, tables = _tests(rows)
    elif args.stats:
        content, tables = _stats(dataset_dir, rows, notes)
    else:
        content, tables = _list(rows)
    if args.json:
        print_json({"dataset_dir": str(dataset_dir), **content, "notes": notes})
        return 0
    print_tables(tables)
    for note in notes:
        print_note(f"note: {note}")
    return 0


def _rows(dataset_dir: Path, args: argparse.Namespace) -> tuple[list[_Row], list[str]]:
    if (args.subset, args.features, args.group_sizes, args.groups_per_task) == (None,) * 4:
        # A task with a single feature has no pairs, and is listed all the same.
        scan = scan_tasks(dataset_dir, args.repo, args.task_id)
        tasks = [
            _Row(task, task.feature_ids, tuple(pair.feature_ids for pair in task.pairs))
            for task in scan.tasks
        ]
        return tasks, list(scan.notes)
    found = selected_pairs(args)
    grouped: dict[Task, list[tuple[int, ...]]] = {}
    for pair in found.pairs:
        grouped.setdefault(pair.task, []).append(pair.feature_ids)
    rows = [
        _Row(task, tuple(sorted({number for group in groups for number in group})), tuple(groups))
        for task, groups in grouped.items()
    ]
    return rows, list(found.notes)


def _list(rows: list[_Row]) -> tuple[dict[str, Any], list[Table]]:
    totals = {
        "repositories": len({row.task.repo for row in rows}),
        "tasks": len(rows),
        "features": sum(len(row.feature_ids) for row in rows),
        "pairs": sum(len(row.groups) for row in rows),
    }
    tasks = [
        {"repo": row.task.repo, "task_id": row.task.task_id, "features": row.feature_ids, "pairs": row.groups}
        for row in rows
    ]
    cells = [
        (row.task.repo, f"task{row.task.task_id}", ", ".join(map(str, row.feature_ids)), str(len(row.groups)))
        for row in rows
    ]
    title = ", ".join(
        (
            plural(totals["repositories"], "repository", "repositories"),
            *(plural(totals[noun + "s"], noun) for noun in ("task", "feature", "pair")),
        )
    )
    return {"totals": totals, "tasks": tasks}, [
        Table(title, ("repository", "task", "features", "pairs"), cells)
    ]


def _tests(rows: list[_Row]) -> tuple[dict[str, Any], list[Table]]:
    """From the runs with golden patches that this machine knows of: those of `run`, `eval`, `validate` or imported."""
    from cooperbench.eval.reference import ReferenceStore

    store = ReferenceStore()
    content: list[dict[str, Any]] = []
    tables = []
    for row in rows:
        for feature in map(row.task.feature, row.feature_ids):
            known = [one for one in store.about(feature) if one.success]
            newest = max(known, key=lambda one: one.time, default=None)
            expected = sorted({*newest.passed_tests} - {*newest.flaky_tests}) if newest else None
            if newest is None:
                said = "not known yet: cooperbench validate finds out"
            elif not expected:
                said = (
                    f"{plural(newest.tests_passed, 'test')}, not named by {newest.framework or 'the runner'}"
                )
            else:
                said = plural(len(expected), "test")
            tables.append(
                Table(f"{row.task.label}/feature{feature.feature_id}: {said}", notes=expected or ())
            )
            about = {"repo": row.task.repo, "task_id": row.task.task_id, "feature": feature.feature_id}
            count = newest.tests_passed if newest else None
            flaky = newest.flaky_tests if newest else None
            content.append({**about, "expected": expected, "flaky": flaky, "tests_passed": count})
    return {"features": content}, tables


def _stats(dataset_dir: Path, rows: list[_Row], notes: list[str]) -> tuple[dict[str, Any], list[Table]]:
    from cooperbench.dataset.stats import dataset_stats
    from cooperbench.eval.conflicts import REPORT_NAME, known_conflicts

    by_repo, total, unread = dataset_stats(rows, known_conflicts(dataset_dir))
    notes += unread
    if total.conflicts is None:
        report = f"--conflicts-only --report {dataset_dir / REPORT_NAME}"
        notes.append(
            f"no golden conflicts are known: cooperbench validate --dataset-dir {dataset_dir} {report}"
        )
    cells = [_stats_cells(repo, stats) for repo, stats in by_repo.items()]
    cells.append(_stats_cells("total", replace(total, language="", framework="")))
    repositories = [{"repo": repo, **asdict(stats)} for repo, stats in by_repo.items()]
    found = {"repositories": repositories, "total": asdict(total)}
    return found, [Table(str(dataset_dir), _STATS_HEADINGS, cells, [_STATS_NOTE])]


def _stats_cells(name: str, stats: Stats) -> tuple[str, ...]:
    conflicts = None if stats.conflicts is None else f"{stats.conflicts}/{stats.judged_pairs}"
    numbers = (stats.tasks, stats.features, stats.pairs)
    medians = (stats.lines_added, stats.lines_removed, stats.test_lines)
    shown = [stats.language, stats.framework, *map(str, numbers)]
    shown += [None if value is None else f"{value:g}" for value in medians]
    return (name, *(NOTHING if cell is None else cell for cell in (*shown, conflicts)))


def _show_subsets(dataset_dir: Path, args: argparse.Namespace) -> int:
    if {args.repo, args.task_id, args.groups_per_task} != {None} or args.features or args.group_sizes:
        raise UserError(
            "--subsets lists whole subsets; leave out --repo, --task, --features, --agents and --groups"
        )
    found: list[dict[str, Any]] = []
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
        print_json({"dataset_dir": str(dataset_dir), "subsets": found, "broken": broken})
    elif found:
        cells = [(one["name"], str(one["tasks"]), str(one["pairs"]), one["description"]) for one in found]
        print_tables([Table(str(dataset_dir), ("subset", "tasks", "pairs", "description"), cells)])
    elif not broken:
        print_line(f"no subsets in {dataset_dir}")
    for line in broken:
        print_note(f"error: {line}")
    return 2 if broken else 0
