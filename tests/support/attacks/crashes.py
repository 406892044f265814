"""Agents whose class raises, in many ways, after one line of honest work."""

from __future__ import annotations

import errno
import time
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, NoReturn

from cooperbench.errors import (
    AgentFailure,
    InfraError,
    Interrupted,
    RunStopped,
    SandboxDead,
    SandboxTimeout,
    UserError,
)

if TYPE_CHECKING:
    from cooperbench.agents.session import AgentSession


class _Crasher:
    uses_model = False

    def run(self, session: AgentSession) -> None:
        session.execute("sed -i '6s/$/ honest/' app.txt")
        self.crash()

    def crash(self) -> None:
        raise NotImplementedError


class RaisesInItsConstructor:
    uses_model = False

    def __init__(self) -> None:
        raise ValueError("no constructor today")

    def run(self, session: AgentSession) -> None: ...


class RaisesInPrograms(_Crasher):
    @classmethod
    def programs(cls) -> NoReturn:
        raise ZeroDivisionError("no programs")


class RaisesInVersion(_Crasher):
    @classmethod
    def version(cls) -> NoReturn:
        raise SystemExit("no version")


class RaisesKeyError(_Crasher):
    def crash(self) -> None:
        raise KeyError("a bug")


class RaisesInfraError(_Crasher):
    def crash(self) -> None:
        raise InfraError("the provider is away")


class RaisesSandboxDead(_Crasher):
    def crash(self) -> None:
        raise SandboxDead("the sandbox has ended")


class RaisesSandboxTimeout(_Crasher):
    def crash(self) -> None:
        raise SandboxTimeout("it does not answer")


class RaisesDiskFull(_Crasher):
    def crash(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


class RaisesInterrupted(_Crasher):
    def crash(self) -> None:
        raise Interrupted("stopped")


class RaisesUserError(_Crasher):
    def crash(self) -> None:
        raise UserError("stop the run, I am losing")


class RaisesRunStopped(_Crasher):
    def crash(self) -> None:
        raise RunStopped("stop the run, I am losing")


class RaisesSystemExit(_Crasher):
    def crash(self) -> None:
        raise SystemExit(0)


class RaisesKeyboardInterrupt(_Crasher):
    def crash(self) -> None:
        raise KeyboardInterrupt


class RaisesCancelled(_Crasher):
    def crash(self) -> None:
        raise CancelledError


class RaisesMemoryError(_Crasher):
    def crash(self) -> None:
        raise MemoryError


class RaisesRecursionError(_Crasher):
    def crash(self) -> None:
        self.crash()


class _Unreadable(Exception):
    def __str__(self) -> str:
        raise ValueError("you shall not read")


class RaisesUnreadable(_Crasher):
    def crash(self) -> None:
        raise _Unreadable


class _WithoutStatus(AgentFailure):
    def __init__(self) -> None:
        pass


class RaisesWithoutStatus(_Crasher):
    def crash(self) -> None:
        raise _WithoutStatus


class RaisesStrangeStatus(_Crasher):
    def crash(self) -> None:
        raise AgentFailure("completed\n<script>", "x")


class TerminatesItsSandbox(_Crasher):
    def run(self, session: AgentSession) -> None:
        session.sandbox.terminate()
        session.execute("true")


class TerminatesItsSandboxQuietly(_Crasher):
    def run(self, session: AgentSession) -> None:
        session.sandbox.terminate()


class Hangs(_Crasher):
    def crash(self) -> None:
        time.sleep(600)


class Loops(_Crasher):
    def crash(self) -> None:
        while True:
            pass
