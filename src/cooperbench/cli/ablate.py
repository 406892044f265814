"""`cooperbench ablate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cooperbench.cli import run
from cooperbench.cli.arguments import print_json, print_line, whole_above_zero
from cooperbench.errors import UserError
from cooperbench.report.formatting import Table, print_tables
from cooperbench.report.summary import budget_text, rate_cells
from cooperbench.runner.ablation import make_study
from cooperbench.runner.options import TEAM_PARTS
from cooperbench.text import dollars_text

if TYPE_CHECKING:
    import argparse

    from cooperbench.runner.ablation import Study


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which arms")
    off = f"parts to switch off, one at a time: {', '.join(TEAM_PARTS)}"
    group.add_argument("--off", required=True, metavar="PART,PART", help=off)
    every = "every combination of them instead"
    group.add_argument("--full-factorial", action="store_true", help=every)
    repeat = "run each arm K times (default: %(default)s)"
    group.add_argument("--repeat", type=whole_above_zero, default=1, metavar="K", help=repeat)
    run.add_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    if args.detach:
        raise UserError("ablate has no --detach; nohup lets it go on in the background")
    if not args.name:
        raise UserError("a study needs a name: -n NAME")
    off = [part.strip().replace("-", "_") for part in args.off.split(",") if part.strip()]
    if not off:
        raise UserError("--off names no part")
    study = make_study(run.config_of(args), off, full_factorial=args.full_factorial, repeat=args.repeat)
    if args.dry_run:
        return _dry_run(study, as_json=args.json)
    summaries = study.run(run.display_for(args))
    if args.json:
        print_json({"study": args.name, "arms": summaries})
    else:
        rows = [
            _row(name, summary["settings"][args.setting], summary["cost"])
            for name, summary in summaries.items()
        ]
        headings = ("arm", "pairs", "evaluated", "overall", "errors", "cost")
        budget = next(iter(summaries.values()))["budget"]
        print_line("")
        print_tables([Table(args.name, headings, rows, [budget_text(budget)] if budget else [])])
        print_line(f"What each part is worth: cooperbench report {args.name}")
    return run.exit_code(summaries.values())


def _row(name: str, part: dict[str, Any], cost: float) -> list[str]:
    overall = "{} ({})".format(*rate_cells(part["rates"]["overall_success"]))
    counts = [str(part[key]) for key in ("pairs", "evaluated")]
    return [name, *counts, overall, str(part["errors"]), dollars_text(cost)]


def _dry_run(study: Study, *, as_json: bool) -> int:
    arms = {
        name: {"pairs": len(arm.pairs), "to_run": len(arm.to_run), "to_evaluate": len(arm.to_evaluate)}
        for name, arm in study.checked().items()
    }
    if as_json:
        print_json({"study": study.paths.run_name, "arms": arms, "notes": list(study.notes)})
        return 0
    for name, left in arms.items():
        counts = f"{left['pairs']} pairs, {left['to_run']} to run, {left['to_evaluate']} to evaluate"
        print_line(f"{study.paths.run_name}/{name}: {counts}")
    for note in study.notes:
        print_line(f"note: {note}")
    return 0
