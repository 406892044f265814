"""What there is to be solved, and whether it is sound: `cooperbench tasks` and `validate`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from cooperbench.cli import arguments
from cooperbench.dataset.discovery import PairFilter, resolve_dataset_dir, scan_tasks, select_pairs
from cooperbench.dataset.subsets import subset_names
from cooperbench.errors import UserError
from cooperbench.eval import backends
from cooperbench.eval.conflicts import golden_conflicts
from cooperbench.eval.patch_tester import PatchTester
from cooperbench.eval.reference_store import ReferenceStore, export_references
from cooperbench.eval.references import References
from cooperbench.eval.validate import SCHEMA, TaskReport, validate_features
from cooperbench.models import Pair, Task
from cooperbench.report.formatting import Table, print_tables
from cooperbench.sandbox.manager import SandboxManager
from cooperbench.settings import default_backend, default_eval_network
from cooperbench.storage import write_json
from cooperbench.text import plural

Chosen = tuple[Task, tuple[int, ...], Sequence[tuple[int, ...]]]
"""A task, and the features and pairs of it that were asked for."""


def add_tasks_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_selection_arguments(parser)
    tests = "for each feature the tests that have to pass, as far as known"
    parser.add_argument("--tests", action="store_true", help=tests)
    arguments.add_json_argument(parser)


def tasks(args: argparse.Namespace) -> int:
    dataset_dir = resolve_dataset_dir(args.dataset_dir)
    if (args.subset, args.features, args.group_sizes, args.groups_per_task) == (None,) * 4:
        # A task with a single feature has no pairs, and is listed all the same.
        tasks, notes = scan_tasks(dataset_dir, args.repo, args.task_id)
        rows: list[Chosen] = [
            (task, task.feature_ids, [pair.feature_ids for pair in task.pairs]) for task in tasks
        ]
    else:
        pairs, notes = select_pairs(dataset_dir, PairFilter.from_args(args))
        groups: dict[Task, list[tuple[int, ...]]] = {}
        for pair in pairs:
            groups.setdefault(pair.task, []).append(pair.feature_ids)
        rows = [(task, tuple(sorted({*chain(*chosen)})), chosen) for task, chosen in groups.items()]
    content, tables = (_tests if args.tests else _list)(rows)
    if args.json:
        arguments.print_json({"dataset_dir": str(dataset_dir), **content, "notes": notes})
        return 0
    print_tables(tables)
    for note in (*notes, f"subsets (-s): {', '.join(subset_names(dataset_dir)) or 'none'}"):
        arguments.print_note(f"note: {note}")
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
    table = Table(title, ("repository", "task", "features", "pairs"), cells)
    return {"totals": totals, "tasks": tasks}, [table]


def _tests(rows: Sequence[Chosen]) -> tuple[dict[str, Any], list[Table]]:
    """From the runs with golden patches that this machine knows of: those of `run`, `eval`, `validate` or imported."""
    store = ReferenceStore()
    content: list[dict[str, Any]] = []
    tables = []
    for task, feature_ids, _ in rows:
        for feature in map(task.feature, feature_ids):
            known = [one for one in store.about(feature) if one.golden.success]
            newest = max(known, key=lambda one: one.time, default=None)
            about = {"repo": task.repo, "task_id": task.task_id, "feature": feature.feature_id}
            title = f"{task.label}/feature{feature.feature_id}"
            if newest is None:
                tables.append(Table(f"{title}: not known yet: cooperbench validate finds out"))
                content.append({**about, "expected": None, "flaky": None, "tests_passed": None})
                continue
            expected = sorted({*newest.passed_tests} - {*newest.flaky_tests})
            said = plural(len(expected) or newest.golden.tests_passed, "test")
            unnamed = (
                "" if expected else f", not named by {newest.golden.framework or 'the runner'}"
            )
            tables.append(Table(f"{title}: {said}{unnamed}", notes=expected))
            counted = {"flaky": newest.flaky_tests, "tests_passed": newest.golden.tests_passed}
            content.append({**about, "expected": expected, **counted})
    return {"features": content}, tables


def add_validate_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_selection_arguments(parser)
    add = parser.add_argument
    add(
        "--conflicts-only",
        action="store_true",
        help="only which golden patches conflict; no tests are run",
    )
    clones = "clones, one for each repository, named like the dataset's folders"
    add("--repos", type=Path, metavar="DIR", help=clones)
    add("--report", type=Path, metavar="FILE", help="write the conflicts to this file as well")
    for name in ("backend", "eval_network", "test_timeout_seconds"):
        arguments.add_option(parser, name)
    arguments.add_option(
        parser, "concurrency", default=4, help="tasks at once (default: %(default)s)"
    )
    flaky = (
        "run base and golden patches K times: tests whose results differ are named and not required"
    )
    add("--repeat", type=arguments.whole_above_zero, default=1, metavar="K", help=flaky)
    attacks = "also try patches that implement nothing and attack the tests: none may be scored as a success"
    add("--attacks", action="store_true", help=attacks)
    add(
        "--export",
        type=Path,
        metavar="FILE",
        help="write the reference runs to a file, for another machine",
    )
    other = "take in another machine's reference runs"
    add("--import", dest="import_file", type=Path, metavar="FILE", help=other)
    arguments.add_json_argument(parser)


def validate(args: argparse.Namespace) -> int:
    pairs, skipped = select_pairs(resolve_dataset_dir(args.dataset_dir), PairFilter.from_args(args))
    tasks = list(dict.fromkeys(pair.task for pair in pairs))
    if args.import_file:
        try:
            imported = ReferenceStore().add(json.loads(args.import_file.read_bytes()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{args.import_file}: references cannot be read from it: {error}"
            ) from error
        _say(f"{plural(imported, 'reference')} imported from {args.import_file}")
    if args.conflicts_only and args.repos:
        conflicts = golden_conflicts(tasks, pairs=pairs, repos_dir=args.repos)
        reports: list[TaskReport] = []
    else:
        conflicts, reports = _in_sandboxes(args, tasks, pairs)
    if args.report:
        write_json(args.report, conflicts)
    if args.export:
        known = ReferenceStore().known(tasks)
        write_json(args.export, export_references(known))
        _say(f"{plural(len(known), 'reference')} exported to {args.export}")
    ok = not (skipped or conflicts["broken"] or any(report.problems for report in reports))
    if not args.json:
        for line in skipped:
            arguments.print_line(line)
        _show(conflicts, reports)
    elif args.conflicts_only:
        arguments.print_json(conflicts)
    else:
        found = [report.to_json() for report in reports]
        told = {"ok": ok, "skipped": skipped, "tasks": found, "conflicts": conflicts}
        arguments.print_json({"schema": SCHEMA, **told})
    return 0 if ok else 1


def _in_sandboxes(
    args: argparse.Namespace, tasks: list[Task], pairs: tuple[Pair, ...]
) -> tuple[dict[str, Any], list[TaskReport]]:
    reports: list[TaskReport] = []
    with SandboxManager(backends.get_backend(args.backend or default_backend())) as sandboxes:
        tester = PatchTester(sandboxes, args.test_timeout_seconds)
        references = References(tester, args.eval_network or default_eval_network(), note=_say)
        sandboxes.prepare(
            tasks, lambda task, done, total: _say(f"prepared {done}/{total}: {task.label}")
        )
        where: Any = {"repos_dir": args.repos} if args.repos else {"base_of": tester.base}
        conflicts = golden_conflicts(tasks, pairs=pairs, **where)
        if not args.conflicts_only:
            wanted = {
                task: [
                    one
                    for one in task.features
                    if not args.features or one.feature_id in args.features
                ]
                for task in tasks
            }
            reports = validate_features(
                wanted,
                sandboxes,
                references,
                concurrency=args.concurrency,
                repeat=args.repeat,
                attacks=args.attacks,
                progress=lambda report: _say(_headline(report)),
            )
    return conflicts, reports


def _say(text: str) -> None:
    arguments.print_note(f"[CooperBench] {text}")


def _headline(report: TaskReport) -> str:
    state = "sound" if not report.problems else plural(len(report.problems), "problem")
    return f"{report.repo}/task{report.task_id}: {state}, {plural(report.checks, 'test run')}"


def _show(conflicts: dict[str, Any], reports: list[TaskReport]) -> None:
    for report in reports:
        for line in (*report.problems, *(f"note: {note}" for note in report.notes)):
            arguments.print_line(f"{report.repo}/task{report.task_id}: {line}")
    for broken in conflicts["broken"]:
        arguments.print_line(f"{broken['repo']}/task{broken['task_id']}: {broken['reason']}")
    if reports:
        sound = sum(not report.problems for report in reports)
        arguments.print_line(f"{sound} of {plural(len(reports), 'task')} sound")
    summary = conflicts["summary"]
    for size, counts in summary.get("by_agents", {"2": summary}).items():
        noun = "pairs" if size == "2" else f"groups of {size}"
        found = f"{counts['conflict']} conflict, {counts['clean']} merge cleanly"
        arguments.print_line(f"{counts['pairs']} golden {noun}: {found}")


COMMANDS = {"tasks": (add_tasks_arguments, tasks), "validate": (add_validate_arguments, validate)}
