"""`cooperbench run`, `eval`, `demo` and `prompts`: run or evaluate agents."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Collection, Iterable
from importlib.resources import files
from typing import Any

from cooperbench import records
from cooperbench.agents.registry import short_name, uses_model
from cooperbench.cli import EXIT_ERRORS, EXIT_OVER_BUDGET, arguments
from cooperbench.cli.background import detach
from cooperbench.dataset.assignment import EVEN
from cooperbench.dataset.discovery import demo_dir
from cooperbench.errors import UserError
from cooperbench.eval.reference_store import ReferenceStore
from cooperbench.models import Setting, agent_slots
from cooperbench.records.summary import BudgetSummary, Summary
from cooperbench.report.summary_text import deficit_text, summary_text
from cooperbench.runner.config import RunConfig, make_config, relative_to_cwd, split_values
from cooperbench.runner.display import Display, make_display
from cooperbench.runner.evaluate import EVALUATION_OPTIONS, make_evaluation_config
from cooperbench.runner.experiment import evaluate_experiment, run_experiment
from cooperbench.runner.options import (
    ARGUMENT_GROUPS,
    CHANNEL_OPTIONS,
    DEFAULTS,
    OPTIONS,
    REPLAY_MODEL,
)
from cooperbench.runner.plan import (
    check_backend,
    check_plan,
    make_evaluation_plans,
    make_plan,
    select_pairs,
)
from cooperbench.settings import default_backend, default_eval_network
from cooperbench.storage import checked_run_name
from cooperbench.team.prompts import task_prompt
from cooperbench.text import plural

_DEMO_SETTINGS: tuple[Setting, ...] = ("coop", "solo")
_MAX_NAME_CHARACTERS = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cooperbench run`."""
    group = add_run_options(parser)
    add_dry_run_argument(group)
    add_summary_argument(group)
    _add_detach_argument(group)
    arguments.add_logs_argument(parser)


def add_run_options(
    parser: argparse.ArgumentParser,
    name_help: str = "name of the experiment (default: made from setting, agent, model, subset)",
    varying: Collection[str] = (),
) -> arguments.ArgumentContainer:
    """Add the arguments that describe a run; return their last group.

    Those of the options in `varying` may be repeated; their values are lists of texts.
    """
    parser.add_argument("-n", "--name", help=name_help)
    arguments.add_selection_arguments(parser, agents=True)
    group: arguments.ArgumentContainer = parser
    for name, option in OPTIONS.items():
        if name in ARGUMENT_GROUPS:
            group = parser.add_argument_group(ARGUMENT_GROUPS[name])
        if not option.flags:
            continue
        if name in varying:
            arguments.add_varying_option(group, name)
        else:
            arguments.add_option(group, name)
    return group


def add_dry_run_argument(group: arguments.ArgumentContainer) -> None:
    """Add `--dry-run`."""
    group.add_argument(
        "--dry-run", action="store_true", help="check everything and print what would be run"
    )


def add_summary_argument(group: arguments.ArgumentContainer) -> None:
    """Add `--json` of commands that end with a summary."""
    group.add_argument(
        "--json",
        action="store_true",
        help="for machines: the summary as JSON on stdout, the rest on stderr",
    )


def _add_detach_argument(group: arguments.ArgumentContainer) -> None:
    group.add_argument(
        "--detach",
        action="store_true",
        help="run in the background; see `cooperbench status` and `cooperbench attach`",
    )


def run(args: argparse.Namespace) -> int:
    """Run `cooperbench run` and return its exit status."""
    if args.detach and args.dry_run:
        raise UserError("--dry-run prints at once; leave out --detach")
    config = config_from_arguments(args)
    if args.dry_run:
        return _dry_run(config, args)
    if args.detach:
        check_plan(make_plan(config))
        return detach(config.paths, args.argv)
    summary = run_experiment(config, display_for(args))
    print_summary(args, config, summary)
    return exit_status([summary.settings[config.setting].errors], summary.budget)


def print_summary(args: argparse.Namespace, config: RunConfig, summary: Summary) -> None:
    """Print a summary as JSON or as a table."""
    text = summary_text(summary, relative_to_cwd(config.paths.root))
    arguments.print_result(args, records.to_object(summary), ["", *text.split("\n")])


def display_for(args: argparse.Namespace) -> Display:
    """Return the display of a command; with `--json` stdout is for the summary alone."""
    return Display(sys.stderr) if args.json else make_display()


def exit_status(errors: Iterable[int], budget: BudgetSummary | None) -> int:
    """Return the exit status for the numbers of failed pairs and the state of the budget."""
    if any(errors):
        return EXIT_ERRORS
    if budget is not None and budget.pairs_not_started:
        return EXIT_OVER_BUDGET
    return 0


