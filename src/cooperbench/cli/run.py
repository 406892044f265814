"""`cooperbench run`."""

from __future__ import annotations

import sys
from argparse import BooleanOptionalAction
from typing import TYPE_CHECKING, Any

from cooperbench.agents.registry import short_name, uses_model
from cooperbench.cli import EXIT_ERRORS, EXIT_OVER_BUDGET
from cooperbench.cli.arguments import (
    above_zero,
    add_eval_network_argument,
    add_logs_argument,
    add_selection_arguments,
    add_sound_only_argument,
    print_json,
    print_line,
    whole_above_zero,
)
from cooperbench.cli.attach import detach
from cooperbench.report.summary import summary_text
from cooperbench.runner.api import check, run_experiment, select
from cooperbench.runner.config import make_config, split_values
from cooperbench.runner.display import Display, make_display
from cooperbench.runner.options import GROUPS, REPLAY_MODEL, RunOptions, options
from cooperbench.settings import default_backend, default_eval_network
from cooperbench.storage import checked_run_name

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from cooperbench.runner.config import RunConfig
    from cooperbench.runner.options import Option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    named = "the experiment's name (default: made from setting, agent, model, subset)"
    parser.add_argument("-n", "--name", help=named)
    add_selection_arguments(parser)
    for name, option in options().items():
        if name in GROUPS:
            group = parser.add_argument_group(GROUPS[name])
        if option.flags:
            add_option(group, name)
        elif name == "eval_network":
            add_eval_network_argument(group)
    dry = "check everything and say what would be run"
    group.add_argument("--dry-run", action="store_true", help=dry)
    add_output_arguments(parser, group)


def add_output_arguments(
    parser: argparse.ArgumentParser, group: argparse.ArgumentParser | argparse._ArgumentGroup
) -> None:
    """Of `run` and `eval`."""
    machines = "for machines: the summary as JSON on stdout, the rest on stderr"
    group.add_argument("--json", action="store_true", help=machines)
    background = "go on in the background; see `cooperbench status` and `cooperbench attach`"
    group.add_argument("--detach", action="store_true", help=background)
    add_sound_only_argument(parser)
    add_logs_argument(parser)


def add_option(group: argparse.ArgumentParser | argparse._ArgumentGroup, name: str, **other: Any) -> None:
    """The argument of an option of a run, as `RunOptions` declares it; `other`: what is different about it here."""
    field = RunOptions.__dataclass_fields__[name]
    option: Option = field.metadata["option"]
    default = field.default if option.cli_default is None else option.cli_default
    settings: dict[str, Any] = {"dest": name, "help": option.help}
    if isinstance(default, bool):
        settings["action"] = f"store_{str(not default).lower()}"
    elif field.type == "bool | None":
        settings |= {"action": BooleanOptionalAction, "default": None}
    elif default == ():
        settings |= {"action": "append", "metavar": option.metavar}
    else:
        if default is not None and "default:" not in option.help:
            settings["help"] += " (default: %(default)s)"
        numbers = {"int": whole_above_zero, "float": above_zero}
        kind = numbers.get(str(field.type).partition(" ")[0], str)
        # Which backend is the default depends on the user's settings.
        settings |= {"default": None if name == "backend" else default, "type": kind}
        settings |= {"choices": option.choices, "metavar": option.metavar}
    group.add_argument(*option.flags, **settings | other)


def execute(args: argparse.Namespace) -> int:
    config = config_of(args)
    if args.dry_run:
        return _dry_run(config, as_json=args.json)
    if args.detach:
        check(select(config)[0])
        return detach(config.paths, args.words)
    summary = run_experiment(config, display_for(args))
    print_summary(summary, config, as_json=args.json)
    return exit_code([summary["settings"][config.setting] | {"budget": summary["budget"]}])


def display_for(args: argparse.Namespace) -> Display:
    return Display(sys.stderr) if args.json else make_display()


def exit_code(summaries: Iterable[dict[str, Any]]) -> int:
    if any(summary["errors"] for summary in summaries):
        return EXIT_ERRORS
    over = any((summary["budget"] or {}).get("pairs_not_started") for summary in summaries)
    return EXIT_OVER_BUDGET if over else 0


def print_summary(summary: dict[str, Any], config: RunConfig, *, as_json: bool) -> None:
    if as_json:
        print_json(summary)
    else:
        sys.stdout.write(f"\n{summary_text(summary, str(config.paths.root))}\n")


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """Those of a run that the command has."""
    given = {name: getattr(args, name) for name in options() if hasattr(args, name)}
    backend = args.backend or default_backend()
    return given | {"dataset_dir": args.dataset_dir, "logs_dir": args.log_dir, "backend": backend}


def config_of(args: argparse.Namespace) -> RunConfig:
    network = args.eval_network or default_eval_network()
    name = args.name or automatic_name(args)
    return make_config(given_options(args) | {"run_name": name, "eval_network": network})


def automatic_name(args: argparse.Namespace) -> str:
    """`solo-msa-gpt-4o-lite`: setting, agent, model (if it has one), and what was chosen of the dataset.

    Of several agents or models, all: `coop-msa-gpt-4o+claude-sonnet-4-5-lite`.
    """
    if args.agent == REPLAY_MODEL:
        return checked_run_name(f"replay-{args.replay_from}")
    agents = split_values(args.agent, "agents")
    parts = [args.setting, "+".join(map(short_name, agents))]
    if any(map(uses_model, agents)):
        models = split_values(args.model, "models")
        parts.append("+".join(name.rpartition("/")[2] for name in models))
    if args.git_enabled is not None:
        parts.append("git" if args.git_enabled else "nogit")
    if not args.messaging_enabled:
        parts.append("nomsg")
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

    arm, notes = select(config)
    arm = check(arm)
    references = ReferenceStore().unknown((*arm.to_run, *arm.to_evaluate) if config.auto_eval else ())
    if as_json:
        content = {
            "run_name": config.run_name,
            "pairs": len(arm.pairs),
            "to_run": [pair.label for pair in arm.to_run],
            "to_evaluate": [pair.label for pair in arm.to_evaluate],
            "reference_runs": references,
            "notes": list(notes),
        }
        print_json(content)
        return 0
    lines = [f"would run {pair.label}" for pair in arm.to_run]
    lines += [f"would evaluate {pair.label}" for pair in arm.to_evaluate]
    lines += [f"note: {note}" for note in notes]
    if references:
        lines.append(f"reference runs of golden patches, once on this machine: about {references}")
    counts = f"{len(arm.pairs)} pairs, {len(arm.to_run)} to run, {len(arm.to_evaluate)} to evaluate"
    for line in (*lines, f"{config.run_name}: {counts}"):
        print_line(line)
    return 0
