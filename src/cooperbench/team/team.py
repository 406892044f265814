"""The agents of one pair as a team: what they are told, and their inboxes and git remote from first to last."""

from __future__ import annotations

from functools import cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from cooperbench.models import REPO_DIR, seats_of
from cooperbench.team.inbox import Inbox
from cooperbench.team.sandbox_rpc import SandboxRpc
from cooperbench.text import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jinja2 import Template

    from cooperbench.agents.base import Limits
    from cooperbench.models import Message, Pair, Seat, Setting
    from cooperbench.sandbox.contract import RichSandbox
    from cooperbench.team.git_remote import GitRemote
    from cooperbench.team.mailbox import Mailbox
    from cooperbench.team.sandbox_rpc import Response

CONVERSATION_SCHEMA = "cooperbench.conversation/1"


class Team:
    """`join` when an agent's sandbox is there, `leave` when the agent is done, `close` in any case."""

    def __init__(
        self,
        agent_ids: Sequence[str],
        mailbox: Mailbox | None,
        remote: GitRemote | None,
        on_message: Callable[[Message], None],
    ) -> None:
        self.mailbox = mailbox
        """None: they cannot write to each other."""
        self.remote = remote
        """None: they share no repository."""
        self._rpcs: dict[str, SandboxRpc] = {}
        self.inboxes: dict[str, Inbox] = {}
        for agent_id in agent_ids if mailbox or remote else ():
            rpc = SandboxRpc(agent_id, [other for other in agent_ids if other != agent_id])
            self._rpcs[agent_id] = rpc
            if mailbox is not None:
                self.inboxes[agent_id] = Inbox(rpc, mailbox)
                self.inboxes[agent_id].on_sent = on_message
            if remote is not None:
                rpc.handle("push", partial(_push, remote, agent_id))

    def join(
        self,
        agent_id: str,
        sandbox: RichSandbox,
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
        if agent_id in self.inboxes:
            self.inboxes[agent_id].start()
        if self.remote is not None:
            self.remote.attach(
                agent_id, sandbox, repo_dir=repo_dir, base_commit=base_commit, base_git_dir=base_git_dir
            )

    def leave(self, agent_id: str) -> None:
        """What it has already sent is still delivered; colleagues who write to it from now on are told so."""
        if agent_id in self.inboxes:
            self._rpcs[agent_id].last_call("read", "send")
            self.inboxes[agent_id].close()
        if self.mailbox is not None:
            self.mailbox.finish(agent_id)
        if self.remote is not None:
            self.remote.detach(agent_id)
        if agent_id in self._rpcs:
            self._rpcs[agent_id].close()

    def close(self) -> None:
        """End what is still open; messages and pushes can still be read. Calling it again does nothing."""
        for inbox in self.inboxes.values():
            inbox.close()
        for rpc in self._rpcs.values():
            rpc.close()
        if self.mailbox is not None:
            self.mailbox.close()

    def conversation(self, feature_ids: Mapping[str, int]) -> dict[str, Any]:
        """conversation.json: every message, and when and how it was delivered."""
        messages = self.mailbox.messages() if self.mailbox else []
        return {
            "schema": CONVERSATION_SCHEMA,
            "messages": [
                {
                    "sequence": message.sequence,
                    "from": message.sender,
                    "to": message.recipient,
                    "message": message.text,
                    "timestamp": message.timestamp,
                    "feature_id": feature_ids[message.sender],
                    "sender_step": message.sender_step,
                    **self.inboxes[message.recipient].delivery(message.sequence)._asdict(),
                }
                for message in messages
            ],
        }


def _push(remote: GitRemote, agent_id: str, _name: str, content: bytes) -> Response:
    return remote.push(agent_id, content.decode("ascii", "replace").strip())


def task_prompt(
    pair: Pair,
    seat: Seat,
    setting: Setting,
    *,
    messaging: bool,
    git: bool,
    limits: Limits,
    repo_dir: str = REPO_DIR,
) -> str:
    """What an agent is told: its task, its colleagues, messages and git. The same text for every framework.

    How to use a framework's own tools is explained by the framework.
    """
    colleagues = [other.agent_id for other in seats_of(pair, setting) if other.agent_id != seat.agent_id]
    texts = [feature.description.read_bytes().decode("utf-8", "replace") for feature in seat.features]
    return _template().render(
        setting=setting,
        agent_id=seat.agent_id,
        features=[text.strip("\n") for text in texts],
        colleagues=colleagues,
        messaging=messaging and bool(colleagues),
        git=git and bool(colleagues),
        repo_dir=repo_dir,
        limits=_limit_texts(limits),
    )


def _limit_texts(limits: Limits) -> list[str]:
    texts = []
    if limits.steps is not None:
        texts.append(plural(limits.steps, "step"))
    if limits.seconds is not None:
        minutes = round(limits.seconds / 60)
        texts.append(plural(minutes, "minute") if minutes else plural(round(limits.seconds), "second"))
    if limits.cost is not None:
        texts.append(f"${limits.cost:g} of model use")
    return texts


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)  # noqa: S701  # no HTML
    source = files("cooperbench.team") / "templates" / "task.md.j2"
    return environment.from_string(source.read_text("utf-8"))
