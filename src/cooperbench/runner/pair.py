"""One attempt at one pair: sandboxes that start together, agents that work at the same time, patches, result."""

from __future__ import annotations

import re
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cooperbench._version import __version__
from cooperbench.agents.base import REPO_DIR, patience_seconds
from cooperbench.agents.recorder import Recorder
from cooperbench.agents.registry import get_agent, programs_of, version_of
from cooperbench.agents.session import Session
from cooperbench.errors import (
    AgentFailure,
    InfraError,
    Interrupted,
    RunStopped,
    SandboxDead,
    SandboxDestroyed,
    SandboxError,
    SandboxRefused,
    SandboxTimeout,
    UserError,
)
from cooperbench.eval.trees import MOST_PATCH_BYTES
from cooperbench.gateway.recording import Exchanges
from cooperbench.git import GitError
from cooperbench.models import seats_of, summed_accounts
from cooperbench.sandbox import scrub_script
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.secrets import redact
from cooperbench.storage import utc_now, write_json
from cooperbench.team.git_remote import make_remote
from cooperbench.team.mailbox import Mailbox
from cooperbench.team.team import Team

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from cooperbench.agents.base import Agent
    from cooperbench.models import Image, Message, Pair, Seat, Usage
    from cooperbench.runner.assignment import Assigned
    from cooperbench.runner.config import RunConfig
    from cooperbench.sandbox.contract import RichSandbox
    from cooperbench.sandbox.session import SandboxSession
    from cooperbench.storage import PairPaths

PREPARED_GIT_DIR = "/cooperbench/base.git"
"""Where a backend that prepares images puts the base commit."""
SCRUBBED_GIT_DIR = "/cooperbench/scrubbed.git"
"""Where the harness puts it in sandboxes of other backends."""
PATCH_FILE = "/cooperbench/work.patch"
ARCHIVE_FILE = "/cooperbench/work.tar"
MOST_ARCHIVE_BYTES = 200 * 1024**2
_UNPACK = """
set -e
find "$2" -mindepth 1 -maxdepth 1 -not -name .git -exec rm -rf {} +
if [ -d "$1" ]; then
    tar --create --directory="$1" --exclude=./.git . | tar --extract --directory="$2" --no-same-owner
    exit "${PIPESTATUS[0]}"
fi
tar --extract --file="$1" --directory="${2%/*}" --exclude="${2##*/}/.git" --no-same-owner
"""
SCRUB_SECONDS = 900
SNAPSHOT_SECONDS = 120
DESTROYED = "sandbox_destroyed"
"""The outcome of an agent that ended its own sandbox, or made it useless."""
PATCH_LOST = "patch_lost"
"""The outcome of an agent whose work could not be taken."""


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
    """What the agent has done so far, whether it committed it or not.

    AgentFailure where the agent has broken its git or coreutils, or the patch is too large.
    """
    script = (files("cooperbench.runner") / "snapshot.sh").read_text()
    argv = ["bash", "-c", script, "snapshot", REPO_DIR, start.git_dir, PATCH_FILE, str(MOST_PATCH_BYTES)]
    done = sandbox.run(argv, timeout_seconds=SNAPSHOT_SECONDS)
    if done.timed_out:
        raise AgentFailure(PATCH_LOST, f"the patch could not be taken within {SNAPSHOT_SECONDS} s")
    if done.returncode != 0:
        raise AgentFailure(PATCH_LOST, f"the patch could not be taken: {done.stderr_read().strip()[-300:]}")
    try:
        return sandbox.read_file(PATCH_FILE)
    except (SandboxRefused, FileNotFoundError) as error:
        # What the agent has left running put something else in its place.
        raise AgentFailure(PATCH_LOST, f"the patch could not be taken: {error}") from error


RESULT_SCHEMA = "cooperbench.result/1"
UNLIMITED_LIFETIME_SECONDS = 24 * 3600
SUBMITTED = "submitted"
T = TypeVar("T")


