"""One attempt at one pair: sandboxes that start together, agents that work at the same time, patches, result."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

from cooperbench import errors
from cooperbench._version import __version__
from cooperbench.agents.base import REPO_DIR, retry_timeout_seconds
from cooperbench.agents.recorder import Recorder
from cooperbench.agents.registry import get_agent, version_of
from cooperbench.agents.session import AgentSession
from cooperbench.eval.trees import MAX_PATCH_BYTES
from cooperbench.gateway.recording import Exchanges
from cooperbench.models import AgentSlot, Pair, Usage, agent_slots, sum_usage
from cooperbench.runner.config import AgentSpec, RunConfig
from cooperbench.runner.display import Display
from cooperbench.sandbox import sandbox_script
from cooperbench.sandbox.base_sandbox import SCRIPT_SECONDS, Sandbox
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.sandbox.manager import SandboxManager
from cooperbench.secrets import redact
from cooperbench.storage import utc_now, write_json
from cooperbench.team.git_remote import GitRemote
from cooperbench.team.mailbox import Mailbox, MailboxFactory
from cooperbench.team.team import AgentWork, Team

PREPARED_GIT_DIR = "/cooperbench/base.git"
"""Where a backend that prepares images puts the base commit."""
STRIPPED_GIT_DIR = "/cooperbench/stripped.git"
"""Where the harness puts it in sandboxes of other backends."""
PATCH_FILE = "/cooperbench/work.patch"
ARCHIVE_FILE = "/cooperbench/work.tar"
_UNPACK = """
set -e
find "$2" -mindepth 1 -maxdepth 1 -not -name .git -exec rm -rf {} +
if [ -d "$1" ]; then
    tar --create --directory="$1" --exclude=./.git . | tar --extract --directory="$2" --no-same-owner
    exit "${PIPESTATUS[0]}"
fi
tar --extract --file="$1" --directory="${2%/*}" --exclude="${2##*/}/.git" --no-same-owner
"""
RESULT_SCHEMA = "cooperbench.result/1"
UNLIMITED_LIFETIME_SECONDS = 24 * 3600
SNAPSHOT_SECONDS = 120
DESTROYED = "sandbox_destroyed"
"""The outcome of an agent that ended its own sandbox, or made it useless."""
PATCH_LOST = "patch_lost"
"""The outcome of an agent whose work could not be taken."""
T = TypeVar("T")


def prepare_repository(sandbox: Sandbox, git_dir: str) -> str:
    """Leave one commit in the repository, without history or remotes; its id. `git_dir` has it, beside the agent's."""
    if git_dir == STRIPPED_GIT_DIR:
        return sandbox.run_script("strip_history.sh", git_dir)
    argv = ["git", f"--git-dir={git_dir}", "rev-parse", "HEAD"]
    return sandbox.run_checked(argv, f"the image has no {git_dir}", SCRIPT_SECONDS).strip()


def take_patch(sandbox: Sandbox, git_dir: str) -> bytes:
    """What the agent has done, committed or not; AgentFailure where it has broken its tools, or it is too large."""
    words = ("snapshot", REPO_DIR, git_dir, PATCH_FILE, str(MAX_PATCH_BYTES))
    argv = ["bash", "-c", sandbox_script("snapshot.sh"), *words]
    done = sandbox.run(argv, timeout_seconds=SNAPSHOT_SECONDS)
    problem: object = done.stderr_read().strip()[-300:]
    if done.timed_out:
        problem = f"not within {SNAPSHOT_SECONDS} s"
    elif done.returncode == 0:
        try:
            return sandbox.read_file(PATCH_FILE)
        except (errors.SandboxRefused, FileNotFoundError) as error:
            # A process that the agent left running has replaced the file.
            problem = error
    raise errors.AgentFailure(PATCH_LOST, f"the patch could not be taken: {problem}")


