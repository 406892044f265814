"""`cooperbench validate`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from cooperbench.cli.arguments import (
    add_json_argument,
    add_option,
    add_selection_arguments,
    print_json,
    print_line,
    print_note,
    whole_above_zero,
)
from cooperbench.dataset.discovery import resolve_dataset_dir, selected_pairs
from cooperbench.errors import UserError
from cooperbench.eval import backends
from cooperbench.eval.conflicts import golden_conflicts
from cooperbench.eval.executor import TestExecutor
from cooperbench.eval.reference import References, ReferenceStore, exported
from cooperbench.eval.validate import SCHEMA, TaskReport, validate_features
from cooperbench.models import Pair, Task
from cooperbench.sandbox.session import SandboxSession
from cooperbench.settings import default_backend, default_eval_network
from cooperbench.storage import write_json
from cooperbench.text import plural


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selection_arguments(parser)
    add = parser.add_argument
    only = "only which golden patches conflict; no tests are run"
    add("--conflicts-only", action="store_true", help=only)
    clones = "clones, one for each repository, named like the dataset's folders"
    add("--repos", type=Path, metavar="DIR", help=clones)
    add("--report", type=Path, metavar="FILE", help="write the conflicts to this file as well")
    for name in ("backend", "eval_network", "test_timeout_seconds"):
        add_option(parser, name)
    add_option(parser, "concurrency", default=4, help="tasks at once (default: %(default)s)")
    flaky = "run base and golden patches K times: tests whose results differ are named and not required"
    add("--repeat", type=whole_above_zero, default=1, metavar="K", help=flaky)
    attacks = "also try patches that implement nothing and attack the tests: none may be scored as a success"
    add("--attacks", action="store_true", help=attacks)
    export = "write the reference runs to a file, for another machine"
    add("--export", type=Path, metavar="FILE", help=export)
    other = "take in another machine's reference runs"
    add("--import", dest="import_file", type=Path, metavar="FILE", help=other)
    add_json_argument(parser)


def execute(args: argparse.Namespace) -> int:
    pairs = selected_pairs(resolve_dataset_dir(args.dataset_dir), args).pairs
    tasks = list(dict.fromkeys(pair.task for pair in pairs))
    if args.import_file:
        try:
            imported = ReferenceStore().add(json.loads(args.import_file.read_bytes()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{args.import_file}: references cannot be read from it: {error}") from error
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
        write_json(args.export, exported(known))
        _say(f"{plural(len(known), 'reference')} exported to {args.export}")
    ok = not conflicts["broken"] and not any(report.problems for report in reports)
    if not args.json:
        _show(conflicts, reports)
    elif args.conflicts_only:
        print_json(conflicts)
    else:
        found = [report.to_json() for report in reports]
        print_json({"schema": SCHEMA, "ok": ok, "tasks": found, "conflicts": conflicts})
    return 0 if ok else 1


def _in_sandboxes(
    args: argparse.Namespace, tasks: list[Task], pairs: tuple[Pair, ...]
) -> tuple[dict[str, Any], list[TaskReport]]:
    reports: list[TaskReport] = []
    with SandboxSession(backends.get_backend(args.backend or default_backend())) as session:
        executor = TestExecutor(session, args.test_timeout_seconds)
        references = References(executor, args.eval_network or default_eval_network(), note=_say)
        session.prepare(tasks, lambda task, done, total: _say(f"prepared {done}/{total}: {task.label}"))
        where: Any = {"repos_dir": args.repos} if args.repos else {"base_of": executor.base}
        conflicts = golden_conflicts(tasks, pairs=pairs, **where)
        if not args.conflicts_only:
            wanted = {
                task: [one for one in task.features if not args.features or one.feature_id in args.features]
                for task in tasks
            }
            reports = validate_features(
                wanted,
                session,
                references,
                concurrency=args.concurrency,
                repeat=args.repeat,
                attacks=args.attacks,
                progress=lambda report: _say(_headline(report)),
            )
    return conflicts, reports


def _say(text: str) -> None:
    print_note(f"[CooperBench] {text}")


def _headline(report: TaskReport) -> str:
    state = "sound" if not report.problems else plural(len(report.problems), "problem")
    return f"{report.repo}/task{report.task_id}: {state}, {plural(report.checks, 'test run')}"


def _show(conflicts: dict[str, Any], reports: list[TaskReport]) -> None:
    for report in reports:
        for line in (*report.problems, *(f"note: {note}" for note in report.notes)):
            print_line(f"{report.repo}/task{report.task_id}: {line}")
    for broken in conflicts["broken"]:
        print_line(f"{broken['repo']}/task{broken['task_id']}: {broken['reason']}")
    if reports:
        sound = sum(not report.problems for report in reports)
        print_line(f"{sound} of {plural(len(reports), 'task')} sound")
    summary = conflicts["summary"]
    for size, counts in summary.get("by_agents", {"2": summary}).items():
        noun = "pairs" if size == "2" else f"groups of {size}"
        found = f"{counts['conflict']} conflict, {counts['clean']} merge cleanly"
        print_line(f"{counts['pairs']} golden {noun}: {found}")
