"""The dataset: `cooperbench tasks` lists it, `cooperbench validate` checks it."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cooperbench.cli import arguments
from cooperbench.dataset.coupling import COUPLINGS, UNKNOWN, CouplingReader
from cooperbench.dataset.discovery import (
    PairFilter,
    resolve_dataset_dir,
    scan_tasks,
    select_pairs,
)
from cooperbench.dataset.golden_groups import is_current, read_golden_groups, unsolvable_reason
from cooperbench.dataset.subsets import subset_names
from cooperbench.errors import UserError
from cooperbench.eval import backends
from cooperbench.eval.conflicts import golden_conflicts
from cooperbench.eval.patch_tester import PatchTester
from cooperbench.eval.reference_store import ReferenceStore, export_references
from cooperbench.eval.references import References
from cooperbench.eval.validate import SCHEMA, TaskReport, validate_features
from cooperbench.models import Feature, Pair, Task
from cooperbench.records.files import JsonObject
from cooperbench.report.formatting import Rows, Table, print_tables
from cooperbench.sandbox.manager import SandboxManager
from cooperbench.settings import default_backend, default_eval_network
from cooperbench.storage import write_json
from cooperbench.text import plural


class _SelectedTask(NamedTuple):
    """A task with its selected features and pairs."""

    task: Task
    feature_ids: tuple[int, ...]
    groups: list[tuple[int, ...]]


class _Listing(NamedTuple):
    """The output of `cooperbench tasks`, for machines and for people."""

    content: JsonObject
    tables: list[Table]


def add_tasks_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cooperbench tasks`."""
    arguments.add_selection_arguments(parser)
    tests = "list the tests that must pass for each feature, if they are known"
    view = parser.add_mutually_exclusive_group()
    view.add_argument("--tests", action="store_true", help=tests)
    stats = "count pairs by how closely their golden patches are coupled"
    view.add_argument("--stats", action="store_true", help=stats)
    arguments.add_json_argument(parser)


def tasks(args: argparse.Namespace) -> int:
    """List the tasks, features and pairs of a dataset, or the tests of its features."""
    dataset_dir = resolve_dataset_dir(args.dataset_dir)
    selected, notes = _select(dataset_dir, args)
    if args.tests:
        listing = _list_tests(selected)
    elif args.stats:
        listing = _list_statistics(selected)
    else:
        listing = _list_tasks(selected)
    if args.json:
        arguments.print_json({"dataset_dir": str(dataset_dir), **listing.content, "notes": notes})
        return 0
    print_tables(listing.tables)
    for note in notes:
        arguments.print_note(f"note: {note}")
    arguments.print_note(f"note: subsets (-s): {', '.join(subset_names(dataset_dir)) or 'none'}")
    return 0


def _select(
    dataset_dir: Path, args: argparse.Namespace
) -> tuple[list[_SelectedTask], tuple[str, ...]]:
    """Return the selected tasks, and notes on what was skipped."""
    filters = (args.subset, args.features, args.group_sizes, args.groups_per_task, args.coupling)
    if not any(filters):
        # A task with a single feature has no pairs, but it is listed.
        scanned, notes = scan_tasks(dataset_dir, args.repo, args.task_id)
        selected = [
            _SelectedTask(task, task.feature_ids, [pair.feature_ids for pair in task.pairs])
            for task in scanned
        ]
        return selected, notes
    pairs, notes = select_pairs(dataset_dir, PairFilter.from_args(args))
    groups: dict[Task, list[tuple[int, ...]]] = {}
    for pair in pairs:
        groups.setdefault(pair.task, []).append(pair.feature_ids)
    selected = []
    for task, task_groups in groups.items():
        feature_ids = sorted(set().union(*task_groups))
        selected.append(_SelectedTask(task, tuple(feature_ids), task_groups))
    return selected, notes


