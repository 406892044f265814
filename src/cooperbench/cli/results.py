"""Results of runs: `cooperbench report`, `compare`, `export` and `view`."""

from __future__ import annotations

import argparse
import shlex
import sys
import webbrowser
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from cooperbench import records
from cooperbench.cli import arguments
from cooperbench.errors import UserError
from cooperbench.export import FORMATS, export_run
from cooperbench.export.hub_dataset import check_push, push_dataset
from cooperbench.export.leaderboard import read_leaderboard, write_leaderboard
from cooperbench.export.otlp import endpoint_of, send_run
from cooperbench.export.verification import verify_submission
from cooperbench.models import SETTINGS, Setting
from cooperbench.records import JsonObject
from cooperbench.records.study import OFF, ON
from cooperbench.report import LEVELS, loading, pair_table
from cooperbench.report.analysis import Analysis, analyse
from cooperbench.report.compare import Comparison, compare_sides, sides_to_compare
from cooperbench.report.consistency import all_mismatches
from cooperbench.report.coordination import RunCoordination, coordination_tables, measure_run
from cooperbench.report.forks import ForkAnalysis, analyse_forks, forks_table
from cooperbench.report.formatting import Table, print_tables
from cooperbench.report.llm_judge import JudgeReport, judge_run
from cooperbench.report.mismatch import mismatch_lines
from cooperbench.report.page.build import build_page
from cooperbench.report.page.live_server import ADDRESS, LiveServer
from cooperbench.report.pairs import PUBLIC_VERDICT, VERDICTS
from cooperbench.report.paper.folder import check_paper_folder, write_paper
from cooperbench.report.paper.markdown import PaperCommands
from cooperbench.report.paper.tables import PaperData
from cooperbench.report.recorded import (
    RecordedComparison,
    compare_with_recorded,
    recorded_tables,
)
from cooperbench.report.registration import Registration
from cooperbench.report.studies import Study, analyse_studies
from cooperbench.report.study_table import study_tables
from cooperbench.report.tables import (
    analysis_tables,
    comparison_tables,
    judge_table,
    mark_title,
    mismatch_tables,
)
from cooperbench.storage import DEFAULT_LOGS_DIR, write_bytes
from cooperbench.text import names_for_error, plural

