"""`cooperbench clean`: what killed runs left behind, and, if asked, what can be made again."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from cooperbench.errors import CooperBenchError, UserError
from cooperbench.text import printable

if TYPE_CHECKING:
    import argparse

CLEANERS = {
    "local": "cooperbench.backends.local.leftovers:clean",
    "docker": "cooperbench.backends.docker.containers:clean",
    "modal": "cooperbench.backends.modal.leftovers:clean",
    "gcp": "cooperbench.backends.gcp.leftovers:clean",
}
"""Where things can be left over: functions that remove it and return what it was, one line each."""
NEARBY = ("local", "docker")
"""Looked at unless somewhere is named; the others cost time, or need credentials."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        choices=tuple(CLEANERS),
        help=f"where to look (default: {' and '.join(NEARBY)}, if it answers)",
    )
    parser.add_argument(
        "--templates",
        action="store_true",
        help="local: also the prepared tasks; the next run makes them again",
    )


def execute(args: argparse.Namespace) -> int:
    if args.templates and args.backend not in (None, "local"):
        raise UserError("--templates is for --backend local; see `cooperbench images clean`")
    if args.backend:
        removed = _clean(args.backend)
    else:
        removed = [line for name in NEARBY for line in _clean_if_there(name)]
    if args.templates:
        removed += _remove_templates()
    sys.stdout.write("".join(f"removed {printable(line)}\n" for line in removed) or "nothing was left over\n")
    return 0


def _clean(backend: str) -> list[str]:
    module, _, function = CLEANERS[backend].partition(":")
    return list(getattr(import_module(module), function)())


def _clean_if_there(backend: str) -> list[str]:
    try:
        return _clean(backend)
    except CooperBenchError as error:
        reason = str(error).partition("; ")[0]
        sys.stderr.write(printable(f"{backend}: not looked at: {reason}") + "\n")
        return []


def _remove_templates() -> list[str]:
    from cooperbench.settings import default_cache_dir
    from cooperbench.temporary import remove_tree

    folder = default_cache_dir() / "local"
    if not folder.exists():
        return []
    remove_tree(folder)
    return [f"the prepared tasks in {folder}"]
