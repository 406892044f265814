"""`cooperbench prompts`: what each agent of a run would be told, word for word, and the templates of it."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.cli import run
from cooperbench.errors import UserError
from cooperbench.models import seats_of
from cooperbench.runner.api import select
from cooperbench.team.team import task_prompt

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--write", metavar="FOLDER", help="write our templates there, to be changed and given with --prompts"
    )
    run.add_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    if args.write is not None:
        return _write_templates(Path(args.write))
    config = run.config_of(args)
    (pair, *_), _ = select(config)
    for seat in seats_of(pair, config.setting):
        text = task_prompt(
            pair,
            seat,
            config.setting,
            messaging=config.messaging_enabled,
            git=bool(config.git_enabled),
            limits=config.limits,
            features=config.team_features,
            prompts_dir=config.prompts_dir,
        )
        sys.stdout.write(f"===== {seat.agent_id} ({pair.label}) =====\n{text}\n")
    return 0


def _write_templates(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    templates = [
        one for one in (files("cooperbench.team") / "templates").iterdir() if one.name.endswith(".j2")
    ]
    if there := [one.name for one in templates if (folder / one.name).exists()]:
        raise UserError(f"{folder} has {', '.join(sorted(there))} already; nothing was written")
    for one in templates:
        (folder / one.name).write_text(one.read_text("utf-8"), "utf-8")
    sys.stdout.write(f"{len(templates)} templates in {folder}; give them with --prompts {folder}\n")
    return 0
