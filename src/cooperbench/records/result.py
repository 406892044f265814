"""result.json: how the agents of one pair ended, what they used, and what came of it.

It is the last file that a pair run writes. A pair whose result.json says `completed` is finished.
"""

from __future__ import annotations

from hashlib import sha256
from typing import ClassVar

import msgspec

from cooperbench.models import SHARED, Pair, Setting
from cooperbench.records.errors import PairError
from cooperbench.records.files import Record, read, write
from cooperbench.storage import ExperimentPaths, PairPaths, read_bytes

SCHEMA = "cooperbench.result/1"


class AgentResult(msgspec.Struct, kw_only=True, frozen=True):
    """How one agent ended, and what it used.

    Numbers are null if they are not known: an imported run may lack them.
    """

    agent_id: str
    """`agent1`, `agent2`, … or `solo`."""
    feature_ids: list[int]
    """Features that the agent had to implement."""
    agent: str | None
    """Name of the agent framework."""
    agent_version: str | None
    model: str | None
    """None if the agent does not use a model."""
    status: str | None
    """How it ended: `submitted`, `step_limit`, `sandbox_destroyed`, …"""
    error: str | None
    """One line, if it did not end by submitting."""
    steps: int | None
    cost: float | None
    """US dollars, without the calls to models whose price is not known."""
    model_calls: int | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    """Prompt tokens that the provider had cached."""
    model_seconds: float | None
    """Time spent waiting for models."""
    unpriced_calls: int | None
    """Calls to models whose price is not known."""
    sandbox_seconds: float | None
    """Time spent on commands in the sandbox."""
    patch_bytes: int | None
    """None in a shared workspace, whose patch belongs to all agents; so is the next field."""
    patch_sha256: str | None
    files_changed: list[str]
    """Files in the patch; in a shared workspace those that changed while its commands ran."""
    started_at: str | None
    ended_at: str | None
    duration_seconds: float | None


class RunConditions(msgspec.Struct, kw_only=True, frozen=True):
    """Options that the agents of a pair worked under, as config.json has them."""

    network: str
    step_limit: int | None
    cost_limit: int | float | None
    time_limit_seconds: int | float | None
    messaging_enabled: bool
    git_enabled: bool
    prompts_sha256: str | None
    agent_config_sha256: str | None
    replay_from: str | None
    workspace: str | msgspec.UnsetType = msgspec.UNSET
    """`shared` if all agents worked on one tree."""


class SharedPatch(msgspec.Struct, kw_only=True, frozen=True):
    """The patch of a shared workspace, `shared.patch`, which belongs to all agents."""

    error: str | None
    """Why it could not be collected, on one line; the patch is empty then."""
    patch_bytes: int
    patch_sha256: str
    files_changed: list[str]


class GitUse(msgspec.Struct, kw_only=True, frozen=True):
    """Use of the shared git remote, each count by agent."""

    pushes: dict[str, int]
    commits: dict[str, int]
    bytes: dict[str, int]
    refused: dict[str, int]
    """Pushes that were rejected."""
    bundle: str | None
    """File with the branches that the agents shared."""


