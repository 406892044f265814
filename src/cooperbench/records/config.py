"""config.json: the choices that make the results of a run comparable, and every call of `run`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from cooperbench.records.files import JsonObject, Record, read, to_object

_NOT_IDENTITY = ("schema", "run_name", "setting", "imported", "requested", "invocations")


class ImportSource(msgspec.Struct, kw_only=True, frozen=True):
    """The origin of an imported run; import.json has the details."""

    folder: str
    """Name of the folder."""
    layouts: list[str]
    """Layouts of its files: `public`, `public_without_setting`, `quick_start`, `trajectories`."""
    time: str
    """When it was imported."""
    version: str
    """Version of CooperBench that imported it."""


class Invocation(msgspec.Struct, kw_only=True, frozen=True):
    """One call of `cooperbench run`, with the options that may change between calls."""

    time: str
    version: str
    """Version of CooperBench."""
    run_name: str | None = None
    """Name that the run had then; None in older files, as are the next two."""
    pairs: int | None = None
    """Number of pairs that the call asked for."""
    reruns: int | None = None
    """Number of these that already had a result and were run again."""
    subset: str | None = None
    repo: str | None = None
    task_id: int | None = None
    features: list[int] | None = None
    group_sizes: list[int] | None = None
    groups_per_task: int | None = None
    seed: int = 0
    coupling: list[str] | None = None
    """Classes of coupling that pairs were selected by."""
    sound_only: bool = False
    setting: str = "coop"
    base_url: str | None = None
    agent_config: str | None = None
    concurrency: int = 0
    eval_concurrency: int = 0
    executor: str = "local"
    workers: int | None = None
    pairs_per_job: int | None = None
    slurm: str | None = None
    ray_address: str | None = None
    ray_resources: str | None = None
    max_cost: float | None = None
    image_template: str | None = None
    pull: str | None = None
    mount: list[str] = msgspec.field(default_factory=list)
    gpu: str | None = None
    canary: bool = True
    test_timeout_seconds: int | None = None
    """None in older files."""
    auto_eval: bool = True
    record: bool = False
    force: bool = False
    plan_sha256: str | UnsetType = UNSET
    """SHA-256 of plan.json of the study that the run is an arm of."""


class RunRecord(Record, kw_only=True, frozen=True):
    """The configuration of a run.

    All but its name, the setting, its origin, the requested pairs and the calls identify it.
    Choices are null if they are not known, in an imported run.
    """

    SCHEMA: ClassVar[str] = "cooperbench.config/1"
    SPREAD: ClassVar[str] = "other"
    OMITTED_IF_NONE: ClassVar[frozenset[str]] = frozenset(("imported", "requested"))

    run_name: str
    setting: str
    """Setting of the last call."""
    agent: str | None
    """One agent framework for all agents, or one for each, with commas."""
    model_name: str | None
    agent_config_sha256: str | None
    replay_from: str | None = None
    """Run whose recorded model answers were replayed."""
    agent_count: int | UnsetType = UNSET
    """Number of agents of each pair, if it is not that of its features; not in setting solo."""
    split: str | UnsetType = UNSET
    """Which agent has which features, if it is not as evenly as possible in their order."""
    workspace: str | UnsetType = UNSET
    """`shared` if all agents of a pair worked on one tree; otherwise each had its own copy."""
    messaging_enabled: bool | None
    git_enabled: bool | None
    team_task_list: bool | UnsetType = UNSET
    """Only in setting team; so are the next five."""
    team_scratchpad: bool | UnsetType = UNSET
    team_protocol: bool | UnsetType = UNSET
    team_mcp: bool | UnsetType = UNSET
    team_auto_refresh: bool | UnsetType = UNSET
    team_roles: bool | UnsetType = UNSET
    message_budget: int | UnsetType = UNSET
    """Messages that each agent may send. Only if it is limited; the next six only if they were
    changed from their default."""
    character_budget: int | UnsetType = UNSET
    message_delay: int | UnsetType = UNSET
    message_loss: int | float | UnsetType = UNSET
    loss_seed: int | UnsetType = UNSET
    topology: str | UnsetType = UNSET
    knows: str | UnsetType = UNSET
    start: str | UnsetType = UNSET
    """Only in forks: the recorded run, the fork point and the intervention."""
    backend: str | None
    network: str | None
    """What agents' sandboxes reach: `none` or `public`."""
    eval_network: str | None
    """What test runs reach: `auto`, `none` or `public`."""
    step_limit: int | None
    cost_limit: int | float | None
    time_limit_seconds: int | float | None
    prompts_sha256: str | None
    dataset: str | None
    dataset_revision: str | None
    imported: ImportSource | None = None
    """Only if another version or another program ran the agents (`cooperbench import-run`)."""
    other: JsonObject = msgspec.field(default_factory=dict)
    """Choices of another version of CooperBench; at the top level of the file."""
    requested: dict[str, str] | None = None
    """Every pair that the calls asked for, as its folder (`coop/my_task/1/f1_f2`), with the SHA-256
    of its files in the dataset when it was first asked for; empty if an older version asked.
    None if an older version made the run."""
    invocations: list[Invocation]

    @property
    def identity(self) -> JsonObject:
        """Everything that must be equal for the results of two calls to be in one table."""
        content = to_object(self)
        return {name: value for name, value in content.items() if name not in _NOT_IDENTITY}


def imported_from(path: Path) -> str | None:
    """Return the folder that the run of a config.json was imported from; None for our own runs."""
    record = read(path, RunRecord)
    return record.imported.folder if record is not None and record.imported else None
