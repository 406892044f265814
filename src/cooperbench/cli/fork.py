"""Forks of recorded pairs: `cooperbench fork`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from cooperbench import records
from cooperbench.cli import arguments
from cooperbench.cli.run import add_dry_run_argument, display_for, exit_status
from cooperbench.cli.study import add_plan_arguments
from cooperbench.errors import UserError
from cooperbench.lab.forks.intervention import (
    DropMessage,
    Intervention,
    Oracle,
    SwapAgent,
    SwapModel,
    parse_delay,
    parse_edit,
    parse_insert,
    parse_slot,
    read_description,
)
from cooperbench.lab.forks.point import parse_point
from cooperbench.lab.forks.study import ForkCall, ForkStudy, make_study
from cooperbench.lab.registration import Hypothesis
from cooperbench.records.plan import PlanRecord
from cooperbench.records.summary import Summary
from cooperbench.report.formatting import Table, print_tables
from cooperbench.report.registration import power_line
from cooperbench.report.summary_text import budget_text, rate_cells
from cooperbench.settings import default_backend, default_eval_network
from cooperbench.storage import checked_run_name
from cooperbench.text import dollars_text, plural

_RUN_OPTIONS = (
    "base_url",
    "agent_config",
    "replay_agent",
    "prompts_dir",
    "concurrency",
    "eval_concurrency",
    "backend",
    "image_template",
    "pull",
    "mount",
    "gpu",
    "redis_url",
    "max_cost",
    "eval_network",
    "test_timeout_seconds",
    "canary",
    "auto_eval",
)
"""Options of `cooperbench run` that the recorded run does not decide."""
_INTERVENTIONS = {
    "drop_message": ("N", "message N never arrives"),
    "edit_message": ("N=TEXT", "message N has another text"),
    "delay_message": ("N=STEPS", "message N arrives this many steps of its recipient later"),
    "insert_message": ("AGENT>AGENT=TEXT", "the second agent gets a message from the first"),
    "swap_model": ("AGENT=MODEL", "an agent goes on with another model"),
    "swap_agent": ("AGENT=NAME", "another agent takes over, with the files as they are then"),
    "oracle": ("AGENT", "an agent has the golden patch of its features, and nothing else"),
    "describe": ("AGENT=FILE", "the feature of an agent has another description from then on"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cooperbench fork`."""
    parser.add_argument("run", metavar="RUN", help="a run that was made with --record")
    parser.add_argument(
        "-n", "--name", help="name of the forks (default: made from the run and the fork point)"
    )
    parser.add_argument(
        "--pair",
        action="append",
        default=[],
        metavar="PAIR",
        help="REPO/TASK/f1_f2, may be repeated (default: the only pair of the run)",
    )
    parser.add_argument(
        "--at",
        metavar="POINT",
        help="fork point: agent1:12 (after step 12 of agent1) or message:3 (before message 3 is "
        "shown; the default for interventions on message 3)",
    )
    parser.add_argument(
        "--repeat",
        type=arguments.whole_above_zero,
        default=1,
        metavar="K",
        help="forks with the intervention, and as many control forks (default: %(default)s)",
    )
    group = parser.add_argument_group("intervention (at most one; none: control forks only)")
    for name, (metavar, text) in _INTERVENTIONS.items():
        group.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=text)
    add_plan_arguments(parser)
    options = parser.add_argument_group("how forks run")
    arguments.add_dataset_argument(parser)
    for name in _RUN_OPTIONS:
        arguments.add_option(options, name)
    add_dry_run_argument(options)
    options.add_argument(
        "--json",
        action="store_true",
        help="for machines: the summaries as JSON on stdout, the rest on stderr",
    )
    arguments.add_logs_argument(parser)


def fork(args: argparse.Namespace) -> int:
    """Run `cooperbench fork` and return its exit status."""
    study = make_study(_call_from_arguments(args))
    if args.dry_run:
        return _dry_run(study, args)
    summaries = study.run_forks(display_for(args))
    if args.json:
        arms = {name: records.to_object(summary) for name, summary in summaries.items()}
        arguments.print_json({"forks": study.paths.run_name, "arms": arms})
    else:
        arguments.print_line("")
        _print_summaries(study, summaries)
    budget = next(iter(summaries.values())).budget
    return exit_status([summary.errors for summary in summaries.values()], budget)