class TeamMetrics(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Use of the tools of setting team. A tool that was switched off has no numbers."""

    tasks_total: int | None = None
    tasks_done: int | None = None
    unowned_at_end: int | None = None
    time_to_first_claim_seconds: float | msgspec.UnsetType | None = msgspec.UNSET
    """None if no task was claimed."""
    claims_per_agent: dict[str, int] | None = None
    updates_per_agent: dict[str, int] | None = None
    claims_lost: int | None = None
    """Attempts to claim a task that another agent already had."""
    changes_to_files_of_others_tasks: int | None = None
    """Files that an agent changed although only tasks of other agents name them."""
    requests_total: int | None = None
    requests_answered: int | None = None
    request_waiting_seconds: float | None = None


class Attempt(msgspec.Struct, kw_only=True, frozen=True):
    """An earlier attempt at a pair. Its files are in `attempts/`."""

    status: str
    """`error`; `interrupted` if it left no result; `completed` if it was replaced (`--force`)."""
    error: str | None
    """One line, if it ended in an error."""
    ended_at: str | None


class PairResult(Record, kw_only=True, frozen=True):
    """The result of one pair, complete or not. Numbers are null if they are not known.

    Reading the file of a pair that ended in an error (`ResultError`) also gives this type, with
    the `status` and `error` of that file.
    """

    SCHEMA: ClassVar[str] = SCHEMA
    OMITTED_IF_NONE: ClassVar[frozenset[str]] = frozenset(
        (
            "shared",
            "git",
            "team_features",
            "metrics",
            "conditions",
            "dataset_sha256",
            "earlier_attempts",
        )
    )

    status: str
    """`completed`, or `error`; empty if an older file does not say."""
    run_name: str
    repo: str
    task_id: int
    features: list[int]
    setting: str
    """`coop`, `solo` or `team`."""
    agents: dict[str, AgentResult]
    """The agents by their ids."""
    shared: SharedPatch | None = None
    """Only with a shared workspace."""
    messages: int | None
    """Number of messages that the agents sent; None if the file does not say."""
    git: GitUse | None = None
    """Only with a shared git remote."""
    team_features: dict[str, bool] | None = None
    """Only in setting team: its tools, and which of them were on."""
    metrics: TeamMetrics | None = None
    """Only in setting team."""
    cost: float | None
    """US dollars, all agents together; so are the next fields."""
    model_calls: int | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    model_seconds: float | None
    unpriced_calls: int | None
    sandbox_seconds: float | None
    base_commit: str | None
    """Id of the single commit that every agent started from."""
    backend: str | None
    image: str | None
    """Name of the task's image."""
    image_digest: str | None
    dataset_sha256: str | None = None
    """Checksum of the pair's files in the dataset; None in older files, as is the next field."""
    conditions: RunConditions | None = None
    attempt: int
    """1 for the first attempt at the pair in this run, also over several commands."""
    earlier_attempts: list[Attempt] | None = None
    """None in files of older versions, in which `attempt` counts those of one command."""
    started_at: str | None
    ended_at: str | None
    duration_seconds: float | None
    error: str | None
    version: str
    """Version of CooperBench that wrote the file."""

    @property
    def is_completed(self) -> bool:
        """Whether the agents came to an end. Older files have no status."""
        return self.status in ("completed", "")

    @property
    def patch_checksums(self) -> dict[str, str]:
        """SHA-256 of each patch by its name, as far as the file says."""
        if self.shared is not None:
            checksums: dict[str, str | None] = {SHARED: self.shared.patch_sha256}
        else:
            checksums = {name: agent.patch_sha256 for name, agent in self.agents.items()}
        return {name: checksum for name, checksum in checksums.items() if checksum}


class ResultError(PairError, kw_only=True, frozen=True):
    """result.json of a pair that ended in an error. The pair is run again next time."""

    SCHEMA: ClassVar[str] = SCHEMA

    OMITTED_IF_NONE: ClassVar[frozenset[str]] = frozenset(("attempt", "earlier_attempts"))

    attempt: int | None = None
    """As in `PairResult`; None in files of older versions."""
    earlier_attempts: list[Attempt] | None = None


def earlier_attempts(paths: ExperimentPaths, pair: Pair, setting: Setting) -> list[Attempt]:
    """Return the archived attempts at a pair, oldest first."""
    return [_read_attempt(PairPaths(folder)) for folder in paths.archived(pair, setting)]


def count_earlier_attempts(paths: ExperimentPaths, pair: Pair, setting: Setting) -> None:
    """Add the archived attempts to a result.json that came from another machine."""
    path = paths.pair(pair, setting).result
    result = read(path, PairResult)
    earlier = earlier_attempts(paths, pair, setting)
    if result is None or not result.is_completed or not earlier:
        return
    attempts = [*earlier, *(result.earlier_attempts or [])]
    replaced = msgspec.structs.replace(result, attempt=len(attempts) + 1, earlier_attempts=attempts)
    write(path, replaced)


def _read_attempt(paths: PairPaths) -> Attempt:
    result = read(paths.result, PairResult)
    if result is None:
        return Attempt(status="interrupted", error=None, ended_at=None)
    return Attempt(
        status=result.status or "completed", error=result.error, ended_at=result.ended_at
    )


def is_finished(paths: PairPaths) -> bool:
    """Whether a pair has a complete result, so that it is not run again."""
    result = read(paths.result, PairResult)
    return result is not None and result.status == "completed"


def is_undamaged(paths: PairPaths) -> bool:
    """Whether the patches of a finished pair are still the ones that were collected.

    A patch without a recorded checksum counts as undamaged.
    """
    result = read(paths.result, PairResult)
    checksums = result.patch_checksums if result is not None else {}
    for name, checksum in checksums.items():
        patch = read_bytes(paths.agent(name).patch)
        if patch is None or sha256(patch).hexdigest() != checksum:
            return False
    return True
