"""One attempt at one pair: sandboxes that start together, agents that work at the same time, patches, result."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cooperbench._version import __version__
from cooperbench.agents.base import REPO_DIR, patience_seconds
from cooperbench.agents.recorder import Recorder
from cooperbench.agents.registry import get_agent, version_of
from cooperbench.agents.session import Session
from cooperbench.diff import PatchError, paths_of
from cooperbench.errors import AgentFailure, InfraError, Interrupted, RunStopped, SandboxError, UserError
from cooperbench.gitcall import GitError
from cooperbench.models import seats_of, summed_accounts
from cooperbench.redaction import redact
from cooperbench.sandbox import scrub_script
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.storage import utc_now, write_json
from cooperbench.team.git_remote import make_remote
from cooperbench.team.mailbox import MemoryMailbox
from cooperbench.team.team import Team

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from cooperbench.agents.base import Agent
    from cooperbench.models import Image, Message, Pair, Seat, Usage
    from cooperbench.runner.config import Player, RunConfig
    from cooperbench.sandbox.contract import RichSandbox
    from cooperbench.sandbox.session import SandboxSession
    from cooperbench.storage import PairPaths
    from cooperbench.team.mailbox import Mailbox

PREPARED_GIT_DIR = "/cooperbench/base.git"
"""Where a backend that prepares images puts the base commit."""
SCRUBBED_GIT_DIR = "/cooperbench/scrubbed.git"
"""Where the harness puts it in sandboxes of other backends."""
PATCH_FILE = "/cooperbench/work.patch"
SCRUB_SECONDS = 900
SNAPSHOT_SECONDS = 900


class Start(NamedTuple):
    """The state that an agent starts from."""

    commit: str
    """The same in every sandbox of a task."""
    git_dir: str
    """A bare repository with that commit, beside the agent's own."""


def prepare_repository(sandbox: RichSandbox, *, already_scrubbed: bool) -> Start:
    """Leave one commit in the repository, without history or remotes."""
    git_dir = PREPARED_GIT_DIR if already_scrubbed else SCRUBBED_GIT_DIR
    if already_scrubbed:
        argv = ["git", f"--git-dir={git_dir}", "rev-parse", "HEAD"]
    else:
        argv = ["bash", "-c", scrub_script().decode(), "scrub", REPO_DIR, git_dir]
    done = sandbox.run(argv, timeout_seconds=SCRUB_SECONDS)
    commit = done.stdout_read().strip().rpartition("\n")[2]
    if done.returncode != 0 or len(commit) < 40:
        reason = done.stderr_read().strip() or done.stdout_read().strip()
        raise SandboxError(f"the repository at {REPO_DIR} could not be prepared: {reason[-300:]}")
    return Start(commit, git_dir)


def take_patch(sandbox: RichSandbox, start: Start) -> bytes:
    """What the agent has done so far, whether it committed it or not."""
    script = (files("cooperbench.runner") / "snapshot.sh").read_text()
    argv = ["bash", "-c", script, "snapshot", REPO_DIR, start.git_dir, PATCH_FILE]
    done = sandbox.run(argv, timeout_seconds=SNAPSHOT_SECONDS)
    if done.returncode != 0:
        raise SandboxError(f"the patch could not be taken: {done.stderr_read().strip()[-300:]}")
    return sandbox.read_file(PATCH_FILE)


RESULT_SCHEMA = "cooperbench.result/1"
UNLIMITED_LIFETIME_SECONDS = 24 * 3600
SUBMITTED = "submitted"
T = TypeVar("T")


@dataclass(frozen=True)
class Desk:
    """A seat that is ready to work: sandbox open, repository prepared."""

    seat: Seat
    player: Player
    sandbox: RichSandbox
    start: Start


