"""Tasks from a repository of your own: `cooperbench author`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cooperbench.author.baseline import Baseline, measure_baseline
from cooperbench.author.change_text import ChangeText, read_change_text
from cooperbench.author.detect import detect_project
from cooperbench.author.drafts import Material, draft_from_history
from cooperbench.author.project import Project
from cooperbench.author.repository import describe_limits, find_version
from cooperbench.author.split import (
    CommitPatches,
    find_git_dir,
    resolve_commit,
    split_branch,
    split_commit,
    split_patch,
)
from cooperbench.author.task_files import (
    FeatureDraft,
    TaskOrigin,
    add_feature,
    create_task,
    find_task,
    open_base,
)
from cooperbench.author.task_info import read_task_info, set_draft
from cooperbench.cli import arguments, author_check, author_describe, author_mine, author_pack
from cooperbench.cli.author_arguments import (
    TASK_HELP,
    Action,
    add_sandbox_arguments,
    dataset_folder,
)
from cooperbench.errors import InfraError, UserError
from cooperbench.eval import backends
from cooperbench.models import Task
from cooperbench.sandbox.backend import adapted_backend
from cooperbench.sandbox.contract import EvalBackend
from cooperbench.sandbox.manager import SandboxManager
from cooperbench.settings import default_eval_network
from cooperbench.text import duration_text, names_for_error, plural


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of `cooperbench author`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, action in ACTIONS.items():
        description = f"{action.help[0].upper()}{action.help[1:]}."
        subparser = actions.add_parser(
            name, help=action.help, description=description, allow_abbrev=False
        )
        action.add_arguments(subparser)


def execute(args: argparse.Namespace) -> int:
    """Run a subcommand and return its exit status."""
    return ACTIONS[args.action].execute(args)


def _add_init_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("repo", type=Path, metavar="REPO", help="a git clone of your repository")
    parser.add_argument("--name", help="name of the repository in the dataset (default: REPO's)")
    commit = "base commit of the task (default: HEAD)"
    parser.add_argument("--commit", default="HEAD", metavar="COMMIT", help=commit)
    part = "part of a monorepo that is installed and tested"
    parser.add_argument("--path", default="", metavar="FOLDER", help=part)
    no_tests = "do not run the tests"
    parser.add_argument("--no-run", action="store_true", help=no_tests)
    add_sandbox_arguments(parser)
    arguments.add_dataset_argument(parser)
    arguments.add_json_argument(parser)


def init(args: argparse.Namespace) -> int:
    """Make a task without features from a repository; return 1 if its tests do not run."""
    git_dir = find_git_dir(args.repo)
    commit = resolve_commit(git_dir, args.commit)
    subfolder = args.path.strip("/")
    project = detect_project(args.repo, commit, subfolder)
    notes = describe_limits(args.repo, commit)
    backend = backends.get_backend(args.backend)
    if not args.no_run:
        adapted_backend(backend).check()
    origin = TaskOrigin(args.repo, commit, find_version(args.repo, commit))
    name = args.name or args.repo.resolve().name.removesuffix(".git")
    task = create_task(dataset_folder(args), name, project, origin)
    for note in notes:
        arguments.print_note(f"note: {note}")
    baseline = None
    problem = ""
    if not args.no_run:
        try:
            baseline = _run_baseline(task, backend, args)
        except InfraError as error:
            problem = str(error).removeprefix(f"preparing {task.label}: ")
    lines = [f"{task.path}: made from {commit[:12]}", *_project_lines(project)]
    if baseline:
        problem = baseline.first.error or ""
        lines += _baseline_lines(baseline)
    if problem:
        lines += _problem_lines(problem, project, baseline)
    lines.append(f"next: cooperbench author add {task.label} --from-commit COMMIT")
    content = {
        "task": task.label,
        "path": str(task.path),
        "commit": commit,
        "language": project.language,
        "framework": project.framework,
        "install": project.install,
        "test_command": project.test_command,
        "sources": project.sources,
        "notes": notes,
        "problem": problem,
        "tests": _baseline_content(baseline),
    }
    arguments.print_result(args, content, lines)
    return 1 if problem else 0


def _run_baseline(task: Task, backend: EvalBackend, args: argparse.Namespace) -> Baseline:
    with SandboxManager(backend) as sandboxes:
        arguments.print_note(f"preparing {task.label} and running its tests twice")
        return measure_baseline(
            task,
            sandboxes,
            timeout_seconds=args.test_timeout_seconds,
            policy=args.eval_network or default_eval_network(),
            note=arguments.print_note,
        )


def _project_lines(project: Project) -> list[str]:
    source = project.sources.get("framework", "")
    lines = [f"  language   {project.language}, {project.framework} ({source})"]
    lines += [f"  install    {command}" for command in project.install or ("nothing",)]
    lines.append(f"  tests      {project.test_command}")
    lines.append(f"  license    {project.license or 'none: add one before you share the task'}")
    return lines


def _baseline_lines(baseline: Baseline) -> list[str]:
    run = baseline.first
    counts = f"{run.tests_passed:,} passed, {run.tests_failed:,} failed"
    if run.tests_skipped:
        counts += f", {run.tests_skipped:,} skipped"
    lines = [f"  result     {counts} in {duration_text(run.duration_seconds)}"]
    if baseline.failed_tests:
        lines.append(f"  failed     {names_for_error(baseline.failed_tests, limit=3)}")
    if baseline.needs_network:
        lines.append("  network    the tests pass only with a network: verdicts depend on it")
    if baseline.flaky_tests:
        lines.append(f"  flaky      {names_for_error(baseline.flaky_tests)}")
    return lines


def _problem_lines(problem: str, project: Project, baseline: Baseline | None) -> list[str]:
    """Return why the tests do not run, and what to do about it."""
    lines = [f"  problem    {problem}"]
    if baseline is None:
        lines.append("  remedy     edit setup.sh in the task's folder")
    elif baseline.first.tests_passed:
        lines.append("  remedy     none is needed unless features have these tests")
    else:
        lines.append("  remedy     edit setup.sh and runner.sh in the task's folder")
    is_usable = baseline is not None and baseline.first.tests_passed > 0
    if project.parts and not is_usable:
        parts = names_for_error(project.parts, limit=3)
        lines.append(f"             or name a part of the repository with --path: {parts}")
    return lines


def _baseline_content(baseline: Baseline | None) -> dict[str, object] | None:
    if baseline is None:
        return None
    run = baseline.first
    return {
        "ok": run.success,
        "passed": run.tests_passed,
        "failed": run.tests_failed,
        "skipped": run.tests_skipped,
        "duration_seconds": run.duration_seconds,
        "error": run.error,
        "failed_tests": baseline.failed_tests,
        "flaky_tests": list(baseline.flaky_tests),
        "needs_network": baseline.needs_network,
    }


def _add_add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", help=TASK_HELP)
    source = parser.add_mutually_exclusive_group(required=True)
    commit = "the changes of a commit, merge commits and squashed ones alike"
    source.add_argument("--from-commit", metavar="COMMIT", help=commit)
    branch = "everything that a branch changes since it left the base commit"
    source.add_argument("--branch", metavar="NAME", help=branch)
    patch = "a diff; with --tests without tests, else it is split"
    source.add_argument("--patch", type=Path, metavar="FILE", help=patch)
    tests = "a diff with the tests of --patch"
    parser.add_argument("--tests", type=Path, metavar="FILE", help=tests)
    parser.add_argument("--title", help="title of the feature (default: subject of the commit)")
    description = "feature.md; without it the commit message is a draft of it"
    parser.add_argument("--description", type=Path, metavar="FILE", help=description)
    repo = "the clone with the commit (default: that of author init)"
    parser.add_argument("--repo", type=Path, metavar="REPO", help=repo)
    arguments.add_dataset_argument(parser)


def add(args: argparse.Namespace) -> int:
    """Add a feature to a task."""
    task = find_task(dataset_folder(args), args.task)
    if args.tests and not args.patch:
        raise UserError("--tests is for --patch: commits and branches are split by themselves")
    patches, text, source = _read_source(task, args)
    if patches.problem:
        raise UserError(f"{source} is not a feature with tests: {patches.problem}")
    is_draft = args.description is None
    if args.title:
        text = replace(text, title=args.title)
    if args.description is None:
        material = Material(text, patches.feature_patch, patches.tests_patch)
        description = draft_from_history(material).text
    else:
        description = _read_file(args.description).decode("utf-8", "replace")
    feature = add_feature(
        task,
        FeatureDraft(
            title=text.title,
            feature_patch=patches.feature_patch,
            tests_patch=patches.tests_patch,
            description=description,
            is_draft=is_draft,
            source=source,
        ),
    )
    changed = plural(len(patches.feature_paths), "file")
    tests = plural(len(patches.test_paths), "test file")
    arguments.print_line(
        f"{task.label}/feature{feature.feature_id}: {text.title}: {changed}, {tests}"
    )
    if patches.left_out:
        arguments.print_note(f"note: left out release notes: {names_for_error(patches.left_out)}")
    if is_draft:
        arguments.print_note(
            f"note: {feature.description} is a draft: describe what to build, then accept it with"
            f" cooperbench author accept {task.label} {feature.feature_id}"
        )
    return 0


class _Source(NamedTuple):
    """A change to make a feature of, and what is known about it."""

    patches: CommitPatches
    text: ChangeText
    source: str


def _read_source(task: Task, args: argparse.Namespace) -> _Source:
    if args.patch:
        return _read_patch_files(task, args)
    info = read_task_info(task)
    repo = args.repo or Path(info.clone)
    if not args.repo and not (info.clone and repo.is_dir()):
        raise UserError(f"the clone that {task.label} was made from is gone; name one with --repo")
    git_dir = find_git_dir(repo)
    if args.from_commit:
        commit = resolve_commit(git_dir, args.from_commit)
        text = read_change_text(git_dir, commit)
        return _Source(split_commit(repo, commit), text, f"commit {commit}")
    patches = split_branch(repo, args.branch, info.upstream_commit)
    text = read_change_text(git_dir, resolve_commit(git_dir, args.branch))
    return _Source(patches, text, f"branch {args.branch}")


def _read_patch_files(task: Task, args: argparse.Namespace) -> _Source:
    source = f"patch {args.patch.name}"
    title = args.title or args.patch.stem.replace("_", " ").replace("-", " ")
    patch = _read_file(args.patch)
    with open_base(task) as base:
        patches = split_patch(base, patch)
    if args.tests:
        tests = _read_file(args.tests)
        patches = CommitPatches(patch, tests, patches.feature_paths, (args.tests.name,))
    return _Source(patches, ChangeText(title, ""), source)


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def _add_accept_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", help=TASK_HELP)
    parser.add_argument("features", type=arguments.number_list, metavar="1,2", help="features")
    arguments.add_dataset_argument(parser)


def accept(args: argparse.Namespace) -> int:
    """Mark the descriptions of features as accepted by a person."""
    task = find_task(dataset_folder(args), args.task)
    unknown = [str(number) for number in args.features if number not in task.feature_ids]
    if unknown:
        labels = names_for_error(str(number) for number in task.feature_ids)
        raise UserError(f"{task.label} has no feature {', '.join(unknown)}; there are: {labels}")
    for number in args.features:
        set_draft(task.feature(number), is_draft=False)
        arguments.print_line(f"{task.label}/feature{number}: accepted")
    return 0


ACTIONS = {
    "init": Action("make a task from a repository and run its tests", _add_init_arguments, init),
    "add": Action("add a feature to a task: a commit, branch or patch", _add_add_arguments, add),
    "mine": author_mine.ACTION,
    "describe": author_describe.ACTION,
    "check": author_check.ACTION,
    "accept": Action("accept the drafts of descriptions", _add_accept_arguments, accept),
    "pack": author_pack.ACTION,
}
COMMANDS = {"author": (add_arguments, execute)}
