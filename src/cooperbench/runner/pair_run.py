"""One attempt at one pair: sandboxes, agents that work at the same time, patches, result.json."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from cooperbench import records
from cooperbench._version import __version__
from cooperbench.agents.base import REPO_DIR, retry_timeout_seconds
from cooperbench.agents.recorder import Recorder
from cooperbench.agents.session import AgentSession
from cooperbench.dataset.content_hash import pair_content_sha256
from cooperbench.diff import changed_files
from cooperbench.errors import (
    AgentFailure,
    InfraError,
    Interrupted,
    RunStopped,
    SandboxDead,
    SandboxDestroyed,
    SandboxRefused,
    SandboxTimeout,
    UserError,
)
from cooperbench.gateway.recording import Exchanges
from cooperbench.models import SHARED, AgentSlot, Image, Pair, Usage, agent_slots
from cooperbench.records.errors import log_traceback
from cooperbench.records.result import AgentResult, PairResult, SharedPatch, earlier_attempts
from cooperbench.records.usage import agent_usage, total_usage
from cooperbench.runner.agent_code import CRASHED, AgentCode
from cooperbench.runner.config import AgentSpec, RunConfig
from cooperbench.runner.display import Display
from cooperbench.runner.repository import (
    PREPARED_GIT_DIR,
    SNAPSHOT_SECONDS,
    STRIPPED_GIT_DIR,
    CanShowFolder,
    list_changes,
    prepare_repository,
    take_patch,
    take_patch_elsewhere,
)
from cooperbench.runner.start import PairStart
from cooperbench.runner.workspace_tracker import WorkspaceTracker
from cooperbench.sandbox.base_sandbox import SCRIPT_SECONDS, Sandbox
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.sandbox.manager import SandboxManager
from cooperbench.secrets import redact
from cooperbench.storage import PairPaths, utc_now, write_bytes
from cooperbench.team.git_remote import GitRemote
from cooperbench.team.mailbox import Mailbox, MailboxFactory
from cooperbench.team.team import AgentWork, Team

T = TypeVar("T")
UNLIMITED_LIFETIME_SECONDS = 24 * 3600
SUBMITTED = "submitted"
DESTROYED = "sandbox_destroyed"
"""Status of an agent that ended its own sandbox or made it unusable."""


@dataclass(frozen=True)
class Services:
    """The shared objects that every pair run of this process uses."""

    sandboxes: SandboxManager
    display: Display
    mailboxes: MailboxFactory | None
    """None if no agents of this process can write to each other through Redis."""
    on_spend: Callable[[Usage], None]
    """Called with the usage of each model call."""


def run_pair(config: RunConfig, pair: Pair, services: Services) -> PairResult:
    """Run one attempt at a pair and write result.json.

    InfraError and Interrupted leave no result behind.
    """
    config.paths.archive(pair, config.setting)
    attempts = earlier_attempts(config.paths, pair, config.setting)
    paths = config.paths.pair(pair, config.setting)
    paths.folder.mkdir(parents=True)
    start = config.start.begin(config, pair)
    team = make_team(config, pair, paths, services, start)
    start.join(team)
    image = services.sandboxes.image(pair.task)
    pair_run_class = SharedPairRun if pair.workspace == "shared" else PairRun
    pair_run = pair_run_class(config, pair, paths, services, team, start, image)
    started_at, started = utc_now(), time.monotonic()
    dataset_sha256 = pair_content_sha256(pair)
    try:
        work = pair_run.run_agents()
        start.check()
        agents = work.agents
        works = [
            AgentWork(agent.agent_id, agent.feature_ids, agent.files_changed) for agent in agents
        ]
        team_record = team.write_records(paths, works)
    finally:
        # A sandbox may have been opened while the others were being ended.
        pair_run.end_sandboxes()
        if team.remote is not None:
            team.remote.close()
    result = PairResult(
        status="completed",
        run_name=config.run_name,
        repo=pair.task.repo,
        task_id=pair.task.task_id,
        features=list(pair.feature_ids),
        setting=config.setting,
        agents={agent.agent_id: agent for agent in agents},
        shared=work.shared,
        messages=team_record.messages,
        git=team_record.git,
        team_features=team_record.team_features,
        metrics=team_record.metrics,
        **msgspec.structs.asdict(total_usage(agents)),
        base_commit=work.base_commit,
        backend=config.backend,
        image=pair_run.image.ref,
        image_digest=pair_run.image.digest,
        dataset_sha256=dataset_sha256,
        conditions=config.conditions(),
        attempt=len(attempts) + 1,
        earlier_attempts=attempts,
        started_at=started_at,
        ended_at=utc_now(),
        duration_seconds=round(time.monotonic() - started, 3),
        error=None,
        version=__version__,
    )
    records.write(paths.result, result)
    return result


def make_team(
    config: RunConfig, pair: Pair, paths: PairPaths, services: Services, start: PairStart
) -> Team:
    """Return the communication of a pair's agents, as far as the configuration allows it."""
    agent_ids = [slot.agent_id for slot in agent_slots(pair, config.setting)]
    on_message = partial(services.display.message, pair)
    if len(agent_ids) == 1:
        return Team(agent_ids, None, None, on_message, None)
    mailbox = None
    rules = config.channel_rules
    can_write = config.messaging_enabled and not rules.is_silent
    if can_write and services.mailboxes is not None:
        mailbox = services.mailboxes.make(pair.label, agent_ids)
    elif can_write:
        mailbox = Mailbox(agent_ids)
    remote = GitRemote(paths.team_repository, agent_ids) if config.shares_git else None
    channels = {agent_id: start.make_channel(agent_id, agent_ids) for agent_id in agent_ids}
    return Team(
        agent_ids,
        mailbox,
        remote,
        on_message,
        config.team_features,
        channels,
        shares_sandbox=pair.workspace == "shared",
    )


