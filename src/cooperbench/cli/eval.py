"""`cooperbench eval`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.cli import EXIT_ERRORS
from cooperbench.cli.arguments import add_eval_network_argument, add_selection_arguments
from cooperbench.cli.attach import detach
from cooperbench.cli.run import add_option, add_output_arguments, display_for, given_options, print_summary
from cooperbench.runner.evaluate import EVALUATION_OPTIONS, evaluation_arms
from cooperbench.runner.experiment import carry_out
from cooperbench.runner.options import options

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--name", required=True, help="the experiment's name")
    add_selection_arguments(parser, groups=False)
    add_option(parser, "concurrency", default=10, help="evaluations at once (default: %(default)s)")
    add_eval_network_argument(parser)
    for name in ("backend", "test_timeout_seconds", *EVALUATION_OPTIONS):
        if options()[name].flags:
            add_option(parser, name)
    add_option(parser, "force", help="judge again what is judged already")
    add_output_arguments(parser, parser)


def execute(args: argparse.Namespace) -> int:
    arms = evaluation_arms(given_options(args) | {"run_name": args.name})
    config = arms[0].config
    if args.detach:
        return detach(config.paths, args.words)
    summary = carry_out(arms, display_for(args))[args.name]
    print_summary(summary, config, as_json=args.json)
    return EXIT_ERRORS if summary["errors"] else 0
