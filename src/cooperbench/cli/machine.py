"""What is on this machine: `cooperbench agents`, `clean`, `config`, `doctor` and `prepare`."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cooperbench.agents.environments import (
    FRAMEWORKS,
    find_environment,
    get_framework,
    install,
    remove,
)
from cooperbench.agents.registry import agent_names
from cooperbench.backends.registry import OUR_BACKENDS, find_factory
from cooperbench.cli import arguments
from cooperbench.dataset.discovery import DEFAULT_DATASET_DIR, ENVIRONMENT_VARIABLE
from cooperbench.dataset.download import DEFAULT_DATASET_ID, prepare_dataset
from cooperbench.doctor.checks import Status, run_checks
from cooperbench.errors import CooperBenchError
from cooperbench.settings import check_eval_network, config_file, load_settings, save_setting
from cooperbench.text import plural

NEARBY = ("local", "docker")
"""Where `clean` looks unless told where; the others cost time, or need credentials."""
_SETTINGS = {
    "backend": "the backend of `run` and `eval` unless --backend says otherwise",
    "eval_network": "what test runs reach unless --eval-network says otherwise: auto, none or public",
}
_SIGNS = {Status.OK: "✓", Status.MISSING: "-", Status.BROKEN: "✗"}


def add_agents_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    arguments.add_json_argument(
        actions.add_parser("list", help="agents, and which frameworks are installed")
    )
    installing = actions.add_parser(
        "install", help="make the environment of a framework, or make it again"
    )
    installing.add_argument("name", help=", ".join(FRAMEWORKS))
    source = "the framework's source, where it has no release"
    installing.add_argument("--from", dest="source", metavar="PATH_OR_GIT_URL", help=source)
    python = "the interpreter to use (default: found)"
    installing.add_argument("--python", type=Path, metavar="PATH", help=python)
    removing = actions.add_parser("remove", help="remove the environment of a framework")
    removing.add_argument("name", help=", ".join(FRAMEWORKS))


def agents(args: argparse.Namespace) -> int:
    match args.action:
        case "install":
            framework = get_framework(args.name)
            made = install(
                framework, source=args.source, python=args.python, say=arguments.print_note
            )
            arguments.print_line(
                f"{framework.name} {made.version} is installed; use -a {framework.name}"
            )
        case "remove":
            found = remove(get_framework(args.name))
            arguments.print_line(
                f"{args.name} is removed" if found else f"{args.name} was not installed"
            )
        case _:
            _list_agents(args)
    return 0


def _list_agents(args: argparse.Namespace) -> None:
    rows: list[dict[str, Any]] = []
    lines = []
    for name in sorted({*agent_names(), *FRAMEWORKS}):
        framework = FRAMEWORKS.get(name)
        environment = find_environment(framework) if framework else None
        about = environment.description if environment else {}
        row: dict[str, Any] = {
            "agent": name,
            "framework": framework is not None,
            "installed": framework is None or environment is not None,
            "version": environment.version if environment else None,
            "python": about.get("python"),
            "size_bytes": about.get("size_bytes"),
            "install": framework.install_command if framework else None,
        }
        rows.append(row)
        state = f"not installed: {row['install']}" if framework else "part of cooperbench"
        if environment:
            python = f", Python of {row['python']}" if row["python"] else ""
            state = f"{environment.version}{python}, {(row['size_bytes'] or 0) // 1_000_000} MB"
        lines.append(f"{name:<18} {state}")
    arguments.print_result(args, rows, lines)


def add_clean_arguments(parser: argparse.ArgumentParser) -> None:
    where = f"where to look (default: {' and '.join(NEARBY)}, if it answers)"
    parser.add_argument("--backend", choices=OUR_BACKENDS, help=where)


def clean(args: argparse.Namespace) -> int:
    removed: list[str] = []
    for name in (args.backend,) if args.backend else NEARBY:
        factory = find_factory(name)
        try:
            removed += getattr(factory, "clean", list)()
        except CooperBenchError as error:
            if args.backend:
                raise
            arguments.print_note(f"{name}: not looked at: {str(error).partition('; ')[0]}")
    for line in removed:
        arguments.print_line(f"removed {line}")
    if not removed:
        arguments.print_line("nothing was left over")
    return 0


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("show", help="print the file's place and its content")
    meanings = "; ".join(f"{key}, {text}" for key, text in _SETTINGS.items())
    change = actions.add_parser("set", help=f"set a value: {meanings}")
    change.add_argument("key", choices=sorted(_SETTINGS))
    change.add_argument("value")
    actions.add_parser("unset", help="remove a value").add_argument(
        "key", choices=sorted(_SETTINGS)
    )
    gcp = actions.add_parser("gcp", help="set up Google Cloud")
    gcp.add_argument("--project", metavar="ID", help="the project that pays")
    gcp.add_argument("--region", help="where evaluations run, e.g. us-central1")
    gcp.add_argument("--zone", help="where agents' machines are, e.g. us-central1-a")
    gcp.add_argument("--bucket", help="in Cloud Storage, for the inputs and results of evaluations")
    gcp.add_argument("--machine-type", metavar="TYPE", help="e.g. e2-standard-8")
    silent = "ask nothing: take the defaults, enable the APIs"
    gcp.add_argument("-y", "--yes", action="store_true", help=silent)
    gcp.add_argument("--skip-tests", action="store_true", help="do not probe the APIs")


def config(args: argparse.Namespace) -> int:
    if args.action == "gcp":
        return _set_up_gcp(args)
    if args.action == "set":
        if args.key == "eval_network":
            check_eval_network(args.value)
        save_setting(args.key, args.value)
    elif args.action == "unset":
        save_setting(args.key, None)
    arguments.print_line(str(config_file()))
    arguments.print_json(load_settings())
    return 0


def _set_up_gcp(args: argparse.Namespace) -> int:
    from cooperbench.backends.gcp import require_clients
    from cooperbench.backends.gcp.wizard import set_up

    if not args.skip_tests:
        require_clients()
    given = {
        name: getattr(args, name)
        for name in ("project", "region", "zone", "bucket", "machine_type")
    }
    return 0 if set_up(given, yes=args.yes, skip_tests=args.skip_tests) else 1


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_dataset_argument(parser)
    parser.add_argument("--redis", metavar="URL", help="a Redis to try (default: that of `run`)")
    arguments.add_json_argument(parser)


def doctor(args: argparse.Namespace) -> int:
    """1 where something is missing that `cooperbench run` needs with the user's defaults."""
    findings = []
    for finding in run_checks(args.dataset_dir, args.redis):
        findings.append(finding)
        if not args.json:
            needed = "needed: " if finding.needed and finding.status is not Status.OK else ""
            fix = f" → {finding.fix}" if finding.fix else ""
            what = f"{finding.status:<7} {finding.name}: {needed}{finding.detail}{fix}"
            arguments.print_line(f"{_SIGNS[finding.status]} {what}")
            sys.stdout.flush()
    lacking = [
        finding.name for finding in findings if finding.needed and finding.status is not Status.OK
    ]
    if args.json:
        arguments.print_json(
            {"ok": not lacking, "findings": [asdict(finding) for finding in findings]}
        )
    elif lacking:
        arguments.print_line(f"your defaults need: {', '.join(lacking)}")
    return 1 if lacking else 0


