"""What runs agents, judges them, or shows their prompts: `cooperbench run`, `ablate`, `eval`, `demo` and `prompts`."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Collection
from importlib.resources import files
from pathlib import Path
from typing import Any

from cooperbench.agents.registry import short_name, uses_model
from cooperbench.cli import EXIT_ERRORS, EXIT_OVER_BUDGET, arguments
from cooperbench.cli.background import detach
from cooperbench.dataset.discovery import demo_dir
from cooperbench.errors import UserError
from cooperbench.eval.reference_store import ReferenceStore
from cooperbench.models import Setting, agent_slots
from cooperbench.report.summary_text import deficit_text, summary_text
from cooperbench.runner.ablation import Study, make_study
from cooperbench.runner.api import check, run_experiment, select
from cooperbench.runner.config import RunConfig, make_config, split_values
from cooperbench.runner.display import Display, make_display
from cooperbench.runner.evaluate import EVALUATION_OPTIONS, evaluation_arms
from cooperbench.runner.experiment import carry_out
from cooperbench.runner.options import ARGUMENT_GROUPS, OPTIONS, REPLAY_MODEL, TEAM_PARTS
from cooperbench.settings import default_backend, default_eval_network
from cooperbench.storage import checked_run_name
from cooperbench.team.prompts import task_prompt

_DEMO_SETTINGS: tuple[Setting, ...] = ("coop", "solo")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    named = "the experiment's name (default: made from setting, agent, model, subset)"
    parser.add_argument("-n", "--name", help=named)
    arguments.add_selection_arguments(parser)
    group: argparse._ActionsContainer = parser
    for name, option in OPTIONS.items():
        if name in ARGUMENT_GROUPS:
            group = parser.add_argument_group(ARGUMENT_GROUPS[name])
        if option.flags:
            arguments.add_option(group, name)
    group.add_argument(
        "--dry-run", action="store_true", help="check everything and say what would be run"
    )
    add_output_arguments(parser, group)


def add_output_arguments(
    parser: argparse.ArgumentParser, group: argparse._ActionsContainer
) -> None:
    """Of `run` and `eval`."""
    machines = "for machines: the summary as JSON on stdout, the rest on stderr"
    group.add_argument("--json", action="store_true", help=machines)
    background = "go on in the background; see `cooperbench status` and `cooperbench attach`"
    group.add_argument("--detach", action="store_true", help=background)
    arguments.add_logs_argument(parser)


def run(args: argparse.Namespace) -> int:
    config = config_of(args)
    if args.dry_run:
        return _dry_run(config, args)
    if args.detach:
        check(select(config)[0])
        return detach(config.paths, args.argv)
    summary = run_experiment(config, display_for(args))
    arguments.print_result(
        args, summary, ["", *summary_text(summary, str(config.paths.root)).split("\n")]
    )
    return exit_code([summary["settings"][config.setting] | {"budget": summary["budget"]}])


def display_for(args: argparse.Namespace) -> Display:
    return Display(sys.stderr) if args.json else make_display()


def exit_code(summaries: Collection[dict[str, Any]]) -> int:
    if any(summary["errors"] for summary in summaries):
        return EXIT_ERRORS
    over = any((summary["budget"] or {}).get("pairs_not_started") for summary in summaries)
    return EXIT_OVER_BUDGET if over else 0


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """Those of a run that the command has."""
    given = {name: getattr(args, name) for name in OPTIONS if hasattr(args, name)}
    backend = args.backend or default_backend()
    return given | {"dataset_dir": args.dataset_dir, "logs_dir": args.log_dir, "backend": backend}


def config_of(args: argparse.Namespace) -> RunConfig:
    network = args.eval_network or default_eval_network()
    name = automatic_name(args) if args.name is None else args.name
    return make_config(
        given_options(args) | {"run_name": checked_run_name(name), "eval_network": network}
    )


def automatic_name(args: argparse.Namespace) -> str:
    """`solo-msa-gpt-4o-lite`, or `coop-msa-gpt-4o+claude-sonnet-4-5-lite`: what was chosen."""
    if args.agent == REPLAY_MODEL:
        return f"replay-{args.replay_from}"
    agents = split_values(args.agent, "agents")
    parts = [args.setting, "+".join(map(short_name, agents))]
    if any(map(uses_model, agents)):
        parts.append(
            "+".join(name.rpartition("/")[2] for name in split_values(args.model, "models"))
        )
    if args.git_enabled is not None:
        parts.append("git" if args.git_enabled else "nogit")
    if not args.messaging_enabled:
        parts.append("nomsg")
    off = [name for name in OPTIONS if name.startswith("team_") and not getattr(args, name)]
    parts += [name.replace("team_", "no") for name in off]
    parts += [part for part in (args.subset, args.repo) if part]
    if args.task_id is not None:
        parts.append(f"task{args.task_id}")
    if args.features:
        parts.append("_".join(f"f{number}" for number in sorted(args.features)))
    if args.group_sizes:
        parts.append("n" + "+".join(map(str, sorted(args.group_sizes))))
    name = "-".join(parts)
    return "".join(letter if letter.isalnum() or letter in "._+@=-" else "_" for letter in name)[
        :120
    ]


def _dry_run(config: RunConfig, args: argparse.Namespace) -> int:
    arm, notes = select(config)
    arm = check(arm)
    references = ReferenceStore().unknown(
        (*arm.to_run, *arm.to_evaluate) if config.auto_eval else ()
    )
    content = {
        "run_name": config.run_name,
        "pairs": len(arm.pairs),
        "to_run": [pair.label for pair in arm.to_run],
        "to_evaluate": [pair.label for pair in arm.to_evaluate],
        "reference_runs": references,
        "notes": list(notes),
    }
    lines = [f"would run {pair.label}" for pair in arm.to_run]
    lines += [f"would evaluate {pair.label}" for pair in arm.to_evaluate]
    lines += [f"note: {note}" for note in notes]
    if references:
        lines.append(f"reference runs of golden patches, once on this machine: about {references}")
    counts = f"{len(arm.pairs)} pairs, {len(arm.to_run)} to run, {len(arm.to_evaluate)} to evaluate"
    arguments.print_result(args, content, [*lines, f"{config.run_name}: {counts}"])
    return 0


def add_ablate_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which arms")
    off = f"parts to switch off, one at a time: {', '.join(TEAM_PARTS)}"
    group.add_argument("--off", required=True, metavar="PART,PART", help=off)
    group.add_argument(
        "--full-factorial", action="store_true", help="every combination of them instead"
    )
    repeat = "run each arm K times (default: %(default)s)"
    group.add_argument(
        "--repeat", type=arguments.whole_above_zero, default=1, metavar="K", help=repeat
    )
    add_arguments(parser)


def ablate(args: argparse.Namespace) -> int:
    if args.detach:
        raise UserError("ablate has no --detach; nohup lets it go on in the background")
    if not args.name:
        raise UserError("a study needs a name: -n NAME")
    off = [part.strip().replace("-", "_") for part in args.off.split(",") if part.strip()]
    if not off:
        raise UserError("--off names no part")
    study = make_study(config_of(args), off, full_factorial=args.full_factorial, repeat=args.repeat)
    if args.dry_run:
        return _dry_ablate(study, args)
    summaries = study.run(display_for(args))
    if args.json:
        arguments.print_json({"study": args.name, "arms": summaries})
    else:
        arguments.print_line("")
        study.print_summaries(summaries)
    return exit_code(summaries.values())


def _dry_ablate(study: Study, args: argparse.Namespace) -> int:
    arms = {
        name: {
            "pairs": len(arm.pairs),
            "to_run": len(arm.to_run),
            "to_evaluate": len(arm.to_evaluate),
        }
        for name, arm in study.checked().items()
    }
    lines = [
        f"{args.name}/{name}: {left['pairs']} pairs, {left['to_run']} to run, {left['to_evaluate']} to evaluate"
        for name, left in arms.items()
    ]
    content = {"study": args.name, "arms": arms, "notes": list(study.notes)}
    arguments.print_result(args, content, [*lines, *(f"note: {note}" for note in study.notes)])
    return 0


def add_eval_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--name", required=True, help="the experiment's name")
    arguments.add_selection_arguments(parser, groups=False)
    arguments.add_option(
        parser, "concurrency", default=10, help="evaluations at once (default: %(default)s)"
    )
    for name in ("backend", "eval_network", "test_timeout_seconds", *EVALUATION_OPTIONS):
        arguments.add_option(parser, name)
    arguments.add_option(parser, "force", help="judge again what is judged already")
    add_output_arguments(parser, parser)


def evaluate(args: argparse.Namespace) -> int:
    arms = evaluation_arms(given_options(args) | {"run_name": args.name})
    config = arms[0].config
    if args.detach:
        return detach(config.paths, args.argv)
    summary = carry_out(arms, display_for(args))[args.name]
    arguments.print_result(
        args, summary, ["", *summary_text(summary, str(config.paths.root)).split("\n")]
    )
    return EXIT_ERRORS if summary["errors"] else 0


def add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    at_once = "pairs at once (default: %(default)s)"
    add("-c", "--concurrency", type=arguments.whole_above_zero, default=4, help=at_once)
    add("--all", action="store_true", help="every pair of the demo dataset instead of a few")
    add("--setting", choices=_DEMO_SETTINGS, help="only one of the two settings")
    add("--backend", default="local", help="where it runs (default: %(default)s)")
    arguments.add_logs_argument(parser)


def demo(args: argparse.Namespace) -> int:
    say = sys.stdout.write
    say(
        "The agents of this demo follow scripts: no model is asked, so nothing here says how good any model is.\n"
        "Everything else is real: sandboxes, commands, messages, git merges, tests, verdicts.\n\n"
    )
    subset = None if args.all else "demo"
    if shutil.which("node") is None:
        subset = "demo-python"
        say("Node.js is not installed: the JavaScript pairs are left out.\n\n")
    summaries: dict[Setting, dict[str, Any]] = {}
    for setting in _DEMO_SETTINGS if args.setting is None else (args.setting,):
        config = RunConfig(
            run_name=f"demo-{setting}",
            dataset_dir=demo_dir(),
            logs_dir=Path(args.log_dir),
            setting=setting,
            agent="scripted",
            backend=args.backend,
            agent_config=demo_dir() / "agents.yaml",
            subset=subset,
            concurrency=args.concurrency,
            eval_concurrency=args.concurrency,
            force=True,
        )
        summaries[setting] = run_experiment(config, make_display())
        say(f"\n{summary_text(summaries[setting], str(config.paths.root))}\n\n")
    if len(summaries) == len(_DEMO_SETTINGS):
        say(
            deficit_text(
                summaries["solo"]["settings"]["solo"], summaries["coop"]["settings"]["coop"]
            )
            + "\n"
        )
    runs = " ".join(summary["run_name"] for summary in summaries.values())
    logs = "" if args.log_dir == "logs" else f" --log-dir {args.log_dir}"
    say(
        f"\nNext: see what the agents did with `cooperbench view {runs}{logs}`,\n"
        "or let a model work: `cooperbench run --dataset-dir demo --backend local -m MODEL`.\n"
    )
    return 1 if any(summary["errors"] for summary in summaries.values()) else 0


def prompts(args: argparse.Namespace) -> int:
    config = config_of(args)
    pair = select(config)[0].pairs[0]
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
        )
        sys.stdout.write(f"===== {slot.agent_id} ({pair.label}) =====\n{text}\n")
    templates = files("cooperbench.team") / "templates"
    sys.stderr.write(
        f"templates: {templates}; copy those that you change to a folder for --prompts\n"
    )
    return 0


COMMANDS = {
    "run": (add_arguments, run),
    "ablate": (add_ablate_arguments, ablate),
    "eval": (add_eval_arguments, evaluate),
    "demo": (add_demo_arguments, demo),
    "prompts": (add_arguments, prompts),
}
