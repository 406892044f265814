"""Sandboxes of one agent with its link and its letterbox, without a run around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.eval.backends import get_backend
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.sandbox.session import open_sandbox
from cooperbench.team.link import TeamLink
from cooperbench.team.mailbox import MemoryMailbox
from cooperbench.team.postbox import PostBox

if TYPE_CHECKING:
    from contextlib import ExitStack

    from cooperbench.sandbox.contract import CommandResult, RichSandbox
    from cooperbench.team.mailbox import Mailbox

AGENTS = ("agent1", "agent2")
BOTH_WAYS = pytest.mark.parametrize("streams", [True, False], ids=["streams", "polled"])


class Room:
    """One agent's sandbox, with its link and its box."""

    def __init__(self, sandbox: RichSandbox, mailbox: Mailbox, *, streams: bool = True) -> None:
        self.sandbox = sandbox
        self.mailbox = mailbox
        self.link = TeamLink("agent1", ["agent2"])
        self.box = PostBox(self.link, mailbox)
        self.link.start(sandbox, streams=streams)
        self.box.start()

    def run(self, command: str) -> CommandResult:
        return self.sandbox.run(["bash", "-c", command], timeout_seconds=120)

    def leave(self) -> None:
        self.box.close()
        self.link.close()
        self.mailbox.close()
        self.box.join()


class Rooms:
    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._backend = get_backend("local")

    def open(self, mailbox: Mailbox | None = None, *, streams: bool = True) -> Room:
        sandbox = open_sandbox(self._backend, "host", timeout_seconds=600, options=SandboxOptions("agent"))
        self._stack.callback(sandbox.terminate)
        room = Room(sandbox, mailbox or MemoryMailbox(AGENTS), streams=streams)
        self._stack.callback(room.leave)
        return room
