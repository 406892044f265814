"""`cooperbench report`: what one or several runs mean, in the terminal, as data or as a page."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.cli.arguments import add_report_arguments, print_json, print_note
from cooperbench.errors import UserError
from cooperbench.report import LEVELS
from cooperbench.text import names_for_error

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from cooperbench.report.loading import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUN", help="names of runs or ablations, or paths of their folders")
    add(
        "--by", choices=LEVELS, default="setting", help="how far rates are broken down (default: %(default)s)"
    )
    together = (
        "also how agents worked together: messages, names, overlap (with --json: the evidence of every pair)"
    )
    add("--coordination", action="store_true", help=together)
    judge = "have a model say why pairs failed; kept as judge.json beside each pair"
    add("--judge", metavar="MODEL", help=judge)
    add("--csv", metavar="FILE", type=Path, help="write a row for each pair")
    add("--parquet", metavar="FILE", type=Path, help="the same as Parquet (needs pyarrow)")
    add("--html", metavar="FILE", type=Path, help="write everything as one page")
    add("--split", action="store_true", help="with --html: trajectories beside the page")
    add_report_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    from cooperbench.report.analysis import analyse
    from cooperbench.report.compare import analyse_study
    from cooperbench.report.coordination import coordination_of_run, coordination_tables
    from cooperbench.report.formatting import print_tables
    from cooperbench.report.llm_judge import judge_run
    from cooperbench.report.loading import (
        arm_folders,
        check_same_dataset,
        load_folder,
        run_folder,
        run_names,
        sound_only,
    )
    from cooperbench.report.tables import ablation_table, analysis_tables, judge_table

    logs_dir = Path(args.log_dir)
    if not args.runs:
        raise UserError(f"which run? in {logs_dir} there are: {names_for_error(run_names(logs_dir))}")
    # Named twice, by name and by path, a run would count twice.
    folders = list(dict.fromkeys(run_folder(name, logs_dir).resolve() for name in args.runs))
    runs = [load_folder(one) for folder in folders for one in (arm_folders(folder) or [folder])]
    runs = sound_only(runs) if args.sound_only else runs
    check_same_dataset(runs, anyway=args.anyway)
    ablations = [analyse_study(folder, runs) for folder in folders if arm_folders(folder)]
    opinions = [judge_run(run, args.judge, print_note) for run in runs] if args.judge else []
    _write_files(runs, args)
    analysis = analyse(runs, args.by, args.interval)
    together = [(run.name, coordination_of_run(run.pairs)) for run in runs] if args.coordination else []
    if args.json:
        content = analysis.to_json() | {"ablations": [asdict(one) for one in ablations]}
        if args.coordination:
            content["coordination"] = [{"run": name, **found.to_json()} for name, found in together]
        if args.judge:
            content["judge"] = [asdict(one) for one in opinions]
        print_json(content)
    else:
        print_tables(map(ablation_table, ablations))
        print_tables(analysis_tables(analysis))
        print_tables(table for name, found in together for table in coordination_tables(name, found))
        print_tables(map(judge_table, opinions))
    return 0


def _write_files(runs: Sequence[Run], args: argparse.Namespace) -> None:
    from cooperbench.report.loading import csv_bytes, pair_rows, parquet_bytes
    from cooperbench.storage import write_bytes

    if args.split and not args.html:
        raise UserError("--split is for --html FILE")
    for target, encode in ((args.csv, csv_bytes), (args.parquet, parquet_bytes)):
        if target:
            try:
                write_bytes(target, encode(pair_rows(runs)))
            except OSError as error:
                raise UserError(f"{target} cannot be written: {error.strerror}") from error
            print_note(f"written: {target}")
    if args.html:
        from cooperbench.report.page.build import build_page

        build_page(runs, args.html, split=args.split)
        print_note(f"written: {args.html}")
