"""`cooperbench tasks`: what there is to be solved."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

from cooperbench.cli.arguments import add_json_argument, add_selection_arguments, print_json, print_note
from cooperbench.dataset.discovery import resolve_dataset_dir, scan_tasks, selected_pairs
from cooperbench.dataset.subsets import subset_names
from cooperbench.eval.conflicts import REPORT_NAME, known_conflicts
from cooperbench.eval.reference import ReferenceStore
from cooperbench.models import Task
from cooperbench.report.dataset_stats import Chosen, Stats, dataset_stats
from cooperbench.report.formatting import NOTHING, Table, print_tables
from cooperbench.text import plural

_STATS_HEADINGS = (
    *("repository", "language", "tests", "tasks", "features", "pairs"),
    *("golden +", "golden -", "test lines", "conflicts"),
)
_STATS_NOTE = (
    "golden +, golden -, test lines: median lines of a feature; conflicts: of golden pairs that were merged"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selection_arguments(parser)
    tests = "for each feature the tests that have to pass, as far as known"
    add = parser.add_mutually_exclusive_group().add_argument
    add("--tests", action="store_true", help=tests)
    stats = "a row per repository instead: language, sizes, golden conflicts"
    add("--stats", action="store_true", help=stats)
    add_json_argument(parser)


def execute(args: argparse.Namespace) -> int:
    dataset_dir = resolve_dataset_dir(args.dataset_dir)
    if (args.subset, args.features, args.group_sizes, args.groups_per_task) == (None,) * 4:
        # A task with a single feature has no pairs, and is listed all the same.
        tasks, passed_over = scan_tasks(dataset_dir, args.repo, args.task_id)
        rows: list[Chosen] = [
            (task, task.feature_ids, [pair.feature_ids for pair in task.pairs]) for task in tasks
        ]
    else:
        pairs, passed_over = selected_pairs(dataset_dir, args)
        groups: dict[Task, list[tuple[int, ...]]] = {}
        for pair in pairs:
            groups.setdefault(pair.task, []).append(pair.feature_ids)
        rows = [(task, tuple(sorted({*chain(*chosen)})), chosen) for task, chosen in groups.items()]
    notes = list(passed_over)
    if args.stats:
        content, tables = _stats(dataset_dir, rows, notes)
    else:
        content, tables = (_tests if args.tests else _list)(rows)
    if args.json:
        print_json({"dataset_dir": str(dataset_dir), **content, "notes": notes})
        return 0
    print_tables(tables)
    for note in (*notes, f"subsets (-s): {', '.join(subset_names(dataset_dir)) or 'none'}"):
        print_note(f"note: {note}")
    return 0


def _list(rows: Sequence[Chosen]) -> tuple[dict[str, Any], list[Table]]:
    totals = {
        "repositories": len({task.repo for task, _, _ in rows}),
        "tasks": len(rows),
        "features": sum(len(features) for _, features, _ in rows),
        "pairs": sum(len(groups) for _, _, groups in rows),
    }
    tasks = [
        {"repo": task.repo, "task_id": task.task_id, "features": features, "pairs": groups}
        for task, features, groups in rows
    ]
    cells = [
        (task.repo, f"task{task.task_id}", ", ".join(map(str, features)), len(groups))
        for task, features, groups in rows
    ]
    counts = [plural(totals[noun + "s"], noun) for noun in ("task", "feature", "pair")]
    title = ", ".join((plural(totals["repositories"], "repository", "repositories"), *counts))
    return {"totals": totals, "tasks": tasks}, [
        Table(title, ("repository", "task", "features", "pairs"), cells)
    ]


def _stats(dataset_dir: Path, rows: Sequence[Chosen], notes: list[str]) -> tuple[dict[str, Any], list[Table]]:
    by_repo, total, unread = dataset_stats(rows, known_conflicts(dataset_dir))
    notes += unread
    if total.conflicts is None:
        report = f"--conflicts-only --report {dataset_dir / REPORT_NAME}"
        notes.append(
            f"no golden conflicts are known: cooperbench validate --dataset-dir {dataset_dir} {report}"
        )
    cells = [
        _stats_cells(name, stats)
        for name, stats in [*by_repo.items(), ("total", replace(total, language="", framework=""))]
    ]
    repositories = [{"repo": repo, **asdict(stats)} for repo, stats in by_repo.items()]
    found = {"repositories": repositories, "total": asdict(total)}
    return found, [Table(str(dataset_dir), _STATS_HEADINGS, cells, [_STATS_NOTE])]


def _stats_cells(name: str, stats: Stats) -> tuple[str, ...]:
    conflicts = None if stats.conflicts is None else f"{stats.conflicts}/{stats.judged_pairs}"
    medians = (stats.lines_added, stats.lines_removed, stats.test_lines)
    shown = [stats.language, stats.framework, *map(str, (stats.tasks, stats.features, stats.pairs))]
    shown += [None if value is None else f"{value:g}" for value in medians]
    return (name, *(NOTHING if cell is None else cell for cell in (*shown, conflicts)))


def _tests(rows: Sequence[Chosen]) -> tuple[dict[str, Any], list[Table]]:
    """From the runs with golden patches that this machine knows of: those of `run`, `eval`, `validate` or imported."""
    store = ReferenceStore()
    content: list[dict[str, Any]] = []
    tables = []
    for task, feature_ids, _ in rows:
        for feature in map(task.feature, feature_ids):
            known = [one for one in store.about(feature) if one.success]
            newest = max(known, key=lambda one: one.time, default=None)
            about = {"repo": task.repo, "task_id": task.task_id, "feature": feature.feature_id}
            title = f"{task.label}/feature{feature.feature_id}"
            if newest is None:
                tables.append(Table(f"{title}: not known yet: cooperbench validate finds out"))
                content.append({**about, "expected": None, "flaky": None, "tests_passed": None})
                continue
            expected = sorted({*newest.passed_tests} - {*newest.flaky_tests})
            said = plural(len(expected) or newest.golden.tests_passed, "test")
            unnamed = "" if expected else f", not named by {newest.golden.framework or 'the runner'}"
            tables.append(Table(f"{title}: {said}{unnamed}", notes=expected))
            counted = {"flaky": newest.flaky_tests, "tests_passed": newest.golden.tests_passed}
            content.append({**about, "expected": expected, **counted})
    return {"features": content}, tables
