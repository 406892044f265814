"""The options of a run, each declared once: a field of `RunOptions` gives the argument of `cooperbench run`, the check
of its value and its place in config.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from cooperbench.models import EVAL_NETWORKS, SETTINGS, EvalNetwork, Setting
from cooperbench.sandbox.contract import NetworkPolicy
from cooperbench.settings import BACKEND_DEFAULT, DEFAULT_BACKEND
from cooperbench.team.mailbox import DEFAULT_REDIS_URL

EXECUTORS = ("local", "slurm", "ray")
DEFAULT_TIME_LIMIT_SECONDS = 3600.0
REPLAY_MODEL = "replay_model"
"""In the place of an agent: those of another run (`--from`), with recorded answers in the place of their models."""
GROUPS = {
    "setting": "who works, and how",
    "backend": "where, and how much",
    "canary": "what happens",
}
"""Titles in `cooperbench run --help`, each with the first option under it."""


@dataclass(frozen=True)
class Option:
    """How a field of `RunOptions` is given on the command line, checked and recorded."""

    words: str = ""
    """Flags and what stands for the value, `-x --example N`; empty where commands share it (cli/arguments)."""
    help: str = ""
    choices: Sequence[str] | None = None
    cli_default: Any = None
    """Where the command line has another default than the field."""
    for_backend: str = ""
    """The keyword of a backend that it is, if the backend has it."""
    recorded: Literal["identity", "invocation"] | None = "invocation"
    """In config.json: as what must stay the same within an experiment, with every call, or not at all."""


def option(words: str = "", text: str = "", *, default: Any = None, **settings: Any) -> Any:
    """A field of `RunOptions`. One with flags that is a number has to be above 0."""
    return field(default=default, metadata={"option": Option(words, text, **settings)})


def _team_part(flag: str, text: str) -> Any:
    """A part of setting team, which the flag takes away."""
    return option(flag, f"setting team: {text}", default=True, recorded="identity")


TEAM_PARTS = {"messages": "messaging_enabled", "git": "git_enabled"} | {
    part: f"team_{part}"
    for part in ("task_list", "scratchpad", "protocol", "mcp", "auto_refresh", "roles")
}
"""What setting team is made of, and the fields of `RunOptions` that switch it: each can be off alone."""


@dataclass(frozen=True)
class RunOptions:
    """As one call of `run` gives them."""

    run_name: str
    dataset_dir: Path
    logs_dir: Path
    subset: str | None = option()
    repo: str | None = option()
    task_id: int | None = option()
    features: tuple[int, ...] | None = option()
    group_sizes: tuple[int, ...] | None = option()
    """Groups of so many features instead of pairs; this and the next two as in `discover`."""
    groups_per_task: int | None = option()
    seed: int = option(default=0)
    sound_only: bool = option(
        "--sound-only",
        "leave out unsound pairs: those with tests that pass without the feature",
        default=False,
    )
    setting: Setting = option(
        "--setting",
        "one agent for each feature, one for all, or one for each as a team: a lead, members, shared tools",
        default="coop",
        choices=SETTINGS,
    )
    agent: str = option(
        "-a --agent",
        "a name, module:Class or ./program, or one for each agent: x,y",
        default="mini_swe_agent",
        recorded=None,
    )
    """One for all slots, or one for each, with commas; so are the model and the agent config."""
    model: str | None = option(
        "-m --model",
        "any LiteLLM model, or one for each agent: gpt-4o,claude-sonnet-4-5",
        default="vertex_ai/gemini-3-flash-preview",
        recorded=None,
    )
    base_url: str | None = option(
        "--base-url URL",
        "the server that has the model, or one for each agent (URL, for the first only)",
    )
    agent_config: str | Path | None = option(
        "--agent-config PATH",
        "handed to the agent: its own configuration; a.yaml,b.yaml for one each (a.yaml, for the first only)",
    )
    replay_from: str | None = option(
        "--from RUN",
        "for -a replay_model: the run, made with --record, whose agents work again on the answers of then",
        recorded="identity",
    )
    messaging_enabled: bool = option(
        "--no-messaging", "agents cannot write to each other", default=True, recorded="identity"
    )
    git_enabled: bool | None = option(
        "--git",
        "agents share a git remote, `team` (default: in setting team only)",
        recorded="identity",
    )
    team_task_list: bool = _team_part("--team-no-task-list", "no shared task list")
    team_scratchpad: bool = _team_part("--team-no-scratchpad", "no shared folder")
    team_protocol: bool = _team_part("--team-no-protocol", "no requests and answers")
    team_mcp: bool = _team_part(
        "--team-no-mcp", "the team's tools are commands only, not MCP tools"
    )
    team_auto_refresh: bool = _team_part(
        "--team-no-auto-refresh", "agents see what others changed only when they look"
    )
    team_roles: bool = _team_part("--team-no-roles", "no lead: all are told the same")
    prompts_dir: Path | None = option(
        "--prompts FOLDER",
        "templates in place of ours of the same name (see `cooperbench prompts`)",
        recorded=None,
    )
    redis_url: str = option(
        "--redis URL", "where messages go", default=DEFAULT_REDIS_URL, recorded=None
    )
    backend: str = option(
        "--backend",
        f"local, docker, modal, gcp or module:Class (default: {BACKEND_DEFAULT})",
        default=DEFAULT_BACKEND,
        recorded="identity",
    )
    concurrency: int = option("-c --concurrency", "pairs at once", default=20, cli_default=30)
    eval_concurrency: int = option("--eval-concurrency", "evaluations at once", default=10)
    executor: str = option(
        "--executor",
        "where pairs are worked on: here, or by jobs of a cluster",
        default="local",
        choices=EXECUTORS,
    )
    workers: int | None = option(
        "--workers N",
        "jobs at once, each with one pair at a time (slurm, ray; default: as many as --concurrency)",
    )
    pairs_per_job: int | None = option(
        "--pairs-per-job N",
        "pairs that a job works on, one after the other (slurm, ray; default: 1)",
    )
    slurm: str | None = option(
        "--slurm KEY=VALUE,…",
        "options of sbatch: partition=cpu,time=04:00:00,mem=16G; also folder=DIR, which nodes share",
    )
    ray_address: str | None = option(
        "--ray-address ADDRESS",
        "a cluster (auto, HOST:6379, ray://HOST:10001), or local to start one here (default: auto)",
    )
    ray_resources: str | None = option(
        "--ray-resources NAME=N,…", "what a job needs (default: CPU=1)"
    )
    network: NetworkPolicy = option(
        "--network",
        "what agents' sandboxes reach",
        default="none",
        choices=("none", "public"),
        recorded="identity",
    )
    eval_network: EvalNetwork = option(
        "--eval-network",
        "what test runs reach; auto: nothing where the golden patch passes so, else everything"
        " (default: $COOPERBENCH_EVAL_NETWORK, your config, auto)",
        default="auto",
        choices=EVAL_NETWORKS,
        recorded="identity",
    )
    max_cost: float | None = option(
        "--max-cost DOLLARS",
        "what the whole experiment may cost: past it no new pair starts (exit code 3)",
    )
    step_limit: int | None = option(
        "--step-limit N", "steps an agent may take", recorded="identity"
    )
    cost_limit: float | None = option(
        "--cost-limit DOLLARS", "what an agent may spend", recorded="identity"
    )
    time_limit_seconds: float | None = option(
        "--time-limit SECONDS",
        "how long an agent may take",
        default=DEFAULT_TIME_LIMIT_SECONDS,
        recorded="identity",
    )
    test_timeout_seconds: int = option(
        "--test-timeout SECONDS", "how long one test run may take", default=600, recorded=None
    )
    image_template: str | None = option(
        "--image-template NAME",
        "what task images are called: text with {repo}, {short} and {task_id}, or seeds, or published",
        for_backend="image_template",
    )
    pull: str | None = option(
        "--pull",
        "when images are fetched from their registry (docker only; default: missing)",
        choices=("missing", "always", "never"),
        for_backend="pull",
    )
    mount: tuple[str, ...] = option(
        "--mount SOURCE:TARGET[:rw]",
        "a folder of this machine in every container, for debugging (docker only; repeatable)",
        default=(),
        for_backend="mounts",
    )
    gpu: str | None = option(
        "--gpu TYPE",
        "a GPU for every sandbox, e.g. T4 or A100-80GB:2 (if the backend has GPUs)",
        for_backend="gpu",
    )
    canary: bool = option(
        "--no-canary",
        "do not confirm successes by tests that must fail: saves a test run for each feature",
        default=True,
    )
    auto_eval: bool = option(
        "--no-auto-eval", "do not judge; `cooperbench eval` does it later", default=True
    )
    record: bool = option(
        "--record", "keep what models are asked and say, for replay_model", default=False
    )
    force: bool = option(
        "--force", "run finished pairs again; earlier attempts are kept", default=False
    )


OPTIONS: dict[str, Option] = {
    one.name: one.metadata["option"] for one in fields(RunOptions) if "option" in one.metadata
}
"""By the names of the fields, in their order."""
