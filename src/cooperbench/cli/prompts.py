"""`cooperbench prompts`: what each agent of a run would be told, word for word."""

from __future__ import annotations

import sys
from importlib.resources import files
from typing import TYPE_CHECKING

from cooperbench.cli import run
from cooperbench.models import seats_of
from cooperbench.runner.api import select
from cooperbench.team.team import task_prompt

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    run.add_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    config = run.config_of(args)
    pair = select(config)[0].pairs[0]
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
    templates = files("cooperbench.team") / "templates"
    sys.stderr.write(f"templates: {templates}; copy those that you change to a folder for --prompts\n")
    return 0
