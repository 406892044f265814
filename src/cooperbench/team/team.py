"""The agents of one pair as a team: their inboxes, tools and git remote."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import UNSET

from cooperbench import records
from cooperbench.git import GitError
from cooperbench.records.conversation import Conversation, ConversationMessage
from cooperbench.records.result import GitUse, TeamMetrics
from cooperbench.records.tasks import (
    RequestRecord,
    TaskChange,
    TaskListRecord,
    TaskLog,
    TaskRecord,
)
from cooperbench.team.inbox import Inbox
from cooperbench.team.requests import Requests
from cooperbench.team.sandbox_rpc import (
    TEAM_DIR,
    TEAM_DIR_VARIABLE,
    Response,
    SandboxRpc,
)
from cooperbench.team.shared_folder import SHARED_DIR, SharedFolder
from cooperbench.team.task_list import TaskList
from cooperbench.team.teammates import Teammates
from cooperbench.team.tools import make_tools, run_command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cooperbench.models import Message
    from cooperbench.sandbox.base_sandbox import Sandbox
    from cooperbench.storage import PairPaths
    from cooperbench.team.channel import Channel
    from cooperbench.team.git_remote import GitRemote
    from cooperbench.team.mailbox import Mailbox
    from cooperbench.team.tools import Tools


class AgentWork(NamedTuple):
    """The part of an agent's result that the team's records need."""

    agent_id: str
    feature_ids: Sequence[int]
    files_changed: Sequence[str]


class TeamRecord(NamedTuple):
    """The team's part of result.json."""

    messages: int
    """Number of messages that the agents sent."""
    git: GitUse | None
    """None without a shared git remote."""
    team_features: dict[str, bool] | None
    """The parts of setting team, and which are on; None in other settings."""
    metrics: TeamMetrics | None
    """None in other settings."""


