"""`cooperbench compare`: the same pairs in two runs, or solo against coop."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from cooperbench.cli.arguments import add_report_arguments, number, print_json, print_note
from cooperbench.errors import UserError
from cooperbench.models import SETTINGS, Setting
from cooperbench.report.compare import compare_sides, sides_to_compare
from cooperbench.report.formatting import Table, print_tables
from cooperbench.report.loading import Run, check_same_dataset, left_out_lines, resolve_run, sound_only
from cooperbench.report.pairs import VERDICTS
from cooperbench.report.tables import comparison_tables

EXIT_DROPPED = 1
_ROUNDING = 1e-9
_share = number(float, "a share from 0 to 1, e.g. 0.05", lambda value: 0 <= value <= 1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    which = "two runs, e.g. before after, or a:coop b:coop; or one run that has solo and another setting"
    parser.add_argument("runs", nargs="+", metavar="RUN[:SETTING]", help=which)
    compared = "what is compared (default: %(default)s)"
    parser.add_argument("--verdict", choices=VERDICTS, default="overall", help=compared)
    drop = "exit with 1 when the rate of the second run is lower by more than X, e.g. 0.05 for 5 points"
    parser.add_argument("--max-drop", type=_share, metavar="X", help=drop)
    add_report_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    chosen = [_chosen(text, Path(args.log_dir)) for text in args.runs]
    check_same_dataset([run for run, _ in chosen], anyway=args.anyway)
    if args.sound_only:
        sound = sound_only([run for run, _ in chosen])
        chosen = [(run, setting) for run, (_, setting) in zip(sound, chosen, strict=True)]
    found = [compare_sides(*sides, args.verdict, args.interval) for sides in sides_to_compare(chosen)]
    for one in found:
        # A comparison of nothing must not look like one without a difference, least of all in CI.
        if not one.n:
            raise UserError(
                f"{one.first} and {one.second} have no pair with a verdict ({one.verdict}) on both sides; "
                f"{len(one.unpaired)} pairs are on one side only or without a verdict"
            )
    dropped = [one for one in found if args.max_drop is not None and one.drop > args.max_drop + _ROUNDING]
    runs = {run.name: run for run, _ in chosen}
    problems = [f"{run.name}: {line}" for run in runs.values() for line in run.problems]
    if args.json:
        left_out = {name: run.unsound_left_out for name, run in runs.items()}
        print_json(
            {
                "schema": "cooperbench.compare/1",
                "comparisons": [asdict(one) for one in found],
                "max_drop": args.max_drop,
                "dropped": bool(dropped),
                "problems": problems,
                "unsound_left_out": left_out if args.sound_only else None,
            }
        )
    else:
        print_tables(table for one in found for table in comparison_tables(one, problems))
        if args.sound_only:
            print_tables([Table("Only sound pairs", notes=left_out_lines(list(runs.values())))])
    sys.stdout.flush()
    for one in dropped:
        sides = f"from {one.first} to {one.second}"
        print_note(
            f"cooperbench: {one.verdict} dropped by {one.drop:.3f} {sides}, more than {args.max_drop:g}"
        )
    return EXIT_DROPPED if dropped else 0


def _chosen(text: str, logs_dir: Path) -> tuple[Run, Setting | None]:
    name, colon, wanted = text.rpartition(":")
    if not colon:
        return resolve_run(text, logs_dir), None
    setting = next((one for one in SETTINGS if one == wanted), None)
    if setting is None:
        raise UserError(f"{text!r}: after the colon stands a setting, one of {', '.join(SETTINGS)}")
    return resolve_run(name, logs_dir), setting
