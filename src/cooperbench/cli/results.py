"""What becomes of the results of runs: `cooperbench report`, `compare`, `export` and `view`."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import msgspec

from cooperbench.cli import arguments
from cooperbench.errors import UserError
from cooperbench.export import FORMATS, export_run
from cooperbench.export.submission import verify_submission
from cooperbench.models import SETTINGS, Setting
from cooperbench.report import LEVELS, loading, pair_table
from cooperbench.report.analysis import analyse
from cooperbench.report.compare import analyse_studies, compare_sides, sides_to_compare
from cooperbench.report.coordination import coordination_tables, measure_run
from cooperbench.report.formatting import Table, print_tables
from cooperbench.report.llm_judge import judge_run
from cooperbench.report.page.build import build_page
from cooperbench.report.page.live_server import ADDRESS, LiveServer
from cooperbench.report.pairs import VERDICTS
from cooperbench.report.tables import (
    ablation_table,
    analysis_tables,
    comparison_tables,
    judge_table,
)
from cooperbench.storage import write_bytes
from cooperbench.text import names_for_error, plural

EXIT_DROPPED = 1
_ROUNDING = 1e-9
_share = arguments.number(float, "a share from 0 to 1, e.g. 0.05", lambda value: 0 <= value <= 1)
EXIT_MISMATCH = 1
_NEWEST = 8
_port = arguments.number(
    int, "a port: 1 to 65535, or 0 for any", lambda value: 0 <= value <= 65_535
)


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "runs",
        nargs="*",
        metavar="RUN",
        help="names of runs or ablations, or paths of their folders",
    )
    add(
        "--by",
        choices=LEVELS,
        default="setting",
        help="how rates are broken down (default: %(default)s)",
    )
    together = "also how agents worked together: messages, names, overlap (with --json: the evidence of every pair)"
    add("--coordination", action="store_true", help=together)
    judge = "have a model say why pairs failed; kept as judge.json beside each pair"
    add("--judge", metavar="MODEL", help=judge)
    add("--csv", metavar="FILE", type=Path, help="write a row for each pair")
    add("--parquet", metavar="FILE", type=Path, help="the same as Parquet (needs pyarrow)")
    add("--html", metavar="FILE", type=Path, help="write everything as one page")
    add("--split", action="store_true", help="with --html: trajectories beside the page")
    arguments.add_analysis_arguments(parser)


def report(args: argparse.Namespace) -> int:
    logs_dir = Path(args.log_dir)
    if not args.runs:
        raise UserError(
            f"which run? in {logs_dir} there are: {names_for_error(loading.run_names(logs_dir))}"
        )
    runs = [loading.load_folder(folder) for folder in loading.run_folders(args.runs, logs_dir)]
    runs = loading.sound_only(runs) if args.sound_only else runs
    loading.check_same_dataset(runs, anyway=args.anyway)
    ablations = analyse_studies(runs)
    opinions = (
        [judge_run(run, args.judge, arguments.print_note) for run in runs] if args.judge else []
    )
    _write_files(runs, args)
    found = analyse(runs, args.by, args.interval)
    together = [(run.name, measure_run(run.pairs)) for run in runs] if args.coordination else []
    if args.json:
        content = found.to_json() | {"ablations": [asdict(one) for one in ablations]}
        if args.coordination:
            content["coordination"] = [{"run": name, **one.to_json()} for name, one in together]
        if args.judge:
            content["judge"] = [msgspec.to_builtins(opinion) for opinion in opinions]
        arguments.print_json(content)
    else:
        print_tables(map(ablation_table, ablations))
        print_tables(analysis_tables(found))
        print_tables(table for name, one in together for table in coordination_tables(name, one))
        print_tables(map(judge_table, opinions))
    return 0


def _write_files(runs: Sequence[loading.Run], args: argparse.Namespace) -> None:
    if args.split and not args.html:
        raise UserError("--split is for --html FILE")
    for target, encode in (
        (args.csv, pair_table.csv_bytes),
        (args.parquet, pair_table.parquet_bytes),
    ):
        if target:
            try:
                write_bytes(target, encode(pair_table.pair_rows(runs)))
            except OSError as error:
                raise UserError(f"{target} cannot be written: {error.strerror}") from error
            arguments.print_note(f"written: {target}")
    if args.html:
        build_page(runs, args.html, split=args.split)
        arguments.print_note(f"written: {args.html}")


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    which = "two runs, e.g. before after, or a:coop b:coop; or one run that has solo and another setting"
    parser.add_argument("runs", nargs="+", metavar="RUN[:SETTING]", help=which)
    compared = "what is compared (default: %(default)s)"
    parser.add_argument("--verdict", choices=VERDICTS, default="overall", help=compared)
    drop = "exit with 1 when the rate of the second run is lower by more than X, e.g. 0.05 for 5 points"
    parser.add_argument("--max-drop", type=_share, metavar="X", help=drop)
    arguments.add_analysis_arguments(parser)


def compare(args: argparse.Namespace) -> int:
    chosen = [_chosen(text, Path(args.log_dir)) for text in args.runs]
    loading.check_same_dataset([run for run, _ in chosen], anyway=args.anyway)
    if args.sound_only:
        sound = loading.sound_only([run for run, _ in chosen])
        chosen = [(run, setting) for run, (_, setting) in zip(sound, chosen, strict=True)]
    found = [
        compare_sides(*sides, args.verdict, args.interval) for sides in sides_to_compare(chosen)
    ]
    for one in found:
        # A comparison of nothing must not look like one without a difference, least of all in CI.
        if not one.n:
            raise UserError(
                f"{one.first} and {one.second} have no pair with a verdict ({one.verdict}) on both sides; "
                f"{len(one.unpaired)} pairs are on one side only or without a verdict"
            )
    dropped = [
        one for one in found if args.max_drop is not None and one.drop > args.max_drop + _ROUNDING
    ]
    runs = {run.name: run for run, _ in chosen}
    problems = [f"{run.name}: {line}" for run in runs.values() for line in run.problems]
    if args.json:
        left_out = {name: run.unsound_left_out for name, run in runs.items()}
        arguments.print_json(
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
            print_tables(
                [Table("Only sound pairs", notes=loading.left_out_lines(list(runs.values())))]
            )
    sys.stdout.flush()
    for one in dropped:
        what = f"{one.verdict} dropped by {one.drop:.3f} from {one.first} to {one.second}"
        arguments.print_note(f"cooperbench: {what}, more than {args.max_drop:g}")
    return EXIT_DROPPED if dropped else 0


def _chosen(text: str, logs_dir: Path) -> tuple[loading.Run, Setting | None]:
    name, colon, wanted = text.rpartition(":")
    if not colon:
        return loading.resolve_run(text, logs_dir), None
    setting = next((one for one in SETTINGS if one == wanted), None)
    if setting is None:
        raise UserError(f"{text!r}: after the colon stands a setting, one of {', '.join(SETTINGS)}")
    return loading.resolve_run(name, logs_dir), setting


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN", nargs="?", help="the experiment's name, or its folder")
    formats = "; ".join(f"{name}: {one.meaning}" for name, one in FORMATS.items())
    add(
        "--format", choices=tuple(FORMATS), default="atif", help=f"{formats} (default: %(default)s)"
    )
    where = "the file, or the folder of files (default: in export/ in the run's folder)"
    add("-o", "--output", type=Path, metavar="PATH", help=where)
    check = "write nothing; check a leaderboard file against itself, and against the run's logs if they are here"
    add("--verify", type=Path, metavar="FILE", help=check)
    arguments.add_logs_argument(parser)


def export(args: argparse.Namespace) -> int:
    logs_dir = Path(args.log_dir)
    run = loading.resolve_run(args.run, logs_dir) if args.run else None
    if args.verify:
        return _verify(args.verify, logs_dir, run)
    if run is None:
        raise UserError(
            f"which run? in {logs_dir} there are: {names_for_error(loading.run_names(logs_dir))}"
        )
    target = args.output or run.root / "export" / FORMATS[args.format].target
    done = export_run(run, args.format, target)
    for line in done.left_out:
        arguments.print_note(f"left out: {line}")
    # Half of a run is not to be taken for the whole.
    if states := Counter(pair.state for pair in run.pairs if not pair.verdicts):
        counts = ", ".join(f"{count} {state}" for state, count in states.items())
        of_all = f"{states.total()} of {plural(len(run.pairs), 'pair')}"
        arguments.print_note(f"{of_all} without a verdict ({counts})")
    pairs = plural(len(run.pairs) - len(done.left_out), "pair")
    if FORMATS[args.format].content:
        arguments.print_line(f"wrote {pairs} to {done.files[0]}")
    else:
        arguments.print_line(f"wrote {plural(len(done.files), 'file')} of {pairs} to {target}")
    return 0


def _verify(path: Path, logs_dir: Path, run: loading.Run | None) -> int:
    found = verify_submission(path, logs_dir, run)
    for line in found.mismatches:
        arguments.print_line(line)
    if found.mismatches:
        count = plural(len(found.mismatches), "mismatch", "mismatches")
        arguments.print_note(f"cooperbench: {path} is not valid: {count}")
        return EXIT_MISMATCH
    if found.run is None:
        unchecked = f"its logs are not in {logs_dir}, nothing else was checked"
        arguments.print_line(f"{path} is consistent; {unchecked}")
    else:
        arguments.print_line(
            f"{path} is valid: {plural(found.pairs, 'pair')}, all as in {found.run.root}"
        )
    return 0


def add_view_arguments(parser: argparse.ArgumentParser) -> None:
    which = f"which runs (default: the {_NEWEST} newest, also those to come)"
    parser.add_argument("runs", nargs="*", metavar="RUN", help=which)
    where = "where to listen on 127.0.0.1 (default: any that is free)"
    parser.add_argument("--port", type=_port, default=0, help=where)
    parser.add_argument(
        "--no-browser", action="store_true", help="print the address, open no browser"
    )
    arguments.add_logs_argument(parser)


def view(args: argparse.Namespace) -> int:
    logs_dir = Path(args.log_dir)
    chosen = loading.run_folders(args.runs, logs_dir)

    def roots() -> list[Path]:
        return chosen or [
            logs_dir / name for name in reversed(loading.run_names(logs_dir)[:_NEWEST])
        ]

    if not roots():
        raise UserError(
            f"there is no run in {logs_dir}; start one with `cooperbench run`, or say --log-dir"
        )
    try:
        server = LiveServer(roots, args.port)
    except OSError as error:
        raise UserError(
            f"cannot listen on {ADDRESS}:{args.port}: {error.strerror}; take another --port"
        ) from None
    with server, suppress(KeyboardInterrupt):
        server.snapshot()
        arguments.print_line(server.url)
        arguments.print_line("Ctrl-C ends it.")
        sys.stdout.flush()
        if not args.no_browser:
            webbrowser.open(server.url)
        server.serve_forever(poll_interval=0.1)
    return 0


COMMANDS = {
    "report": (add_report_arguments, report),
    "compare": (add_compare_arguments, compare),
    "export": (add_export_arguments, export),
    "view": (add_view_arguments, view),
}