def _call_from_arguments(args: argparse.Namespace) -> ForkCall:
    options = {name: getattr(args, name) for name in _RUN_OPTIONS}
    options["dataset_dir"] = args.dataset_dir
    options["logs_dir"] = args.log_dir
    options["backend"] = args.backend or default_backend()
    options["eval_network"] = args.eval_network or default_eval_network()
    return ForkCall(
        run=args.run,
        pairs=args.pair,
        fork_point=parse_point(args.at) if args.at is not None else None,
        intervention=_intervention_from_arguments(args),
        repeat=args.repeat,
        name=checked_run_name(args.name) if args.name is not None else None,
        hypothesis=Hypothesis(args.primary, args.effect, args.discordant),
        options=options,
    )


def _intervention_from_arguments(args: argparse.Namespace) -> Intervention:
    chosen = [name for name in _INTERVENTIONS if getattr(args, name) is not None]
    if not chosen:
        return Intervention()
    if len(chosen) > 1:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in chosen)
        raise UserError(f"{flags} are two interventions: a fork has at most one")
    return _PARSERS[chosen[0]](getattr(args, chosen[0]))


def _parse_drop(value: str) -> Intervention:
    if not value.isascii() or not value.isdigit() or int(value) == 0:
        raise UserError(f"--drop-message {value!r}: write the number of a message, e.g. 3")
    return DropMessage(int(value))


def _parse_model(value: str) -> Intervention:
    return SwapModel(*parse_slot("--swap-model", value, "agent2=MODEL"))


def _parse_agent(value: str) -> Intervention:
    return SwapAgent(*parse_slot("--swap-agent", value, "agent2=NAME"))


def _parse_oracle(value: str) -> Intervention:
    return Oracle(value)


_PARSERS: Mapping[str, Callable[[str], Intervention]] = {
    "drop_message": _parse_drop,
    "edit_message": parse_edit,
    "delay_message": parse_delay,
    "insert_message": parse_insert,
    "swap_model": _parse_model,
    "swap_agent": _parse_agent,
    "oracle": _parse_oracle,
    "describe": read_description,
}


def _dry_run(study: ForkStudy, args: argparse.Namespace) -> int:
    plans = study.check()
    points = {}
    lines = []
    for label, point in study.points.items():
        points[label] = point.exchange_counts
        counts = [
            f"{agent_id} replays {plural(prefix.count, 'model call')} "
            f"and {plural(prefix.steps, 'step')}"
            for agent_id, prefix in point.prefixes.items()
        ]
        lines.append(f"{label} at {point.name}: {', '.join(counts)}")
    arms = {}
    for name, plan in plans.items():
        arms[name] = {"pairs": len(plan.pairs), "to_run": len(plan.to_run)}
        pairs = plural(len(plan.pairs), "pair")
        lines.append(f"{study.paths.run_name}/{name}: {pairs}, {len(plan.to_run):,} to run")
    registered = study.register(list(plans.values()))
    lines += _power_lines(registered)
    content = {
        "forks": study.paths.run_name,
        "points": points,
        "arms": arms,
        "plan": records.to_object(registered),
    }
    arguments.print_result(args, content, lines)
    return 0


def _power_lines(plan: PlanRecord) -> list[str]:
    """Return what the forks can show; nothing if there are only control forks."""
    return [power_line(plan)] if plan.tests else []


def _print_summaries(study: ForkStudy, summaries: Mapping[str, Summary]) -> None:
    """Print a table with a row per arm."""
    rows = []
    for arm in study.arms:
        summary = summaries[arm.record.name]
        results = summary.settings[arm.config.setting]
        rate, interval = rate_cells(results.rates.overall_success)
        cells = [arm.record.name, str(results.pairs), str(results.evaluated)]
        cells += [f"{rate} ({interval})", str(results.errors), dollars_text(summary.cost)]
        rows.append(cells)
    headings = ("arm", "pairs", "evaluated", "overall", "errors", "cost")
    budget = next(iter(summaries.values())).budget
    notes = [budget_text(budget)] if budget else []
    plan = records.read(study.paths.plan, PlanRecord)
    if plan is not None:
        notes += _power_lines(plan)
    name = study.paths.run_name
    notes.append(f"To see the effect of the intervention: cooperbench report {name}")
    print_tables([Table(name, headings, rows, notes)])


COMMANDS = {"fork": (add_arguments, fork)}
