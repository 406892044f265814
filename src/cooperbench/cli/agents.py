"""`cooperbench agents`: the frameworks that live in environments of their own, and which agents there are."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.agents.environments import FRAMEWORKS, find_environment, get_framework, install, remove
from cooperbench.agents.registry import agent_names

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="agents, and which frameworks are installed")
    listing.add_argument("--json", action="store_true", help="for machines")
    installing = actions.add_parser("install", help="make the environment of a framework, or make it anew")
    installing.add_argument("name", help=", ".join(FRAMEWORKS))
    installing.add_argument(
        "--from",
        dest="source",
        metavar="PATH_OR_GIT_URL",
        help="the framework's source, where it has no release",
    )
    installing.add_argument(
        "--python", type=Path, metavar="PATH", help="the interpreter to use (default: found)"
    )
    removing = actions.add_parser("remove", help="remove the environment of a framework")
    removing.add_argument("name", help=", ".join(FRAMEWORKS))


def execute(args: argparse.Namespace) -> int:
    match args.action:
        case "install":
            framework = get_framework(args.name)
            made = install(framework, source=args.source, python=args.python, say=_say)
            sys.stdout.write(
                f"{framework.name} {made.version} is installed; use it with -a {framework.name}\n"
            )
        case "remove":
            found = remove(get_framework(args.name))
            sys.stdout.write(f"{args.name} is removed\n" if found else f"{args.name} was not installed\n")
        case _:
            _list(as_json=args.json)
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _list(*, as_json: bool) -> None:
    rows = []
    for name in sorted({*agent_names(), *FRAMEWORKS}):
        framework = FRAMEWORKS.get(name)
        environment = find_environment(framework) if framework else None
        rows.append(
            {
                "agent": name,
                "framework": framework is not None,
                "installed": framework is None or environment is not None,
                "version": environment.version if environment else None,
                "python": environment.description.get("python") if environment else None,
                "size_bytes": environment.description.get("size_bytes") if environment else None,
                "install": framework.install_command if framework else None,
            }
        )
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    width = max(len(str(row["agent"])) for row in rows)
    for row in rows:
        sys.stdout.write(f"{row['agent']:<{width}}  {_state(row)}\n")


def _state(row: dict[str, object]) -> str:
    if not row["framework"]:
        return "part of cooperbench"
    if not row["installed"]:
        return f"not installed: {row['install']}"
    size = row["size_bytes"]
    megabytes = f", {size // 1_000_000} MB" if isinstance(size, int) else ""
    return f"{row['version']}, Python of {row['python']}{megabytes}"
