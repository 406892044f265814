"""`cooperbench clean`: what killed runs left behind, and, if asked, what can be made again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.backends.registry import OUR_BACKENDS, find_factory
from cooperbench.cli.arguments import print_line, print_note
from cooperbench.errors import CooperBenchError, UserError
from cooperbench.settings import default_cache_dir
from cooperbench.temporary import remove_tree

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

NEARBY = ("local", "docker")
"""Looked at unless somewhere is named; the others cost time, or need credentials."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    where = f"where to look (default: {' and '.join(NEARBY)}, if it answers)"
    parser.add_argument("--backend", choices=OUR_BACKENDS, help=where)
    also = "local: also the prepared tasks; the next run makes them again"
    parser.add_argument("--templates", action="store_true", help=also)


def execute(args: argparse.Namespace) -> int:
    if args.templates and args.backend not in (None, "local"):
        raise UserError("--templates is for --backend local; see `cooperbench images clean`")
    removed: list[str] = []
    for name in (args.backend,) if args.backend else NEARBY:
        clean: Callable[[], list[str]] = getattr(find_factory(name), "clean", list)
        try:
            removed += clean()
        except CooperBenchError as error:
            if args.backend:
                raise
            print_note(f"{name}: not looked at: {str(error).partition('; ')[0]}")
    templates = default_cache_dir() / "local"
    if args.templates and templates.exists():
        remove_tree(templates)
        removed.append(f"the prepared tasks in {templates}")
    for line in removed:
        print_line(f"removed {line}")
    if not removed:
        print_line("nothing was left over")
    return 0
