"""`cooperbench run`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cooperbench.agents.base import Limits
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
from cooperbench.cli.containers import add_container_arguments, use_container_arguments
from cooperbench.dataset.discovery import resolve_dataset_dir
from cooperbench.models import SETTINGS
from cooperbench.report.summary import summary_text
from cooperbench.runner.api import (
    DEFAULT_TIME_LIMIT_SECONDS,
    plan_experiment,
    run_experiment,
)
from cooperbench.runner.config import RunConfig
from cooperbench.runner.display import PlainDisplay
from cooperbench.runner.lineup import Lineup
from cooperbench.runner.live import make_display
from cooperbench.settings import default_backend, default_eval_network
from cooperbench.storage import checked_run_name
from cooperbench.team.office import DEFAULT_REDIS_URL

if TYPE_CHECKING:
    import argparse

DEFAULT_MODEL = "vertex_ai/gemini-3-flash-preview"
DEFAULT_CONCURRENCY = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n", "--name", help="the experiment's name (default: made from setting, agent, model, subset)"
    )
    add_selection_arguments(parser)
    add_sound_only_argument(parser)
    who = parser.add_argument_group("who works, and how")
    who.add_argument(
        "-m",
        "--model",
        default=DEFAULT_MODEL,
        help="any LiteLLM model, or one for each agent: gpt-4o,claude-sonnet-4-5 (default: %(default)s)",
    )
    who.add_argument(
        "-a",
        "--agent",
        default="mini_swe_agent",
        help="a name, module:Class or ./program, or one for each seat: x,y (default: %(default)s)",
    )
    who.add_argument(
        "--agent-config",
        metavar="PATH",
        help="handed to the agent: its own configuration; a.yaml,b.yaml for one each (a.yaml, for the first only)",
    )
    who.add_argument(
        "--setting", choices=SETTINGS, default="coop", help="one agent a feature, or one for all"
    )
    who.add_argument("--no-messaging", action="store_true", help="agents cannot write to each other")
    who.add_argument("--git", action="store_true", help="agents share a git remote, `team` (coop only)")
    who.add_argument(
        "--redis", default=DEFAULT_REDIS_URL, metavar="URL", help="where messages go (default: %(default)s)"
    )
    where = parser.add_argument_group("where, and how much")
    where.add_argument(
        "--backend",
        help="local, docker, modal, gcp or module:Class (default: $COOPERBENCH_BACKEND, your config, modal)",
    )
    where.add_argument(
        "-c",
        "--concurrency",
        type=whole_above_zero,
        default=DEFAULT_CONCURRENCY,
        help="pairs at once (default: %(default)s)",
    )
    where.add_argument(
        "--eval-concurrency",
        type=whole_above_zero,
        default=10,
        help="evaluations at once (default: %(default)s)",
    )
    where.add_argument(
        "--network", choices=("none", "public"), default="none", help="what agents' sandboxes reach"
    )
    add_eval_network_argument(where)
    add_container_arguments(where)
    where.add_argument(
        "--max-cost",
        type=above_zero,
        metavar="DOLLARS",
        help="what the whole experiment may cost: past it no new pair starts (exit code 3)",
    )
    where.add_argument("--step-limit", type=whole_above_zero, metavar="N", help="steps an agent may take")
    where.add_argument("--cost-limit", type=above_zero, metavar="DOLLARS", help="what an agent may spend")
    where.add_argument(
        "--time-limit",
        type=above_zero,
        default=DEFAULT_TIME_LIMIT_SECONDS,
        metavar="SECONDS",
        help="how long an agent may take (default: %(default)g)",
    )
    where.add_argument(
        "--test-timeout",
        type=whole_above_zero,
        default=600,
        metavar="SECONDS",
        help="how long one test run may take (default: %(default)s)",
    )
    flow = parser.add_argument_group("what happens")
    flow.add_argument(
        "--no-auto-eval", action="store_true", help="do not judge; `cooperbench eval` does it later"
    )
    flow.add_argument(
        "--force", action="store_true", help="run finished pairs again; earlier attempts are kept"
    )
    flow.add_argument("--dry-run", action="store_true", help="check everything and say what would be run")
    flow.add_argument(
        "--json", action="store_true", help="for machines: the summary as JSON on stdout, the rest on stderr"
    )
    add_logs_argument(parser)


def execute(args: argparse.Namespace) -> int:
    config = _config(args)
    use_container_arguments(args, config.backend)
    if args.dry_run:
        return _dry_run(config, as_json=args.json)
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


def _config(args: argparse.Namespace) -> RunConfig:
    return RunConfig(
        run_name=checked_run_name(args.name) if args.name else automatic_name(args),
        dataset_dir=resolve_dataset_dir(args.dataset_dir),
        logs_dir=Path(args.log_dir),
        setting=args.setting,
        agent=args.agent,
        model=args.model,
        backend=args.backend or default_backend(),
        agent_config=args.agent_config,
        subset=args.subset,
        repo=args.repo,
        task_id=args.task_id,
        features=None if args.features is None else tuple(args.features),
        concurrency=args.concurrency,
        eval_concurrency=args.eval_concurrency,
        force=args.force,
        git_enabled=args.git,
        messaging_enabled=not args.no_messaging,
        auto_eval=not args.no_auto_eval,
        redis_url=args.redis,
        limits=Limits(args.step_limit, args.cost_limit, args.time_limit),
        network=args.network,
        eval_network=args.eval_network or default_eval_network(),
        test_timeout_seconds=args.test_timeout,
        max_cost=args.max_cost,
        sound_only=args.sound_only,
    )


def automatic_name(args: argparse.Namespace) -> str:
    """`solo-msa-gpt-4o-lite`: setting, agent, model (if it has one), and what was chosen of the dataset.

    Of several agents or models, all: `coop-msa-gpt-4o+claude-sonnet-4-5-lite`.
    """
    lineup = Lineup.parse(args.agent, args.model, args.agent_config)
    parts = [args.setting, "+".join(short_name(name) for name in lineup.agents)]
    if any(uses_model(name) for name in lineup.agents):
        parts.append("+".join((name or "").rpartition("/")[2] for name in lineup.models))
    if args.git:
        parts.append("git")
    if args.no_messaging:
        parts.append("nomsg")
    parts += [part for part in (args.subset, args.repo) if part]
    if args.task_id is not None:
        parts.append(f"task{args.task_id}")
    if args.features:
        parts.append("_".join(f"f{number}" for number in sorted(args.features)))
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