def options_from_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return the run options among the arguments of a command."""
    options = {name: value for name, value in vars(args).items() if name in OPTIONS}
    options["dataset_dir"] = args.dataset_dir
    options["logs_dir"] = args.log_dir
    options["backend"] = args.backend or default_backend()
    return options


def config_from_arguments(args: argparse.Namespace) -> RunConfig:
    """Return the configuration that the arguments of `run`, a study or `prompts` describe."""
    arguments.read_agent_numbers(args)
    name = automatic_name(args) if args.name is None else args.name
    options = options_from_arguments(args)
    options["run_name"] = checked_run_name(name)
    options["eval_network"] = args.eval_network or default_eval_network()
    return make_config(options)


def automatic_name(args: argparse.Namespace) -> str:
    """Return a name made from the choices: `coop-msa-gpt-4o+claude-sonnet-4-5-lite`."""
    if args.agent == REPLAY_MODEL:
        return f"replay-{args.replay_from}"
    agents = split_values(args.agent, "agents")
    parts = [args.setting, "+".join(short_name(agent) for agent in agents)]
    if any(uses_model(agent) for agent in agents):
        models = split_values(args.model, "models")
        parts.append("+".join(model.rpartition("/")[2] for model in models))
    parts += _switch_names(args)
    parts += _selection_names(args)
    characters = [
        character if character.isalnum() or character in "._+@=-" else "_"
        for character in "-".join(parts)
    ]
    return "".join(characters)[:_MAX_NAME_CHARACTERS]


def _switch_names(args: argparse.Namespace) -> list[str]:
    """Return the parts of an automatic name for what is switched on or off."""
    names = []
    if args.git_enabled is not None:
        names.append("git" if args.git_enabled else "nogit")
    if not args.messaging_enabled:
        names.append("nomsg")
    for name, value in vars(args).items():
        if name.startswith("team_") and not value:
            names.append(name.replace("team_", "no"))
    for name in CHANNEL_OPTIONS:
        value = getattr(args, name)
        if value != DEFAULTS[name]:
            names.append(f"{OPTIONS[name].flags[0].removeprefix('--')}{value}")
    return names


def _selection_names(args: argparse.Namespace) -> list[str]:
    """Return the parts of an automatic name for the selected pairs."""
    names = [name for name in (args.subset, args.repo) if name]
    if args.task_id is not None:
        names.append(f"task{args.task_id}")
    if args.features:
        names.append("_".join(f"f{feature_id}" for feature_id in sorted(args.features)))
    if args.group_sizes:
        names.append("n" + "+".join(str(size) for size in sorted(args.group_sizes)))
    if args.agent_count:
        names.append(f"agents{args.agent_count}")
    if args.split != EVEN:
        names.append(args.split)
    if args.coupling:
        names.append("+".join(args.coupling))
    return names


def _dry_run(config: RunConfig, args: argparse.Namespace) -> int:
    plan = make_plan(config)
    check_plan(plan)
    to_test = (*plan.to_run, *plan.to_evaluate) if config.auto_eval else ()
    reference_runs = ReferenceStore().unknown(to_test)
    content = {
        "run_name": config.run_name,
        "pairs": len(plan.pairs),
        "to_run": [pair.label for pair in plan.to_run],
        "to_evaluate": [pair.label for pair in plan.to_evaluate],
        "reference_runs": reference_runs,
        "notes": list(plan.notes),
    }
    lines = [f"would run {pair.label}" for pair in plan.to_run]
    lines += [f"would evaluate {pair.label}" for pair in plan.to_evaluate]
    lines += [f"note: {note}" for note in plan.notes]
    if reference_runs:
        lines.append(
            f"reference runs of golden patches, once on this machine: about {reference_runs}"
        )
    counts = counts_text(len(plan.pairs), len(plan.to_run), len(plan.to_evaluate))
    lines.append(f"{config.run_name}: {counts}")
    arguments.print_result(args, content, lines)
    return 0


def counts_text(pairs: int, to_run: int, to_evaluate: int) -> str:
    """Return how many pairs a plan has, and what is left to do."""
    return f"{plural(pairs, 'pair')}, {to_run:,} to run, {to_evaluate:,} to evaluate"


def add_eval_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cooperbench eval`."""
    parser.add_argument("-n", "--name", required=True, help="name of the experiment")
    arguments.add_selection_arguments(parser, groups=False)
    arguments.add_option(
        parser, "concurrency", default=10, help="evaluations at once (default: %(default)s)"
    )
    for name in ("backend", "eval_network", "test_timeout_seconds", *EVALUATION_OPTIONS):
        arguments.add_option(parser, name)
    arguments.add_option(parser, "force", help="evaluate again what is evaluated already")
    add_summary_argument(parser)
    _add_detach_argument(parser)
    arguments.add_logs_argument(parser)


