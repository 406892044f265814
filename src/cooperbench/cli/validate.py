"""`cooperbench validate`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cooperbench.cli.arguments import (
    BACKEND_DEFAULT,
    add_eval_network_argument,
    add_selection_arguments,
    selected_pairs,
    whole_above_zero,
)
from cooperbench.errors import UserError
from cooperbench.eval.conflicts import golden_conflicts
from cooperbench.settings import default_backend, default_eval_network
from cooperbench.storage import write_json
from cooperbench.text import plural, printable

if TYPE_CHECKING:
    import argparse

    from cooperbench.eval.validate import TaskReport
    from cooperbench.models import Pair, Task


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selection_arguments(parser)
    parser.add_argument(
        "--conflicts-only", action="store_true", help="only which golden patches conflict; no tests are run"
    )
    parser.add_argument(
        "--repos",
        type=Path,
        metavar="DIR",
        help="clones, one for each repository, named like the dataset's folders",
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write the conflicts to this file as well"
    )
    parser.add_argument("--backend", help=f"where tests run (default: {BACKEND_DEFAULT})")
    parser.add_argument(
        "-c", "--concurrency", type=whole_above_zero, default=4, help="tasks at once (default: %(default)s)"
    )
    parser.add_argument(
        "--test-timeout",
        type=whole_above_zero,
        default=600,
        metavar="SECONDS",
        help="how long one test run may take (default: %(default)s)",
    )
    parser.add_argument(
        "--repeat",
        type=whole_above_zero,
        default=1,
        metavar="K",
        help="run base and golden patches K times: tests whose results differ are named and not required",
    )
    parser.add_argument(
        "--attacks",
        action="store_true",
        help="also try patches that implement nothing and attack the tests: none may be scored as a success",
    )
    add_eval_network_argument(parser)
    parser.add_argument(
        "--export", type=Path, metavar="FILE", help="write the reference runs to a file, for another machine"
    )
    parser.add_argument(
        "--import",
        dest="import_file",
        type=Path,
        metavar="FILE",
        help="take in another machine's reference runs",
    )
    parser.add_argument("--json", action="store_true", help="for machines: the report as JSON on stdout")


def execute(args: argparse.Namespace) -> int:
    pairs = selected_pairs(args).pairs
    tasks = list(dict.fromkeys(pair.task for pair in pairs))
    if args.import_file:
        _say(f"{plural(_import(args.import_file), 'reference')} imported from {args.import_file}")
    if args.conflicts_only and args.repos:
        conflicts = golden_conflicts(tasks, pairs=pairs, repos_dir=args.repos)
        reports: list[TaskReport] = []
    else:
        conflicts, reports = _in_sandboxes(args, tasks, pairs)
    if args.report:
        write_json(args.report, conflicts)
    if args.export:
        from cooperbench.eval.reference import ReferenceStore, exported

        known = ReferenceStore().known(tasks)
        write_json(args.export, exported(known))
        _say(f"{plural(len(known), 'reference')} exported to {args.export}")
    _show(args, conflicts, reports)
    return 1 if conflicts["broken"] or any(report.problems for report in reports) else 0


def _import(path: Path) -> int:
    from cooperbench.eval.reference import ReferenceStore

    try:
        return ReferenceStore().add(json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: references cannot be read from it: {error}") from error


def _in_sandboxes(
    args: argparse.Namespace, tasks: list[Task], pairs: tuple[Pair, ...]
) -> tuple[dict[str, Any], list[TaskReport]]:
    from cooperbench.eval import backends
    from cooperbench.eval.executor import TestExecutor
    from cooperbench.eval.reference import References
    from cooperbench.eval.validate import validate_features
    from cooperbench.sandbox.session import SandboxSession

    reports: list[TaskReport] = []
    with SandboxSession(backends.get_backend(args.backend or default_backend())) as session:
        executor = TestExecutor(session, args.test_timeout)
        references = References(executor, args.eval_network or default_eval_network(), note=_say)
        session.prepare(tasks, lambda task, done, total: _say(f"prepared {done}/{total}: {task.label}"))
        if args.repos:
            conflicts = golden_conflicts(tasks, pairs=pairs, repos_dir=args.repos)
        else:
            conflicts = golden_conflicts(tasks, pairs=pairs, base_of=executor.base)
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
    sys.stderr.write(f"[CooperBench] {printable(text)}\n")


def _headline(report: TaskReport) -> str:
    state = "sound" if not report.problems else plural(len(report.problems), "problem")
    return f"{report.repo}/task{report.task_id}: {state}, {plural(report.checks, 'test run')}"


def _show(args: argparse.Namespace, conflicts: dict[str, Any], reports: list[TaskReport]) -> None:
    if args.json:
        content = conflicts
        if not args.conflicts_only:
            from cooperbench.eval.validate import SCHEMA

            content = {
                "schema": SCHEMA,
                "ok": not conflicts["broken"] and not any(report.problems for report in reports),
                "tasks": [report.to_json() for report in reports],
                "conflicts": conflicts,
            }
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
        return
    lines = [
        f"{report.repo}/task{report.task_id}: {line}"
        for report in reports
        for line in (*report.problems, *(f"note: {note}" for note in report.notes))
    ]
    lines += [
        f"{broken['repo']}/task{broken['task_id']}: {broken['reason']}" for broken in conflicts["broken"]
    ]
    if reports:
        sound = sum(not report.problems for report in reports)
        lines.append(f"{sound} of {plural(len(reports), 'task')} sound")
    summary = conflicts["summary"]
    for size, counts in summary.get("by_agents", {"2": summary}).items():
        noun = "pairs" if size == "2" else f"groups of {size}"
        lines.append(
            f"{counts['pairs']} golden {noun}: {counts['conflict']} conflict, {counts['clean']} merge cleanly"
        )
    sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))
