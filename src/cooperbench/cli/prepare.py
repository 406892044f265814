"""`cooperbench prepare`: download the public dataset."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from cooperbench.dataset.discovery import DEFAULT_DATASET_DIR, ENVIRONMENT_VARIABLE
from cooperbench.dataset.download import DEFAULT_DATASET_ID, prepare_dataset
from cooperbench.text import plural, printable

if TYPE_CHECKING:
    import argparse

HELP = "download the public dataset"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dataset-dir",
        metavar="DIR",
        help="where to put it (default: $COOPERBENCH_DATASET_DIR or dataset)",
    )
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit (default: the newest)")
    parser.add_argument(
        "--dataset-id",
        metavar="ID",
        default=DEFAULT_DATASET_ID,
        help="on the Hugging Face Hub (default: %(default)s)",
    )
    parser.add_argument("--force", action="store_true", help="download again and replace what is there")
    parser.add_argument("--json", action="store_true", help="for machines: one JSON object on stdout")


def execute(args: argparse.Namespace) -> int:
    dest = args.dataset_dir or os.environ.get(ENVIRONMENT_VARIABLE) or DEFAULT_DATASET_DIR
    prepared = prepare_dataset(
        Path(dest),
        dataset_id=args.dataset_id,
        revision=args.revision,
        force=args.force,
        progress=lambda line: _say(sys.stderr, line),
    )
    if args.json:
        content = {
            "path": str(prepared.path),
            "dataset_id": prepared.dataset_id,
            "revision": prepared.revision,
            "tasks": prepared.tasks,
            "pairs": prepared.pairs,
            "downloaded": prepared.downloaded,
            "kept": None if prepared.kept is None else str(prepared.kept),
        }
        _say(sys.stdout, json.dumps(content, indent=2))
        return 0
    counts = f"{plural(prepared.tasks, 'task')}, {plural(prepared.pairs, 'pair')}"
    state = "downloaded" if prepared.downloaded else "already there (--force downloads it again)"
    _say(sys.stdout, printable(f"{prepared.path}: {counts}, revision {prepared.revision}, {state}"))
    if prepared.kept is not None:
        _say(sys.stdout, f"the earlier folder is kept as {prepared.kept}")
    return 0


def _say(stream: TextIO, line: str) -> None:
    stream.write(line + "\n")