def _list_tasks(selected: Sequence[_SelectedTask]) -> _Listing:
    totals = {
        "repositories": len({row.task.repo for row in selected}),
        "tasks": len(selected),
        "features": sum(len(row.feature_ids) for row in selected),
        "pairs": sum(len(row.groups) for row in selected),
    }
    content = [
        {
            "repo": row.task.repo,
            "task_id": row.task.task_id,
            "features": row.feature_ids,
            "pairs": row.groups,
        }
        for row in selected
    ]
    title = ", ".join(
        (
            plural(totals["repositories"], "repository", "repositories"),
            plural(totals["tasks"], "task"),
            plural(totals["features"], "feature"),
            plural(totals["pairs"], "pair"),
        )
    )
    rows: Rows = []
    for row in selected:
        features = ", ".join(str(feature_id) for feature_id in row.feature_ids)
        rows.append([row.task.repo, f"task{row.task.task_id}", features, len(row.groups)])
    table = Table(title, ("repository", "task", "features", "pairs"), rows)
    return _Listing({"totals": totals, "tasks": content}, [table])


def _list_tests(selected: Sequence[_SelectedTask]) -> _Listing:
    """List the tests of each feature, from the reference runs that this machine has."""
    store = ReferenceStore()
    content: list[JsonObject] = []
    tables = []
    for row in selected:
        for feature_id in row.feature_ids:
            entry, table = _feature_tests(store, row.task.feature(feature_id))
            content.append(entry)
            tables.append(table)
    return _Listing({"features": content}, tables)


def _list_statistics(selected: Sequence[_SelectedTask]) -> _Listing:
    """Count the pairs of each task by their coupling."""
    reader = CouplingReader()
    tasks: list[JsonObject] = []
    rows: Rows = []
    totals: Counter[str] = Counter()
    for row in selected:
        couplings = {
            group: reader.coupling_of(Pair(row.task, group)) or UNKNOWN for group in row.groups
        }
        counts = Counter(couplings.values())
        totals += counts
        rows.append([row.task.label, *_coupling_counts(counts)])
        pairs = [
            {"features": group, "coupling": coupling, "solvable": _is_solvable(row.task, group)}
            for group, coupling in couplings.items()
        ]
        tasks.append({"repo": row.task.repo, "task_id": row.task.task_id, "pairs": pairs})
    if len(selected) > 1:
        rows.append(["all", *_coupling_counts(totals)])
    headings = ("task", *COUPLINGS, UNKNOWN, "pairs")
    notes = [f"{name}: {meaning}" for name, meaning in COUPLINGS.items()]
    if totals[UNKNOWN]:
        notes.append(f"{UNKNOWN}: a golden patch is not a git diff")
    table = Table(f"Coupling of {plural(totals.total(), 'pair')}", headings, rows, notes)
    content = {"coupling": {name: totals[name] for name in (*COUPLINGS, UNKNOWN)}, "tasks": tasks}
    return _Listing(content, [table])


def _coupling_counts(counts: Counter[str]) -> list[int]:
    return [*(counts[name] for name in (*COUPLINGS, UNKNOWN)), counts.total()]


def _is_solvable(task: Task, group: tuple[int, ...]) -> bool | None:
    """Whether golden patches win the group together; None if that was not measured."""
    measured = read_golden_groups(task).get(group)
    if measured is None or not is_current(measured, task):
        return None
    return measured.solved_by is not None


def _feature_tests(store: ReferenceStore, feature: Feature) -> tuple[JsonObject, Table]:
    task = feature.task
    entry = {"repo": task.repo, "task_id": task.task_id, "feature": feature.feature_id}
    title = f"{task.label}/feature{feature.feature_id}"
    references = [reference for reference in store.about(feature) if reference.golden.success]
    newest = max(references, key=lambda reference: reference.time, default=None)
    if newest is None:
        table = Table(f"{title}: not known yet; run cooperbench validate")
        return entry | {"expected": None, "flaky": None, "tests_passed": None}, table
    expected = sorted(set(newest.passed_tests) - set(newest.flaky_tests))
    passed = newest.golden.tests_passed
    count = plural(len(expected) or passed, "test")
    if not expected:
        count += f", not named by {newest.golden.framework or 'the runner'}"
    table = Table(f"{title}: {count}", notes=expected)
    entry |= {"expected": expected, "flaky": newest.flaky_tests, "tests_passed": passed}
    return entry, table


