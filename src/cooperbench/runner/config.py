"""The configuration of one call: checked values, absolute paths, agent specs.

config.json keeps it. Part of it, the identity, must stay the same within an experiment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from cooperbench import records
from cooperbench._version import __version__
from cooperbench.agents.base import Limits
from cooperbench.agents.model_names import with_vendor
from cooperbench.agents.registry import is_registered, uses_model
from cooperbench.dataset.content_hash import pair_content_sha256
from cooperbench.dataset.discovery import resolve_dataset_dir
from cooperbench.dataset.image_names import image_template
from cooperbench.errors import UserError
from cooperbench.models import Pair, agent_slots
from cooperbench.records import JsonObject
from cooperbench.records.config import Invocation, RunRecord
from cooperbench.records.history import record_start
from cooperbench.records.result import RunConditions, is_finished
from cooperbench.runner.options import (
    CHANNEL_OPTIONS,
    DEFAULTS,
    OPTIONS,
    REPLAY_MODEL,
    TEAM_PARTS,
    WORKLOAD_OPTIONS,
    RunOptions,
)
from cooperbench.runner.start import DEFAULT_START, Start
from cooperbench.runner.urls import check_base_url, check_collector
from cooperbench.runner.workload import check_division, divide_work
from cooperbench.storage import ExperimentPaths, PairPaths, read_json, utc_now, write_bytes
from cooperbench.team.channel import ChannelRules, check_topology
from cooperbench.text import plural, printable

T = TypeVar("T")
_REPEATED_OPTIONS = (
    "messaging_enabled",
    "git_enabled",
    "step_limit",
    "cost_limit",
    "time_limit_seconds",
)
"""Options that a replay takes over from the recorded run, besides those of the channel and the
division of work."""


class AgentSpec(NamedTuple):
    """The agent in one slot, with its model and configuration."""

    agent: str
    model: str | None
    """With its vendor; None if the agent does not use a model."""
    config_path: Path | None
    base_url: str | None = None


@dataclass(frozen=True)
class RunConfig(RunOptions):
    """The checked configuration of one call."""

    evaluate_only: bool = False
    """No agent runs: existing results are evaluated."""
    plan_sha256: str | None = None
    """SHA-256 of the plan that was registered for this run; None without a plan."""
    start: Start = DEFAULT_START
    """The state in which attempts at pairs begin. Jobs on other machines use the default."""

    def __post_init__(self) -> None:
        values = vars(self)
        for name, option in OPTIONS.items():
            option.check(name, values[name])
        self._check_job_options()
        self._check_team_options()
        check_division(self)
        self._check_channel_options()
        image_template(self.image_template)
        if self.otlp is not None:
            check_collector(self.otlp)
        for url in self.base_urls:
            if url is not None:
                check_base_url(url)
        for path in self.agent_config_paths:
            if path is not None and not path.exists():
                raise UserError(f"{path}: no such agent config")
        if self.prompts_dir is not None and not any(self.prompts_dir.glob("*.j2")):
            raise UserError(f"{self.prompts_dir}: not a folder with templates (*.j2)")
        if self.setting == "solo":
            self._agent_specs(1, "setting solo")

    def _check_job_options(self) -> None:
        """Raise UserError for an option that the executor does not have."""
        executors_by_option = {
            "workers": ("slurm", "ray"),
            "pairs_per_job": ("slurm", "ray"),
            "slurm": ("slurm",),
            "ray_address": ("ray",),
            "ray_resources": ("ray",),
        }
        values = vars(self)
        for name, executors in executors_by_option.items():
            if values[name] is not None and self.executor not in executors:
                raise UserError(f"--{name.replace('_', '-')} is not for --executor {self.executor}")

    def _check_team_options(self) -> None:
        """Raise UserError for a part of setting team that is switched off in another setting."""
        if self.setting == "team" or self.evaluate_only:
            return
        values = vars(self)
        for field in TEAM_PARTS.values():
            if field.startswith("team_") and not values[field]:
                flag = OPTIONS[field].flags[0]
                raise UserError(f"{flag} is for --setting team, not {self.setting}")

    def _check_channel_options(self) -> None:
        """Raise UserError for rules about messages where agents cannot write to each other."""
        check_topology(self.topology)
        if self.evaluate_only:
            return
        if self.messaging_enabled and self.setting != "solo":
            return
        reason = "--setting solo" if self.setting == "solo" else "--no-messaging"
        values = vars(self)
        for name in CHANNEL_OPTIONS:
            needs_messages = name != "knows" or self.setting == "solo"
            if needs_messages and values[name] != DEFAULTS[name]:
                raise UserError(f"{OPTIONS[name].flags[0]} does not go with {reason}")

    @property
    def channel_rules(self) -> ChannelRules:
        """The rules for messages between agents."""
        rules = ChannelRules(
            messages=self.message_budget,
            characters=self.character_budget,
            delay_steps=self.message_delay,
            loss=self.message_loss,
            loss_seed=self.loss_seed,
            topology=self.topology,
            knows=self.knows,
        )
        return rules.without_delay if self.replay_from else rules

    @property
    def paths(self) -> ExperimentPaths:
        """The files of the experiment."""
        return ExperimentPaths(self.logs_dir, self.run_name)

    @property
    def limits(self) -> Limits:
        """The limits of each agent."""
        return Limits(self.step_limit, self.cost_limit, self.time_limit_seconds)

    @property
    def max_jobs(self) -> int:
        """Maximum number of cluster jobs at once."""
        return self.workers or self.concurrency

    @property
    def shares_git(self) -> bool:
        """Whether agents share a git remote; by default they do in setting team.

        In a shared workspace there is nothing to exchange.
        """
        if self.git_enabled is None:
            return self.setting == "team" and self.workspace == "separate"
        return self.git_enabled

    @property
    def backend_options(self) -> dict[str, object]:
        """Keywords for `get_backend`, without those that have no value."""
        options = {
            "image_template": self.image_template,
            "pull": self.pull,
            "mounts": self.mount,
            "gpu": self.gpu,
        }
        return {keyword: value for keyword, value in options.items() if value}

    @property
    def agents(self) -> tuple[str, ...]:
        """One agent for all slots, or one per slot."""
        return split_values(self.agent, "agents")

    @property
    def models(self) -> tuple[str | None, ...]:
        """One model for all slots, or one per slot."""
        if self.model is None:
            return (None,)
        return split_values(self.model, "models")

    @property
    def base_urls(self) -> tuple[str | None, ...]:
        """One server for all slots, or one per slot; None is the vendor's own."""
        urls = (self.base_url or "").split(",")
        return tuple(url.strip() or None for url in urls)

    @property
    def agent_config_paths(self) -> tuple[Path | None, ...]:
        """One agent config for all slots, or one per slot; None for a slot without one.

        A path that exists is taken as it is, because its name may contain commas.
        """
        text = self.agent_config
        if text is None:
            return (None,)
        if isinstance(text, Path) or "," not in text or Path(text).exists():
            return (Path(text),)
        parts = [part.strip() for part in text.split(",")]
        return tuple(Path(part) if part else None for part in parts)

    @property
    def user_files(self) -> tuple[Path, ...]:
        """Files and folders of the user that agents need."""
        paths = (*self.agent_config_paths, self.prompts_dir)
        return tuple(path for path in paths if path is not None)

    @property
    def model_name(self) -> str | None:
        """The models in use: one for all slots, or those of the slots whose agent uses a model."""
        models = list(self.models)
        uses = [uses_model(agent) for agent in self.agents]
        if not any(uses):
            return None
        if len(models) == len(uses):
            models = [model for model, used in zip(models, uses, strict=True) if used]
        return ",".join(model for model in models if model) or None

    @property
    def team_features(self) -> dict[str, bool]:
        """The parts of setting team and whether they are on; empty in other settings."""
        if self.setting != "team":
            return {}
        return {
            "messages": self.messaging_enabled,
            "git": self.shares_git,
            "task_list": self.team_task_list,
            "scratchpad": self.team_scratchpad,
            "protocol": self.team_protocol,
            "mcp": self.team_mcp,
            "auto_refresh": self.team_auto_refresh,
            "roles": self.team_roles,
        }

    def agent_specs(self, pair: Pair) -> tuple[AgentSpec, ...]:
        """Return the agents of a pair, in the order of its slots."""
        return self._agent_specs(len(agent_slots(pair, self.setting)), pair.label)

    def _agent_specs(self, slots: int, owner: str) -> tuple[AgentSpec, ...]:
        """Return the agents of so many slots; `owner` names them in errors."""
        agents = _one_per_slot(self.agents, slots, "agent", owner)
        models = _one_per_slot(self.models, slots, "model", owner)
        configs = _one_per_slot(self.agent_config_paths, slots, "agent config", owner)
        urls = _one_per_slot(self.base_urls, slots, "base URL", owner)
        specs = []
        for agent, model, config, url in zip(agents, models, configs, urls, strict=True):
            used_model = None
            if uses_model(agent) and model is not None:
                used_model = with_vendor(model)
            specs.append(AgentSpec(agent, used_model, config, url))
        return tuple(specs)

    def recording(self, pair: Pair, agent_id: str) -> Path | None:
        """Return the recorded exchanges that an agent replays; None if it uses a model."""
        if self.replay_from is None:
            return None
        recorded = ExperimentPaths(self.logs_dir, self.replay_from)
        return recorded.pair(pair, self.setting).agent(agent_id).exchanges

    def identity(self) -> JsonObject:
        """Return the values that must stay the same for results to be comparable."""
        dataset = read_json(self.dataset_dir / ".cooperbench.json", follow_link=True) or {}
        return {
            "agent": ",".join(self.agents),
            "model_name": self.model_name,
            "agent_config_sha256": self._agent_configs_digest(),
            **self._recorded_options("identity"),
            **self._changed_options(CHANNEL_OPTIONS),
            **self._changed_options(() if self.setting == "solo" else WORKLOAD_OPTIONS),
            **({"start": self.start.label} if self.start.label else {}),
            "prompts_sha256": self._prompts_digest(),
            "dataset": self.dataset_dir.name,
            "dataset_revision": dataset.get("revision"),
        }

    def _agent_configs_digest(self) -> str | None:
        if self.agent_config is None:
            return None
        return ",".join(_digest(path) for path in self.agent_config_paths)

    def _prompts_digest(self) -> str | None:
        if self.prompts_dir is None:
            return None
        templates = sorted(self.prompts_dir.glob("*.j2"))
        texts = [path.name.encode() + path.read_bytes() for path in templates]
        return hashlib.sha256(b"\0".join(texts)).hexdigest()

    def _changed_options(self, names: Iterable[str]) -> JsonObject:
        """Return the options, of those with these names, that do not have their default."""
        values = vars(self)
        return {name: values[name] for name in names if values[name] != DEFAULTS[name]}

    def _recorded_options(self, section: str) -> JsonObject:
        """Return the options that a section of config.json has."""
        values = {**vars(self), "git_enabled": self.shares_git}
        recorded = {}
        for name, option in OPTIONS.items():
            is_other_setting = name.startswith("team_") and self.setting != "team"
            if option.recorded == section and not is_other_setting:
                value = values[name]
                recorded[name] = str(value) if isinstance(value, Path) else value
        return recorded

    def check_against_disk(self) -> None:
        """Raise UserError if the experiment is a study or has results of another configuration."""
        if self.paths.study.exists():
            raise UserError(f"{self.run_name!r} is the name of a study; choose another name (-n)")
        record = self._saved_record()
        compared = CHANNEL_OPTIONS
        if self.setting != "solo":
            compared += WORKLOAD_OPTIONS
        defaults = {name: DEFAULTS[name] for name in compared}
        saved = defaults | record.identity if record else {}
        current = defaults | self.identity()
        differences = [
            f"{key}: {saved[key]!r} → {value!r}"
            for key, value in current.items()
            # Parts of setting team are not recorded for other settings of the same experiment.
            # A value that an older version did not record is read as an empty text.
            if saved.get(key, "") not in ("", value)
        ]
        if differences and (has_results(self.paths) or self.paths.jobs_record.exists()):
            raise UserError(
                f"experiment {self.run_name!r} was started with another configuration "
                f"({'; '.join(differences)}); choose another name (-n) or use the same settings"
            )

    def conditions(self) -> RunConditions:
        """Return the options that agents work under, for result.json."""
        return msgspec.convert(self.identity(), RunConditions)

    def save(self, pairs: Sequence[Pair] = (), reruns: int = 0) -> int:
        """Write config.json with this call, and its start into the history.

        Args:
            pairs: The pairs that the call asks for.
            reruns: How many of them have a result and are run again.

        Returns:
            The number of calls so far, with this one.
        """
        record = self._record_with_call(pairs, reruns)
        content = records.encode(record)
        call = len(record.invocations)
        # The history first: every call in config.json is in it, also if this process is killed now.
        record_start(self.paths, last_call=call - 1, call=call, config=content)
        write_bytes(self.paths.config, content)
        return call

    def _record_with_call(self, pairs: Sequence[Pair], reruns: int) -> RunRecord:
        """Return config.json with this call added to its invocations."""
        saved = self._saved_record()
        facts = {
            "time": utc_now(),
            "version": __version__,
            "run_name": self.run_name,
            "pairs": len(pairs),
            "reruns": reruns,
        }
        if self.plan_sha256 is not None:
            facts["plan_sha256"] = self.plan_sha256
        call = msgspec.convert(facts | self._recorded_options("invocation"), Invocation)
        content = {"run_name": self.run_name, "setting": self.setting, **self.identity()}
        if self.setting == "solo" and saved is not None:
            # Pairs of another setting of the experiment keep their division of work.
            saved_identity = saved.identity
            content |= {
                name: saved_identity[name] for name in WORKLOAD_OPTIONS if name in saved_identity
            }
        record = records.from_object(content | {"invocations": []}, RunRecord)
        calls = [*saved.invocations, call] if saved else [call]
        requested = self._earlier_requests(saved)
        for pair in pairs:
            folder = self.paths.folder_name(pair, self.setting)
            if not requested.get(folder):
                requested[folder] = pair_content_sha256(pair)
        return msgspec.structs.replace(record, invocations=calls, requested=requested)

    def _earlier_requests(self, saved: RunRecord | None) -> dict[str, str]:
        """Return the pairs that earlier calls asked for; of an older version, those on disk."""
        if saved is None:
            return {}
        if saved.requested is not None:
            return dict(saved.requested)
        root = self.paths.root
        folders: list[Path] = []
        for setting in self.paths.settings_on_disk():
            folders += sorted((root / setting).glob("*/*/f*"))
        return {folder.relative_to(root).as_posix(): "" for folder in folders}

    def _saved_record(self) -> RunRecord | None:
        """Return config.json; None if the experiment is new."""
        if not self.paths.config.exists():
            return None
        saved = records.read(self.paths.config, RunRecord)
        if saved is not None and saved.imported is not None:
            raise UserError(
                f"{self.run_name!r} was imported, so agents cannot work in it: choose another -n,"
                " or evaluate it with `cooperbench eval`"
            )
        if saved is None or saved.schema != RunRecord.SCHEMA:
            raise UserError(
                f"{self.paths.config} is not a configuration of this version; choose another -n"
            )
        return saved


