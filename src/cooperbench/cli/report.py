"""`cooperbench report`: what one or several runs mean, in the terminal, as data or as a page."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cooperbench.cli.arguments import add_logs_argument, add_sound_only_argument
from cooperbench.errors import UserError
from cooperbench.report import LEVELS, METHODS
from cooperbench.text import names_for_error

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from cooperbench.report.coordination.llm_judge import JudgeReport
    from cooperbench.report.formatting import Table
    from cooperbench.report.loading import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help="names of runs, or paths of their folders")
    parser.add_argument(
        "--by",
        choices=LEVELS,
        default="setting",
        help="how far rates are broken down (default: %(default)s)",
    )
    parser.add_argument(
        "--interval",
        choices=METHODS,
        default="clustered",
        help="how intervals are made (default: %(default)s)",
    )
    parser.add_argument(
        "--anyway", action="store_true", help="put runs of different datasets into one report"
    )
    add_sound_only_argument(parser)
    parser.add_argument(
        "--coordination",
        action="store_true",
        help="also how agents worked together: messages, names, overlap (with --json: the evidence of every pair)",
    )
    parser.add_argument(
        "--judge",
        metavar="MODEL",
        help="have a model say why pairs failed; kept as judge.json beside each pair",
    )
    parser.add_argument("--json", action="store_true", help="for machines: one JSON object on stdout")
    parser.add_argument("--csv", metavar="FILE", type=Path, help="write a row for each pair")
    parser.add_argument("--parquet", metavar="FILE", type=Path, help="the same as Parquet (needs pyarrow)")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write everything as one page")
    parser.add_argument("--split", action="store_true", help="with --html: trajectories beside the page")
    add_logs_argument(parser)


def execute(args: argparse.Namespace) -> int:
    from cooperbench.report.analysis import analyse
    from cooperbench.report.compare import check_same_dataset
    from cooperbench.report.formatting import print_tables
    from cooperbench.report.text_report import analysis_tables

    runs = _load(args)
    check_same_dataset(runs, anyway=args.anyway)
    opinions = _judge(runs, args.judge) if args.judge else []
    _write_files(runs, args)
    analysis = analyse(runs, args.by, args.interval)
    if args.json:
        content = analysis.to_json()
        if args.coordination:
            content["coordination"] = _coordination_json(runs)
        if args.judge:
            content["judge"] = [asdict(one) for one in opinions]
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        print_tables(analysis_tables(analysis))
        if args.coordination:
            print_tables(_coordination_tables(runs))
        print_tables(one.table() for one in opinions)
    return 0


def _coordination_json(runs: Sequence[Run]) -> list[dict[str, Any]]:
    from cooperbench.report.coordination.measures import coordination_of_run

    return [{"run": run.name, **coordination_of_run(run.pairs).to_json()} for run in runs]


def _coordination_tables(runs: Sequence[Run]) -> list[Table]:
    from cooperbench.report.coordination.measures import coordination_of_run, coordination_tables

    return [table for run in runs for table in coordination_tables(run.name, coordination_of_run(run.pairs))]


def _judge(runs: Sequence[Run], model: str) -> list[JudgeReport]:
    from cooperbench.report.coordination.llm_judge import judge_run

    return [judge_run(run, model, lambda line: sys.stderr.write(f"{line}\n")) for run in runs]


def _load(args: argparse.Namespace) -> list[Run]:
    from cooperbench.report.loading import resolve_run, run_names, sound_only

    logs_dir = Path(args.log_dir)
    if not args.runs:
        raise UserError(f"which run? in {logs_dir} there are: {names_for_error(run_names(logs_dir))}")
    runs = [resolve_run(name, logs_dir) for name in args.runs]
    # Named twice, by name and by path, a run would count twice.
    runs = list({run.root.resolve(): run for run in runs}.values())
    return sound_only(runs) if args.sound_only else runs


def _write_files(runs: Sequence[Run], args: argparse.Namespace) -> None:
    if args.split and not args.html:
        raise UserError("--split is for --html FILE")
    if args.csv or args.parquet:
        from cooperbench.report.rows import csv_bytes, pair_rows, parquet_bytes

        rows = pair_rows(runs)
        for target, encode in ((args.csv, csv_bytes), (args.parquet, parquet_bytes)):
            if target:
                _save(target, encode(rows))
    if args.html:
        from cooperbench.report.page.build import build_page

        build_page(runs, args.html, split=args.split)
        _tell(args.html)


def _save(target: Path, data: bytes) -> None:
    from cooperbench.storage import write_bytes

    try:
        write_bytes(target, data)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}") from error
    _tell(target)


def _tell(target: Path) -> None:
    sys.stderr.write(f"written: {target}\n")
