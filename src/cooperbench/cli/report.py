"""`cooperbench report`: what one or several runs mean, in the terminal, as data or as a page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from cooperbench.cli.arguments import add_report_arguments, print_json, print_note
from cooperbench.errors import UserError
from cooperbench.report import LEVELS, analysis, compare, coordination, llm_judge, loading, tables
from cooperbench.report.formatting import print_tables
from cooperbench.report.page.build import build_page
from cooperbench.storage import write_bytes
from cooperbench.text import names_for_error


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
    logs_dir = Path(args.log_dir)
    if not args.runs:
        raise UserError(f"which run? in {logs_dir} there are: {names_for_error(loading.run_names(logs_dir))}")
    runs = [loading.load_folder(folder) for folder in loading.run_folders(args.runs, logs_dir)]
    runs = loading.sound_only(runs) if args.sound_only else runs
    loading.check_same_dataset(runs, anyway=args.anyway)
    ablations = compare.analyse_studies(runs)
    opinions = [llm_judge.judge_run(run, args.judge, print_note) for run in runs] if args.judge else []
    _write_files(runs, args)
    found = analysis.analyse(runs, args.by, args.interval)
    together = (
        [(run.name, coordination.coordination_of_run(run.pairs)) for run in runs] if args.coordination else []
    )
    if args.json:
        content = found.to_json() | {"ablations": [asdict(one) for one in ablations]}
        if args.coordination:
            content["coordination"] = [{"run": name, **one.to_json()} for name, one in together]
        if args.judge:
            content["judge"] = [asdict(one) for one in opinions]
        print_json(content)
    else:
        print_tables(map(tables.ablation_table, ablations))
        print_tables(tables.analysis_tables(found))
        print_tables(table for name, one in together for table in coordination.coordination_tables(name, one))
        print_tables(map(tables.judge_table, opinions))
    return 0


def _write_files(runs: Sequence[loading.Run], args: argparse.Namespace) -> None:
    if args.split and not args.html:
        raise UserError("--split is for --html FILE")
    for target, encode in ((args.csv, loading.csv_bytes), (args.parquet, loading.parquet_bytes)):
        if target:
            try:
                write_bytes(target, encode(loading.pair_rows(runs)))
            except OSError as error:
                raise UserError(f"{target} cannot be written: {error.strerror}") from error
            print_note(f"written: {target}")
    if args.html:
        build_page(runs, args.html, split=args.split)
        print_note(f"written: {args.html}")
