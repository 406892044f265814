"""This machine: `cooperbench agents`, `clean`, `config`, `doctor` and `prepare`."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, Protocol, cast

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
from cooperbench.dataset.install import install_dataset
from cooperbench.doctor.checks import Finding, Status, run_checks
from cooperbench.errors import CooperBenchError, UserError
from cooperbench.settings import check_eval_network, config_file, load_settings, save_setting
from cooperbench.text import plural

NEARBY = ("local", "docker")
"""Backends that `clean` looks at by default; the others take time or need credentials."""
_SETTINGS = {
    "backend": "the default of --backend",
    "eval_network": "the default of --eval-network: auto, none or public",
}
_MARKS = {Status.OK: "✓", Status.MISSING: "-", Status.BROKEN: "✗"}
_BYTES_PER_MB = 1_000_000


def add_agents_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cooperbench agents`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    list_text = "list agents and the frameworks that are installed"
    arguments.add_json_argument(actions.add_parser("list", help=list_text))
    install_parser = actions.add_parser("install", help="install a framework, or reinstall it")
    install_parser.add_argument("name", help=", ".join(FRAMEWORKS))
    source_text = "source of the framework, if it has no release"
    install_parser.add_argument(
        "--from", dest="source", metavar="PATH_OR_GIT_URL", help=source_text
    )
    python_text = "Python interpreter to use (default: a suitable one on this machine)"
    install_parser.add_argument("--python", type=Path, metavar="PATH", help=python_text)
    remove_parser = actions.add_parser("remove", help="remove a framework")
    remove_parser.add_argument("name", help=", ".join(FRAMEWORKS))


def agents(args: argparse.Namespace) -> int:
    """List agents, or install or remove the framework of one."""
    match args.action:
        case "install":
            framework = get_framework(args.name)
            environment = install(
                framework, source=args.source, python=args.python, say=arguments.print_note
            )
            installed = f"{framework.name} {environment.version} is installed"
            arguments.print_line(f"{installed}; use -a {framework.name}")
        case "remove":
            was_installed = remove(get_framework(args.name))
            outcome = "is removed" if was_installed else "was not installed"
            arguments.print_line(f"{args.name} {outcome}")
        case _:
            rows = [_agent_row(name) for name in sorted({*agent_names(), *FRAMEWORKS})]
            lines = [f"{row.agent:<18} {_agent_state(row)}" for row in rows]
            arguments.print_result(args, [row._asdict() for row in rows], lines)
    return 0


class _AgentRow(NamedTuple):
    """One agent in `cooperbench agents list`."""

    agent: str
    framework: bool
    installed: bool
    version: str | None
    python: str | None
    size_bytes: int | None
    install: str | None


def _agent_row(name: str) -> _AgentRow:
    framework = FRAMEWORKS.get(name)
    if framework is None:
        return _AgentRow(
            agent=name,
            framework=False,
            installed=True,
            version=None,
            python=None,
            size_bytes=None,
            install=None,
        )
    environment = find_environment(framework)
    description = environment.description if environment else {}
    return _AgentRow(
        agent=name,
        framework=True,
        installed=environment is not None,
        version=environment.version if environment else None,
        python=description.get("python"),
        size_bytes=description.get("size_bytes"),
        install=framework.install_command,
    )


def _agent_state(row: _AgentRow) -> str:
    if not row.framework:
        return "part of cooperbench"
    if not row.installed:
        return f"not installed: {row.install}"
    python = f", Python of {row.python}" if row.python else ""
    return f"{row.version}{python}, {(row.size_bytes or 0) // _BYTES_PER_MB:,} MB"


def add_clean_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cooperbench clean`."""
    text = f"backend to clean up (default: {' and '.join(NEARBY)}, if reachable)"
    parser.add_argument("--backend", choices=OUR_BACKENDS, help=text)


class _CleanableBackend(Protocol):
    """A backend class that can remove what killed runs left behind."""

    def clean(self) -> list[str]: ...


