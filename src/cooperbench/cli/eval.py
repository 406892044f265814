"""`cooperbench eval`."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.backends.registry import check_options
from cooperbench.cli.arguments import (
    BACKEND_DEFAULT,
    add_eval_network_argument,
    add_logs_argument,
    add_selection_arguments,
    add_sound_only_argument,
    whole_above_zero,
)
from cooperbench.cli.attach import add_detach_argument, detach
from cooperbench.cli.run import add_option, print_summary
from cooperbench.dataset.discovery import resolve_dataset_dir
from cooperbench.eval.batch import Order
from cooperbench.runner.display import PlainDisplay, make_display
from cooperbench.runner.evaluate import evaluate_experiment, recorded_eval_network, select_results
from cooperbench.runner.executors import Placement
from cooperbench.runner.options import options
from cooperbench.settings import default_backend, default_eval_network
from cooperbench.storage import ExperimentPaths

if TYPE_CHECKING:
    import argparse


_RUN_OPTIONS = (
    *("test_timeout_seconds", "canary", "image_template", "pull", "mount", "gpu"),
    *(one.name for one in fields(Placement)),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--name", required=True, help="the experiment's name")
    add_selection_arguments(parser, groups=False)
    parser.add_argument("--backend", help=f"where tests run (default: {BACKEND_DEFAULT})")
    parser.add_argument(
        "-c",
        "--concurrency",
        type=whole_above_zero,
        default=10,
        help="evaluations at once (default: %(default)s)",
    )
    add_eval_network_argument(parser)
    add_sound_only_argument(parser)
    for name in _RUN_OPTIONS:
        add_option(parser, name)
    parser.add_argument("--force", action="store_true", help="judge again what is judged already")
    parser.add_argument(
        "--json", action="store_true", help="for machines: the summary as JSON on stdout, the rest on stderr"
    )
    add_detach_argument(parser)
    add_logs_argument(parser)


def execute(args: argparse.Namespace) -> int:
    name = args.backend or default_backend()
    given = {
        option.for_backend: getattr(args, field)
        for field, option in options().items()
        if option.for_backend and getattr(args, field)
    }
    check_options(name, given)
    paths = ExperimentPaths(Path(args.log_dir), args.name)
    dataset = resolve_dataset_dir(args.dataset_dir)
    found = select_results(
        paths, dataset, args.subset, args.repo, args.task_id, args.features, sound_only=args.sound_only
    )
    if args.detach:
        return detach(paths, args.words)
    network = args.eval_network or recorded_eval_network(paths) or default_eval_network()
    order = Order(paths, args.concurrency, args.test_timeout_seconds, network, args.canary, found)
    display = PlainDisplay(sys.stderr) if args.json else make_display()
    placement = Placement(**{one.name: getattr(args, one.name) for one in fields(Placement)})
    summary = evaluate_experiment(order, display, name, given, placement, dataset, force=args.force)
    print_summary(summary, str(paths.root), as_json=args.json)
    return 1 if summary["errors"] else 0
