"""`cooperbench run`."""

from __future__ import annotations

import json
import sys
from argparse import BooleanOptionalAction
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any

from cooperbench.agents.registry import short_name, uses_model
from cooperbench.cli import EXIT_ERRORS, EXIT_OVER_BUDGET
from cooperbench.cli.arguments import (
    above_zero,
    add_eval_network_argument,
    add_logs_argument,
    add_selection_arguments,
    add_sound_only_argument,
    whole_above_zero,
)
from cooperbench.cli.attach import add_detach_argument, detach
from cooperbench.report.summary import summary_text
from cooperbench.runner.api import plan_experiment, run_experiment
from cooperbench.runner.assignment import Assignment
from cooperbench.runner.config import RunConfig, make_config
from cooperbench.runner.display import PlainDisplay, make_display
from cooperbench.runner.options import GROUPS, REPLAY_MODEL, WHAT, WHERE, options
from cooperbench.settings import default_backend, default_eval_network
from cooperbench.storage import checked_run_name

if TYPE_CHECKING:
    import argparse

    from cooperbench.runner.options import Option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n", "--name", help="the experiment's name (default: made from setting, agent, model, subset)"
    )
    add_selection_arguments(parser)
    add_sound_only_argument(parser)
    groups = {title: parser.add_argument_group(title) for title in GROUPS}
    for name, option in options().items():
        if option.flags:
            add_option(groups[option.group], name)
    add_eval_network_argument(groups[WHERE])
    groups[WHAT].add_argument(
        "--dry-run", action="store_true", help="check everything and say what would be run"
    )
    groups[WHAT].add_argument(
        "--json", action="store_true", help="for machines: the summary as JSON on stdout, the rest on stderr"
    )
    add_detach_argument(groups[WHAT])
    add_logs_argument(parser)


def add_option(group: argparse.ArgumentParser | argparse._ArgumentGroup, name: str) -> None:
    """The argument of an option of a run, as `RunConfig` declares it."""
    field = RunConfig.__dataclass_fields__[name]
    option: Option = field.metadata["option"]
    settings: dict[str, Any] = {"dest": name, "help": option.help, "metavar": option.metavar}
    default = None if field.default is MISSING else field.default
    if isinstance(default, bool):
        settings = {"dest": name, "help": option.help, "action": f"store_{str(not default).lower()}"}
    elif field.type == "bool | None":
        settings = {"dest": name, "help": option.help, "action": BooleanOptionalAction, "default": None}
    elif default == ():
        settings |= {"action": "append"}
    else:
        settings |= {
            "default": default if option.cli_default is None else option.cli_default,
            "choices": option.choices,
            "type": {int: whole_above_zero, float: above_zero, None: str}[option.above_zero],
        }
    group.add_argument(*option.flags, **settings)


def execute(args: argparse.Namespace) -> int:
    config = config_of(args)
    if args.dry_run:
        return _dry_run(config, as_json=args.json)
    if args.detach:
        plan_experiment(config)
        return detach(config.paths, args.words)
    display = PlainDisplay(sys.stderr) if args.json else make_display()
    summary = run_experiment(config, display)
    print_summary(summary, str(config.paths.root), as_json=args.json)
    if summary["settings"][config.setting]["errors"]:
        return EXIT_ERRORS
    return EXIT_OVER_BUDGET if (summary["budget"] or {}).get("pairs_not_started") else 0


def print_summary(summary: dict[str, Any], logs: str, *, as_json: bool) -> None:
    sys.stdout.write(
        (json.dumps(summary, indent=2) if as_json else "\n" + summary_text(summary, logs)) + "\n"
    )


def config_of(args: argparse.Namespace) -> RunConfig:
    values = {name: getattr(args, name) for name in options()}
    return make_config(
        values
        | {
            "run_name": args.name or automatic_name(args),
            "dataset_dir": args.dataset_dir,
            "logs_dir": args.log_dir,
            "backend": args.backend or default_backend(),
            "eval_network": args.eval_network or default_eval_network(),
        }
    )


def automatic_name(args: argparse.Namespace) -> str:
    """`solo-msa-gpt-4o-lite`: setting, agent, model (if it has one), and what was chosen of the dataset.

    Of several agents or models, all: `coop-msa-gpt-4o+claude-sonnet-4-5-lite`.
    """
    if args.agent == REPLAY_MODEL:
        return checked_run_name(f"replay-{args.replay_from}")
    assignment = Assignment.parse(args.agent, args.model, args.agent_config)
    parts = [args.setting, "+".join(short_name(name) for name in assignment.agents)]
    if any(uses_model(name) for name in assignment.agents):
        parts.append("+".join((name or "").rpartition("/")[2] for name in assignment.models))
    if args.git_enabled:
        parts.append("git")
    if not args.messaging_enabled:
        parts.append("nomsg")
    if args.git_enabled is False:
        parts.append("nogit")
    off = [name for name in options() if name.startswith("team_") and not getattr(args, name)]
    parts += [name.replace("team_", "no") for name in off]
    parts += [part for part in (args.subset, args.repo) if part]
    if args.task_id is not None:
        parts.append(f"task{args.task_id}")
    if args.features:
        parts.append("_".join(f"f{number}" for number in sorted(args.features)))
    if args.group_sizes:
        parts.append("n" + "+".join(map(str, sorted(args.group_sizes))))
    name = "-".join(parts)
    return checked_run_name(
        "".join(letter if letter.isalnum() or letter in "._+@=-" else "_" for letter in name)[:120]
    )


def _dry_run(config: RunConfig, *, as_json: bool) -> int:
    from cooperbench.eval.reference import ReferenceStore

    plan, notes = plan_experiment(config)
    to_judge = (*plan.to_run, *plan.to_evaluate) if config.auto_eval else ()
    references = ReferenceStore().unknown(to_judge)
    if as_json:
        content = {
            "run_name": config.run_name,
            "pairs": len(plan.pairs),
            "to_run": [pair.label for pair in plan.to_run],
            "to_evaluate": [pair.label for pair in plan.to_evaluate],
            "reference_runs": references,
            "notes": list(notes),
        }
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
        return 0
    for pair in plan.to_run:
        sys.stdout.write(f"would run {pair.label}\n")
    for pair in plan.to_evaluate:
        sys.stdout.write(f"would evaluate {pair.label}\n")
    for note in notes:
        sys.stdout.write(f"note: {note}\n")
    if references:
        sys.stdout.write(f"reference runs of golden patches, once on this machine: about {references}\n")
    sys.stdout.write(
        f"{config.run_name}: {len(plan.pairs)} pairs, {len(plan.to_run)} to run, {len(plan.to_evaluate)} to evaluate\n"
    )
    return 0
