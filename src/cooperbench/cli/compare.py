"""`cooperbench compare`: the same pairs in two runs, or solo against coop."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.cli.arguments import add_logs_argument, add_sound_only_argument
from cooperbench.errors import UserError
from cooperbench.models import SETTINGS
from cooperbench.report import METHODS
from cooperbench.report.states import VERDICTS

if TYPE_CHECKING:
    from cooperbench.models import Setting
    from cooperbench.report.compare import Comparison
    from cooperbench.report.loading import Run

EXIT_DROPPED = 1
_ROUNDING = 1e-9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN[:SETTING]",
        help="two runs, e.g. before after, or a:coop b:coop; or one run that has solo and coop",
    )
    parser.add_argument(
        "--verdict", choices=VERDICTS, default="overall", help="what is compared (default: %(default)s)"
    )
    parser.add_argument(
        "--interval",
        choices=METHODS,
        default="clustered",
        help="how intervals are made (default: %(default)s)",
    )
    parser.add_argument(
        "--max-drop",
        type=share,
        metavar="X",
        help="exit with 1 when the rate of the second run is lower by more than X, e.g. 0.05 for 5 points",
    )
    parser.add_argument("--anyway", action="store_true", help="compare runs of different datasets too")
    add_sound_only_argument(parser)
    parser.add_argument("--json", action="store_true", help="for machines: one JSON object on stdout")
    add_logs_argument(parser)


def execute(args: argparse.Namespace) -> int:
    from cooperbench.report.compare import check_same_dataset, compare_sides, sides_to_compare
    from cooperbench.report.formatting import Table, print_tables
    from cooperbench.report.loading import left_out_lines, sound_only
    from cooperbench.report.text_report import comparison_tables

    chosen = [_chosen(text, Path(args.log_dir)) for text in args.runs]
    check_same_dataset([run for run, _ in chosen], anyway=args.anyway)
    if args.sound_only:
        sound = sound_only([run for run, _ in chosen])
        chosen = [(run, setting) for run, (_, setting) in zip(sound, chosen, strict=True)]
    found = [
        compare_sides(first, second, args.verdict, args.interval)
        for first, second in sides_to_compare(chosen)
    ]
    _check_something(found)
    dropped = [one for one in found if args.max_drop is not None and one.drop > args.max_drop + _ROUNDING]
    runs = {run.name: run for run, _ in chosen}
    problems = [f"{run.name}: {line}" for run in runs.values() for line in run.problems]
    if args.json:
        content = {
            "schema": "cooperbench.compare/1",
            "comparisons": [asdict(one) for one in found],
            "max_drop": args.max_drop,
            "dropped": bool(dropped),
            "problems": problems,
            "unsound_left_out": {name: run.unsound_left_out for name, run in runs.items()}
            if args.sound_only
            else None,
        }
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        print_tables(table for one in found for table in comparison_tables(one, problems))
        if args.sound_only:
            print_tables([Table("Only sound pairs", notes=left_out_lines(list(runs.values())))])
    for one in dropped:
        sys.stderr.write(
            f"cooperbench: {one.verdict} dropped by {one.drop:.3f} from {one.first} to {one.second}, "
            f"more than {args.max_drop:g}\n"
        )
    return EXIT_DROPPED if dropped else 0


def _chosen(text: str, logs_dir: Path) -> tuple[Run, Setting | None]:
    from cooperbench.report.loading import resolve_run

    name, colon, wanted = text.rpartition(":")
    if not colon:
        return resolve_run(text, logs_dir), None
    setting = next((one for one in SETTINGS if one == wanted), None)
    if setting is None:
        raise UserError(f"{text!r}: after the colon stands a setting, one of {', '.join(SETTINGS)}")
    return resolve_run(name, logs_dir), setting


def _check_something(found: list[Comparison]) -> None:
    """A comparison of nothing must not look like one without a difference, least of all in CI."""
    for one in found:
        if not one.n:
            raise UserError(
                f"{one.first} and {one.second} have no pair with a verdict ({one.verdict}) on both sides; "
                f"{len(one.unpaired)} pairs are on one side only or without a verdict"
            )


def share(text: str) -> float:
    """For argparse: a number from 0 to 1."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 <= number <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to 1, e.g. 0.05")
    return number