def clean(args: argparse.Namespace) -> int:
    """Remove what killed runs left behind."""
    removed: list[str] = []
    names = (args.backend,) if args.backend else NEARBY
    for name in names:
        factory = cast("_CleanableBackend", find_factory(name))
        try:
            removed += factory.clean()
        except CooperBenchError as error:
            if args.backend:
                raise
            reason = str(error).partition("; ")[0]
            arguments.print_note(f"{name} was skipped: {reason}")
    for line in removed:
        arguments.print_line(f"removed {line}")
    if not removed:
        arguments.print_line("nothing was left over")
    return 0


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cooperbench config`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("show", help="print the path of the settings file and its content")
    keys = "; ".join(f"{key}: {text}" for key, text in _SETTINGS.items())
    set_parser = actions.add_parser("set", help=f"set a value: {' or '.join(_SETTINGS)}")
    set_parser.add_argument("key", choices=sorted(_SETTINGS), help=keys)
    set_parser.add_argument("value", help="new value")
    unset_parser = actions.add_parser("unset", help="remove a value, so that the default applies")
    unset_parser.add_argument("key", choices=sorted(_SETTINGS), help="the setting to remove")
    gcp = actions.add_parser("gcp", help="set up Google Cloud")
    gcp.add_argument("--project", metavar="ID", help="project that is billed")
    gcp.add_argument("--region", help="region of evaluations, e.g. us-central1")
    gcp.add_argument("--zone", help="zone of the agents' machines, e.g. us-central1-a")
    bucket = "Cloud Storage bucket for inputs and results of evaluations"
    gcp.add_argument("--bucket", help=bucket)
    gcp.add_argument("--machine-type", metavar="TYPE", help="e.g. e2-standard-8")
    yes = "ask no questions: use the defaults and enable the APIs"
    gcp.add_argument("-y", "--yes", action="store_true", help=yes)
    gcp.add_argument("--skip-tests", action="store_true", help="do not probe the APIs")


def config(args: argparse.Namespace) -> int:
    """Show or change the user's settings."""
    if args.action == "gcp":
        return _set_up_gcp(args)
    if args.action == "set":
        _check_setting(args.key, args.value)
        save_setting(args.key, args.value)
    elif args.action == "unset":
        save_setting(args.key, None)
    arguments.print_line(str(config_file()))
    arguments.print_json(load_settings())
    return 0


def _check_setting(key: str, value: str) -> None:
    """Raise UserError for a value that a run would reject."""
    if key == "eval_network":
        check_eval_network(value)
    elif value not in OUR_BACKENDS:
        find_factory(value)


def _set_up_gcp(args: argparse.Namespace) -> int:
    from cooperbench.backends.gcp import require_clients
    from cooperbench.backends.gcp.wizard import set_up

    if not args.skip_tests:
        require_clients()
    answers = {
        "project": args.project,
        "region": args.region,
        "zone": args.zone,
        "bucket": args.bucket,
        "machine_type": args.machine_type,
    }
    return 0 if set_up(answers, yes=args.yes, skip_tests=args.skip_tests) else 1


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cooperbench doctor`."""
    arguments.add_dataset_argument(parser)
    redis = "Redis server to try (default: the one that `run` uses)"
    parser.add_argument("--redis", metavar="URL", help=redis)
    arguments.add_json_argument(parser)


def doctor(args: argparse.Namespace) -> int:
    """Check this machine; return 1 if something is missing that a run with your defaults needs."""
    findings = []
    for finding in run_checks(args.dataset_dir, args.redis):
        findings.append(finding)
        if not args.json:
            arguments.print_line(_finding_line(finding))
            sys.stdout.flush()
    missing = [finding.name for finding in findings if finding.is_missing_requirement]
    if args.json:
        content = [asdict(finding) for finding in findings]
        arguments.print_json({"ok": not missing, "findings": content})
    elif missing:
        arguments.print_line(f"your defaults need: {', '.join(missing)}")
    return 1 if missing else 0


def _finding_line(finding: Finding) -> str:
    line = f"{_MARKS[finding.status]} {finding.status:<7} {finding.name}: "
    if finding.is_missing_requirement:
        line += "needed: "
    line += finding.detail
    return f"{line} → {finding.fix}" if finding.fix else line


def add_prepare_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cooperbench prepare`."""
    folder = "folder for the dataset (default: $COOPERBENCH_DATASET_DIR or dataset)"
    parser.add_argument("--dataset-dir", metavar="DIR", help=folder)
    revision = "branch, tag or commit (default: the newest)"
    parser.add_argument("--revision", metavar="REV", help=revision)
    dataset_id = "dataset on the Hugging Face Hub (default: %(default)s)"
    parser.add_argument("--dataset-id", metavar="ID", default=DEFAULT_DATASET_ID, help=dataset_id)
    source = (
        "install a dataset of `author pack` instead: a folder, a .tar.gz or the URL of one;"
        " SOURCE#sha256=… is verified"
    )
    parser.add_argument("--from", dest="source", metavar="SOURCE", help=source)
    force = "download again and replace the existing folder"
    parser.add_argument("--force", action="store_true", help=force)
    arguments.add_json_argument(parser)


def prepare(args: argparse.Namespace) -> int:
    """Download or install a dataset."""
    folder = args.dataset_dir or os.environ.get(ENVIRONMENT_VARIABLE) or DEFAULT_DATASET_DIR
    if args.source and (args.revision or args.dataset_id != DEFAULT_DATASET_ID):
        raise UserError("--revision and --dataset-id are for the Hub: leave them out with --from")
    if args.source:
        prepared = install_dataset(args.source, Path(folder), force=args.force)
    else:
        prepared = prepare_dataset(
            Path(folder),
            dataset_id=args.dataset_id,
            revision=args.revision,
            force=args.force,
            progress=arguments.print_note,
        )
    counts = f"{plural(prepared.tasks, 'task')}, {plural(prepared.pairs, 'pair')}"
    done = "installed" if args.source else "downloaded"
    state = done if prepared.downloaded else "already there (--force gets it again)"
    lines = [f"{prepared.path}: {counts}, revision {prepared.revision}, {state}"]
    content = asdict(prepared) | {"path": str(prepared.path)}
    if prepared.kept is not None:
        lines.append(f"the earlier folder is kept as {prepared.kept}")
        content["kept"] = str(prepared.kept)
    arguments.print_result(args, content, lines)
    return 0


COMMANDS = {
    "agents": (add_agents_arguments, agents),
    "clean": (add_clean_arguments, clean),
    "config": (add_config_arguments, config),
    "doctor": (add_doctor_arguments, doctor),
    "prepare": (add_prepare_arguments, prepare),
}
