"""`cooperbench agents`: which agents there are, and the frameworks that live in environments of their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cooperbench.agents.environments import FRAMEWORKS, find_environment, get_framework, install, remove
from cooperbench.agents.registry import agent_names
from cooperbench.cli.arguments import add_json_argument, print_json, print_line, print_note

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add_json_argument(actions.add_parser("list", help="agents, and which frameworks are installed"))
    installing = actions.add_parser("install", help="make the environment of a framework, or make it anew")
    installing.add_argument("name", help=", ".join(FRAMEWORKS))
    source = "the framework's source, where it has no release"
    installing.add_argument("--from", dest="source", metavar="PATH_OR_GIT_URL", help=source)
    python = "the interpreter to use (default: found)"
    installing.add_argument("--python", type=Path, metavar="PATH", help=python)
    removing = actions.add_parser("remove", help="remove the environment of a framework")
    removing.add_argument("name", help=", ".join(FRAMEWORKS))


def execute(args: argparse.Namespace) -> int:
    match args.action:
        case "install":
            framework = get_framework(args.name)
            made = install(framework, source=args.source, python=args.python, say=print_note)
            print_line(f"{framework.name} {made.version} is installed; use it with -a {framework.name}")
        case "remove":
            found = remove(get_framework(args.name))
            print_line(f"{args.name} is removed" if found else f"{args.name} was not installed")
        case _:
            _list(as_json=args.json)
    return 0


def _list(*, as_json: bool) -> None:
    rows: list[dict[str, Any]] = []
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
        if as_json:
            continue
        state = f"not installed: {row['install']}" if framework else "part of cooperbench"
        if environment:
            python = f", Python of {row['python']}" if row["python"] else ""
            state = f"{environment.version}{python}, {(row['size_bytes'] or 0) // 1_000_000} MB"
        print_line(f"{name:<18} {state}")
    if as_json:
        print_json(rows)
