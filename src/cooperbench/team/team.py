"""The agents of one pair as a team: what they have to talk and to share with, from the first to the last of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from cooperbench.team.link import TeamLink
from cooperbench.team.postbox import PostBox

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cooperbench.models import Message
    from cooperbench.sandbox.contract import RichSandbox
    from cooperbench.team.gitremote import GitRemote
    from cooperbench.team.link import Receipt
    from cooperbench.team.mailbox import Mailbox

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
        self._links: dict[str, TeamLink] = {}
        self.postboxes: dict[str, PostBox] = {}
        for agent_id in agent_ids if mailbox or remote else ():
            link = TeamLink(agent_id, [other for other in agent_ids if other != agent_id])
            self._links[agent_id] = link
            if mailbox is not None:
                self.postboxes[agent_id] = PostBox(link, mailbox)
                self.postboxes[agent_id].on_sent = on_message
            if remote is not None:
                link.handle("push", partial(_push, remote, agent_id))

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
        link = self._links.get(agent_id)
        if link is None:
            return
        link.start(sandbox, streams=streams)
        if agent_id in self.postboxes:
            self.postboxes[agent_id].start()
        if self.remote is not None:
            self.remote.attach(
                agent_id, sandbox, repo_dir=repo_dir, base_commit=base_commit, base_git_dir=base_git_dir
            )

    def leave(self, agent_id: str) -> None:
        """What it has sent is taken still; colleagues who write to it from now on are told so."""
        if agent_id in self.postboxes:
            self._links[agent_id].last_call("read", "send")
            self.postboxes[agent_id].close()
        if self.mailbox is not None:
            self.mailbox.finish(agent_id)
        if self.remote is not None:
            self.remote.detach(agent_id)
        if agent_id in self._links:
            self._links[agent_id].close()

    def close(self) -> None:
        """End what is still open; what was said and pushed can still be asked for. Calling it again does nothing."""
        for postbox in self.postboxes.values():
            postbox.close()
        for link in self._links.values():
            link.close()
        if self.mailbox is not None:
            self.mailbox.close()
        for postbox in self.postboxes.values():
            postbox.join()

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
                    **self._delivery(message),
                }
                for message in messages
            ],
        }

    def _delivery(self, message: Message) -> dict[str, Any]:
        delivery = self.postboxes[message.recipient].delivery(message.sequence)
        return {
            "delivered_at": delivery.delivered_at if delivery else None,
            "delivered_step": delivery.step if delivery else None,
            "delivered_by": delivery.how if delivery else None,
        }


def _push(remote: GitRemote, agent_id: str, _name: str, content: bytes) -> Receipt:
    return remote.push(agent_id, content.decode("ascii", "replace").strip())
