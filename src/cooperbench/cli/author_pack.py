"""`cooperbench author pack`: a dataset to share."""

from __future__ import annotations

import argparse
from pathlib import Path

from cooperbench.author.pack import find_repeated, pack_tasks
from cooperbench.author.task_files import find_task
from cooperbench.cli import arguments
from cooperbench.cli.author_arguments import TASK_HELP, Action, dataset_folder
from cooperbench.errors import UserError
from cooperbench.text import plural


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tasks", nargs="+", metavar="TASK", help=TASK_HELP)
    dest = "a new folder, or a .tar.gz"
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help=dest)
    parser.add_argument("--name", default="", help="name of the dataset (default: that of FOLDER)")
    arguments.add_dataset_argument(parser)
    arguments.add_json_argument(parser)


def pack(args: argparse.Namespace) -> int:
    """Write tasks as a dataset to share."""
    folder = dataset_folder(args)
    tasks = [find_task(folder, name) for name in args.tasks]
    repeated = find_repeated(tasks)
    if repeated:
        raise UserError(f"these tasks are named several times: {repeated}")
    packed = pack_tasks(tasks, args.to, args.name)
    sha256 = packed.manifest.sha256
    lines = [
        f"{packed.path}: {plural(len(tasks), 'task')}, checksum {sha256}",
        f"next: cooperbench prepare --from {packed.path}#sha256={sha256} --dataset-dir DIR",
    ]
    content = {
        "path": str(packed.path),
        "name": packed.manifest.name,
        "sha256": sha256,
        "tasks": [task.label for task in tasks],
    }
    arguments.print_result(args, content, lines)
    return 0


ACTION = Action("write tasks as a dataset to share", _add_arguments, pack)
