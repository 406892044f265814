"""An agent's session without a sandbox around it: a mailbox, a record, limits."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cooperbench.agents.base import Limits
from cooperbench.agents.recorder import Recorder, read_trajectory
from cooperbench.agents.session import Session
from cooperbench.dataset.discovery import discover
from cooperbench.models import Message, seats_of
from cooperbench.storage import AgentPaths
from cooperbench.team.inbox import Inbox
from cooperbench.team.mailbox import Mailbox
from cooperbench.team.sandbox_rpc import SandboxRpc
from tests.tiny import write_tiny

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class AtWork:
    """`agent1`, whose colleague is `agent2`."""

    def __init__(self, session: Session, mailbox: Mailbox, inbox: Inbox, paths: AgentPaths) -> None:
        self.session = session
        self.mailbox = mailbox
        self.inbox = inbox
        self.paths = paths

    def arrives(self, text: str) -> Message:
        """From the colleague."""
        return self.mailbox.post("agent2", "agent1", text)

    def entries(self, *actions: str) -> list[dict[str, Any]]:
        trajectory = read_trajectory(self.paths)
        assert trajectory is not None
        return [entry for entry in trajectory["steps"] if not actions or entry["action"] in actions]


@contextmanager
def agent_at_work(folder: Path, limits: Limits | None = None) -> Iterator[AtWork]:
    (pair,) = discover(write_tiny(folder / "data"), features=[1, 2]).pairs
    seat = seats_of(pair, "coop")[0]
    paths = AgentPaths(folder, "agent1")
    recorder = Recorder(paths, seat, agent="a", model="m")
    mailbox = Mailbox(("agent1", "agent2"))
    rpc = SandboxRpc("agent1", ["agent2"])
    inbox = Inbox(rpc, mailbox)
    session = Session(
        pair=pair,
        seat=seat,
        setting="coop",
        model="m",
        config_path=None,
        sandbox=None,  # type: ignore[arg-type]  # nothing here needs one
        recorder=recorder,
        limits=limits or Limits(),
        inbox=inbox,
        stop=threading.Event(),
    )
    try:
        yield AtWork(session, mailbox, inbox, paths)
    finally:
        recorder.abandon()
        inbox.close()
        mailbox.close()
