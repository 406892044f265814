"""The options of a run, each declared once.

From a field of `RunOptions` come the argument of `cooperbench run`, the check of its value and its place in
config.json. Besides, `cooperbench.run` names it in its documented signature.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from cooperbench.models import SETTINGS, Setting
from cooperbench.runner.executors import EXECUTORS
from cooperbench.team.mailbox import DEFAULT_REDIS_URL

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cooperbench.models import EvalNetwork
    from cooperbench.sandbox.contract import NetworkPolicy


DEFAULT_TIME_LIMIT_SECONDS = 3600.0
REPLAY_MODEL = "replay_model"
"""In the place of an agent: those of another run (`--from`), with recorded answers in the place of their models."""
GROUPS = WHO, WHERE, WHAT = "who works, and how", "where, and how much", "what happens"
"""Titles in `cooperbench run --help`."""


@dataclass(frozen=True)
class Option:
    """How a field of `RunOptions` is given on the command line, checked and recorded."""

    flags: Sequence[str] = ()
    """None where the argument is shared with other commands (cli/arguments)."""
    group: str = WHERE
    help: str = ""
    metavar: str | None = None
    choices: Sequence[str] | None = None
    above_zero: type[int] | type[float] | None = None
    """A number of this type that is above 0."""
    cli_default: Any = None
    """Where the command line has another default than the field; text in `help` may show it."""
    for_backend: str = ""
    """The keyword of a backend that it is, if the backend has it."""
    recorded: Literal["identity", "invocation"] | None = "invocation"
    """In config.json: as what must stay the same within an experiment, with every call, or not at all."""


def option(*flags: str, default: Any = MISSING, **settings: Any) -> Any:
    """A field of `RunOptions`."""
    return field(default=default, metadata={"option": Option(flags, **settings)})


def _team_part(flag: str, text: str) -> Any:
    """A part of setting team, which the flag takes away."""
    return option(flag, default=True, group=WHO, recorded="identity", help=f"setting team: {text}")


ONLY_IN_TEAM = ("task_list", "scratchpad", "protocol", "mcp", "auto_refresh", "roles")
TEAM_PARTS = {"messages": "messaging_enabled", "git": "git_enabled"} | {
    part: f"team_{part}" for part in ONLY_IN_TEAM
}
"""What setting team is made of, and the fields of `RunOptions` that switch it: each can be off alone."""


@dataclass(frozen=True)
class RunOptions:
    """As one call of `run` gives them."""

    run_name: str
    dataset_dir: Path
    logs_dir: Path
    setting: Setting = option(
        "--setting",
        group=WHO,
        choices=SETTINGS,
        cli_default="coop",
        help="one agent for each feature, one for all, or one for each as a team: a lead, members, shared tools",
    )
    agent: str = option(
        *("-a", "--agent"),
        group=WHO,
        cli_default="mini_swe_agent",
        recorded=None,
        help="a name, module:Class or ./program, or one for each agent: x,y (default: %(default)s)",
    )
    """One for all seats, or one for each, with commas; so are the model and the agent config."""
    model: str | None = option(
        *("-m", "--model"),
        group=WHO,
        cli_default="vertex_ai/gemini-3-flash-preview",
        recorded=None,
        help="any LiteLLM model, or one for each agent: gpt-4o,claude-sonnet-4-5 (default: %(default)s)",
    )
    backend: str = option(
        "--backend",
        recorded="identity",
        help="local, docker, modal, gcp or module:Class (default: $COOPERBENCH_BACKEND, your config, modal)",
    )
    agent_config: str | Path | None = option(
        "--agent-config",
        default=None,
        group=WHO,
        metavar="PATH",
        help="handed to the agent: its own configuration; a.yaml,b.yaml for one each (a.yaml, for the first only)",
    )
    replay_from: str | None = option(
        "--from",
        default=None,
        group=WHO,
        metavar="RUN",
        recorded="identity",
        help="for -a replay_model: the run, made with --record, whose agents work again on the answers of then",
    )
    subset: str | None = option(default=None)
    repo: str | None = option(default=None)
    task_id: int | None = option(default=None)
    features: tuple[int, ...] | None = option(default=None)
    group_sizes: tuple[int, ...] | None = option(default=None)
    """Groups of so many features instead of pairs; this and the next two as in `discover`."""
    groups_per_task: int | None = option(default=None, above_zero=int)
    seed: int = option(default=0)
    sound_only: bool = option(default=False)
    """Without features whose tests pass without them."""
    messaging_enabled: bool = option(
        "--no-messaging",
        default=True,
        group=WHO,
        recorded="identity",
        help="agents cannot write to each other",
    )
    git_enabled: bool | None = option(
        "--git",
        default=None,
        group=WHO,
        recorded="identity",
        help="agents share a git remote, `team` (default: in setting team only)",
    )
    team_task_list: bool = _team_part("--team-no-task-list", "no shared task list")
    team_scratchpad: bool = _team_part("--team-no-scratchpad", "no shared folder")
    team_protocol: bool = _team_part("--team-no-protocol", "no requests and answers")
    team_mcp: bool = _team_part("--team-no-mcp", "the team's tools are commands only, not MCP tools")
    team_auto_refresh: bool = _team_part(
        "--team-no-auto-refresh", "agents see what others changed only when they look"
    )
    team_roles: bool = _team_part("--team-no-roles", "no lead: all are told the same")
    prompts_dir: Path | None = option(
        "--prompts",
        default=None,
        group=WHO,
        metavar="FOLDER",
        recorded=None,
        help="templates in place of ours of the same name (see `cooperbench prompts`)",
    )
    redis_url: str = option(
        "--redis",
        default=DEFAULT_REDIS_URL,
        group=WHO,
        metavar="URL",
        recorded=None,
        help="where messages go (default: %(default)s)",
    )
    concurrency: int = option(
        *("-c", "--concurrency"),
        default=20,
        above_zero=int,
        cli_default=30,
        help="pairs at once (default: %(default)s)",
    )
    eval_concurrency: int = option(
        "--eval-concurrency", default=10, above_zero=int, help="evaluations at once (default: %(default)s)"
    )
    executor: str = option(
        "--executor",
        default="local",
        choices=EXECUTORS,
        help="where pairs are worked on: here, or by jobs of a cluster (default: %(default)s)",
    )
    workers: int | None = option(
        "--workers",
        default=None,
        above_zero=int,
        metavar="N",
        help="jobs at once, each with one pair at a time (slurm, ray; default: as many as --concurrency)",
    )
    pairs_per_job: int | None = option(
        "--pairs-per-job",
        default=None,
        above_zero=int,
        metavar="N",
        help="pairs that a job works on, one after the other (slurm, ray; default: 1)",
    )
    slurm: str | None = option(
        "--slurm",
        default=None,
        metavar="KEY=VALUE,…",
        help="options of sbatch: partition=cpu,time=04:00:00,mem=16G; also folder=DIR, which nodes share",
    )
    ray_address: str | None = option(
        "--ray-address",
        default=None,
        metavar="ADDRESS",
        help="a cluster (auto, HOST:6379, ray://HOST:10001), or local to start one here (default: auto)",
    )
    ray_resources: str | None = option(
        "--ray-resources",
        default=None,
        metavar="NAME=N,…",
        help="what a job needs (default: CPU=1)",
    )
    network: NetworkPolicy = option(
        "--network",
        default="none",
        choices=("none", "public"),
        recorded="identity",
        help="what agents' sandboxes reach (default: %(default)s)",
    )
    eval_network: EvalNetwork = option(default="auto", recorded="identity")
    max_cost: float | None = option(
        "--max-cost",
        default=None,
        above_zero=float,
        metavar="DOLLARS",
        help="what the whole experiment may cost: past it no new pair starts (exit code 3)",
    )
    step_limit: int | None = option(
        "--step-limit",
        default=None,
        above_zero=int,
        metavar="N",
        recorded="identity",
        help="steps an agent may take",
    )
    cost_limit: float | None = option(
        "--cost-limit",
        default=None,
        above_zero=float,
        metavar="DOLLARS",
        recorded="identity",
        help="what an agent may spend",
    )
    time_limit_seconds: float | None = option(
        "--time-limit",
        default=None,
        above_zero=float,
        metavar="SECONDS",
        cli_default=DEFAULT_TIME_LIMIT_SECONDS,
        recorded="identity",
        help="how long an agent may take (default: %(default)g)",
    )
    test_timeout_seconds: int = option(
        "--test-timeout",
        default=600,
        above_zero=int,
        metavar="SECONDS",
        recorded=None,
        help="how long one test run may take (default: %(default)s)",
    )
    image_template: str | None = option(
        "--image-template",
        default=None,
        metavar="NAME",
        for_backend="image_template",
        help="what task images are called: text with {repo}, {short} and {task_id}, or seeds, or published",
    )
    pull: str | None = option(
        "--pull",
        default=None,
        choices=("missing", "always", "never"),
        for_backend="pull",
        help="when images are fetched from their registry (docker only; default: missing)",
    )
    mount: tuple[str, ...] = option(
        "--mount",
        default=(),
        metavar="SOURCE:TARGET[:rw]",
        for_backend="mounts",
        help="a folder of this machine in every container, for debugging (docker only; repeatable)",
    )
    gpu: str | None = option(
        "--gpu",
        default=None,
        metavar="TYPE",
        for_backend="gpu",
        help="a GPU for every sandbox, e.g. T4 or A100-80GB:2 (if the backend has GPUs)",
    )
    canary: bool = option(
        "--no-canary",
        default=True,
        group=WHAT,
        help="do not confirm successes by tests that must fail: saves a test run for each feature",
    )
    auto_eval: bool = option(
        "--no-auto-eval", default=True, group=WHAT, help="do not judge; `cooperbench eval` does it later"
    )
    record: bool = option(
        "--record", default=False, group=WHAT, help="keep what models are asked and answer (see replay_model)"
    )
    force: bool = option(
        "--force", default=False, group=WHAT, help="run finished pairs again; earlier attempts are kept"
    )


def options() -> dict[str, Option]:
    """By the names of the fields, in their order."""
    return {one.name: one.metadata["option"] for one in fields(RunOptions) if "option" in one.metadata}
