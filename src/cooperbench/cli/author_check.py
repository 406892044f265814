"""`cooperbench author check`: everything that makes a task sound."""

from __future__ import annotations

import argparse

import msgspec

from cooperbench.author.check import SCHEMA, Check, CheckOptions, TaskCheck, TaskChecker
from cooperbench.author.fix import fix_task
from cooperbench.author.task_files import find_task
from cooperbench.cli import arguments
from cooperbench.cli.author_arguments import (
    TASK_HELP,
    Action,
    add_concurrency_argument,
    add_sandbox_arguments,
    dataset_folder,
)
from cooperbench.eval import backends
from cooperbench.eval.patch_tester import PatchTester
from cooperbench.eval.references import References
from cooperbench.report.formatting import Rows, Table, print_tables
from cooperbench.sandbox.backend import adapted_backend
from cooperbench.sandbox.manager import SandboxManager
from cooperbench.settings import default_eval_network

_MARKS = {"ok": "✓", "warning": "!", "failed": "✗", "not run": "–"}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", help=TASK_HELP)
    fix = (
        "first repair what needs no decision: modes of scripts, tests in feature.patch, a license"
        " that is not recorded, a missing combined.patch"
    )
    parser.add_argument("--fix", action="store_true", help=fix)
    repeat = "run base and golden patches K times, to find flaky tests (default: %(default)s)"
    parser.add_argument(
        "--repeat", type=arguments.whole_above_zero, default=2, metavar="K", help=repeat
    )
    attacks = "leave out the attacks on the tests, which take most of the time"
    parser.add_argument("--no-attacks", dest="attacks", action="store_false", help=attacks)
    add_concurrency_argument(parser)
    add_sandbox_arguments(parser)
    arguments.add_dataset_argument(parser)
    arguments.add_json_argument(parser)


def check(args: argparse.Namespace) -> int:
    """Check a task; return 1 if a check fails."""
    task = find_task(dataset_folder(args), args.task)
    backend = backends.get_backend(args.backend)
    adapted_backend(backend).check()
    fixed = fix_task(task) if args.fix else []
    with SandboxManager(backend) as sandboxes:
        tester = PatchTester(sandboxes, args.test_timeout_seconds)
        network = args.eval_network or default_eval_network()
        references = References(tester, network, note=arguments.print_note)
        options = CheckOptions(args.repeat, attacks=args.attacks, note=arguments.print_note)
        checker = TaskChecker(task, sandboxes, references, options)
        result = checker.check(sandboxes.pool(args.concurrency, "check"))
    if args.json:
        arguments.print_json(_content(result, fixed))
    else:
        print_tables([_table(result, fixed)])
    return 0 if result.ok else 1


def _content(result: TaskCheck, fixed: list[str]) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "task": result.task.label,
        "ok": result.ok,
        "fixed": fixed,
        "checks": [
            {"name": check.name, "state": check.state, "details": check.details}
            for check in result.checks
        ],
        "groups": msgspec.to_builtins(result.groups),
    }


def _table(result: TaskCheck, fixed: list[str]) -> Table:
    rows: Rows = []
    for check in result.checks:
        rows += _rows_of(check)
    failed = [check.name for check in result.checks if check.state == "failed"]
    verdict = f"not sound: {', '.join(failed)}" if failed else "sound"
    if not failed and not result.ok:
        verdict = "not sound: some checks could not run"
    notes = [f"fixed: {line}" for line in fixed]
    return Table(f"{result.task.label}: {verdict}", ("check", "", "details"), rows, notes)


def _rows_of(check: Check) -> Rows:
    """Return the rows of a check: its name stands in the first."""
    first, *others = check.details or ("",)
    rows: Rows = [[check.name, _MARKS[check.state], first]]
    rows += [["", "", detail] for detail in others]
    return rows


ACTION = Action("check everything that makes a task sound", _add_arguments, check)