class PairRun:
    """One attempt: everything that it needs; `execute` makes it."""

    def __init__(
        self,
        pair: Pair,
        config: RunConfig,
        sandbox_manager: SandboxManager,
        display: Display,
        mailboxes: MailboxFactory | None,
        on_spend: Callable[[Usage], None],
    ) -> None:
        self._pair = pair
        self._config = config
        self._image = sandbox_manager.image(pair.task)
        self._git_dir = PREPARED_GIT_DIR if self._image.agent_ref else STRIPPED_GIT_DIR
        self._sandbox_manager = sandbox_manager
        self._display = display
        self._on_spend = on_spend
        config.paths.archive(pair, config.setting)
        self._paths = config.paths.pair(pair, config.setting)
        self._paths.folder.mkdir(parents=True)
        self._slots = agent_slots(pair, config.setting)
        agent_ids = [slot.agent_id for slot in self._slots]
        together = len(agent_ids) > 1
        mailbox = remote = None
        if together and config.messaging_enabled:
            mailbox = mailboxes.make(pair.label, agent_ids) if mailboxes else Mailbox(agent_ids)
        if together and config.shares_git:
            remote = GitRemote(self._paths.team_repository, agent_ids)
        told = partial(display.message, pair)
        self._team = Team(
            agent_ids, mailbox, remote, told, config.team_features if together else None
        )

    def execute(self, attempt: int) -> dict[str, Any]:
        """The record that now is result.json. InfraError and Interrupted leave no result behind."""
        started_at, started = utc_now(), time.monotonic()
        sandboxes: dict[str, Sandbox] = {}
        try:
            with ThreadPoolExecutor(len(self._slots), thread_name_prefix="agent") as pool:
                try:
                    slots = list(
                        zip(self._slots, self._config.agent_specs(self._pair), strict=True)
                    )
                    commits = _gather([pool.submit(self._set_up, *one, sandboxes) for one in slots])
                    if len(set(commits)) > 1:
                        raise errors.InfraError(
                            f"sandboxes of {self._pair.label} have different commits"
                        )
                    agents = _gather([pool.submit(self._work, *one, sandboxes) for one in slots])
                finally:
                    # After a failure this ends the agents that are still at work, so that the pool can end.
                    self._end(sandboxes)
            works = [
                AgentWork(agent["agent_id"], agent["feature_ids"], agent["files_changed"])
                for agent in agents
            ]
            records = self._team.write_records(self._paths, works)
        finally:
            # One may have been opened while the others were being ended.
            self._end(sandboxes)
            if self._team.remote is not None:
                self._team.remote.close()
        record = {
            "schema": RESULT_SCHEMA,
            "status": "completed",
            "run_name": self._config.run_name,
            "repo": self._pair.task.repo,
            "task_id": self._pair.task.task_id,
            "features": list(self._pair.feature_ids),
            "setting": self._config.setting,
            "agents": {agent["agent_id"]: agent for agent in agents},
            **records,
            **sum_usage(agents),
            "base_commit": commits[0],
            "backend": self._config.backend,
            "image": self._image.ref,
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

    def _set_up(self, slot: AgentSlot, spec: AgentSpec, sandboxes: dict[str, Sandbox]) -> str:
        """The agent's sandbox, with its repository prepared; the commit in it, the same for all."""
        seconds = self._config.limits.seconds
        # An outage of the model's provider is not the agent's time, but the sandbox has to outlast it.
        spare = 2 * SNAPSHOT_SECONDS + int(min(retry_timeout_seconds(), UNLIMITED_LIFETIME_SECONDS))
        labels = {"run": self._config.run_name, "pair": self._pair.label, "agent": slot.agent_id}
        sandbox = self._sandbox_manager.open(
            self._image.agent_ref or self._image.ref,
            timeout_seconds=UNLIMITED_LIFETIME_SECONDS if seconds is None else int(seconds) + spare,
            options=SandboxOptions(
                "agent",
                self._config.network,
                labels,
                programs=get_agent(spec.agent).programs(),
            ),
        )
        sandboxes[slot.agent_id] = sandbox
        commit = prepare_repository(sandbox, self._git_dir)
        self._team.join(
            slot.agent_id,
            sandbox,
            streams=self._sandbox_manager.streams,
            repo_dir=REPO_DIR,
            base_commit=commit,
            base_git_dir=self._git_dir,
        )
        return commit

    def _work(
        self, slot: AgentSlot, spec: AgentSpec, sandboxes: dict[str, Sandbox]
    ) -> dict[str, Any]:
        """One agent from its first step to its patch, and its part of result.json."""
        started, sandbox = time.monotonic(), sandboxes[slot.agent_id]
        files = self._paths.agent(slot.agent_id)
        make_agent = get_agent(spec.agent)
        version = version_of(make_agent)
        recorder = Recorder(files, slot, agent=spec.agent, model=spec.model, agent_version=version)
        recording = self._config.recording(self._pair, slot.agent_id)
        exchanges = None
        if self._config.record or recording:
            exchanges = Exchanges(None if recording else files.exchanges, recording)
        session = AgentSession(
            pair=self._pair,
            slot=slot,
            setting=self._config.setting,
            model=spec.model,
            base_url=spec.base_url,
            config_path=spec.config_path,
            sandbox=sandbox,
            recorder=recorder,
            limits=self._config.limits,
            inbox=self._team.inboxes.get(slot.agent_id),
            stop=self._sandbox_manager.stop,
            git_shared=self._team.remote is not None,
            on_spend=self._on_spend,
            exchanges=exchanges,
            on_outage=partial(self._display.outage, self._pair, slot.agent_id),
            on_progress=partial(self._display.agent_progress, self._pair, slot.agent_id),
            tools=self._team.tools(slot.agent_id) if self._config.team_mcp else {},
            team_features=self._config.team_features,
            prompts_dir=self._config.prompts_dir,
        )
        status, error, patch = "submitted", None, b""
        try:
            try:
                with self._faults_of_the_agent():
                    make_agent().run(session)
            except errors.AgentFailure as failure:
                status, error = failure.status, str(failure)
            except errors.UserError as problem:
                raise errors.RunStopped(redact(str(problem))) from problem
            self._team.leave(slot.agent_id)
            session.report_progress("collecting the patch")
            try:
                with self._faults_of_the_agent():
                    patch = self._take_patch(sandbox)
            except (errors.AgentFailure, errors.SandboxDead) as problem:
                if status != DESTROYED:
                    if not isinstance(problem, errors.AgentFailure):
                        raise
                    status, error = problem.status, str(problem)
        except BaseException as problem:
            recorder.note(f"broken off: {type(problem).__name__}: {problem}")
            recorder.abandon()
            raise
        finally:
            if exchanges is not None:
                exchanges.close()
        self._sandbox_manager.end(sandbox)
        files.write_patch(patch)
        recorder.finish(status, session.usage, session.sandbox_seconds, error)
        return {
            "agent_id": slot.agent_id,
            "feature_ids": list(slot.feature_ids),
            "agent": spec.agent,
            "agent_version": version,
            "model": spec.model,
            "status": status,
            "error": error and redact(error),
            "steps": session.steps,
            **session.usage.to_record(),
            "sandbox_seconds": round(session.sandbox_seconds, 3),
            "patch_bytes": len(patch),
            "patch_sha256": sha256(patch).hexdigest(),
            "files_changed": _files_changed(patch),
            "started_at": recorder.started_at,
            "ended_at": utc_now(),
            "duration_seconds": round(time.monotonic() - started, 3),
        }

    @contextmanager
    def _faults_of_the_agent(self) -> Iterator[None]:
        """What it has done to its sandbox is its outcome; where this does not answer, only if another one does."""
        try:
            yield
        except (errors.SandboxDestroyed, errors.SandboxRefused, errors.SandboxTimeout) as error:
            if isinstance(error, errors.SandboxTimeout):
                with self._spare_sandbox(60) as other:
                    other.run(["true"], timeout_seconds=30)
            raise errors.AgentFailure(DESTROYED, str(error)) from error

    def _take_patch(self, sandbox: Sandbox) -> bytes:
        """By the tools in the agent's sandbox, or where it has broken these, by those of another one."""
        try:
            return take_patch(sandbox, self._git_dir)
        except errors.AgentFailure as error:
            failure, show_folder = error, getattr(sandbox, "show_folder", None)
            if show_folder is None:
                raise
        with self._spare_sandbox(2 * SCRIPT_SECONDS) as other:
            prepare_repository(other, self._git_dir)
            try:
                show_folder(REPO_DIR, other, ARCHIVE_FILE)
            except errors.SandboxRefused:
                raise failure from None
            argv = ["bash", "-c", _UNPACK, "unpack", ARCHIVE_FILE, REPO_DIR]
            done = other.run(argv, timeout_seconds=SNAPSHOT_SECONDS)
            if done.returncode != 0:
                reason = done.stderr_read().strip()[-300:]
                raise errors.AgentFailure(PATCH_LOST, f"the work could not be copied: {reason}")
            return take_patch(other, self._git_dir)

    def _spare_sandbox(self, lifetime_seconds: int) -> AbstractContextManager[Sandbox]:
        image = self._image.agent_ref or self._image.ref
        options = SandboxOptions("agent", self._config.network, {"run": self._config.run_name})
        return self._sandbox_manager.sandbox(
            image, timeout_seconds=lifetime_seconds, options=options
        )

    def _end(self, sandboxes: dict[str, Sandbox]) -> None:
        for sandbox in list(sandboxes.values()):
            self._sandbox_manager.end(sandbox)
        self._team.close()


def _gather(futures: list[Future[T]]) -> list[T]:
    """All results in order; the first failure at once, while the others may still be at it."""
    done, _ = wait(futures, return_when=FIRST_EXCEPTION)
    failures = [error for future in done if (error := future.exception())]
    # An agent that was interrupted by a stop tells less than the error that caused it.
    failures.sort(
        key=lambda error: (
            not isinstance(error, errors.RunStopped),
            isinstance(error, errors.Interrupted),
        )
    )
    if failures:
        raise failures[0]
    return [future.result() for future in futures]


def _files_changed(patch: bytes) -> list[str]:
    """As the headers name them, which the harness's own git has written."""
    names = re.findall(rb'^diff --git "?a/.* "?b/(.*?)"?$', patch, re.MULTILINE)
    return list(dict.fromkeys(name.decode("utf-8", "replace") for name in names))