class AgentEnd(NamedTuple):
    """How an agent ended, and its patch."""

    status: str
    error: str | None
    patch: bytes | None
    """None in a shared workspace, whose patch belongs to all agents."""
    files_changed: list[str]


class PairWork(NamedTuple):
    """The results of a pair's agents."""

    base_commit: str
    agents: list[AgentResult]
    shared: SharedPatch | None = None
    """The patch of a shared workspace."""


@dataclass(frozen=True)
class PairRun:
    """The sandboxes and agents of one attempt."""

    config: RunConfig
    pair: Pair
    paths: PairPaths
    services: Services
    team: Team
    start: PairStart
    image: Image
    sandboxes: dict[str, Sandbox] = field(default_factory=dict)
    """Open sandboxes, by agent id."""
    agent_code: dict[str, AgentCode] = field(default_factory=dict)
    """The agents' classes, by agent id."""

    @property
    def git_dir(self) -> str:
        """The git directory in sandboxes that has the base commit."""
        return PREPARED_GIT_DIR if self.image.agent_ref else STRIPPED_GIT_DIR

    def run_agents(self) -> PairWork:
        """Run all agents at the same time; return the base commit and how each agent ended."""
        slots = agent_slots(self.pair, self.config.setting)
        specs = self.config.agent_specs(self.pair)
        with ThreadPoolExecutor(len(slots), thread_name_prefix="agent") as pool:
            try:
                base_commit = self.open_sandboxes(pool, slots, specs)
                working = [
                    pool.submit(self.run_agent, slot, spec)
                    for slot, spec in zip(slots, specs, strict=True)
                ]
                agents = _gather(working)
                return PairWork(base_commit, agents, self.collect_shared_patch())
            finally:
                # After a failure this ends the agents that still run, so that the pool can end.
                self.end_sandboxes()

    def open_sandboxes(
        self, pool: ThreadPoolExecutor, slots: Sequence[AgentSlot], specs: Sequence[AgentSpec]
    ) -> str:
        """Open the sandboxes of all agents and return the base commit."""
        opening = [
            pool.submit(self.open_sandbox, slot, spec)
            for slot, spec in zip(slots, specs, strict=True)
        ]
        commits = set(_gather(opening))
        if len(commits) > 1:
            raise InfraError(f"sandboxes of {self.pair.label} have different commits")
        return commits.pop()

    def open_sandbox(self, slot: AgentSlot, spec: AgentSpec) -> str:
        """Open an agent's sandbox, prepare its repository, and return the base commit."""
        programs = self.load_agent(slot, spec)
        sandbox = self.create_sandbox(slot.agent_id, programs)
        self.sandboxes[slot.agent_id] = sandbox
        commit = prepare_repository(sandbox, self.git_dir)
        self.join_team(slot, sandbox, commit)
        return commit

    def load_agent(self, slot: AgentSlot, spec: AgentSpec) -> Path | None:
        """Load the class of an agent; return the folder with programs for its sandbox."""
        code = self.agent_code[slot.agent_id] = self.start.make_code(slot.agent_id, spec)
        return code.programs()

    def create_sandbox(self, agent_id: str, programs: Path | None) -> Sandbox:
        """Create a sandbox for agents; `agent_id` is its label."""
        labels = {"run": self.config.run_name, "pair": self.pair.label, "agent": agent_id}
        return self.services.sandboxes.open(
            self._agent_image,
            timeout_seconds=self._sandbox_lifetime_seconds(),
            options=SandboxOptions("agent", self.config.network, labels, programs=programs),
        )

    def join_team(self, slot: AgentSlot, sandbox: Sandbox, commit: str) -> None:
        """Connect an agent with its teammates."""
        self.team.join(
            slot.agent_id,
            sandbox,
            streams=self.services.sandboxes.streams,
            repo_dir=REPO_DIR,
            base_commit=commit,
            base_git_dir=self.git_dir,
        )

    def _sandbox_lifetime_seconds(self) -> int:
        seconds = self.config.limits.seconds
        if seconds is None:
            return UNLIMITED_LIFETIME_SECONDS
        # Outages of the model's provider do not count as the agent's time, but the sandbox must
        # outlast them.
        outage_seconds = int(min(retry_timeout_seconds(), UNLIMITED_LIFETIME_SECONDS))
        return int(seconds) + 2 * SNAPSHOT_SECONDS + outage_seconds

    @property
    def _agent_image(self) -> str:
        return self.image.agent_ref or self.image.ref

    def run_agent(self, slot: AgentSlot, spec: AgentSpec) -> AgentResult:
        """Run one agent from its first step to its patch."""
        started = time.monotonic()
        files = self.paths.agent(slot.agent_id)
        version = self.agent_code[slot.agent_id].version()
        recorder = Recorder(files, slot, agent=spec.agent, model=spec.model, agent_version=version)
        sandbox = self.sandboxes[slot.agent_id]
        list_files = partial(list_changes, sandbox, self.git_dir, slot.agent_id)
        exchanges = self.start.open_exchanges(slot.agent_id, files, list_files)
        session = self.make_session(slot, spec, recorder, exchanges)
        self.start.prepare(session)
        try:
            end = self._run_until_end(slot, session)
        except BaseException as error:
            recorder.note(f"aborted: {type(error).__name__}: {error}")
            recorder.abandon()
            raise
        finally:
            if exchanges is not None:
                exchanges.close()
        if end.patch is not None:
            self.services.sandboxes.end(self.sandboxes[slot.agent_id])
            files.write_patch(end.patch)
            self.start.on_agent_end(slot.agent_id, end.status, end.patch)
        recorder.finish(end.status, session.usage, session.sandbox_seconds, end.error)
        return AgentResult(
            agent_id=slot.agent_id,
            feature_ids=list(slot.feature_ids),
            agent=spec.agent,
            agent_version=version,
            model=spec.model,
            status=end.status,
            error=redact(end.error) if end.error else end.error,
            steps=session.steps,
            **msgspec.structs.asdict(agent_usage(session.usage, session.sandbox_seconds)),
            patch_bytes=None if end.patch is None else len(end.patch),
            patch_sha256=None if end.patch is None else sha256(end.patch).hexdigest(),
            files_changed=end.files_changed,
            started_at=recorder.started_at,
            ended_at=utc_now(),
            duration_seconds=round(time.monotonic() - started, 3),
        )

    def make_session(
        self,
        slot: AgentSlot,
        spec: AgentSpec,
        recorder: Recorder,
        exchanges: Exchanges | None,
    ) -> AgentSession:
        """Return the session of an agent."""
        config, display = self.config, self.services.display
        return AgentSession(
            pair=self.pair,
            slot=slot,
            setting=config.setting,
            model=spec.model,
            base_url=spec.base_url,
            config_path=spec.config_path,
            sandbox=self.sandboxes[slot.agent_id],
            recorder=recorder,
            limits=config.limits,
            inbox=self.team.inboxes.get(slot.agent_id),
            git_shared=self.team.remote is not None,
            stop=self.services.sandboxes.stop,
            on_spend=self.services.on_spend,
            exchanges=exchanges,
            on_outage=partial(display.outage, self.pair, slot.agent_id),
            on_progress=partial(display.agent_progress, self.pair, slot.agent_id),
            tools=self.team.tools(slot.agent_id) if config.team_mcp else {},
            team_features=config.team_features,
            prompts_dir=config.prompts_dir,
            channel=config.channel_rules,
        )

    def _run_until_end(self, slot: AgentSlot, session: AgentSession) -> AgentEnd:
        """Let the agent work until it ends, then collect its patch."""
        status, error = SUBMITTED, None
        try:
            with self.attribute_to_agent(slot):
                self.agent_code[slot.agent_id].run(session)
        except AgentFailure as failure:
            status, error = failure.status, str(failure)
            if status == CRASHED and failure.__cause__ is not None:
                log_traceback(self.config.paths, self.pair, failure.__cause__)
        except UserError as problem:
            raise RunStopped(redact(str(problem))) from problem
        self.team.leave(slot.agent_id)
        return self.hand_in(slot, session, status, error)

    def hand_in(
        self, slot: AgentSlot, session: AgentSession, status: str, error: str | None
    ) -> AgentEnd:
        """Return how an agent ended, with its patch."""
        session.report_progress("collecting the patch")
        try:
            with self.attribute_to_agent(slot):
                patch = self.collect_patch(slot)
                return AgentEnd(status, error, patch, changed_files(patch))
        except AgentFailure as failure:
            if status != DESTROYED:
                status, error = failure.status, str(failure)
        except SandboxDead:
            if status != DESTROYED:
                raise
        return AgentEnd(status, error, b"", [])

    def collect_shared_patch(self) -> SharedPatch | None:
        """Write the patch of a shared workspace; None if each agent has a patch of its own."""
        return None

    @contextmanager
    def attribute_to_agent(self, slot: AgentSlot) -> Iterator[None]:
        """Turn damage that the agent did to its own sandbox into its outcome.

        A sandbox that does not answer counts as damaged only if another one answers.
        """
        try:
            yield
        except (SandboxDestroyed, SandboxRefused, SandboxTimeout) as error:
            if isinstance(error, SandboxTimeout):
                with self._open_spare_sandbox(60) as spare:
                    spare.run(["true"], timeout_seconds=30)
            raise AgentFailure(DESTROYED, str(error)) from error
        except SandboxDead as error:
            sandbox = self.sandboxes[slot.agent_id]
            ended_by_harness = self.services.sandboxes.has_been_ended(sandbox)
            if sandbox.is_terminated and not ended_by_harness:
                # The agent's class has called `session.sandbox.terminate()`.
                raise AgentFailure(DESTROYED, str(error)) from error
            raise

    def collect_patch(self, slot: AgentSlot) -> bytes:
        """Return the agent's patch, if necessary with the tools of another sandbox."""
        sandbox = self.sandboxes[slot.agent_id]
        try:
            return take_patch(sandbox, self.git_dir)
        except AgentFailure as failure:
            if not isinstance(sandbox, CanShowFolder):
                raise
            spare = self._open_spare_sandbox(2 * SCRIPT_SECONDS)
            return take_patch_elsewhere(sandbox, spare, self.git_dir, failure)

    def _open_spare_sandbox(self, lifetime_seconds: int) -> AbstractContextManager[Sandbox]:
        options = SandboxOptions("agent", self.config.network, {"run": self.config.run_name})
        return self.services.sandboxes.sandbox(
            self._agent_image, timeout_seconds=lifetime_seconds, options=options
        )

    def end_sandboxes(self) -> None:
        """End all sandboxes of the pair and the team's services."""
        self.start.close()
        for sandbox in list(self.sandboxes.values()):
            self.services.sandboxes.end(sandbox)
        self.team.close()


