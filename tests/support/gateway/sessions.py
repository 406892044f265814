"""An agent's session without a sandbox around it: a mailbox, a record, limits."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cooperbench.agents.base import Limits
from cooperbench.agents.recorder import Recorder
from cooperbench.agents.session import AgentSession
from cooperbench.dataset.discovery import discover
from cooperbench.models import Message, agent_slots
from cooperbench.records.trajectory import read_trajectory, step_object
from cooperbench.storage import AgentPaths
from cooperbench.team.inbox import Inbox
from cooperbench.team.mailbox import Mailbox
from cooperbench.team.sandbox_rpc import SandboxRpc
from tests.support.tiny import write_tiny

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cooperbench.models import Pair, Setting


def make_session(folder: Path, pair: Pair, setting: Setting, **given: Any) -> AgentSession:
    """Of the first agent, whose record is in the folder."""
    slot = agent_slots(pair, setting)[0]
    recorder = Recorder(AgentPaths(folder, slot.agent_id), slot, agent="a", model=given["model"])
    about: dict[str, Any] = {"pair": pair, "slot": slot, "setting": setting, "recorder": recorder}
    others = {"config_path": None, "inbox": None, "limits": Limits(), "stop": threading.Event()}
    return AgentSession(**about | others | given)


def recorded_steps(session: AgentSession) -> list[dict[str, Any]]:
    trajectory = read_trajectory(AgentPaths(session.folder.parent, session.slot.agent_id))
    assert trajectory is not None
    return [step_object(step) for step in trajectory.steps]


class AtWork:
    """`agent1`, whose teammate is `agent2`."""

    def __init__(self, session: AgentSession, mailbox: Mailbox, inbox: Inbox) -> None:
        self.session = session
        self.mailbox = mailbox
        self.inbox = inbox

    def arrives(self, text: str) -> Message:
        """From the teammate."""
        return self.mailbox.post("agent2", "agent1", text)

    def entries(self, *actions: str) -> list[dict[str, Any]]:
        return [
            one for one in recorded_steps(self.session) if not actions or one["action"] in actions
        ]


@contextmanager
def agent_at_work(folder: Path) -> Iterator[AtWork]:
    (pair,) = discover(write_tiny(folder / "data"), features=[1, 2]).pairs
    mailbox = Mailbox(("agent1", "agent2"))
    inbox = Inbox(SandboxRpc("agent1", ["agent2"]), mailbox)
    # Nothing here needs a sandbox.
    session = make_session(folder, pair, "coop", model="m", sandbox=None, inbox=inbox)
    try:
        yield AtWork(session, mailbox, inbox)
    finally:
        session.recorder.abandon()
        inbox.close()
        mailbox.close()
