"""`cooperbench author mine`: tasks from the history of a repository."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from cooperbench.author.detect import detect_project
from cooperbench.author.mining.mine import Miner, MiningReport
from cooperbench.author.mining.workshop import MiningSettings
from cooperbench.author.repository import describe_limits
from cooperbench.author.split import find_git_dir, resolve_commit
from cooperbench.author.task_files import repo_name
from cooperbench.cli import arguments
from cooperbench.cli.author_arguments import (
    Action,
    add_concurrency_argument,
    add_sandbox_arguments,
    dataset_folder,
)
from cooperbench.errors import UserError
from cooperbench.eval import backends
from cooperbench.report.formatting import Rows, Table, print_tables
from cooperbench.sandbox.backend import adapted_backend
from cooperbench.sandbox.manager import SandboxManager
from cooperbench.text import plural

SCHEMA = "cooperbench.author_mine/1"
MAX_FEATURES = 12
MIN_FEATURES = 2
_MAX_REASONS = 15


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("repo", type=Path, metavar="REPO", help="a git clone of your repository")
    most = "number of tasks, with those of earlier calls (default: %(default)s)"
    parser.add_argument(
        "--max", type=arguments.whole_above_zero, default=20, metavar="N", help=most
    )
    commits = "newest commits of the main line to look at (default: %(default)s)"
    parser.add_argument(
        "--commits", type=arguments.whole_above_zero, default=500, metavar="N", help=commits
    )
    features = (
        f"maximum number of features per task, {MIN_FEATURES} to {MAX_FEATURES} (default: 3 to 6,"
        " by the number of candidates)"
    )
    parser.add_argument(
        "--features",
        dest="max_features",
        type=arguments.whole_above_zero,
        default=0,
        metavar="N",
        help=features,
    )
    parser.add_argument("--name", help="name of the repository in the dataset (default: REPO's)")
    tip = "commit at which the history ends (default: HEAD)"
    parser.add_argument("--commit", default="HEAD", metavar="COMMIT", help=tip)
    part = "part of a monorepo that is installed and tested"
    parser.add_argument("--path", default="", metavar="FOLDER", help=part)
    add_concurrency_argument(parser)
    add_sandbox_arguments(parser)
    arguments.add_dataset_argument(parser)
    arguments.add_json_argument(parser)


def mine(args: argparse.Namespace) -> int:
    """Mine a repository; return 1 if there is no task."""
    if args.max_features and not MIN_FEATURES <= args.max_features <= MAX_FEATURES:
        raise UserError(f"--features {args.max_features}: use {MIN_FEATURES} to {MAX_FEATURES}")
    git_dir = find_git_dir(args.repo)
    tip = resolve_commit(git_dir, args.commit)
    name = args.name or args.repo.resolve().name.removesuffix(".git")
    repo_name(name)
    detect_project(args.repo, tip, args.path)  # old commits will not be better
    backend = backends.get_backend(args.backend)
    adapted_backend(backend).check()
    for note in describe_limits(args.repo, tip):
        arguments.print_note(f"note: {note}")
    settings = MiningSettings(
        repo=args.repo,
        name=name,
        dataset_dir=dataset_folder(args),
        subfolder=args.path.strip("/"),
        max_features=args.max_features,
        timeout_seconds=args.test_timeout_seconds,
        # Tests that need a network make verdicts that depend on it.
        network=args.eval_network or "none",
        concurrency=args.concurrency,
    )
    with SandboxManager(backend) as sandboxes:
        miner = Miner(settings, sandboxes, arguments.print_note)
        report = miner.mine(tip, args.commits, args.max)
    if args.json:
        content = {"schema": SCHEMA, "state": str(miner.state_path)}
        arguments.print_json(content | msgspec.to_builtins(report))
    else:
        print_tables(_tables(report, miner.state_path))
    return 0 if report.tasks else 1


def _tables(report: MiningReport, state_path: Path) -> list[Table]:
    rows: Rows = []
    for task in report.tasks:
        number = len(task.commits)
        rows.append([task.task, task.base[:12], number, number * (number - 1) // 2])
    title = (
        f"{plural(len(report.tasks), 'task')} from {plural(report.commits, 'commit')},"
        f" {report.candidates:,} of which change code and tests"
    )
    notes = []
    if report.tasks:
        notes = [
            f"next: cooperbench author describe {report.tasks[0].task}",
            f"then: cooperbench author check {report.tasks[0].task}",
        ]
    tasks_table = Table(title, ("task", "base", "features", "pairs"), rows, notes)
    reasons = report.count_reasons()
    reason_rows: Rows = [[reason, count] for reason, count in reasons[:_MAX_REASONS]]
    where = [f"each commit with its reason: --json, and {state_path}"]
    rejected = Table("Commits in no task", ("reason", "commits"), reason_rows, where)
    return [tasks_table, rejected] if reasons else [tasks_table]


ACTION = Action("make tasks from the history of a repository", _add_arguments, mine)
