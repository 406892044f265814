"""Sandboxes of one agent with its RPC and its inbox, without a run around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.eval.backends import get_backend
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.sandbox.manager import open_sandbox
from cooperbench.team.inbox import Inbox
from cooperbench.team.mailbox import Mailbox
from cooperbench.team.sandbox_rpc import SandboxRpc

if TYPE_CHECKING:
    from contextlib import ExitStack

    from cooperbench.sandbox.contract import CommandResult, Sandbox

AGENTS = ("agent1", "agent2")
BOTH_WAYS = pytest.mark.parametrize("streams", [True, False], ids=["streams", "polled"])


class AgentSandbox:
    """One agent's sandbox, with its RPC and its inbox."""

    def __init__(self, sandbox: Sandbox, mailbox: Mailbox, *, streams: bool = True) -> None:
        self.sandbox = sandbox
        self.mailbox = mailbox
        self.rpc = SandboxRpc("agent1", ["agent2"])
        self.inbox = Inbox(self.rpc, mailbox)
        self.rpc.start(sandbox, streams=streams)

    def run(self, command: str) -> CommandResult:
        return self.sandbox.run(["bash", "-c", command], timeout_seconds=120)

    def leave(self) -> None:
        self.inbox.close()
        self.rpc.close()
        self.mailbox.close()


class AgentSandboxes:
    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._backend = get_backend("local")

    def open(self, mailbox: Mailbox | None = None, *, streams: bool = True) -> AgentSandbox:
        sandbox = open_sandbox(
            self._backend, "host", timeout_seconds=600, options=SandboxOptions("agent")
        )
        self._stack.callback(sandbox.terminate)
        agent = AgentSandbox(sandbox, mailbox or Mailbox(AGENTS), streams=streams)
        self._stack.callback(agent.leave)
        return agent
