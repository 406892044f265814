"""What an experiment is: the choices that make its results comparable, and what may change between two calls.

An option of a run is declared once, as a field of `RunConfig`: from it come the argument of `cooperbench run`, the
check of its value and its place in config.json. Besides, `cooperbench.run` names it in its documented signature.
"""

from __future__ import annotations

import hashlib
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cooperbench._version import __version__
from cooperbench.agents.base import Limits
from cooperbench.dataset.discovery import resolve_dataset_dir
from cooperbench.errors import UserError
from cooperbench.eval.batch import Order
from cooperbench.models import SETTINGS, Setting, seats_of
from cooperbench.runner.assignment import Assigned, Assignment
from cooperbench.runner.executors import EXECUTORS, JobOrder, Placement
from cooperbench.settings import checked_eval_network
from cooperbench.storage import ExperimentPaths, checked_run_name, read_json, utc_now, write_json
from cooperbench.team.mailbox import DEFAULT_REDIS_URL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.models import EvalNetwork, Pair
    from cooperbench.sandbox.contract import NetworkPolicy

SCHEMA = "cooperbench.config/1"
DEFAULT_TIME_LIMIT_SECONDS = 3600.0
GROUPS = WHO, WHERE, WHAT = "who works, and how", "where, and how much", "what happens"
"""Titles in `cooperbench run --help`."""


@dataclass(frozen=True)
class Option:
    """How a field of `RunConfig` is given on the command line, checked and recorded."""

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
    """A field of `RunConfig`."""
    return field(default=default, metadata={"option": Option(flags, **settings)})


_GIVEN_TYPES = dict.fromkeys(("agent", "model", "backend", "subset", "repo"), str) | {"task_id": int}
_TYPE_NAMES = {str: "a name", int: "a whole number"}


