"""`cooperbench demo`: a whole experiment on this machine, coop and solo, with scripted agents."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from cooperbench.cli.arguments import add_logs_argument, whole_above_zero
from cooperbench.dataset.discovery import demo_dir
from cooperbench.models import Setting
from cooperbench.report.summary import deficit_text, summary_text
from cooperbench.runner.api import run_experiment
from cooperbench.runner.config import RunConfig
from cooperbench.runner.display import make_display

SETTINGS: tuple[Setting, ...] = ("coop", "solo")
SUBSET = "demo"
PYTHON_SUBSET = "demo-python"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-c", "--concurrency", type=whole_above_zero, default=4, help="pairs at once (default: %(default)s)")
    add("--all", action="store_true", help="every pair of the demo dataset instead of a few")
    add("--setting", choices=SETTINGS, help="only one of the two settings")
    add("--backend", default="local", help="where it runs (default: %(default)s)")
    add_logs_argument(parser)


def execute(args: argparse.Namespace) -> int:
    say = sys.stdout.write
    say(
        "The agents of this demo follow scripts: no model is asked, so nothing here says how good any model is.\n"
        "Everything else is real: sandboxes, commands, messages, git merges, tests, verdicts.\n\n"
    )
    subset = None if args.all else SUBSET
    if shutil.which("node") is None:
        subset = PYTHON_SUBSET
        say("Node.js is not installed: the JavaScript pairs are left out.\n\n")
    summaries: dict[Setting, dict[str, Any]] = {}
    for setting in SETTINGS if args.setting is None else (args.setting,):
        config = RunConfig(
            run_name=f"demo-{setting}",
            dataset_dir=demo_dir(),
            logs_dir=Path(args.log_dir),
            setting=setting,
            agent="scripted",
            backend=args.backend,
            agent_config=demo_dir() / "agents.yaml",
            subset=subset,
            concurrency=args.concurrency,
            eval_concurrency=args.concurrency,
            force=True,
        )
        summaries[setting] = run_experiment(config, make_display())
        say(f"\n{summary_text(summaries[setting], str(config.paths.root))}\n\n")
    if len(summaries) == len(SETTINGS):
        say(deficit_text(summaries["solo"]["settings"]["solo"], summaries["coop"]["settings"]["coop"]) + "\n")
    return 1 if any(summary["errors"] for summary in summaries.values()) else 0
