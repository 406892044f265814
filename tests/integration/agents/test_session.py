"""What an agent does to its sandbox is its outcome, whatever it was doing when that was noticed."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.agents.base import Limits
from cooperbench.agents.recorder import Recorder
from cooperbench.agents.session import AgentSession
from cooperbench.agents.worker import program_agent
from cooperbench.backends.local.sandbox import LocalSandbox
from cooperbench.dataset.discovery import discover
from cooperbench.errors import AgentFailure, InfraError, SandboxDead
from cooperbench.models import agent_slots
from cooperbench.records.trajectory import read_trajectory, step_object
from cooperbench.storage import AgentPaths
from tests.support.agents.worker_programs import program
from tests.support.team.agent_sandboxes import AgentSandboxes
from tests.support.tiny import write_tiny

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.team.agent_sandboxes import AgentSandbox

COMMAND = "sleep 20"


@dataclass
class AtWork:
    session: AgentSession
    own: AgentSandbox
    paths: AgentPaths


@pytest.fixture
def at_work(tmp_path: Path) -> Iterator[AtWork]:
    """A session on a local sandbox, without a run around it."""
    (pair,) = discover(write_tiny(tmp_path / "data"), features=[1, 2]).pairs
    slot = agent_slots(pair, "coop")[0]
    with ExitStack() as stack:
        own = AgentSandboxes(stack).open()
        own.run("mkdir -p /workspace/repo; touch /workspace/repo/app.txt")
        paths = AgentPaths(tmp_path, "agent1")
        recorder = Recorder(paths, slot, agent="a", model=None)
        stack.callback(recorder.abandon)
        yield AtWork(
            AgentSession(
                pair=pair,
                slot=slot,
                setting="coop",
                model=None,
                config_path=None,
                sandbox=own.sandbox,
                recorder=recorder,
                limits=Limits(),
                inbox=own.inbox,
                stop=threading.Event(),
            ),
            own,
            paths,
        )


def entries(at_work: AtWork) -> list[dict[str, Any]]:
    trajectory = read_trajectory(at_work.paths)
    assert trajectory is not None
    return [step_object(step) for step in trajectory.steps]


CALLS: dict[str, Callable[[AgentSession], Any]] = {
    "execute": lambda session: session.execute("true"),
    "execute without a step": lambda session: session.execute("true", step=False),
    "read_file": lambda session: session.read_file("app.txt"),
    "write_file": lambda session: session.write_file("app.txt", b""),
    "apply_patch": lambda session: session.apply_patch(b"", "p"),
    "send": lambda session: session.send("hello"),
    "wait_for_message": lambda session: session.wait_for_message(60),
}


@contextmanager
def destroyed_after(seconds: float, at_work: AtWork) -> Iterator[None]:
    """By its first process, as when there is no memory left in it."""
    sandbox = at_work.own.sandbox
    assert isinstance(sandbox, LocalSandbox)
    timer = threading.Timer(seconds, os.kill, [sandbox.init_pid, signal.SIGKILL])
    timer.start()
    yield
    timer.join()


def test_the_command_that_destroys_the_sandbox_ends_the_agent(at_work: AtWork) -> None:
    with destroyed_after(0.3, at_work), pytest.raises(AgentFailure) as caught:
        at_work.session.execute(COMMAND)
    assert caught.value.status == "sandbox_destroyed"
    (command,) = (entry for entry in entries(at_work) if "step" in entry)
    assert (command["args"]["command"], at_work.session.steps) == (COMMAND, 1)
    assert "the sandbox has ended" in command["observation"]


@pytest.mark.parametrize("call", CALLS)
def test_it_is_the_agents_outcome_whichever_call_meets_it(at_work: AtWork, call: str) -> None:
    def work() -> None:
        while True:
            CALLS[call](at_work.session)

    with destroyed_after(0.3, at_work), pytest.raises(AgentFailure) as caught:
        work()
    assert caught.value.status == "sandbox_destroyed"
    assert len([entry for entry in entries(at_work) if "step" in entry]) == at_work.session.steps


def test_sandbox_ended_by_harness_is_no_outcome(at_work: AtWork) -> None:
    at_work.own.sandbox.terminate()
    with pytest.raises(SandboxDead):
        at_work.session.execute("true")


@pytest.mark.parametrize("told", ["sys.exit(1)", "harness.done()", "time.sleep(600)"])
def test_destroyed_sandbox_overrides_worker_status(
    at_work: AtWork, tmp_path: Path, told: str
) -> None:
    body = f"""
        try:
            harness.exec({COMMAND!r})
        except client.Ended:
            {told}
        """
    agent = program_agent(tmp_path / "their" / "agent")
    program(tmp_path / "their", body)
    with destroyed_after(1.5, at_work), pytest.raises((AgentFailure, InfraError)) as caught:
        agent().run(at_work.session)
    assert isinstance(caught.value, AgentFailure)
    assert caught.value.status == "sandbox_destroyed"


def test_outage_names_server_and_reason(at_work: AtWork) -> None:
    reasons: list[str] = []
    session = at_work.session
    session.model = "openai/gpt-4o"
    session.base_url = "http://127.0.0.1:9/v1"
    session.on_outage = reasons.append
    session.check_limits()
    session.model_error = "Connection refused"
    session.check_limits()
    assert reasons == ["openai/gpt-4o at http://127.0.0.1:9/v1 fails: Connection refused"]
