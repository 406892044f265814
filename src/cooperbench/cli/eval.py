"""`cooperbench eval`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.cli.arguments import (
    add_eval_network_argument,
    add_logs_argument,
    add_selection_arguments,
    add_sound_only_argument,
    whole_above_zero,
)
from cooperbench.cli.containers import add_container_arguments, use_container_arguments
from cooperbench.cli.run import print_summary
from cooperbench.dataset.discovery import resolve_dataset_dir
from cooperbench.runner.display import PlainDisplay, make_display
from cooperbench.runner.evaluate import (
    DEFAULT_TEST_SECONDS,
    evaluate_experiment,
    recorded_eval_network,
    select_results,
)
from cooperbench.settings import default_backend, default_eval_network
from cooperbench.storage import ExperimentPaths

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--name", required=True, help="the experiment's name")
    add_selection_arguments(parser)
    parser.add_argument(
        "--backend", help="where tests run (default: $COOPERBENCH_BACKEND, your config, modal)"
    )
    parser.add_argument(
        "-c",
        "--concurrency",
        type=whole_above_zero,
        default=10,
        help="evaluations at once (default: %(default)s)",
    )
    add_eval_network_argument(parser)
    add_sound_only_argument(parser)
    add_container_arguments(parser)
    parser.add_argument("--force", action="store_true", help="judge again what is judged already")
    parser.add_argument(
        "--test-timeout",
        type=whole_above_zero,
        default=DEFAULT_TEST_SECONDS,
        metavar="SECONDS",
        help="how long one test run may take (default: %(default)s)",
    )
    parser.add_argument(
        "--json", action="store_true", help="for machines: the summary as JSON on stdout, the rest on stderr"
    )
    add_logs_argument(parser)


def execute(args: argparse.Namespace) -> int:
    backend = args.backend or default_backend()
    use_container_arguments(args, backend)
    paths = ExperimentPaths(Path(args.log_dir), args.name)
    found = select_results(
        paths,
        resolve_dataset_dir(args.dataset_dir),
        args.subset,
        args.repo,
        args.task_id,
        args.features,
        sound_only=args.sound_only,
    )
    summary = evaluate_experiment(
        paths,
        found,
        concurrency=args.concurrency,
        force=args.force,
        backend=backend,
        test_timeout=args.test_timeout,
        eval_network=args.eval_network or recorded_eval_network(paths) or default_eval_network(),
        display=PlainDisplay(sys.stderr) if args.json else make_display(),
    )
    print_summary(summary, str(paths.root), as_json=args.json)
    return 1 if summary["errors"] else 0
