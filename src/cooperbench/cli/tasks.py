"""`cooperbench tasks`: what there is to be solved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cooperbench.cli.arguments import (
    add_json_argument,
    add_selection_arguments,
    print_json,
    print_note,
    selected_pairs,
)
from cooperbench.dataset.discovery import resolve_dataset_dir, scan_tasks, subset_names
from cooperbench.report.formatting import Table, print_tables
from cooperbench.text import plural

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from cooperbench.models import Task

    Groups = dict[Task, Sequence[tuple[int, ...]]]
    """The pairs, or groups, of features that were asked for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selection_arguments(parser)
    tests = "for each feature the tests that have to pass, as far as known"
    parser.add_argument("--tests", action="store_true", help=tests)
    add_json_argument(parser)


def execute(args: argparse.Namespace) -> int:
    dataset_dir = resolve_dataset_dir(args.dataset_dir)
    if (args.subset, args.features, args.group_sizes, args.groups_per_task) == (None,) * 4:
        # A task with a single feature has no pairs, and is listed all the same.
        scan = scan_tasks(dataset_dir, args.repo, args.task_id)
        groups: Groups = {task: [pair.feature_ids for pair in task.pairs] for task in scan.tasks}
        features = {task: task.feature_ids for task in groups}
        notes = scan.notes
    else:
        found = selected_pairs(args)
        tasks = dict.fromkeys(pair.task for pair in found.pairs)
        groups = {task: [pair.feature_ids for pair in found.pairs if pair.task == task] for task in tasks}
        features = {task: tuple(sorted({one for group in groups[task] for one in group})) for task in tasks}
        notes = found.notes
    content, tables = (_tests if args.tests else _list)(features, groups)
    if args.json:
        print_json({"dataset_dir": str(dataset_dir), **content, "notes": list(notes)})
        return 0
    print_tables(tables)
    for note in (*notes, f"subsets (-s): {', '.join(subset_names(dataset_dir)) or 'none'}"):
        print_note(f"note: {note}")
    return 0


def _list(features: dict[Task, tuple[int, ...]], groups: Groups) -> tuple[dict[str, Any], list[Table]]:
    totals = {
        "repositories": len({task.repo for task in groups}),
        "tasks": len(groups),
        "features": sum(map(len, features.values())),
        "pairs": sum(map(len, groups.values())),
    }
    tasks = [
        {"repo": task.repo, "task_id": task.task_id, "features": features[task], "pairs": groups[task]}
        for task in groups
    ]
    rows = [
        (task.repo, f"task{task.task_id}", ", ".join(map(str, features[task])), str(len(groups[task])))
        for task in groups
    ]
    counts = [plural(totals[noun + "s"], noun) for noun in ("task", "feature", "pair")]
    title = ", ".join((plural(totals["repositories"], "repository", "repositories"), *counts))
    table = Table(title, ("repository", "task", "features", "pairs"), rows)
    return {"totals": totals, "tasks": tasks}, [table]


def _tests(features: dict[Task, tuple[int, ...]], _: Groups) -> tuple[dict[str, Any], list[Table]]:
    """From the runs with golden patches that this machine knows of: those of `run`, `eval`, `validate` or imported."""
    from cooperbench.eval.reference import ReferenceStore

    store = ReferenceStore()
    content: list[dict[str, Any]] = []
    tables = []
    for task, feature_ids in features.items():
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
            said = plural(len(expected) or newest.tests_passed, "test")
            unnamed = "" if expected else f", not named by {newest.framework or 'the runner'}"
            tables.append(Table(f"{title}: {said}{unnamed}", notes=expected))
            counted = {"flaky": newest.flaky_tests, "tests_passed": newest.tests_passed}
            content.append({**about, "expected": expected, **counted})
    return {"features": content}, tables