class PairRun:
    """Everything that one attempt needs; `execute` does it."""

    def __init__(
        self,
        pair: Pair,
        config: RunConfig,
        image: Image,
        session: SandboxSession,
        paths: PairPaths,
        on_message: Callable[[Message], None],
        make_mailbox: Callable[[Sequence[str]], Mailbox] = MemoryMailbox,
        on_spend: Callable[[Usage], None] = lambda _: None,
    ) -> None:
        self._pair = pair
        self._config = config
        self._image = image
        self._session = session
        self._paths = paths
        self._seats = seats_of(pair, config.setting)
        self._players = dict(zip(self._seats, config.players(pair), strict=True))
        self._on_spend = on_spend
        agent_ids = [seat.agent_id for seat in self._seats]
        together = len(agent_ids) > 1
        self._team = Team(
            agent_ids,
            make_mailbox(agent_ids) if together and config.messaging_enabled else None,
            make_remote(session.backend, paths.team_repository, agent_ids)
            if together and config.git_enabled
            else None,
            on_message,
        )

    def execute(self, attempt: int) -> dict[str, Any]:
        """The record that now is result.json. InfraError and Interrupted leave no result behind."""
        started_at, started = utc_now(), time.monotonic()
        sandboxes: list[RichSandbox] = []
        try:
            with ThreadPoolExecutor(len(self._seats), thread_name_prefix="agent") as pool:
                try:
                    desks = _gather([pool.submit(self._set_up, seat, sandboxes) for seat in self._seats])
                    self._check_same_start(desks)
                    agents = _gather([pool.submit(self._work, desk) for desk in desks])
                finally:
                    # On failure whoever still works is torn out of it, so that the pool can end.
                    self._end(sandboxes)
            shared = self._shared_work()
        finally:
            # One may have been opened while the others were being ended.
            self._end(sandboxes)
            if self._team.remote is not None:
                self._team.remote.close()
        mailbox = self._team.mailbox
        if mailbox is not None:
            features = {seat.agent_id: seat.feature_ids[0] for seat in self._seats}
            write_json(self._paths.conversation, self._team.conversation(features))
        record = {
            "schema": RESULT_SCHEMA,
            "status": "completed",
            "run_name": self._config.run_name,
            "repo": self._pair.task.repo,
            "task_id": self._pair.task.task_id,
            "features": list(self._pair.feature_ids),
            "setting": self._config.setting,
            "agents": {agent["agent_id"]: agent for agent in agents},
            "messages": len(mailbox.messages()) if mailbox else 0,
            **shared,
            **summed_accounts(agents),
            "base_commit": desks[0].start.commit,
            "backend": self._config.backend,
            "image": self._image.reference,
            "image_digest": self._image.digest,
            "attempt": attempt,
            "started_at": started_at,
            "ended_at": utc_now(),
            "duration_seconds": round(time.monotonic() - started, 3),
            "error": None,
            "version": __version__,
        }
        write_json(self._paths.result, record)
        return record

    def _set_up(self, seat: Seat, sandboxes: list[RichSandbox]) -> Desk:
        reaches = self._team.remote.open(self._config.run_name) if self._team.remote is not None else ()
        seconds = self._config.limits.seconds
        # An outage of the model's provider is not the agent's time, but the sandbox has to outlast it.
        spare = 2 * SNAPSHOT_SECONDS + int(min(patience_seconds(), UNLIMITED_LIFETIME_SECONDS))
        labels = {"run": self._config.run_name, "pair": self._pair.label, "agent": seat.agent_id}
        sandbox = self._session.open(
            self._image.agent_reference or self._image.reference,
            timeout_seconds=UNLIMITED_LIFETIME_SECONDS if seconds is None else int(seconds) + spare,
            options=SandboxOptions("agent", self._config.network, labels, reaches),
        )
        sandboxes.append(sandbox)
        start = prepare_repository(sandbox, already_scrubbed=self._image.agent_reference is not None)
        self._team.join(
            seat.agent_id,
            sandbox,
            streams=self._session.streams,
            repo_dir=REPO_DIR,
            base_commit=start.commit,
            base_git_dir=start.git_dir,
        )
        return Desk(seat, self._players[seat], sandbox, start)

    def _check_same_start(self, desks: Sequence[Desk]) -> None:
        commits = {desk.start.commit for desk in desks}
        if len(commits) > 1:
            raise InfraError(
                f"the sandboxes of {self._pair.label} start from different commits: {sorted(commits)}"
            )

    def _work(self, desk: Desk) -> dict[str, Any]:
        """One agent from its first step to its patch, and its part of result.json."""
        started = time.monotonic()
        files = self._paths.agent(desk.seat.agent_id)
        player = desk.player
        make_agent = get_agent(player.agent)
        version = version_of(make_agent)
        recorder = Recorder(files, desk.seat, agent=player.agent, model=player.model, agent_version=version)
        session = Session(
            pair=self._pair,
            seat=desk.seat,
            setting=self._config.setting,
            model=player.model,
            config_path=player.config_path,
            sandbox=desk.sandbox,
            recorder=recorder,
            limits=self._config.limits,
            inbox=self._team.inboxes.get(desk.seat.agent_id),
            stop=self._session.stop,
            git_shared=self._team.remote is not None,
            on_spend=self._on_spend,
        )
        try:
            status, error = _run_agent(make_agent, session)
            self._team.leave(desk.seat.agent_id)
            patch = take_patch(desk.sandbox, desk.start)
        except BaseException as problem:
            recorder.note(f"broken off: {type(problem).__name__}: {problem}")
            recorder.abandon()
            raise
        self._session.end(desk.sandbox)
        files.write_patch(patch)
        recorder.finish(status, session.usage, session.sandbox_seconds, error)
        return {
            "agent_id": desk.seat.agent_id,
            "feature_ids": list(desk.seat.feature_ids),
            "agent": player.agent,
            "agent_version": version,
            "model": player.model,
            "status": status,
            "error": error and redact(error),
            "steps": session.steps,
            **session.usage.accounts(),
            "sandbox_seconds": round(session.sandbox_seconds, 3),
            "patch_bytes": len(patch),
            "files_changed": _files_changed(patch),
            "started_at": recorder.started_at,
            "ended_at": utc_now(),
            "duration_seconds": round(time.monotonic() - started, 3),
        }

    def _end(self, sandboxes: list[RichSandbox]) -> None:
        for sandbox in list(sandboxes):
            self._session.end(sandbox)
        self._team.close()

    def _shared_work(self) -> dict[str, Any]:
        """What was shared over git."""
        remote = self._team.remote
        if remote is None:
            return {}
        try:
            kept = remote.write_bundle(self._paths.team_bundle)
        except GitError:
            # The bundle is a record; the agents' work does not depend on it.
            kept = False
        return {"git": remote.record() | {"bundle": self._paths.team_bundle.name if kept else None}}


def _run_agent(make_agent: Callable[[], Agent], session: Session) -> tuple[str, str | None]:
    """How it ended: a status, and where it was not by submitting, why."""
    try:
        make_agent().run(session)
    except AgentFailure as failure:
        return failure.status, str(failure)
    except UserError as error:
        raise RunStopped(redact(str(error))) from error
    return SUBMITTED, None


def _gather(futures: list[Future[T]]) -> list[T]:
    """All results in order; the first failure at once, while the others may still be at it."""
    done, _ = wait(futures, return_when=FIRST_EXCEPTION)
    failures = [error for future in done if (error := future.exception())]
    # What one agent broke off because of a stop tells less than what went wrong.
    failures.sort(key=lambda error: (not isinstance(error, RunStopped), isinstance(error, Interrupted)))
    if failures:
        raise failures[0]
    return [future.result() for future in futures]


def _files_changed(patch: bytes) -> list[str]:
    try:
        return list(paths_of(patch))
    except PatchError:
        return []