def add_validate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cooperbench validate`."""
    arguments.add_selection_arguments(parser)
    conflicts = "only check which golden patches conflict; run no tests"
    parser.add_argument("--conflicts-only", action="store_true", help=conflicts)
    repos = "folder with a clone of each repository, named like the dataset's folders"
    parser.add_argument("--repos", type=Path, metavar="DIR", help=repos)
    report = "also write the conflicts to this file"
    parser.add_argument("--report", type=Path, metavar="FILE", help=report)
    for name in ("backend", "eval_network", "test_timeout_seconds"):
        arguments.add_option(parser, name)
    concurrency = "number of tasks at once (default: %(default)s)"
    arguments.add_option(parser, "concurrency", default=4, help=concurrency)
    repeat = (
        "run base and golden patches K times; tests with different results are reported"
        " and not required"
    )
    parser.add_argument(
        "--repeat", type=arguments.whole_above_zero, default=1, metavar="K", help=repeat
    )
    attacks = (
        "also try patches that implement nothing and attack the tests:"
        " none may be scored as a success"
    )
    parser.add_argument("--attacks", action="store_true", help=attacks)
    canaries = (
        "also check whether and how successes of each feature can be confirmed with tests that"
        " must fail"
    )
    parser.add_argument("--canaries", action="store_true", help=canaries)
    export = "write the reference runs to a file, for another machine"
    parser.add_argument("--export", type=Path, metavar="FILE", help=export)
    import_help = "read the reference runs of another machine"
    parser.add_argument("--import", dest="import_file", type=Path, metavar="FILE", help=import_help)
    arguments.add_json_argument(parser)


def validate(args: argparse.Namespace) -> int:
    """Check a dataset; return 1 if something is wrong with it."""
    pairs, skipped = select_pairs(
        resolve_dataset_dir(args.dataset_dir), PairFilter.from_args(args), with_unsolvable=True
    )
    selected = list(dict.fromkeys(pair.task for pair in pairs))
    if args.import_file:
        _import_references(args.import_file)
    if args.conflicts_only and args.repos:
        conflicts = golden_conflicts(selected, pairs=pairs, repos_dir=args.repos)
        reports: list[TaskReport] = []
    else:
        conflicts, reports = _validate_in_sandboxes(args, selected, pairs)
    if args.report:
        write_json(args.report, conflicts)
    if args.export:
        _export_references(args.export, selected)
    has_problems = any(report.problems for report in reports)
    ok = not skipped and not conflicts["broken"] and not has_problems
    if args.json:
        tasks = [report.to_json() for report in reports]
        content = {"schema": SCHEMA, "ok": ok, "skipped": skipped, "tasks": tasks}
        content["conflicts"] = conflicts
        content["unsolvable"] = _unsolvable_pairs(pairs)
        arguments.print_json(conflicts if args.conflicts_only else content)
    else:
        for line in skipped:
            arguments.print_line(line)
        for pair, reason in _unsolvable_pairs(pairs).items():
            arguments.print_line(f"{pair}: cannot be won, so runs leave it out: {reason}")
        _print_reports(conflicts, reports)
    return 0 if ok else 1


def _unsolvable_pairs(pairs: Sequence[Pair]) -> dict[str, str]:
    """Return why pairs cannot be won, as far as `author check` has measured it, by their labels."""
    reasons = {}
    for pair in pairs:
        reason = unsolvable_reason(pair)
        if reason is not None:
            reasons[pair.label] = reason
    return reasons


def _export_references(path: Path, tasks: Sequence[Task]) -> None:
    references = ReferenceStore().known(tasks)
    write_json(path, export_references(references))
    _print_progress(f"{plural(len(references), 'reference')} exported to {path}")


def _import_references(path: Path) -> None:
    try:
        imported = ReferenceStore().add(json.loads(path.read_bytes()))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not a file of `cooperbench validate --export`: {error}"
        ) from error
    _print_progress(f"{plural(imported, 'reference')} imported from {path}")


def _validate_in_sandboxes(
    args: argparse.Namespace, selected: Sequence[Task], pairs: Sequence[Pair]
) -> tuple[JsonObject, list[TaskReport]]:
    """Return the conflicts of golden patches, and unless only they are wanted, task reports."""

    def on_prepared(task: Task, done: int, total: int) -> None:
        _print_progress(f"prepared {done}/{total}: {task.label}")

    with SandboxManager(backends.get_backend(args.backend or default_backend())) as sandboxes:
        tester = PatchTester(sandboxes, args.test_timeout_seconds)
        network = args.eval_network or default_eval_network()
        references = References(tester, network, note=_print_progress)
        sandboxes.prepare(selected, on_prepared)
        conflicts = golden_conflicts(
            selected,
            pairs=pairs,
            repos_dir=args.repos,
            base_of=None if args.repos else tester.base,
        )
        if args.conflicts_only:
            return conflicts, []
        reports = validate_features(
            {task: _selected_features(task, args.features) for task in selected},
            sandboxes,
            references,
            concurrency=args.concurrency,
            repeat=args.repeat,
            attacks=args.attacks,
            canaries=args.canaries,
            progress=lambda report: _print_progress(_headline(report)),
        )
    return conflicts, reports


def _selected_features(task: Task, feature_ids: Sequence[int] | None) -> list[Feature]:
    if not feature_ids:
        return list(task.features)
    return [feature for feature in task.features if feature.feature_id in feature_ids]


def _print_progress(text: str) -> None:
    arguments.print_note(f"[CooperBench] {text}")


def _headline(report: TaskReport) -> str:
    state = "sound" if not report.problems else plural(len(report.problems), "problem")
    return f"{report.repo}/task{report.task_id}: {state}, {plural(report.checks, 'test run')}"


def _print_reports(conflicts: JsonObject, reports: Sequence[TaskReport]) -> None:
    for report in reports:
        notes = [f"note: {note}" for note in report.notes]
        for line in (*report.problems, *notes):
            arguments.print_line(f"{report.repo}/task{report.task_id}: {line}")
    for broken in conflicts["broken"]:
        arguments.print_line(f"{broken['repo']}/task{broken['task_id']}: {broken['reason']}")
    if any(report.canaries for report in reports):
        print_tables([_canary_table(reports)])
    if reports:
        sound = sum(1 for report in reports if not report.problems)
        arguments.print_line(f"{sound:,} of {plural(len(reports), 'task')} sound")
    _print_conflict_counts(conflicts["summary"])


def _print_conflict_counts(summary: JsonObject) -> None:
    """Print how many golden patches conflict; a line for each size of groups."""
    for size, counts in summary.get("by_agents", {"2": summary}).items():
        if size == "2":
            groups = plural(counts["pairs"], "golden pair")
        else:
            singular, several = f"golden group of {size}", f"golden groups of {size}"
            groups = plural(counts["pairs"], singular, several)
        outcomes = f"{counts['conflict']:,} conflict, {counts['clean']:,} merge cleanly"
        arguments.print_line(f"{groups}: {outcomes}")


def _canary_table(reports: Sequence[TaskReport]) -> Table:
    rows = []
    for report in reports:
        for canary in report.canaries:
            name = f"{report.repo}/task{report.task_id} feature {canary.feature_id}"
            kind = canary.kind or "none"
            rows.append((name, kind.replace("_", " "), canary.tests, canary.tests_with_decoys))
    return Table("Canaries", ("feature", "kind", "tests", "with decoys"), rows)


COMMANDS = {"tasks": (add_tasks_arguments, tasks), "validate": (add_validate_arguments, validate)}
