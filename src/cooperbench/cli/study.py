"""`cooperbench sweep` and `ablate`: run the same pairs at several levels of factors."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from cooperbench import records
from cooperbench.cli import arguments
from cooperbench.cli.run import (
    add_dry_run_argument,
    add_run_options,
    add_summary_argument,
    config_from_arguments,
    counts_text,
    display_for,
    exit_status,
)
from cooperbench.errors import UserError
from cooperbench.lab.factors import FACTOR_KINDS, make_factors
from cooperbench.lab.registration import DEFAULT_PRIMARY, Hypothesis
from cooperbench.lab.study import Study, StudyOptions, make_study
from cooperbench.report.pairs import VERDICTS
from cooperbench.report.power import DEFAULT_DISCORDANT, DEFAULT_EFFECT
from cooperbench.report.registration import power_line
from cooperbench.runner.options import DEFAULTS, TEAM_PARTS
from cooperbench.runner.plan import check_plan
from cooperbench.text import printable

_PER_SLOT = ("model", "agent")
"""Factors whose values have commas between the agents of a pair."""
_FIELDS = {name: kind.field for name, kind in FACTOR_KINDS.items() if name != "agents"}


def add_sweep_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cooperbench sweep`."""
    group = parser.add_argument_group("which arms")
    flags = ", ".join(f"--{name}" for name in FACTOR_KINDS)
    group.description = (
        f"Give several values of {flags} (below): these are factors, and their values levels. "
        "Separate them by commas (--messages 0,3,unlimited); repeat -m and -a instead."
    )
    group.add_argument(
        "--off",
        default="",
        metavar="PART,PART",
        help=f"parts that are on in some arms and off in others: {', '.join(TEAM_PARTS)}",
    )
    group.add_argument(
        "--one-at-a-time",
        action="store_true",
        help="vary one factor at a time, with the first levels of all others, "
        "instead of running all combinations",
    )
    _add_common_arguments(group, parser, varying=tuple(_FIELDS.values()))