def has_results(paths: ExperimentPaths) -> bool:
    """Return whether any pair of the experiment has a complete result."""
    for setting in paths.settings_on_disk():
        for result in (paths.root / setting).glob("*/*/*/result.json"):
            if is_finished(PairPaths(result.parent)):
                return True
    return False


def make_config(values: JsonObject) -> RunConfig:
    """Return the configuration for these options; options that are missing have their defaults.

    Relative paths are resolved only here: other machines have another working directory.
    """
    if values.get("replay_from") or values.get("agent") == REPLAY_MODEL:
        values = _with_recorded_options(values)
    elif values.get("replay_agent"):
        raise UserError(f"--replay-agent is for -a {REPLAY_MODEL} --from RUN")
    resolved = {
        **values,
        "dataset_dir": resolve_dataset_dir(values["dataset_dir"]).absolute(),
        "logs_dir": _absolute(values["logs_dir"]),
        "features": _integers("features", values.get("features")),
        "group_sizes": _integers("group_sizes", values.get("group_sizes")),
        "coupling": _names("coupling", values.get("coupling")),
        "mount": _absolute_mounts(values.get("mount")),
    }
    resolved |= divide_work(resolved)
    if values.get("prompts_dir"):
        resolved["prompts_dir"] = _absolute(values["prompts_dir"])
    if values.get("agent_config"):
        resolved["agent_config"] = _absolute_agent_config(values["agent_config"])
    return RunConfig(**resolved)