@dataclass(frozen=True)
class SharedPairRun(PairRun):
    """One attempt whose agents work on one tree in one sandbox, each with its own commands."""

    trackers: list[WorkspaceTracker] = field(default_factory=list)
    """The tracker of the workspace, once its sandbox is open."""

    def open_sandboxes(
        self,
        pool: ThreadPoolExecutor,  # noqa: ARG002  # there is only one to open
        slots: Sequence[AgentSlot],
        specs: Sequence[AgentSpec],
    ) -> str:
        """Open the sandbox of all agents and return the base commit."""
        programs = [self.load_agent(slot, spec) for slot, spec in zip(slots, specs, strict=True)]
        folder = next((folder for folder in programs if folder is not None), None)
        sandbox = self.create_sandbox(",".join(self.team.agent_ids), folder)
        self.sandboxes.update((slot.agent_id, sandbox) for slot in slots)
        commit = prepare_repository(sandbox, self.git_dir)
        for slot in slots:
            self.join_team(slot, sandbox, commit)
        tracker = WorkspaceTracker(sandbox, self.git_dir)
        tracker.start()
        self.trackers.append(tracker)
        return commit

    def make_session(
        self,
        slot: AgentSlot,
        spec: AgentSpec,
        recorder: Recorder,
        exchanges: Exchanges | None,
    ) -> AgentSession:
        """Return the session of an agent, with its own environment in the shared sandbox."""
        session = super().make_session(slot, spec, recorder, exchanges)
        (tracker,) = self.trackers
        session.environment = self.team.environment(slot.agent_id)
        session.watch_command = partial(tracker.command, slot.agent_id)
        session.on_own_step = partial(tracker.step_ended, slot.agent_id)
        return session

    def hand_in(
        self,
        slot: AgentSlot,
        session: AgentSession,  # noqa: ARG002  # the patch is collected later
        status: str,
        error: str | None,
    ) -> AgentEnd:
        """Return how an agent ended. The others go on in the same sandbox."""
        (tracker,) = self.trackers
        return AgentEnd(status, error, None, tracker.files_of(slot.agent_id))

    def collect_shared_patch(self) -> SharedPatch:
        """Write shared.patch and workspace.json, when all agents have ended."""
        (tracker,) = self.trackers
        tracker.finish()
        records.write(self.paths.workspace, tracker.record())
        slot = agent_slots(self.pair, self.config.setting)[0]
        patch, error = b"", None
        try:
            with self.attribute_to_agent(slot):
                patch = self.collect_patch(slot)
        except AgentFailure as failure:
            error = redact(str(failure))
        write_bytes(self.paths.agent(SHARED).patch, patch)
        return SharedPatch(
            error=error,
            patch_bytes=len(patch),
            patch_sha256=sha256(patch).hexdigest(),
            files_changed=changed_files(patch),
        )


def _gather(futures: list[Future[T]]) -> list[T]:
    """Return all results in order; raise the first failure at once, while others may still run."""
    finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
    errors = [error for future in finished if (error := future.exception()) is not None]
    if errors:
        raise min(errors, key=_importance)
    return [future.result() for future in futures]


def _importance(error: BaseException) -> int:
    """Rank errors: an agent that was interrupted by a stop says less than what caused the stop."""
    if isinstance(error, RunStopped):
        return 0
    if isinstance(error, Interrupted):
        return 2
    return 1
