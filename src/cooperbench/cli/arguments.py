"""Arguments that several commands share, and how their text is read."""

from __future__ import annotations

import argparse
import math
import re

from cooperbench.models import EVAL_NETWORKS
from cooperbench.settings import BACKEND_VARIABLE, DOCUMENTED_BACKEND

BACKEND_DEFAULT = f"${BACKEND_VARIABLE}, your config, {DOCUMENTED_BACKEND}"
"""Of `--backend`, for its help."""
_NUMBER = re.compile(r"[0-9]{1,9}")


def feature_list(text: str) -> list[int]:
    """`1,2` as numbers; for argparse."""
    parts = [part.strip() for part in text.split(",")]
    wrong = next((part for part in parts if not _NUMBER.fullmatch(part)), None)
    if wrong is not None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of feature numbers, e.g. 1,2 ({wrong!r} is none)"
        )
    return [int(part) for part in parts]


def task_number(text: str) -> int:
    """`12` or `task12`; for argparse."""
    number = text.removeprefix("task")
    if not _NUMBER.fullmatch(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a task's number, e.g. 12 or task12")
    return int(number)


def add_dataset_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dataset-dir",
        metavar="DIR",
        help="the dataset's folder, or `demo` for the one in the package"
        " (default: $COOPERBENCH_DATASET_DIR or dataset)",
    )


def add_selection_arguments(parser: argparse.ArgumentParser) -> None:
    """Which pairs: subset, repo, task_id, features and dataset_dir of the parsed arguments."""
    group = parser.add_argument_group("which pairs")
    group.add_argument("-s", "--subset", metavar="NAME", help="only a named subset, e.g. lite")
    group.add_argument("-r", "--repo", metavar="REPO", help="only one repository, e.g. llama_index_task")
    group.add_argument("-t", "--task", dest="task_id", type=task_number, metavar="ID", help="only this task")
    group.add_argument(
        "-f", "--features", type=feature_list, metavar="1,2", help="only these features together, two or more"
    )
    add_dataset_argument(parser)


def add_sound_only_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sound-only",
        action="store_true",
        help="leave out unsound pairs: those with tests that pass without the feature",
    )


def add_logs_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-dir", default="logs", metavar="DIR", help="where results are (default: %(default)s)"
    )


def add_eval_network_argument(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--eval-network",
        choices=EVAL_NETWORKS,
        help="what test runs reach; auto: nothing where the golden patch passes so, else everything"
        " (default: $COOPERBENCH_EVAL_NETWORK, your config, auto)",
    )


def whole_above_zero(text: str) -> int:
    """For argparse."""
    if not _NUMBER.fullmatch(text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def above_zero(text: str) -> float:
    """For argparse."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number