EXIT_DROPPED = 1
EXIT_MISMATCH = 1
LEADERBOARD_SCHEMA = "cooperbench.leaderboard/1"
RECORDED_SCHEMA = "cooperbench.compare_recorded/1"
_ROUNDING_ERROR = 1e-9
_MAX_NEWEST_RUNS = 8
_share = arguments.number(float, "a share from 0 to 1, e.g. 0.05", lambda value: 0 <= value <= 1)
_port = arguments.number(
    int, "a port: 1 to 65535, or 0 for any", lambda value: 0 <= value <= 65_535
)


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cooperbench report`."""
    runs = "names of runs or studies, or paths of their folders"
    parser.add_argument("runs", nargs="*", metavar="RUN", help=runs)
    level = "how rates are broken down (default: %(default)s)"
    parser.add_argument("--by", choices=LEVELS, default="setting", help=level)
    coordination = (
        "also analyze how agents worked together: messages, names, overlap"
        " (with --json: the evidence of every pair)"
    )
    parser.add_argument("--coordination", action="store_true", help=coordination)
    judge = "let a model explain why pairs failed; the answers are kept in judge.json of each pair"
    parser.add_argument("--judge", metavar="MODEL", help=judge)
    parser.add_argument("--csv", metavar="FILE", type=Path, help="write a row for each pair")
    parquet = "write a row for each pair as Parquet (needs pyarrow)"
    parser.add_argument("--parquet", metavar="FILE", type=Path, help=parquet)
    parser.add_argument("--html", metavar="FILE", type=Path, help="write everything as one page")
    paper = "write LaTeX and Markdown tables and figures (PDF, SVG) into a folder"
    parser.add_argument("--paper", metavar="FOLDER", type=Path, help=paper)
    split = "with --html: write trajectories to files beside the page"
    parser.add_argument("--split", action="store_true", help=split)
    leaderboard = (
        "make a page from the submissions in a folder (`export --format leaderboard`), each"
        " verified; it is FOLDER/index.html, or the file of --html"
    )
    parser.add_argument("--leaderboard", metavar="FOLDER", type=Path, help=leaderboard)
    arguments.add_analysis_arguments(parser)


def report(args: argparse.Namespace) -> int:
    """Analyze runs, and print the result or write it to files."""
    logs_dir = Path(args.log_dir)
    if args.leaderboard:
        return _make_leaderboard(args)
    if not args.runs:
        raise _no_run_named(logs_dir)
    if args.paper:
        check_paper_folder(args.paper)
    runs = [loading.load_folder(folder) for folder in loading.run_folders(args.runs, logs_dir)]
    if args.sound_only:
        runs = loading.sound_only(runs)
    loading.check_same_dataset(runs, anyway=args.anyway)
    content = _analyze_for_report(runs, args)
    _write_files(runs, args)
    if args.paper:
        data = PaperData(content.analysis, content.coordination)
        files = write_paper(data, args.paper, _paper_commands(args))
        arguments.print_note(f"written: {plural(len(files), 'file')} in {args.paper}")
    if args.json:
        arguments.print_json(_report_as_json(content, args))
    else:
        _print_report(content)
        if args.coordination:
            _print_coordination(content)
        print_tables(judge_table(judgement) for judgement in content.judgements)
    return 0


def _make_leaderboard(args: argparse.Namespace) -> int:
    """Write the page of a leaderboard; return 1 if a submission is not valid."""
    if args.runs:
        raise UserError("--leaderboard takes submissions from its folder: leave out the runs")
    for option in ("csv", "parquet", "split", "coordination", "judge", "sound_only"):
        if getattr(args, option):
            flag = option.replace("_", "-")
            raise UserError(f"--{flag} is for reports of runs: leave it out with --leaderboard")
    leaderboard = read_leaderboard(args.leaderboard, Path(args.log_dir), args.interval)
    target = args.html or args.leaderboard / "index.html"
    write_leaderboard(leaderboard, target)
    for rejected in leaderboard.rejected:
        for reason in rejected.reasons:
            arguments.print_note(f"{rejected.file} is not listed: {reason}")
    arguments.print_note(f"written: {target}")
    if args.json:
        arguments.print_json({"schema": LEADERBOARD_SCHEMA, **asdict(leaderboard)})
    return EXIT_MISMATCH if leaderboard.rejected else 0


@dataclass(frozen=True)
class _ReportContent:
    """The content that `cooperbench report` prints."""

    analysis: Analysis
    studies: Sequence[Study]
    forks: Sequence[ForkAnalysis]
    coordination: Mapping[str, RunCoordination]
    """By the name of the run; empty without --coordination."""
    judgements: Sequence[JudgeReport]
    """Empty without --judge."""


def _analyze_for_report(runs: Sequence[loading.Run], args: argparse.Namespace) -> _ReportContent:
    studies = analyse_studies(runs)
    judgements = []
    if args.judge:
        judgements = [judge_run(run, args.judge, arguments.print_note) for run in runs]
    coordination = {}
    if args.coordination or args.paper:
        coordination = {run.name: measure_run(run.pairs) for run in runs}
    analysis = analyse(runs, args.by, args.interval)
    forks = analyse_forks(runs)
    return _ReportContent(analysis, studies, forks, coordination, judgements)


def _paper_commands(args: argparse.Namespace) -> PaperCommands:
    """Return the commands that make the folder and the output that its numbers point into."""
    argv = ["cooperbench", "report", *args.runs]
    if args.log_dir != DEFAULT_LOGS_DIR:
        argv += ["--log-dir", str(args.log_dir)]
    argv += ["--interval", args.interval, "--by", args.by]
    for flag in ("sound_only", "anyway"):
        if getattr(args, flag):
            argv.append(f"--{flag.replace('_', '-')}")
    paper = shlex.join([*argv, "--paper", str(args.paper)])
    return PaperCommands(paper, shlex.join([*argv, "--coordination", "--json"]))


def _report_as_json(report: _ReportContent, args: argparse.Namespace) -> JsonObject:
    content = report.analysis.to_json()
    content["ablations"] = [_ablation_as_json(study) for study in report.studies]
    content["studies"] = [_study_as_json(study) for study in report.studies]
    content["forks"] = [_forks_as_json(analysis) for analysis in report.forks]
    if args.coordination:
        content["coordination"] = [
            {"run": name, **measures.to_json()} for name, measures in report.coordination.items()
        ]
    if args.judge:
        content["judge"] = [msgspec.to_builtins(judgement) for judgement in report.judgements]
    return content


def _ablation_as_json(study: Study) -> JsonObject:
    """Return the effects of parts as older versions do; `studies` has those of all factors."""
    effects = []
    for effect in study.effects:
        if (effect.first_level, effect.last_level) == (OFF, ON):
            content = {
                "part": effect.factor,
                "measure": effect.measure,
                "unit": effect.unit,
                "with_part": effect.last,
                "without": effect.first,
                "difference": asdict(effect.difference),
                "p": effect.p,
                "p_holm": effect.p_holm,
                "smallest_effect": effect.smallest_effect,
                "pairs_needed": effect.pairs_needed,
            }
            effects.append(content)
    return {"study": study.study, "arms": study.arms, "effects": effects}


def _forks_as_json(analysis: ForkAnalysis) -> JsonObject:
    return {
        "name": analysis.name,
        "run": analysis.run,
        "fork_point": analysis.fork_point,
        "effects": [asdict(effect) for effect in analysis.effects],
        **_plan_as_json(analysis.registration),
    }


def _plan_as_json(registration: Registration) -> JsonObject:
    plan = registration.plan
    return {
        "plan": records.to_object(plan) if plan is not None else None,
        "plan_problem": registration.problem or None,
    }


def _study_as_json(study: Study) -> JsonObject:
    return {
        "study": study.study,
        "arms": study.arms,
        "factors": [asdict(factor) for factor in study.factors],
        "effects": [asdict(effect) for effect in study.effects],
        **_plan_as_json(study.registration),
    }


def _print_report(report: _ReportContent) -> None:
    for study in report.studies:
        for table in study_tables(study):
            print_tables([mark_title(table, study.arms, report.analysis.mismatches)])
    print_tables(forks_table(analysis) for analysis in report.forks)
    print_tables(analysis_tables(report.analysis))


def _print_coordination(report: _ReportContent) -> None:
    for name, measures in report.coordination.items():
        print_tables(coordination_tables(name, measures))


def _no_run_named(logs_dir: Path) -> UserError:
    names = names_for_error(loading.run_names(logs_dir))
    return UserError(f"no run given; available in {logs_dir}: {names}")


def _write_files(runs: Sequence[loading.Run], args: argparse.Namespace) -> None:
    if args.split and not args.html:
        raise UserError("--split needs --html FILE")
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
    """Add the arguments of `cooperbench compare`."""
    runs = (
        "two runs, e.g. before after, or a:coop b:coop;"
        " or one run that has results of solo and of another setting"
    )
    parser.add_argument("runs", nargs="+", metavar="RUN[:SETTING]", help=runs)
    verdict = (
        "verdict to compare; public: the merged verdict by the rule of the public release"
        " (default: %(default)s)"
    )
    choices = (*VERDICTS, PUBLIC_VERDICT)
    parser.add_argument("--verdict", choices=choices, default="overall", help=verdict)
    recorded = "compare our verdicts on one imported run with those that came with it, pair by pair"
    parser.add_argument("--with-recorded", action="store_true", help=recorded)
    max_drop = (
        "exit with status 1 if the rate of the second run is lower by more than X,"
        " e.g. 0.05 for 5 points"
    )
    parser.add_argument("--max-drop", type=_share, metavar="X", help=max_drop)
    arguments.add_analysis_arguments(parser)


def compare(args: argparse.Namespace) -> int:
    """Compare the same pairs in two runs; return 1 if the rate dropped by more than --max-drop."""
    selected = [_run_and_setting(text, Path(args.log_dir)) for text in args.runs]
    if args.with_recorded:
        return _compare_with_recorded(selected, args)
    loading.check_same_dataset([run for run, _ in selected], anyway=args.anyway)
    if args.sound_only:
        selected = _leave_out_unsound(selected)
    comparisons = []
    for first, second in sides_to_compare(selected):
        comparison = compare_sides(first, second, args.verdict, args.interval)
        _check_has_pairs(comparison)
        comparisons.append(comparison)
    runs = {run.name: run for run, _ in selected}
    _print_comparisons(comparisons, runs, args)
    sys.stdout.flush()
    dropped = _dropped(comparisons, args.max_drop)
    for comparison in dropped:
        _print_drop(comparison, args.max_drop)
    return EXIT_DROPPED if dropped else 0


def _leave_out_unsound(
    selected: Sequence[tuple[loading.Run, Setting | None]],
) -> list[tuple[loading.Run, Setting | None]]:
    sound = loading.sound_only([run for run, _ in selected])
    return [(run, setting) for run, (_, setting) in zip(sound, selected, strict=True)]


def _print_drop(comparison: Comparison, max_drop: float) -> None:
    change = (
        f"{comparison.verdict} dropped by {comparison.drop:.3f}"
        f" from {comparison.first} to {comparison.second}"
    )
    arguments.print_note(f"cooperbench: {change}, more than {max_drop:g}")


def _compare_with_recorded(
    selected: Sequence[tuple[loading.Run, Setting | None]], args: argparse.Namespace
) -> int:
    """Print where our verdicts differ from those that came with imported runs."""
    if args.max_drop is not None:
        raise UserError("--max-drop compares two runs: leave out --with-recorded")
    comparisons = list(_recorded_comparisons(selected))
    if not any(comparison.pairs for comparison in comparisons):
        names = ", ".join(run.name for run, _ in selected)
        raise UserError(
            f"{names} has no recorded verdicts: only runs of `cooperbench import-run` have them"
        )
    if args.json:
        content = [asdict(comparison) for comparison in comparisons]
        arguments.print_json({"schema": RECORDED_SCHEMA, "comparisons": content})
        return 0
    print_tables(recorded_tables(comparisons))
    mismatches = all_mismatches([run for run, _ in selected])
    print_tables(mismatch_tables(mismatches))
    return 0


def _recorded_comparisons(
    selected: Sequence[tuple[loading.Run, Setting | None]],
) -> Iterator[RecordedComparison]:
    for run, setting in selected:
        for side in loading.sides_of([run]):
            if setting in (None, side.setting):
                yield compare_with_recorded(side)


def _dropped(comparisons: Sequence[Comparison], max_drop: float | None) -> list[Comparison]:
    if max_drop is None:
        return []
    limit = max_drop + _ROUNDING_ERROR
    return [comparison for comparison in comparisons if comparison.drop > limit]


def _check_has_pairs(comparison: Comparison) -> None:
    """Raise UserError if nothing was compared: in CI that must not look like no difference."""
    if comparison.n:
        return
    sides = f"{comparison.first} and {comparison.second}"
    unpaired = plural(len(comparison.unpaired), "pair")
    verb = "is" if len(comparison.unpaired) == 1 else "are"
    raise UserError(
        f"{sides} have no pair with a verdict ({comparison.verdict}) on both sides; "
        f"{unpaired} {verb} on one side only or without a verdict"
    )


def _print_comparisons(
    comparisons: Sequence[Comparison], runs: dict[str, loading.Run], args: argparse.Namespace
) -> None:
    problems: list[str] = []
    for run in runs.values():
        problems += [f"{run.name}: {line}" for line in run.problems]
    mismatches = all_mismatches(list(runs.values()))
    if args.json:
        left_out = {name: run.unsound_left_out for name, run in runs.items()}
        arguments.print_json(
            {
                "schema": "cooperbench.compare/1",
                "comparisons": [asdict(comparison) for comparison in comparisons],
                "max_drop": args.max_drop,
                "dropped": bool(_dropped(comparisons, args.max_drop)),
                "problems": problems,
                "mismatches": [asdict(mismatch) for mismatch in mismatches],
                "unsound_left_out": left_out if args.sound_only else None,
            }
        )
        return
    for comparison in comparisons:
        print_tables(comparison_tables(comparison, problems, mismatches))
    if args.sound_only:
        notes = loading.left_out_lines(list(runs.values()))
        print_tables([Table("Only sound pairs", notes=notes)])


def _run_and_setting(text: str, logs_dir: Path) -> tuple[loading.Run, Setting | None]:
    """Parse `RUN` or `RUN:SETTING`."""
    name, colon, setting_name = text.rpartition(":")
    if not colon:
        return loading.resolve_run(text, logs_dir), None
    for setting in SETTINGS:
        if setting == setting_name:
            return loading.resolve_run(name, logs_dir), setting
    raise UserError(f"{text!r}: after the colon there must be one of {', '.join(SETTINGS)}")


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cooperbench export`."""
    run = "name of the experiment, or its folder"
    parser.add_argument("run", metavar="RUN", nargs="?", help=run)
    formats = "; ".join(f"{name}: {entry.meaning}" for name, entry in FORMATS.items())
    parser.add_argument(
        "--format", choices=tuple(FORMATS), default="atif", help=f"{formats} (default: %(default)s)"
    )
    output = "file, or folder of files (default: in export/ in the run's folder)"
    parser.add_argument("-o", "--output", type=Path, metavar="PATH", help=output)
    otlp = "with --format otlp: also send the traces to an OpenTelemetry collector"
    parser.add_argument("--otlp", metavar="URL", help=otlp)
    push = "with --format hf: also upload the dataset to the Hub; a new one is private"
    parser.add_argument("--push", metavar="OWNER/NAME", help=push)
    verify = (
        "write nothing; check that a leaderboard file is consistent,"
        " and compare it with the run's logs if they are here"
    )
    parser.add_argument("--verify", type=Path, metavar="FILE", help=verify)
    arguments.add_logs_argument(parser)


def export(args: argparse.Namespace) -> int:
    """Write the results of a run for other tools, or verify a leaderboard file."""
    logs_dir = Path(args.log_dir)
    run = loading.resolve_run(args.run, logs_dir) if args.run else None
    if args.verify:
        return _verify(args.verify, logs_dir, run)
    if run is None:
        raise _no_run_named(logs_dir)
    _check_destination(args)
    target = args.output or run.root / "export" / FORMATS[args.format].target
    exported = export_run(run, args.format, target)
    for line in exported.left_out:
        arguments.print_note(f"left out: {line}")
    _warn_about_missing_verdicts(run)
    for line in mismatch_lines(run.mismatches):
        arguments.print_note(f"mismatch: {line}")
    pairs = plural(len(run.pairs) - len(exported.left_out), "pair")
    if FORMATS[args.format].content:
        arguments.print_line(f"wrote {pairs} to {exported.files[0]}")
    else:
        files = plural(len(exported.files), "file")
        arguments.print_line(f"wrote {files} of {pairs} to {target}")
    _send(run, exported.files, target, args)
    return 0


def _check_destination(args: argparse.Namespace) -> None:
    """Raise UserError if a service is named that the format is not for."""
    if args.otlp is not None:
        if args.format != "otlp":
            raise UserError("--otlp needs --format otlp")
        endpoint_of(args.otlp)
    if args.push is not None:
        if args.format != "hf":
            raise UserError("--push needs --format hf")
        check_push(args.push)


def _send(run: loading.Run, files: Sequence[Path], target: Path, args: argparse.Namespace) -> None:
    """Send an export to the service that the user named."""
    if args.otlp is not None:
        spans = plural(send_run(run, args.otlp), "span")
        arguments.print_line(f"sent {spans} to {endpoint_of(args.otlp)}")
    if args.push is not None:
        arguments.print_line(f"pushed to {push_dataset(target, files, args.push)}")


def _warn_about_missing_verdicts(run: loading.Run) -> None:
    """Say how many pairs have no verdict, so that nobody takes a part of a run for all of it."""
    states = Counter(pair.state for pair in run.pairs if not pair.verdicts)
    if states:
        counts = ", ".join(f"{count:,} {state}" for state, count in states.items())
        total = f"{states.total():,} of {plural(len(run.pairs), 'pair')}"
        arguments.print_note(f"{total} without a verdict ({counts})")


def _verify(path: Path, logs_dir: Path, run: loading.Run | None) -> int:
    verified = verify_submission(path, logs_dir, run)
    for line in verified.mismatches:
        arguments.print_line(line)
    for line in verified.unchecked:
        arguments.print_line(f"not checked: {line}")
    if verified.mismatches:
        count = plural(len(verified.mismatches), "mismatch", "mismatches")
        arguments.print_note(f"cooperbench: {path} is not valid: {count}")
        return EXIT_MISMATCH
    if verified.run is None:
        unchecked = f"its logs are not in {logs_dir}, nothing else was checked"
        arguments.print_line(f"{path} is consistent; {unchecked}")
    else:
        pairs = plural(verified.pairs, "pair")
        arguments.print_line(f"{path} is valid: {pairs}, all as in {verified.run.root}")
    return 0


def add_view_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cooperbench view`."""
    runs = f"runs to show (default: the {_MAX_NEWEST_RUNS} newest, including new ones)"
    parser.add_argument("runs", nargs="*", metavar="RUN", help=runs)
    port = "port on 127.0.0.1 (default: any free port)"
    parser.add_argument("--port", type=_port, default=0, help=port)
    no_browser = "print the address, but do not open a browser"
    parser.add_argument("--no-browser", action="store_true", help=no_browser)
    arguments.add_logs_argument(parser)


def view(args: argparse.Namespace) -> int:
    """Serve the report of runs as a page until Ctrl-C."""
    logs_dir = Path(args.log_dir)
    folders = loading.run_folders(args.runs, logs_dir)

    def current_folders() -> list[Path]:
        if folders:
            return folders
        newest = loading.run_names(logs_dir)[:_MAX_NEWEST_RUNS]
        return [logs_dir / name for name in reversed(newest)]

    if not current_folders():
        raise UserError(
            f"there is no run in {logs_dir}; start one with `cooperbench run`, or use --log-dir"
        )
    try:
        server = LiveServer(current_folders, args.port)
    except OSError as error:
        raise UserError(
            f"cannot listen on {ADDRESS}:{args.port}: {error.strerror}; use another --port"
        ) from None
    with server, suppress(KeyboardInterrupt):
        server.snapshot()
        arguments.print_line(server.url)
        arguments.print_line("Press Ctrl-C to stop.")
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
