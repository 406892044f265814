"""`cooperbench clean`: what killed runs left behind, and, if asked, what can be made again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cooperbench.errors import UserError
from cooperbench.text import plural, printable

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend", choices=("local", "docker"), default="local", help="where to look (default: %(default)s)"
    )
    parser.add_argument(
        "--templates",
        action="store_true",
        help="local: also the prepared tasks; the next run makes them again",
    )


def execute(args: argparse.Namespace) -> int:
    if args.backend == "docker":
        if args.templates:
            raise UserError("--templates is for --backend local; see `cooperbench images clean`")
        return _clean_docker()
    from cooperbench.eval.backends.local.rundir import default_cache_dir, remove_leftovers, remove_tree

    cache = default_cache_dir()
    removed = remove_leftovers(cache)
    sys.stdout.write(
        f"removed what {plural(len(removed), 'killed process', 'killed processes')} left in {cache}\n"
    )
    if args.templates:
        remove_tree(cache / "local")
        sys.stdout.write(f"removed the prepared tasks in {cache / 'local'}\n")
    return 0


def _clean_docker() -> int:
    from cooperbench.eval.backends.docker.leftovers import clean

    names = clean()
    sys.stdout.write("".join(f"removed {printable(name)}\n" for name in names) or "nothing was left over\n")
    return 0
