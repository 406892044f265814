"""`cooperbench prepare`: download the public dataset."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.cli.arguments import add_json_argument, print_json, print_line, print_note
from cooperbench.dataset.discovery import DEFAULT_DATASET_DIR, ENVIRONMENT_VARIABLE
from cooperbench.dataset.download import DEFAULT_DATASET_ID, prepare_dataset
from cooperbench.text import plural

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--dataset-dir", metavar="DIR", help="where to put it (default: $COOPERBENCH_DATASET_DIR or dataset)")
    add("--revision", metavar="REV", help="branch, tag or commit (default: the newest)")
    where = "on the Hugging Face Hub (default: %(default)s)"
    add("--dataset-id", metavar="ID", default=DEFAULT_DATASET_ID, help=where)
    add("--force", action="store_true", help="download again and replace what is there")
    add_json_argument(parser)


def execute(args: argparse.Namespace) -> int:
    prepared = prepare_dataset(
        Path(args.dataset_dir or os.environ.get(ENVIRONMENT_VARIABLE) or DEFAULT_DATASET_DIR),
        dataset_id=args.dataset_id,
        revision=args.revision,
        force=args.force,
        progress=print_note,
    )
    if args.json:
        kept = None if prepared.kept is None else str(prepared.kept)
        print_json({**asdict(prepared), "path": str(prepared.path), "kept": kept})
        return 0
    counts = f"{plural(prepared.tasks, 'task')}, {plural(prepared.pairs, 'pair')}"
    state = "downloaded" if prepared.downloaded else "already there (--force downloads it again)"
    print_line(f"{prepared.path}: {counts}, revision {prepared.revision}, {state}")
    if prepared.kept is not None:
        print_line(f"the earlier folder is kept as {prepared.kept}")
    return 0