@dataclass(frozen=True)
class Workplace:
    """Where an agent works: sandbox open, repository prepared."""

    seat: Seat
    assigned: Assigned
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
        make_mailbox: Callable[[Sequence[str]], Mailbox] = Mailbox,
        on_spend: Callable[[Usage], None] = lambda _: None,
        on_outage: Callable[[str, str], None] = lambda _agent_id, _reason: None,
    ) -> None:
        self._pair = pair
        self._config = config
        self._image = image
        self._session = session
        self._paths = paths
        self._seats = seats_of(pair, config.setting)
        self._assigned = dict(zip(self._seats, config.assigned(pair), strict=True))
        self._on_spend = on_spend
        self._on_outage = on_outage
        agent_ids = [seat.agent_id for seat in self._seats]
        together = len(agent_ids) > 1
        self._team = Team(
            agent_ids,
            make_mailbox(agent_ids) if together and config.messaging_enabled else None,
            make_remote(session.backend, paths.team_repository, agent_ids)
            if together and config.git_enabled
            else None,
            on_message,
            config.team_features if together else None,
        )

    def execute(self, attempt: int) -> dict[str, Any]:
        """The record that now is result.json. InfraError and Interrupted leave no result behind."""
        started_at, started = utc_now(), time.monotonic()
        sandboxes: list[RichSandbox] = []
        try:
            with ThreadPoolExecutor(len(self._seats), thread_name_prefix="agent") as pool:
                try:
                    places = _gather([pool.submit(self._set_up, seat, sandboxes) for seat in self._seats])
                    self._check_same_start(places)
                    agents = _gather([pool.submit(self._work, place) for place in places])
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
            **self._coordination(agents),
            **summed_accounts(agents),
            "base_commit": places[0].start.commit,
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

    def _set_up(self, seat: Seat, sandboxes: list[RichSandbox]) -> Workplace:
        reaches = self._team.remote.open(self._config.run_name) if self._team.remote is not None else ()
        seconds = self._config.limits.seconds
        # An outage of the model's provider is not the agent's time, but the sandbox has to outlast it.
        spare = 2 * SNAPSHOT_SECONDS + int(min(patience_seconds(), UNLIMITED_LIFETIME_SECONDS))
        labels = {"run": self._config.run_name, "pair": self._pair.label, "agent": seat.agent_id}
        sandbox = self._session.open(
            self._image.agent_reference or self._image.reference,
            timeout_seconds=UNLIMITED_LIFETIME_SECONDS if seconds is None else int(seconds) + spare,
            options=SandboxOptions(
                "agent",
                self._config.network,
                labels,
                reaches,
                programs=programs_of(get_agent(self._assigned[seat].agent)),
            ),
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
        return Workplace(seat, self._assigned[seat], sandbox, start)

    def _check_same_start(self, places: Sequence[Workplace]) -> None:
        commits = {place.start.commit for place in places}
        if len(commits) > 1:
            raise InfraError(
                f"the sandboxes of {self._pair.label} start from different commits: {sorted(commits)}"
            )

    def _work(self, place: Workplace) -> dict[str, Any]:
        """One agent from its first step to its patch, and its part of result.json."""
        started = time.monotonic()
        files = self._paths.agent(place.seat.agent_id)
        assigned = place.assigned
        make_agent = get_agent(assigned.agent)
        version = version_of(make_agent)
        recorder = Recorder(
            files, place.seat, agent=assigned.agent, model=assigned.model, agent_version=version
        )
        recording = self._config.recording(self._pair, place.seat.agent_id)
        exchanges = Exchanges(files.exchanges if self._config.record else None, recording)
        session = Session(
            pair=self._pair,
            seat=place.seat,
            setting=self._config.setting,
            model=assigned.model,
            config_path=assigned.config_path,
            sandbox=place.sandbox,
            recorder=recorder,
            limits=self._config.limits,
            inbox=self._team.inboxes.get(place.seat.agent_id),
            stop=self._session.stop,
            git_shared=self._team.remote is not None,
            on_spend=self._on_spend,
            exchanges=exchanges,
            on_outage=partial(self._on_outage, place.seat.agent_id),
            tools=self._team.tools(place.seat.agent_id) if self._config.team_mcp else {},
            team_features=self._config.team_features,
            prompts_dir=self._config.prompts_dir,
        )
        try:
            try:
                status, error = _run_agent(make_agent, session)
            except (SandboxRefused, SandboxTimeout) as problem:
                self._check_health(problem)
                status, error = DESTROYED, str(problem)
            self._team.leave(place.seat.agent_id)
            try:
                patch = self._take_patch(place)
            except (SandboxDead, SandboxTimeout, AgentFailure) as problem:
                patch = b""
                if status != DESTROYED:
                    if isinstance(problem, SandboxDead) and not isinstance(problem, SandboxDestroyed):
                        raise
                    self._check_health(problem)
                    status = problem.status if isinstance(problem, AgentFailure) else DESTROYED
                    error = str(problem)
        except BaseException as problem:
            recorder.note(f"broken off: {type(problem).__name__}: {problem}")
            recorder.abandon()
            raise
        finally:
            exchanges.close()
        self._session.end(place.sandbox)
        files.write_patch(patch)
        recorder.finish(status, session.usage, session.sandbox_seconds, error)
        return {
            "agent_id": place.seat.agent_id,
            "feature_ids": list(place.seat.feature_ids),
            "agent": assigned.agent,
            "agent_version": version,
            "model": assigned.model,
            "status": status,
            "error": error and redact(error),
            "steps": session.steps,
            **session.usage.accounts(),
            "sandbox_seconds": round(session.sandbox_seconds, 3),
            "patch_bytes": len(patch),
            "patch_sha256": sha256(patch).hexdigest(),
            "files_changed": _files_changed(patch),
            "started_at": recorder.started_at,
            "ended_at": utc_now(),
            "duration_seconds": round(time.monotonic() - started, 3),
        }

    def _take_patch(self, place: Workplace) -> bytes:
        """By the tools in the agent's sandbox, or where it has broken these, by those of another one."""
        try:
            return take_patch(place.sandbox, place.start)
        except AgentFailure as error:
            failure = error
            read_folder = getattr(place.sandbox, "read_folder", None)
            show_folder = getattr(place.sandbox, "show_folder", None)
            archive = read_folder(REPO_DIR, MOST_ARCHIVE_BYTES) if read_folder else None
            if archive is None and show_folder is None:
                raise
        with self._spare_sandbox(2 * SCRUB_SECONDS) as other:
            start = prepare_repository(other, already_scrubbed=self._image.agent_reference is not None)
            if archive is not None:
                other.write_file(ARCHIVE_FILE, archive)
            elif show_folder is not None:
                try:
                    show_folder(REPO_DIR, other, ARCHIVE_FILE)
                except InfraError:
                    raise failure from None
            done = other.run(
                ["bash", "-c", _UNPACK, "unpack", ARCHIVE_FILE, REPO_DIR], timeout_seconds=SNAPSHOT_SECONDS
            )
            if done.returncode != 0:
                raise AgentFailure(
                    PATCH_LOST, f"the work could not be copied: {done.stderr_read().strip()[-300:]}"
                )
            return take_patch(other, start)

    @contextmanager
    def _spare_sandbox(self, lifetime_seconds: int) -> Iterator[RichSandbox]:
        image = self._image.agent_reference or self._image.reference
        options = SandboxOptions("agent", self._config.network, {"run": self._config.run_name})
        with self._session.sandbox(image, timeout_seconds=lifetime_seconds, options=options) as sandbox:
            yield sandbox

    def _check_health(self, problem: Exception) -> None:
        """A sandbox that does not answer is the agent's doing only where another one does."""
        if not isinstance(problem, SandboxTimeout):
            return
        with self._spare_sandbox(60) as other:
            other.run(["true"], timeout_seconds=30)

    def _end(self, sandboxes: list[RichSandbox]) -> None:
        for sandbox in list(sandboxes):
            self._session.end(sandbox)
        self._team.close()

    def _coordination(self, agents: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """In setting team: what was on, and what came of it."""
        features = self._config.team_features
        if not features:
            return {}
        tasks, log = self._team.records()
        write_json(self._paths.tasks, tasks)
        write_json(self._paths.task_log, log)
        changed = {agent["agent_id"]: agent["files_changed"] for agent in agents}
        return {"team_features": features, "metrics": self._team.metrics(changed)}

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
    except SandboxDestroyed as error:
        return DESTROYED, str(error)
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
    """As the headers name them, which the harness's own git has written."""
    names = re.findall(rb'^diff --git "?a/.* "?b/(.*?)"?$', patch, re.MULTILINE)
    return list(dict.fromkeys(name.decode("utf-8", "replace") for name in names))
