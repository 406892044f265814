"""The options of a run, each declared once.

A field of `RunOptions` is a keyword of `cooperbench.run`, an argument of `cooperbench run`, and an
entry of config.json. Its `Option` says which values are accepted and how they are recorded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from cooperbench.dataset.assignment import EVEN
from cooperbench.errors import UserError
from cooperbench.models import (
    EVAL_NETWORKS,
    MAX_AGENTS,
    SETTINGS,
    WORKSPACES,
    EvalNetwork,
    Setting,
    Workspace,
)
from cooperbench.sandbox.contract import NetworkPolicy
from cooperbench.settings import BACKEND_DEFAULT, DEFAULT_BACKEND
from cooperbench.team.channel import KNOWLEDGE, Knowledge
from cooperbench.team.mailbox import DEFAULT_REDIS_URL

EXECUTORS = ("local", "slurm", "ray")
DEFAULT_TIME_LIMIT_SECONDS = 3600.0
REPLAY_MODEL = "replay_model"
"""Given instead of an agent: replay another run (`--from`) with its recorded answers."""
ARGUMENT_GROUPS = {
    "setting": "who works, and how",
    "message_budget": "the channel between agents",
    "prompts_dir": "prompts and messages",
    "backend": "where, and how much",
    "canary": "what happens",
}
"""Titles in `cooperbench run --help`, by the first option of each group."""


@dataclass(frozen=True)
class ValueType:
    """The values that an option accepts."""

    description: str
    python_types: tuple[type, ...]
    must_be_positive: bool = False
    limits: tuple[float, float] | None = None
    """The smallest and the largest value."""

    def check(self, name: str, value: Any) -> None:
        """Raise UserError unless the value has one of the types and is in the accepted range."""
        is_accepted = isinstance(value, self.python_types)
        if isinstance(value, bool) and bool not in self.python_types:
            is_accepted = False  # bool is a subclass of int
        if not is_accepted:
            raise UserError(f"{name} is {value!r}; it must be {self.description}")
        if self.must_be_positive and value <= 0:
            raise UserError(f"{name} is {value}; it must be above 0")
        if self.limits is not None and not self.limits[0] <= value <= self.limits[1]:
            raise UserError(f"{name} is {value}; it must be {self.description}")


TEXT = ValueType("a name", (str,))
PATH = ValueType("a path", (str, Path))
FLAG = ValueType("True or False", (bool,))
INTEGER = ValueType("a whole number", (int,))
POSITIVE_INTEGER = ValueType("a whole number", (int,), must_be_positive=True)
POSITIVE_NUMBER = ValueType("a number", (int, float), must_be_positive=True)
LIST = ValueType("a list", (tuple,))
COUNT = ValueType("a whole number from 0", (int,), limits=(0, math.inf))
BUDGET = ValueType("a whole number from 0, or unlimited", (int,), limits=(0, math.inf))
"""None is unlimited."""
AGENT_COUNT = ValueType(f"a whole number from 1 to {MAX_AGENTS}", (int,), limits=(1, MAX_AGENTS))
PROBABILITY = ValueType("a probability from 0 to 1", (int, float), limits=(0, 1))


@dataclass(frozen=True)
class Option:
    """How a field of `RunOptions` is given on the command line, checked and recorded."""

    type: ValueType
    flags: Sequence[str] = ()
    """Flags of `cooperbench run`; empty if cli/arguments.py has the argument."""
    help: str = ""
    metavar: str | None = None
    choices: Sequence[str] | None = None
    optional: bool = False
    """Whether None is accepted."""
    cli_default: Any = None
    """Default of the command line where it differs from the default of the field."""
    recorded: Literal["identity", "channel", "workload", "invocation"] | None = "invocation"
    """Where config.json has the value: with what must stay the same within an experiment
    (`identity`; `channel` and `workload` too, but only if the value is not the default), with each
    call (`invocation`), or nowhere."""

    def check(self, name: str, value: Any) -> None:
        """Raise UserError for a value that the option does not accept."""
        if value is None and self.optional:
            return
        if self.choices and value not in self.choices:
            choices = ", ".join(self.choices)
            raise UserError(f"{name} is {value!r}; it must be one of {choices}")
        self.type.check(name, value)


def declare(option: Option, default: Any = None) -> Any:
    """Return a dataclass field for an option."""
    return field(default=default, metadata={"option": option})


def _declare_team_part(flag: str, effect: str) -> Any:
    """Return a field for a part of setting team; the flag switches the part off."""
    option = Option(FLAG, (flag,), f"setting team: {effect}", recorded="identity")
    return declare(option, default=True)


TEAM_PARTS = {
    "messages": "messaging_enabled",
    "git": "git_enabled",
    "task_list": "team_task_list",
    "scratchpad": "team_scratchpad",
    "protocol": "team_protocol",
    "mcp": "team_mcp",
    "auto_refresh": "team_auto_refresh",
    "roles": "team_roles",
}
"""The parts of setting team, with the fields of `RunOptions` that switch them on and off."""


@dataclass(frozen=True)
class RunOptions:
    """The options of one call of `run`."""

    run_name: str
    dataset_dir: Path
    logs_dir: Path
    subset: str | None = declare(Option(TEXT, optional=True))
    repo: str | None = declare(Option(TEXT, optional=True))
    task_id: int | None = declare(Option(INTEGER, optional=True))
    features: tuple[int, ...] | None = declare(Option(LIST, optional=True))
    group_sizes: tuple[int, ...] | None = declare(Option(LIST, optional=True))
    """Numbers of features per group, instead of pairs. `dataset.discovery.discover` explains this
    option and the next two."""
    groups_per_task: int | None = declare(Option(POSITIVE_INTEGER, optional=True))
    seed: int = declare(Option(INTEGER), default=0)
    coupling: tuple[str, ...] | None = declare(Option(LIST, optional=True))
    sound_only: bool = declare(
        Option(
            FLAG,
            ("--sound-only",),
            "leave out unsound pairs: those with tests that pass without the feature",
        ),
        default=False,
    )
    agent_count: int | None = declare(
        Option(AGENT_COUNT, optional=True, recorded="workload"),
    )
    """Number of agents of each pair or group; None: one per feature. One agent is setting solo."""
    split: str = declare(
        Option(TEXT, recorded="workload"),
        default=EVEN,
    )
    """Which agent has which features: a name of `dataset.assignment.SPLITS`, or `1,2/3,4`."""
    setting: Setting = declare(
        Option(
            TEXT,
            ("--setting",),
            "coop: several agents; solo: one agent for all features (also --agents 1); "
            "team: coop with a lead, members and shared tools",
            choices=SETTINGS,
        ),
        default="coop",
    )
    agent: str = declare(
        Option(
            TEXT,
            ("-a", "--agent"),
            "a name, module:Class or ./program, or one per agent: x,y",
            recorded=None,
        ),
        default="mini_swe_agent",
    )
    """One value for all agent slots, or one per slot, separated by commas. `model`, `base_url` and
    `agent_config` work the same way."""
    model: str | None = declare(
        Option(
            TEXT,
            ("-m", "--model"),
            "any LiteLLM model, or one per agent: gpt-4o,claude-sonnet-4-5",
            optional=True,
            recorded=None,
        ),
        default="vertex_ai/gemini-3-flash-preview",
    )
    base_url: str | None = declare(
        Option(
            TEXT,
            ("--base-url",),
            "URL of the server that has the model, e.g. http://localhost:8000/v1, "
            "or one per agent (URL, for the first only)",
            metavar="URL",
            optional=True,
        )
    )
    agent_config: str | Path | None = declare(
        Option(
            PATH,
            ("--agent-config",),
            "agent configuration file, or one per agent: a.yaml,b.yaml "
            "(a.yaml, for the first only)",
            metavar="PATH",
            optional=True,
        )
    )
    replay_from: str | None = declare(
        Option(
            TEXT,
            ("--from",),
            "for -a replay_model: the run, made with --record, whose recorded answers are replayed",
            metavar="RUN",
            optional=True,
            recorded="identity",
        )
    )
    replay_agent: str | None = declare(
        Option(
            TEXT,
            ("--replay-agent",),
            "for --from: the agent, or one per agent, if the recorded run has one that is not in "
            "`cooperbench agents` (module:Class, ./program). A run does not name code to load",
            metavar="AGENT",
            optional=True,
            recorded=None,
        )
    )
    messaging_enabled: bool = declare(
        Option(FLAG, ("--no-messaging",), "agents cannot write to each other", recorded="identity"),
        default=True,
    )
    git_enabled: bool | None = declare(
        Option(
            FLAG,
            ("--git",),
            "agents share a git remote, `team` (default: in setting team only)",
            optional=True,
            recorded="identity",
        )
    )
    workspace: Workspace = declare(
        Option(
            TEXT,
            ("--workspace",),
            "separate: each agent has its own copy, and their work is merged; shared: all agents "
            "of a pair work on one tree in one sandbox",
            choices=WORKSPACES,
            recorded="workload",
        ),
        default="separate",
    )
    team_task_list: bool = _declare_team_part("--team-no-task-list", "no shared task list")
    team_scratchpad: bool = _declare_team_part("--team-no-scratchpad", "no shared folder")
    team_protocol: bool = _declare_team_part("--team-no-protocol", "no requests and answers")
    team_mcp: bool = _declare_team_part(
        "--team-no-mcp", "the team's tools are commands only, not MCP tools"
    )
    team_auto_refresh: bool = _declare_team_part(
        "--team-no-auto-refresh", "agents see changes by others only when they look"
    )
    team_roles: bool = _declare_team_part(
        "--team-no-roles", "no lead: all agents get the same instructions"
    )
    message_budget: int | None = declare(
        Option(
            BUDGET,
            ("--messages",),
            "messages that each agent may send; to several teammates, a message counts once for "
            "each. 0 is the same as --no-messaging (default: unlimited)",
            metavar="N",
            optional=True,
            recorded="channel",
        )
    )
    character_budget: int | None = declare(
        Option(
            BUDGET,
            ("--characters",),
            "characters that all messages of an agent may have together (default: unlimited)",
            metavar="N",
            optional=True,
            recorded="channel",
        )
    )
    message_delay: int = declare(
        Option(
            COUNT,
            ("--delay",),
            "steps that its recipient takes before a message arrives",
            metavar="STEPS",
            recorded="channel",
        ),
        default=0,
    )
    message_loss: float = declare(
        Option(
            PROBABILITY,
            ("--loss",),
            "probability that a message is lost",
            metavar="P",
            recorded="channel",
        ),
        default=0.0,
    )
    loss_seed: int = declare(
        Option(
            INTEGER,
            ("--loss-seed",),
            "random seed for --loss: which messages of which pairs are lost",
            metavar="N",
            recorded="channel",
        ),
        default=0,
    )
    topology: str = declare(
        Option(
            TEXT,
            ("--topology",),
            "who may write to whom: all, ring (neighbors), star (agent1 in the middle), or a list "
            "such as agent1>agent2,agent2>agent1",
            metavar="NAME",
            recorded="channel",
        ),
        default="all",
    )
    knows: Knowledge = declare(
        Option(
            TEXT,
            ("--knows",),
            "what the prompt of an agent says about the features of others; interfaces: also "
            "signatures that their golden patches add",
            choices=KNOWLEDGE,
            recorded="channel",
        ),
        default="nothing",
    )
    prompts_dir: Path | None = declare(
        Option(
            PATH,
            ("--prompts",),
            "folder with templates that replace the built-in ones of the same name "
            "(see `cooperbench prompts`)",
            metavar="FOLDER",
            optional=True,
            recorded=None,
        )
    )
    redis_url: str = declare(
        Option(TEXT, ("--redis",), "Redis server for messages", metavar="URL", recorded=None),
        default=DEFAULT_REDIS_URL,
    )
    backend: str = declare(
        Option(
            TEXT,
            ("--backend",),
            f"local, docker, modal, gcp or module:Class (default: {BACKEND_DEFAULT})",
            recorded="identity",
        ),
        default=DEFAULT_BACKEND,
    )
    concurrency: int = declare(
        Option(POSITIVE_INTEGER, ("-c", "--concurrency"), "pairs at once", cli_default=30),
        default=20,
    )
    eval_concurrency: int = declare(
        Option(POSITIVE_INTEGER, ("--eval-concurrency",), "evaluations at once"), default=10
    )
    executor: str = declare(
        Option(
            TEXT,
            ("--executor",),
            "where pairs run: in this process, or in jobs of a cluster",
            choices=EXECUTORS,
        ),
        default="local",
    )
    workers: int | None = declare(
        Option(
            POSITIVE_INTEGER,
            ("--workers",),
            "jobs at once, each with one pair at a time (slurm, ray; default: --concurrency)",
            metavar="N",
            optional=True,
        )
    )
    pairs_per_job: int | None = declare(
        Option(
            POSITIVE_INTEGER,
            ("--pairs-per-job",),
            "pairs that a job runs, one after the other (slurm, ray; default: 1)",
            metavar="N",
            optional=True,
        )
    )
    slurm: str | None = declare(
        Option(
            TEXT,
            ("--slurm",),
            "options of sbatch: partition=cpu,time=04:00:00,mem=16G; "
            "also folder=DIR on a file system that the nodes share",
            metavar="KEY=VALUE,…",
            optional=True,
        )
    )
    ray_address: str | None = declare(
        Option(
            TEXT,
            ("--ray-address",),
            "a cluster (auto, HOST:6379, ray://HOST:10001), or local to start one here "
            "(default: auto)",
            metavar="ADDRESS",
            optional=True,
        )
    )
    ray_resources: str | None = declare(
        Option(
            TEXT,
            ("--ray-resources",),
            "resources that a job needs (default: CPU=1)",
            metavar="NAME=N,…",
            optional=True,
        )
    )
    network: NetworkPolicy = declare(
        Option(
            TEXT,
            ("--network",),
            "network access of agents' sandboxes",
            choices=("none", "public"),
            recorded="identity",
        ),
        default="none",
    )
    eval_network: EvalNetwork = declare(
        Option(
            TEXT,
            ("--eval-network",),
            "network access of test runs; auto: none if the golden patch passes without it, "
            "else public (default: $COOPERBENCH_EVAL_NETWORK, your config, auto)",
            choices=EVAL_NETWORKS,
            recorded="identity",
        ),
        default="auto",
    )
    max_cost: float | None = declare(
        Option(
            POSITIVE_NUMBER,
            ("--max-cost",),
            "budget of the whole experiment: once it is spent no new pair starts (exit code 3)",
            metavar="DOLLARS",
            optional=True,
        )
    )
    step_limit: int | None = declare(
        Option(
            POSITIVE_INTEGER,
            ("--step-limit",),
            "maximum steps per agent",
            metavar="N",
            optional=True,
            recorded="identity",
        )
    )
    cost_limit: float | None = declare(
        Option(
            POSITIVE_NUMBER,
            ("--cost-limit",),
            "maximum cost per agent",
            metavar="DOLLARS",
            optional=True,
            recorded="identity",
        )
    )
    time_limit_seconds: float | None = declare(
        Option(
            POSITIVE_NUMBER,
            ("--time-limit",),
            "maximum time per agent",
            metavar="SECONDS",
            optional=True,
            recorded="identity",
        ),
        default=DEFAULT_TIME_LIMIT_SECONDS,
    )
    test_timeout_seconds: int = declare(
        Option(
            POSITIVE_INTEGER,
            ("--test-timeout",),
            "timeout of one test run",
            metavar="SECONDS",
        ),
        default=600,
    )
    image_template: str | None = declare(
        Option(
            TEXT,
            ("--image-template",),
            "names of task images: text with {repo}, {short} and {task_id}, or seeds, or published",
            metavar="NAME",
            optional=True,
        )
    )
    pull: str | None = declare(
        Option(
            TEXT,
            ("--pull",),
            "when to pull images from their registry (docker and local; default: missing)",
            choices=("missing", "always", "never"),
            optional=True,
        )
    )
    mount: tuple[str, ...] = declare(
        Option(
            LIST,
            ("--mount",),
            "folder of this machine to mount in every container, for debugging "
            "(docker and local; repeatable)",
            metavar="SOURCE:TARGET[:rw]",
        ),
        default=(),
    )
    gpu: str | None = declare(
        Option(
            TEXT,
            ("--gpu",),
            "GPU for every sandbox, e.g. T4 or A100-80GB:2 (if the backend has GPUs)",
            metavar="TYPE",
            optional=True,
        )
    )
    canary: bool = declare(
        Option(
            FLAG,
            ("--no-canary",),
            "do not confirm successes: saves up to two runner calls, in parallel, per success"
            " and feature",
        ),
        default=True,
    )
    auto_eval: bool = declare(
        Option(FLAG, ("--no-auto-eval",), "do not evaluate; `cooperbench eval` does it later"),
        default=True,
    )
    record: bool = declare(
        Option(FLAG, ("--record",), "record model requests and answers, for replay_model"),
        default=False,
    )
    otlp: str | None = declare(
        Option(
            TEXT,
            ("--otlp",),
            "send traces to this OpenTelemetry collector during the run, "
            "e.g. http://localhost:4318",
            metavar="URL",
            optional=True,
            recorded=None,
        )
    )
    force: bool = declare(
        Option(FLAG, ("--force",), "run finished pairs again; earlier attempts are kept"),
        default=False,
    )


OPTIONS: dict[str, Option] = {
    option_field.name: option_field.metadata["option"]
    for option_field in fields(RunOptions)
    if "option" in option_field.metadata
}
"""All options by the name of their field, in the order of declaration."""
DEFAULTS: dict[str, Any] = {
    option_field.name: option_field.default
    for option_field in fields(RunOptions)
    if option_field.name in OPTIONS
}
CHANNEL_OPTIONS = tuple(name for name, option in OPTIONS.items() if option.recorded == "channel")
"""Options about the channel between agents."""
WORKLOAD_OPTIONS = tuple(name for name, option in OPTIONS.items() if option.recorded == "workload")
"""Options about how the work is divided among agents, and where they do it. Setting solo does not
have them."""
