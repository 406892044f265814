"""Runs the code of agents: in its own thread, under the time limit, errors as its own outcome.

An exception in an agent's class is the outcome `crashed`, which is scored. The harness remembers
errors of its own code in `AgentSession.fault`, and only these count as infrastructure errors. An
agent cannot get another attempt by raising an InfraError.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TypeVar

from cooperbench.agents.registry import get_agent, version_of
from cooperbench.agents.session import AgentSession
from cooperbench.errors import (
    AgentFailure,
    CooperBenchError,
    InfraError,
    Interrupted,
    UserError,
)
from cooperbench.text import describe_error

T = TypeVar("T")
CRASHED = "crashed"
"""Status of an agent whose code raised an exception."""
_STATUS = re.compile(r"\w{1,40}", re.ASCII)
_POLL_SECONDS = 0.2
GRACE_SECONDS = 45.0
"""How long an agent whose time is up may take to return, until its thread is abandoned."""
_STOP_SECONDS = 5.0
"""The same for a run that is being stopped."""


class AgentCode:
    """The class of one agent of a pair. An error in any of its methods is the agent's outcome."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._failure: AgentFailure | None = None
        """The crash of an earlier method. The agent is not run then."""

    def programs(self) -> Path | None:
        """Return the folder with programs for the agent's sandbox."""
        return self._call(lambda: get_agent(self._name).programs())

    def version(self) -> str | None:
        """Return the version of the agent's framework."""
        version = self._call(lambda: version_of(get_agent(self._name)))
        return None if version is None else str(version)

    def _call(self, function: Callable[[], T]) -> T | None:
        try:
            return function()
        except CooperBenchError:
            raise
        except BaseException as error:  # agent code may raise SystemExit, too
            self._failure = self._failure or _crash(error)
            return None

    def run(self, session: AgentSession) -> None:
        """Create the agent and run it until it ends.

        Raises:
            AgentFailure: It did not submit: a limit, a crash, or what it gives as its status.
            InfraError: The harness has remembered a fault in `session.fault`.
            UserError: A problem that every pair would have.
            Interrupted: The run is being stopped.
        """
        if self._failure is not None:
            raise self._failure
        try:
            self._run_in_thread(session)
        except BaseException as error:  # agent code may raise SystemExit, too
            outcome = _outcome_of(error, session)
            if outcome is error:
                raise
            raise outcome from error

    def _run_in_thread(self, session: AgentSession) -> None:
        """Run the agent, and stop waiting for it if it ignores that its time is up."""
        future: Future[None] = Future()

        def work() -> None:
            try:
                get_agent(self._name)().run(session)
            except BaseException as error:  # it is raised in the other thread
                future.set_exception(error)
            else:
                future.set_result(None)

        # Python waits for the threads of a pool when it exits, but not for daemon threads.
        thread = threading.Thread(target=work, name=threading.current_thread().name, daemon=True)
        thread.start()
        while not wait([future], _POLL_SECONDS).done:
            try:
                session.check_running()
            except (AgentFailure, InfraError, Interrupted) as ending:
                grace = _STOP_SECONDS if isinstance(ending, Interrupted) else GRACE_SECONDS
                if not wait([future], grace).done:
                    session.note(f"the agent's thread does not end: {ending}")
                    _interrupt(thread)
                    raise
        future.result()


def _outcome_of(error: BaseException, session: AgentSession) -> BaseException:
    """Return what an error in an agent's thread means for the agent."""
    if isinstance(error, AgentFailure):
        return _checked_failure(error)
    if session.stop.is_set():
        return Interrupted("stopped")
    if session.fault is not None:
        return session.fault
    if session.recorder.write_error is not None:
        return session.recorder.write_error
    has_begun = session.steps > 0 or session.usage.calls > 0
    if isinstance(error, UserError) and not has_begun:
        return error
    return _crash(error)


def _checked_failure(failure: AgentFailure) -> AgentFailure:
    """Return the failure, or a crash if its status is not a valid one."""
    try:
        text = str(failure)
        is_valid = _STATUS.fullmatch(failure.status)
    except Exception:  # a subclass may have no status, or a hostile `__str__`
        is_valid = None
    if not is_valid:
        return _crash(failure)
    return AgentFailure(failure.status, text)


def _crash(error: BaseException) -> AgentFailure:
    crash = AgentFailure(CRASHED, describe_error(error))
    crash.__cause__ = error
    return crash


def _interrupt(thread: threading.Thread) -> None:
    """Raise SystemExit in a thread, so that an endless loop does not use up the processor.

    It has no effect while the thread waits in a system call.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
    )