def evaluate(args: argparse.Namespace) -> int:
    """Run `cooperbench eval` and return its exit status."""
    config = make_evaluation_config(options_from_arguments(args) | {"run_name": args.name})
    if args.detach:
        check_backend(config)
        for plan in make_evaluation_plans(config):
            check_plan(plan)
        return detach(config.paths, args.argv)
    summary = evaluate_experiment(config, display_for(args))
    print_summary(args, config, summary)
    return EXIT_ERRORS if summary.errors else 0


def add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cooperbench demo`."""
    parser.add_argument(
        "-c",
        "--concurrency",
        type=arguments.whole_above_zero,
        default=4,
        help="pairs at once (default: %(default)s)",
    )
    parser.add_argument(
        "--all", action="store_true", help="every pair of the demo dataset instead of a few"
    )
    parser.add_argument("--setting", choices=_DEMO_SETTINGS, help="only one of the two settings")
    parser.add_argument(
        "--backend", default="local", help="where sandboxes run (default: %(default)s)"
    )
    arguments.add_logs_argument(parser)


def demo(args: argparse.Namespace) -> int:
    """Run `cooperbench demo` and return its exit status."""
    write = sys.stdout.write
    write(
        "The agents of this demo follow scripts. No model is used, so nothing here says how good\n"
        "any model is. Everything else is real: sandboxes, commands, messages, git merges, tests,\n"
        "verdicts.\n\n"
    )
    subset = None if args.all else "demo"
    if shutil.which("node") is None:
        subset = "demo-python"
        write("Node.js is not installed: the JavaScript pairs are left out.\n\n")
    settings = _DEMO_SETTINGS if args.setting is None else (args.setting,)
    summaries: dict[Setting, Summary] = {}
    for setting in settings:
        config = _demo_config(args, setting, subset)
        summaries[setting] = run_experiment(config, make_display())
        text = summary_text(summaries[setting], relative_to_cwd(config.paths.root))
        write(f"\n{text}\n\n")
    if "solo" in summaries and "coop" in summaries:
        solo = summaries["solo"].settings["solo"]
        coop = summaries["coop"].settings["coop"]
        write(f"{deficit_text(solo, coop)}\n")
    runs = " ".join(summary.run_name for summary in summaries.values())
    logs = "" if args.log_dir == "logs" else f" --log-dir {args.log_dir}"
    write(
        f"\nNext: see what the agents did with `cooperbench view {runs}{logs}`,\n"
        "or let a model work: `cooperbench run --dataset-dir demo --backend local -m MODEL`.\n"
    )
    return EXIT_ERRORS if any(summary.errors for summary in summaries.values()) else 0


def _demo_config(args: argparse.Namespace, setting: Setting, subset: str | None) -> RunConfig:
    return make_config(
        {
            "run_name": f"demo-{setting}",
            "dataset_dir": demo_dir(),
            "logs_dir": args.log_dir,
            "setting": setting,
            "agent": "scripted",
            "backend": args.backend,
            "agent_config": demo_dir() / "agents.yaml",
            "subset": subset,
            "concurrency": args.concurrency,
            "eval_concurrency": args.concurrency,
            "force": True,
        }
    )


def add_prompts_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cooperbench prompts`."""
    add_run_options(parser)
    arguments.add_logs_argument(parser)


def prompts(args: argparse.Namespace) -> int:
    """Run `cooperbench prompts`: print the prompts of the first selected pair."""
    config = config_from_arguments(args)
    pairs, _ = select_pairs(config)
    pair = pairs[0]
    for slot in agent_slots(pair, config.setting):
        text = task_prompt(
            pair,
            slot,
            config.setting,
            messaging=config.messaging_enabled,
            git=config.shares_git,
            limits=config.limits,
            features=config.team_features,
            prompts_dir=config.prompts_dir,
            channel=config.channel_rules,
        )
        sys.stdout.write(f"===== {slot.agent_id} ({pair.label}) =====\n{text}\n")
    templates = files("cooperbench.team") / "templates"
    sys.stderr.write(
        f"templates: {templates}; copy those that you change to a folder for --prompts\n"
    )
    return 0


COMMANDS = {
    "run": (add_arguments, run),
    "eval": (add_eval_arguments, evaluate),
    "demo": (add_demo_arguments, demo),
    "prompts": (add_prompts_arguments, prompts),
}
