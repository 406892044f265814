"""Arguments that several subcommands of `cooperbench author` share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cooperbench.cli import arguments
from cooperbench.dataset.discovery import DEFAULT_DATASET_DIR, ENVIRONMENT_VARIABLE
from cooperbench.errors import UserError

DEFAULT_BACKEND = "local"
TASK_HELP = "a task's folder or name: myrepo_task/task1"


class Action(NamedTuple):
    """One subcommand."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    execute: Callable[[argparse.Namespace], int]


def dataset_folder(args: argparse.Namespace) -> Path:
    """Return the folder of the dataset that is being written; it need not exist."""
    name = args.dataset_dir or os.environ.get(ENVIRONMENT_VARIABLE) or DEFAULT_DATASET_DIR
    if name == "demo":
        raise UserError("`demo` is the dataset in the package; use another --dataset-dir")
    return Path(name).expanduser()


def add_sandbox_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments about where tests run."""
    backend = "where tests run: local, docker, modal or gcp (default: %(default)s)"
    arguments.add_option(parser, "backend", default=DEFAULT_BACKEND, help=backend)
    arguments.add_option(parser, "eval_network")
    arguments.add_option(parser, "test_timeout_seconds")


def add_concurrency_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--concurrency`, by default the number of processors."""
    parser.add_argument(
        "--concurrency",
        type=arguments.whole_above_zero,
        default=os.cpu_count() or 1,
        metavar="N",
        help="number of test runs at a time (default: the number of processors)",
    )
