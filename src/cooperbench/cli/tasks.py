"""`cooperbench tasks`: what there is to be solved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cooperbench.cli.arguments import (
    add_json_argument,
    add_selection_arguments,
    print_json,
    print_line,
    print_note,
    selected_pairs,
)
from cooperbench.dataset.discovery import discover, resolve_dataset_dir, scan_tasks
from cooperbench.dataset.subsets import load_subset, subset_names
from cooperbench.errors import UserError
from cooperbench.report.formatting import Table, print_tables
from cooperbench.text import plural

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from cooperbench.models import Task

    Groups = dict[Task, Sequence[tuple[int, ...]]]
    """The pairs, or groups, of features that were asked for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selection_arguments(parser)
    add = parser.add_mutually_exclusive_group().add_argument
    add("--subsets", action="store_true", help="list the subsets instead")
    tests = "for each feature the tests that have to pass, as far as known"
    add("--tests", action="store_true", help=tests)
    add_json_argument(parser)


def execute(args: argparse.Namespace) -> int:
    dataset_dir = resolve_dataset_dir(args.dataset_dir)
    if args.subsets:
        return _show_subsets(dataset_dir, args)
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
    for note in notes:
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