class Team:
    """The communication of one pair's agents.

    Call `join` when an agent's sandbox is open, `leave` when the agent is done, and `close` at the
    end in any case.
    """

    def __init__(  # noqa: PLR0913  # the parts of a team
        self,
        agent_ids: Sequence[str],
        mailbox: Mailbox | None,
        remote: GitRemote | None,
        on_message: Callable[[Message], None],
        features: Mapping[str, bool] | None = None,
        channels: Mapping[str, Channel] | None = None,
        *,
        shares_sandbox: bool = False,
    ) -> None:
        """Connect inboxes, tools and remote of all agents.

        Args:
            agent_ids: The agents of the pair.
            mailbox: Where messages go; None if agents cannot write to each other.
            remote: The shared git remote; None if there is none.
            on_message: Called with every message.
            features: The parts of setting team, and whether each is switched on.
            channels: The rules for messages of each agent, by agent id.
            shares_sandbox: Whether all agents work in one sandbox.
        """
        self.agent_ids = tuple(agent_ids)
        self._shares_sandbox = shares_sandbox
        self._channels = channels or {}
        self._features = dict(features or {})
        self._enabled = {part for part, is_on in self._features.items() if is_on}
        self.mailbox = mailbox
        self.remote = remote
        self._on_message = on_message
        self._rpcs: dict[str, SandboxRpc] = {}
        self.inboxes: dict[str, Inbox] = {}
        teammates = Teammates(
            agent_ids=tuple(agent_ids),
            step_of=lambda agent_id: self.inboxes[agent_id].step,
            notify=self._notify_if_refreshing,
        )
        self.tasks = TaskList(teammates) if "task_list" in self._enabled else None
        self.requests = Requests(teammates) if "protocol" in self._enabled else None
        self.shared_folder: SharedFolder | None = None
        if "scratchpad" in self._enabled and not shares_sandbox:
            self.shared_folder = SharedFolder(teammates.notify_others, self._notify)
        has_tools = bool(self.tasks or self.requests or self.shared_folder)
        if mailbox or remote or has_tools:
            for agent_id in agent_ids:
                others = [other for other in agent_ids if other != agent_id]
                self._connect(agent_id, others, has_inbox=mailbox is not None or has_tools)

    def _connect(self, agent_id: str, others: Sequence[str], *, has_inbox: bool) -> None:
        """Create the RPC of an agent, with handlers for everything that is switched on."""
        team_dir = f"{TEAM_DIR}/{agent_id}" if self._shares_sandbox else TEAM_DIR
        rpc = SandboxRpc(agent_id, others, team_dir)
        self._rpcs[agent_id] = rpc
        if has_inbox:
            synchronize = partial(self._synchronize, agent_id)
            channel = self._channels.get(agent_id)
            self.inboxes[agent_id] = Inbox(
                rpc, self.mailbox, self._on_message, synchronize, channel
            )
        if tools := self.tools(agent_id):
            rpc.handle("tool", partial(_handle_tool, rpc, tools), *tools)
        if self.remote is not None:
            rpc.handle("push", partial(_handle_push, self.remote, agent_id))

    def environment(self, agent_id: str) -> dict[str, str]:
        """Return the variables of an agent's commands, by which the team's commands know it.

        Where each agent has its own sandbox there are none.
        """
        if not self._shares_sandbox or agent_id not in self._rpcs:
            return {}
        return {TEAM_DIR_VARIABLE: self._rpcs[agent_id].team_dir}

    def tools(self, agent_id: str) -> Tools:
        """Return the tools of an agent by command name."""
        synchronize = partial(self._synchronize, agent_id)
        return make_tools(agent_id, self.tasks, self.requests, synchronize)

    def _synchronize(self, agent_id: str) -> None:
        """Share an agent's files before others can read a message or task that mentions them."""
        if self.shared_folder is not None:
            self.shared_folder.sync(agent_id)

    def _notify(self, agent_id: str, subject: str, text: str) -> None:
        self.inboxes[agent_id].update(subject, text)

    def _notify_if_refreshing(self, agent_id: str, subject: str, text: str) -> None:
        """Show an agent what others did, if `auto_refresh` is on."""
        if "auto_refresh" in self._enabled:
            self._notify(agent_id, subject, text)

    def join(  # noqa: PLR0913  # facts about one sandbox, by keyword
        self,
        agent_id: str,
        sandbox: Sandbox,
        *,
        streams: bool,
        repo_dir: str,
        base_commit: str,
        base_git_dir: str,
    ) -> None:
        """Set up the commands, shared folder and git remote in an agent's sandbox."""
        if self._shares_sandbox and "scratchpad" in self._enabled:
            sandbox.run_checked(["mkdir", "-p", SHARED_DIR], f"there is no {SHARED_DIR}", 60)
        rpc = self._rpcs.get(agent_id)
        if rpc is None:
            return
        rpc.start(sandbox, streams=streams)
        if self.shared_folder is not None:
            self.shared_folder.attach(agent_id, sandbox)
        if self.tasks is not None:
            self.tasks.started = time.monotonic()
        if self.remote is not None:
            self.remote.attach(
                agent_id,
                sandbox,
                repo_dir=repo_dir,
                base_commit=base_commit,
                base_git_dir=base_git_dir,
            )

    def leave(self, agent_id: str) -> None:
        """Deliver what a finished agent has sent, and notify its teammates that it has finished."""
        if agent_id in self.inboxes:
            self._rpcs[agent_id].last_call("read", "send", "tool")
            self.inboxes[agent_id].close()
        if self.shared_folder is not None:
            self.shared_folder.detach(agent_id)
        if self.tasks is not None:
            self.tasks.end(agent_id)
        if self.requests is not None:
            self.requests.end(agent_id)
        if self.mailbox is not None:
            self.mailbox.finish(agent_id)
        if self.remote is not None:
            self.remote.detach(agent_id)
        if agent_id in self._rpcs:
            self._rpcs[agent_id].close()

    def close(self) -> None:
        """End whatever is still open. Records can still be written; closing again does nothing."""
        for agent_id, inbox in self.inboxes.items():
            inbox.close()
            if self.requests is not None:
                self.requests.end(agent_id)
        for rpc in self._rpcs.values():
            rpc.close()
        if self.mailbox is not None:
            self.mailbox.close()

    def write_records(self, paths: PairPaths, agents: Sequence[AgentWork]) -> TeamRecord:
        """Write conversation.json and the team's files; return the team's part of result.json."""
        messages = 0
        if self.mailbox is not None:
            messages = self._write_conversation(paths, agents)
        git = None
        if self.remote is not None:
            git = self._write_bundle(self.remote, paths)
        metrics = None
        if self._features:
            metrics = self._write_task_records(paths, agents)
        return TeamRecord(messages, git, self._features or None, metrics)

    def _write_bundle(self, remote: GitRemote, paths: PairPaths) -> GitUse:
        """Write team.bundle and return how the remote was used."""
        has_bundle = False
        # The bundle is a record only: the agents' work does not depend on it.
        with suppress(GitError):
            has_bundle = remote.write_bundle(paths.team_bundle)
        bundle = paths.team_bundle.name if has_bundle else None
        return GitUse(**remote.counts, bundle=bundle)

    def _write_conversation(self, paths: PairPaths, agents: Sequence[AgentWork]) -> int:
        """Write conversation.json and return the number of messages."""
        assert self.mailbox is not None
        feature_of = {agent.agent_id: agent.feature_ids[0] for agent in agents}
        messages = []
        for message in self.mailbox.messages():
            delivery = self.inboxes[message.recipient].delivery(message.sequence)
            messages.append(
                ConversationMessage(
                    sequence=message.sequence,
                    sender=message.sender,
                    recipient=message.recipient,
                    text=message.text,
                    timestamp=message.timestamp,
                    feature_id=feature_of[message.sender],
                    sender_step=message.sender_step,
                    delivered_at=delivery.delivered_at,
                    delivered_step=delivery.delivered_step,
                    delivered_by=delivery.delivered_by,
                    lost=True if message.lost else UNSET,
                )
            )
        records.write(paths.conversation, Conversation(messages=messages))
        return len(messages)

    def _write_task_records(self, paths: PairPaths, agents: Sequence[AgentWork]) -> TeamMetrics:
        """Write tasks.json and task_log.json; return the metrics of the team's tools."""
        tasks: list[TaskRecord] = []
        changes: list[TaskChange] | None = None
        requests: list[RequestRecord] | None = None
        metrics: dict[str, Any] = {}
        if self.tasks is not None:
            tasks = [TaskRecord(**asdict(task)) for task in self.tasks.tasks()]
            changes = self.tasks.log()
            files_changed = {agent.agent_id: agent.files_changed for agent in agents}
            metrics |= asdict(self.tasks.metrics(files_changed))
        if self.requests is not None:
            requests = self.requests.log()
            metrics |= asdict(self.requests.metrics())
        records.write(paths.tasks, TaskListRecord(tasks=tasks))
        records.write(paths.task_log, TaskLog(changes=changes, requests=requests))
        return TeamMetrics(**metrics)


def _handle_tool(rpc: SandboxRpc, tools: Tools, name: str, content: bytes) -> Response | None:
    """Run a tool for a command in the sandbox; the content is its argv, each ended by a NUL."""
    argv = content.decode("utf-8", "replace").split("\0")[:-1]
    if not argv or argv[0] not in tools:
        return Response(2, "there is no such tool")
    command, *arguments = argv
    work = partial(run_command, command, tools[command], arguments)
    if command != "coop-request":
        return work()
    # A request waits for another agent, so it gets a thread: the agent's other calls go on.
    thread = threading.Thread(
        target=rpc.answer, args=(name, work), name=f"request-{name}", daemon=True
    )
    thread.start()
    return None


def _handle_push(remote: GitRemote, agent_id: str, _name: str, content: bytes) -> Response:
    return remote.push(agent_id, content.decode("ascii", "replace").strip())