def add_ablate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cooperbench ablate`."""
    group = parser.add_argument_group("which arms")
    group.add_argument(
        "--off",
        required=True,
        metavar="PART,PART",
        help=f"parts to switch off, one at a time: {', '.join(TEAM_PARTS)}",
    )
    group.add_argument(
        "--full-factorial", action="store_true", help="run every combination of these parts instead"
    )
    _add_common_arguments(group, parser)


def _add_common_arguments(
    group: arguments.ArgumentContainer,
    parser: argparse.ArgumentParser,
    varying: Sequence[str] = (),
) -> None:
    group.add_argument(
        "--repeat",
        type=arguments.whole_above_zero,
        default=1,
        metavar="K",
        help="run each arm K times (default: %(default)s)",
    )
    plan = add_plan_arguments(parser)
    plan.add_argument(
        "--design-effect",
        type=float,
        metavar="X",
        help="assumed variance over tasks, divided by that of independent pairs (default: 1)",
    )
    options = add_run_options(parser, name_help="name of the study; required", varying=varying)
    add_dry_run_argument(options)
    add_summary_argument(options)
    arguments.add_logs_argument(parser)


def add_plan_arguments(parser: argparse.ArgumentParser) -> arguments.ArgumentContainer:
    """Add the options about plan.json that sweeps and forks share; return their group."""
    group = parser.add_argument_group("what is planned (plan.json)")
    group.add_argument(
        "--primary",
        choices=tuple(VERDICTS),
        help=f"the verdict that decides (default: {DEFAULT_PRIMARY})",
    )
    group.add_argument(
        "--effect",
        type=float,
        metavar="X",
        help="difference between two rates that the study should be able to show "
        f"(default: {DEFAULT_EFFECT})",
    )
    group.add_argument(
        "--discordant",
        type=float,
        metavar="X",
        help="assumed share of pairs that succeed at only one of two levels "
        f"(default: {DEFAULT_DISCORDANT})",
    )
    return group


def sweep(args: argparse.Namespace) -> int:
    """Run `cooperbench sweep` and return its exit status."""
    levels = _take_levels(args)
    off = _read_parts(args.off)
    return _run(args, levels, off, is_crossed=not args.one_at_a_time)


def ablate(args: argparse.Namespace) -> int:
    """Run `cooperbench ablate` and return its exit status."""
    off = _read_parts(args.off)
    if not off:
        raise UserError("--off names no part")
    return _run(args, {}, off, is_crossed=args.full_factorial)


def _read_parts(text: str) -> list[str]:
    return [part.strip().replace("-", "_") for part in text.split(",") if part.strip()]


def _take_levels(args: argparse.Namespace) -> dict[str, list[str]]:
    """Return the levels of each factor, and set the options that have one value or none."""
    levels = {}
    numbers = args.agent_numbers or []
    if len(numbers) > 1:
        levels["agents"] = [str(number) for number in numbers]
        args.agent_numbers = None
    for name, field in _FIELDS.items():
        texts = _split_levels(name, getattr(args, field) or [])
        setattr(args, field, DEFAULTS[field])
        if len(texts) > 1:
            levels[name] = texts
        elif texts:
            setattr(args, field, arguments.parse_option(field, texts[0]))
    return levels


def _split_levels(name: str, values: Sequence[str]) -> list[str]:
    """Return the levels in the values of a repeated option."""
    texts: list[str] = []
    for value in values:
        texts += [value] if _is_one_level(name, value) else value.split(",")
    texts = [text.strip() for text in texts]
    if not all(texts):
        raise UserError(f"--{name} has an empty level")
    return texts


def _is_one_level(name: str, value: str) -> bool:
    """Return whether commas are part of a level."""
    return name in _PER_SLOT or (name == "topology" and ">" in value)


def _run(
    args: argparse.Namespace, levels: dict[str, list[str]], off: Sequence[str], *, is_crossed: bool
) -> int:
    if not args.name:
        raise UserError("a study needs a name: -n NAME")
    hypothesis = Hypothesis(args.primary, args.effect, args.discordant, args.design_effect)
    config = config_from_arguments(args)
    factors = make_factors(config, levels, off)
    options = StudyOptions(hypothesis, is_crossed, args.repeat)
    study = make_study(config, factors, options)
    if args.dry_run:
        return _dry_run(study, args)
    summaries = study.run(display_for(args))
    if args.json:
        arms = {name: records.to_object(summary) for name, summary in summaries.items()}
        arguments.print_json({"study": args.name, "arms": arms})
    else:
        arguments.print_line("")
        study.print_summaries(summaries)
    budget = next(iter(summaries.values())).budget
    return exit_status([summary.errors for summary in summaries.values()], budget)


def _dry_run(study: Study, args: argparse.Namespace) -> int:
    counts = {}
    lines = []
    notes: dict[str, None] = {}
    plans = study.make_plans()
    for name, plan in plans.items():
        check_plan(plan)
        to_run, to_evaluate = len(plan.to_run), len(plan.to_evaluate)
        counts[name] = {"pairs": len(plan.pairs), "to_run": to_run, "to_evaluate": to_evaluate}
        text = counts_text(len(plan.pairs), to_run, to_evaluate)
        lines.append(f"{args.name}/{name}: {text}")
        notes.update(dict.fromkeys(plan.notes))
    registered = study.register(list(plans.values()))
    lines.append(power_line(registered))
    content = {
        "study": args.name,
        "arms": counts,
        "plan": records.to_object(registered),
        "notes": list(notes),
    }
    lines += [f"note: {printable(note)}" for note in notes]
    arguments.print_result(args, content, lines)
    return 0


COMMANDS = {
    "sweep": (add_sweep_arguments, sweep),
    "ablate": (add_ablate_arguments, ablate),
}