def relative_to_cwd(path: Path) -> str:
    """Return a path for people: relative if it is below the working directory."""
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def _absolute(path: str | Path) -> Path:
    return Path(path).expanduser().absolute()


def _absolute_agent_config(value: object) -> object:
    """Return one absolute path, or several separated by commas."""
    if isinstance(value, Path):
        return _absolute(value)
    if not isinstance(value, str):
        return value  # `RunConfig` reports it
    if "," not in value or Path(value).exists():
        return str(_absolute(value))
    parts = [part.strip() for part in value.split(",")]
    return ",".join(str(_absolute(part)) if part else "" for part in parts)


def _absolute_mounts(value: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return `SOURCE:TARGET[:rw]` with an absolute source; the backend checks the rest."""
    mounts = (value,) if isinstance(value, str) else tuple(value or ())
    absolute = []
    for mount in mounts:
        source, colon, target = mount.partition(":")
        if source and target:
            source = str(_absolute(source))
        absolute.append(f"{source}{colon}{target}")
    return tuple(absolute)


def _integers(name: str, value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    if isinstance(value, Iterable):
        numbers = tuple(value)
        if all(type(number) is int for number in numbers):
            return numbers
    raise UserError(f"{name} is {value!r}; it must be a list of whole numbers, e.g. [1, 2]")


def _names(name: str, value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, Iterable) and not isinstance(value, str):
        names = tuple(value)
        if all(isinstance(item, str) for item in names):
            return names
    raise UserError(f"{name} is {value!r}; it must be a list of names")


def _with_recorded_options(values: JsonObject) -> JsonObject:
    """Return the options with agents, models and limits of the run that is replayed.

    The run may come from somebody else. It names no code to load and no file to read: agents have
    to be registered, or the user names them; so does the user with the agent config.
    """
    run_name = values.get("replay_from")
    logs_dir = Path(values["logs_dir"])
    if not run_name or values["agent"] != REPLAY_MODEL:
        raise UserError(
            f"-a {REPLAY_MODEL} and --from RUN belong together: RUN is the run to replay"
        )
    saved = records.read(ExperimentPaths(logs_dir, run_name).config, RunRecord)
    if saved is None or saved.schema != RunRecord.SCHEMA or not saved.invocations:
        raise UserError(f"there is no run {run_name!r} in {logs_dir}")
    identity = saved.identity
    recorded = {name: identity[name] for name in _REPEATED_OPTIONS}
    taken_over = CHANNEL_OPTIONS
    if values.get("setting") != "solo":
        taken_over += WORKLOAD_OPTIONS
    recorded |= {name: identity[name] for name in taken_over if name in identity}
    recorded["model"] = saved.model_name
    recorded["agent"] = values.get("replay_agent") or _registered_agents(
        saved.agent or "", run_name
    )
    has_config = saved.agent_config_sha256 is not None
    if has_config and not values.get("agent_config"):
        path = printable(saved.invocations[-1].agent_config or "")
        raise UserError(
            f"run {run_name!r} was made with an agent config ({path}), which is not read without "
            "your consent: name it with --agent-config"
        )
    return {**values, **recorded}


def _registered_agents(agents: str, run_name: str) -> str:
    """Return the agents of a recorded run, all of which are registered.

    Raises:
        UserError: One of them is not. Its name may be a path of code (`module:Class`, `./program`).
    """
    for agent in split_values(agents, "agents"):
        if not is_registered(agent):
            raise UserError(
                f"run {run_name!r} was made with agent {printable(agent)!r}, which is not one of "
                f"`cooperbench agents`. A run does not name code to load: add --replay-agent "
                "AGENT if you trust this agent"
            )
    return agents


def split_values(text: str, noun: str) -> tuple[str, ...]:
    """Split `x,y`; UserError if there is nothing before or after a comma."""
    values = tuple(part.strip() for part in text.split(","))
    if not all(values):
        raise UserError(f"{text!r} is not a list of {noun}: a value next to a comma is missing")
    return values


def _one_per_slot(values: tuple[T, ...], slots: int, noun: str, owner: str) -> tuple[T, ...]:
    """Return one value per slot; `owner` names the slots in the error for a wrong number."""
    if len(values) == 1:
        return values * slots
    if len(values) == slots:
        return values
    texts = ["" if value is None else str(value) for value in values]
    advice = "give one" if slots == 1 else "give one for all or one for each, with commas"
    raise UserError(
        f"{plural(len(values), noun)} ({','.join(texts)}) "
        f"for {plural(slots, 'agent slot')} in {owner}; {advice}"
    )


def _digest(config: Path | None) -> str:
    if config is None:
        return "none"
    if config.is_dir():
        return f"folder {config.name}"
    return hashlib.sha256(config.read_bytes()).hexdigest()