def add_prepare_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--dataset-dir",
        metavar="DIR",
        help="where to put it (default: $COOPERBENCH_DATASET_DIR or dataset)",
    )
    add("--revision", metavar="REV", help="branch, tag or commit (default: the newest)")
    where = "on the Hugging Face Hub (default: %(default)s)"
    add("--dataset-id", metavar="ID", default=DEFAULT_DATASET_ID, help=where)
    add("--force", action="store_true", help="download again and replace what is there")
    arguments.add_json_argument(parser)


def prepare(args: argparse.Namespace) -> int:
    prepared = prepare_dataset(
        Path(args.dataset_dir or os.environ.get(ENVIRONMENT_VARIABLE) or DEFAULT_DATASET_DIR),
        dataset_id=args.dataset_id,
        revision=args.revision,
        force=args.force,
        progress=arguments.print_note,
    )
    kept = None if prepared.kept is None else str(prepared.kept)
    counts = f"{plural(prepared.tasks, 'task')}, {plural(prepared.pairs, 'pair')}"
    state = "downloaded" if prepared.downloaded else "already there (--force downloads it again)"
    lines = [f"{prepared.path}: {counts}, revision {prepared.revision}, {state}"]
    lines += [f"the earlier folder is kept as {kept}"] if kept else []
    arguments.print_result(
        args, {**asdict(prepared), "path": str(prepared.path), "kept": kept}, lines
    )
    return 0


COMMANDS = {
    "agents": (add_agents_arguments, agents),
    "clean": (add_clean_arguments, clean),
    "config": (add_config_arguments, config),
    "doctor": (add_doctor_arguments, doctor),
    "prepare": (add_prepare_arguments, prepare),
}
