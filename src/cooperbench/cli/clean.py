"""`cooperbench clean`: what killed runs left behind, and, if asked, what can be made again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cooperbench.eval.backends.local.rundir import default_cache_dir, remove_leftovers, remove_tree
from cooperbench.text import plural

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--templates", action="store_true", help="also the prepared tasks; the next run makes them again"
    )


def execute(args: argparse.Namespace) -> int:
    cache = default_cache_dir()
    removed = remove_leftovers(cache)
    sys.stdout.write(
        f"removed what {plural(len(removed), 'killed process', 'killed processes')} left in {cache}\n"
    )
    if args.templates:
        remove_tree(cache / "local")
        sys.stdout.write(f"removed the prepared tasks in {cache / 'local'}\n")
    return 0
