"""The agents of one pair as a team: their inboxes, tools and git remote from first to last."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from cooperbench.git import GitError
from cooperbench.storage import write_json
from cooperbench.team.inbox import Inbox
from cooperbench.team.sandbox_rpc import Response, SandboxRpc
from cooperbench.team.shared_folder import SharedFolder
from cooperbench.team.tools import Requests, TaskList, Teammates, run_command, tools_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cooperbench.models import Message
    from cooperbench.sandbox.contract import Sandbox
    from cooperbench.storage import PairPaths
    from cooperbench.team.git_remote import GitRemote
    from cooperbench.team.mailbox import Mailbox
    from cooperbench.team.tools import Tools

CONVERSATION_SCHEMA = "cooperbench.conversation/1"
TASKS_SCHEMA = "cooperbench.tasks/1"
TASK_LOG_SCHEMA = "cooperbench.task_log/1"


class Team:
    """`join` when an agent's sandbox is there, `leave` when the agent is done, `close` in any case."""

    def __init__(
        self,
        agent_ids: Sequence[str],
        mailbox: Mailbox | None,
        remote: GitRemote | None,
        on_message: Callable[[Message], None],
        features: Mapping[str, bool] | None = None,
    ) -> None:
        """`features`: the parts of setting team, and which are on."""
        self._features = dict(features or {})
        self._on = {part for part, on in self._features.items() if on}
        self.mailbox = mailbox
        """None: they cannot write to each other."""
        self.remote = remote
        """None: they share no repository."""
        self._rpcs: dict[str, SandboxRpc] = {}
        self.inboxes: dict[str, Inbox] = {}
        team = Teammates(
            tuple(agent_ids), lambda agent_id: self.inboxes[agent_id].step, self._refresh
        )
        self.tasks = TaskList(team) if "task_list" in self._on else None
        self.requests = Requests(team) if "protocol" in self._on else None
        self.shared = SharedFolder(team.announce, self._tell) if "scratchpad" in self._on else None
        together = self.tasks or self.requests or self.shared
        for agent_id in agent_ids if mailbox or remote or together else ():
            rpc = SandboxRpc(agent_id, [other for other in agent_ids if other != agent_id])
            self._rpcs[agent_id] = rpc
            if mailbox is not None or together:
                self.inboxes[agent_id] = Inbox(
                    rpc, mailbox, on_message, partial(self._sync, agent_id)
                )
            if tools := self.tools(agent_id):
                rpc.handle("tool", partial(_use_tool, rpc, tools), *tools)
            if remote is not None:
                rpc.handle("push", partial(_push, remote, agent_id))

    def tools(self, agent_id: str) -> Tools:
        if self.tasks is None and self.requests is None:
            return {}
        return tools_of(agent_id, self.tasks, self.requests, partial(self._sync, agent_id))

    def _sync(self, agent_id: str) -> None:
        """Whoever hears of a file from its writer finds it there."""
        if self.shared is not None:
            self.shared.sync(agent_id)

    def _tell(self, agent_id: str, subject: str, text: str) -> None:
        self.inboxes[agent_id].update(subject, text)

    def _refresh(self, agent_id: str, subject: str, text: str) -> None:
        """What others did, shown unasked."""
        if "auto_refresh" in self._on:
            self._tell(agent_id, subject, text)

    def join(
        self,
        agent_id: str,
        sandbox: Sandbox,
        *,
        streams: bool,
        repo_dir: str,
        base_commit: str,
        base_git_dir: str,
    ) -> None:
        rpc = self._rpcs.get(agent_id)
        if rpc is None:
            return
        rpc.start(sandbox, streams=streams)
        if self.shared is not None:
            self.shared.attach(agent_id, sandbox)
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
        """What it has already sent is still delivered; teammates who write to it from now on are told so."""
        if agent_id in self.inboxes:
            self._rpcs[agent_id].last_call("read", "send", "tool")
            self.inboxes[agent_id].close()
        if self.shared is not None:
            self.shared.detach(agent_id)
        for part in (self.tasks, self.requests):
            if part is not None:
                part.end(agent_id)
        if self.mailbox is not None:
            self.mailbox.finish(agent_id)
        if self.remote is not None:
            self.remote.detach(agent_id)
        if agent_id in self._rpcs:
            self._rpcs[agent_id].close()

    def close(self) -> None:
        """End what is still open; what was said and done can still be read. Calling it again does nothing."""
        for agent_id, inbox in self.inboxes.items():
            inbox.close()
            if self.requests is not None:
                self.requests.end(agent_id)
        for rpc in self._rpcs.values():
            rpc.close()
        if self.mailbox is not None:
            self.mailbox.close()

    def write_records(
        self, paths: PairPaths, agents: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """What was said, done and shared, to files; what result.json says of it, beside its `agents`."""
        result: dict[str, Any] = {"messages": 0}
        if self.mailbox is not None:
            features = {agent["agent_id"]: agent["feature_ids"][0] for agent in agents}
            said = [
                {
                    "sequence": message.sequence,
                    "from": message.sender,
                    "to": message.recipient,
                    "message": message.text,
                    "timestamp": message.timestamp,
                    "feature_id": features[message.sender],
                    "sender_step": message.sender_step,
                    **self.inboxes[message.recipient].delivery(message.sequence)._asdict(),
                }
                for message in self.mailbox.messages()
            ]
            write_json(paths.conversation, {"schema": CONVERSATION_SCHEMA, "messages": said})
            result["messages"] = len(said)
        if self.remote is not None:
            kept = False
            with suppress(GitError):  # a record: the agents' work does not depend on it
                kept = self.remote.write_bundle(paths.team_bundle)
            result["git"] = self.remote.counts | {
                "bundle": paths.team_bundle.name if kept else None
            }
        if self._features:
            log, metrics = dict[str, Any](), dict[str, Any]()
            if self.tasks is not None:
                log["changes"] = self.tasks.log()
                metrics |= self.tasks.metrics(
                    {agent["agent_id"]: agent["files_changed"] for agent in agents}
                )
            if self.requests is not None:
                log["requests"] = self.requests.log()
                metrics |= self.requests.metrics()
            tasks = self.tasks.tasks() if self.tasks is not None else []
            write_json(paths.tasks, {"schema": TASKS_SCHEMA, "tasks": tasks})
            write_json(paths.task_log, {"schema": TASK_LOG_SCHEMA, **log})
            result |= {"team_features": self._features, "metrics": metrics}
        return result


def _use_tool(rpc: SandboxRpc, tools: Tools, name: str, content: bytes) -> Response | None:
    command, *words = content.decode("utf-8", "replace").split("\0")[:-1] or [""]
    if command not in tools:
        return Response(2, "there is no such tool")
    work = partial(run_command, command, tools[command], words)
    if command != "coop-request":
        return work()
    # It waits for somebody else, which is no reason to keep the agent's other calls waiting.
    threading.Thread(
        target=rpc.answer, args=(name, work), name=f"request-{name}", daemon=True
    ).start()
    return None


def _push(remote: GitRemote, agent_id: str, _name: str, content: bytes) -> Response:
    return remote.push(agent_id, content.decode("ascii", "replace").strip())