@dataclass(frozen=True)
class RunConfig:
    """One call of `run`, checked."""

    run_name: str
    dataset_dir: Path
    logs_dir: Path
    setting: Setting = option(
        "--setting",
        group=WHO,
        choices=SETTINGS,
        cli_default="coop",
        help="one agent for each feature, or one for all",
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
    git_enabled: bool = option(
        "--git",
        default=False,
        group=WHO,
        recorded="identity",
        help="agents share a git remote, `team` (coop only)",
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
        help="do not confirm successes by a test that must fail: saves a test run for each feature",
    )
    auto_eval: bool = option(
        "--no-auto-eval", default=True, group=WHAT, help="do not judge; `cooperbench eval` does it later"
    )
    force: bool = option(
        "--force", default=False, group=WHAT, help="run finished pairs again; earlier attempts are kept"
    )

    def __post_init__(self) -> None:
        if self.setting not in SETTINGS:
            raise UserError(f"setting is {self.setting!r}; it is one of {', '.join(SETTINGS)}")
        for name, kind in _GIVEN_TYPES.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
                raise UserError(f"{name} is {value!r}; it is {_TYPE_NAMES[kind]}")
        for name, option in options().items():
            value = getattr(self, name)
            if option.above_zero is not None and value is not None and value <= 0:
                raise UserError(f"{name} is {value}; it is above 0")
        checked_eval_network(self.eval_network)
        _ = self.placement
        missing = [path for path in self.assignment.config_paths if path and not path.exists()]
        if missing:
            raise UserError(f"{missing[0]}: no such agent config")
        if self.setting == "solo":
            self.assignment.for_seats(1, "setting solo")

    @property
    def limits(self) -> Limits:
        """Of one agent."""
        return Limits(self.step_limit, self.cost_limit, self.time_limit_seconds)

    @property
    def assignment(self) -> Assignment:
        return Assignment.parse(self.agent, self.model, self.agent_config)

    @property
    def placement(self) -> Placement:
        return Placement(**{one.name: getattr(self, one.name) for one in fields(Placement)})

    @property
    def job_order(self) -> JobOrder:
        """What all jobs have in common: each works on one pair at a time."""
        at_once = max(1, self.eval_concurrency // (self.workers or self.concurrency))
        there = replace(self, force=False, concurrency=1, eval_concurrency=at_once)
        return JobOrder(there, there.order, self.backend, self.backend_options)

    @property
    def order(self) -> Order:
        """How results are judged."""
        return Order(
            self.paths, self.eval_concurrency, self.test_timeout_seconds, self.eval_network, self.canary
        )

    @property
    def backend_options(self) -> dict[str, object]:
        """Those that are given, for `get_backend`."""
        given = {one.for_backend: getattr(self, name) for name, one in options().items() if one.for_backend}
        return {keyword: value for keyword, value in given.items() if value}

    def assigned(self, pair: Pair) -> tuple[Assigned, ...]:
        """Who works on a pair, seat by seat."""
        return self.assignment.for_seats(len(seats_of(pair, self.setting)), pair.label)

    @property
    def paths(self) -> ExperimentPaths:
        return ExperimentPaths(self.logs_dir, self.run_name)

    def notes(self) -> tuple[str, ...]:
        """What was asked for and has no effect."""
        if self.git_enabled and self.setting == "solo":
            return (
                "git collaboration (--git) is for coop; in solo there is nobody to share with, it is ignored",
            )
        return ()

    def identity(self) -> dict[str, Any]:
        """What must stay the same for results to stand in one table."""
        return {
            "agent": ",".join(self.assignment.agents),
            "model_name": self.assignment.model_name,
            "agent_config_sha256": _digests(self.assignment.config_paths),
            **self._recorded("identity"),
            "dataset": self.dataset_dir.name,
            "dataset_revision": dataset_revision(self.dataset_dir),
        }

    def invocation(self) -> dict[str, Any]:
        """What this call asked for beyond that."""
        return {"time": utc_now(), "version": __version__, **self._recorded("invocation")}

    def _recorded(self, where: str) -> dict[str, Any]:
        values = {name: getattr(self, name) for name, option in options().items() if option.recorded == where}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}

    def differences(self) -> list[str]:
        """How this call differs from the experiment on disk, as lines `key: there → here`."""
        stored = self._stored()
        if stored is None:
            return []
        # Earlier versions recorded a model for agents that ask none, too.
        stored["model_name"] = Assignment.parse(self.agent, stored.get("model_name"), None).model_name
        return [
            f"{key}: {stored.get(key)!r} → {value!r}"
            for key, value in self.identity().items()
            # An experiment of an older version does not tell what there was no choice about.
            if key in stored and stored[key] != value
        ]

    def check_against_disk(self) -> None:
        different = self.differences()
        if different:
            raise UserError(
                f"experiment {self.run_name!r} was started with another configuration ({'; '.join(different)}); "
                "take another name (-n) or the same settings"
            )

    def save(self) -> None:
        stored = self._stored() or {}
        write_json(
            self.paths.config,
            {
                "schema": SCHEMA,
                "run_name": self.run_name,
                "setting": self.setting,
                **self.identity(),
                "invocations": [*stored.get("invocations", []), self.invocation()],
            },
        )

    def _stored(self) -> dict[str, Any] | None:
        if not self.paths.config.exists():
            return None
        stored = read_json(self.paths.config)
        if stored is None or stored.get("schema") != SCHEMA:
            raise UserError(
                f"{self.paths.config} is no configuration of this version; take another name (-n)"
            )
        return stored


def options() -> dict[str, Option]:
    """By the names of the fields, in their order."""
    return {one.name: one.metadata["option"] for one in fields(RunConfig) if "option" in one.metadata}


def make_config(values: Mapping[str, Any]) -> RunConfig:
    """Of what the command line, or the caller of `cooperbench.run`, has given."""
    lists = {name: values[name] for name in ("features", "group_sizes")}
    for name, value in lists.items():
        if value is not None and (isinstance(value, str) or not all(type(one) is int for one in value)):
            raise UserError(f"{name} is {value!r}; it is a list of whole numbers, e.g. [1, 2]")
    return RunConfig(
        **{
            **values,
            "run_name": checked_run_name(values["run_name"]),
            "dataset_dir": resolve_dataset_dir(values["dataset_dir"]),
            "logs_dir": Path(values["logs_dir"]),
            **{name: None if value is None else tuple(value) for name, value in lists.items()},
            "mount": tuple(values["mount"] or ()),
        }
    )


def dataset_revision(dataset_dir: Path) -> str | None:
    """What `cooperbench prepare` recorded, if it made this dataset."""
    return (read_json(dataset_dir / ".cooperbench.json") or {}).get("revision")


def _digests(configs: tuple[Path | None, ...]) -> str | None:
    if configs == (None,):
        return None
    return ",".join("none" if config is None else _digest(config) for config in configs)


def _digest(config: Path) -> str:
    if config.is_dir():
        return f"folder {config.name}"
    return hashlib.sha256(config.read_bytes()).hexdigest()
