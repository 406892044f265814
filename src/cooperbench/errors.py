"""Errors, by who has to deal with them: the user, the agent or the infrastructure."""

from __future__ import annotations


class CooperBenchError(Exception):
    """Base class of all errors that CooperBench raises on purpose."""


class UserError(CooperBenchError, ValueError):
    """Invalid input. The message is one clear line; the command line exits with status 2."""


class RunStopped(UserError):
    """A problem that every pair would have. The whole run ends with this message."""


class AgentFailure(CooperBenchError):
    """An agent ended without submitting. Its work so far is collected and scored."""

    def __init__(self, status: str, message: str = "") -> None:
        """Create the error; the default message is the status."""
        super().__init__(message or status)
        self.status = status
        """The status in result.json, e.g. `step_limit`."""


class InfraError(CooperBenchError, RuntimeError):
    """A sandbox, a server or a provider failed. It is retried, then recorded, but never scored."""


class SandboxError(InfraError):
    """A sandbox could not be created, or an operation in it failed."""


class SandboxDead(SandboxError):
    """The sandbox has ended: terminated, killed or out of memory. Its commands have no result."""


class SandboxDestroyed(SandboxDead):
    """The agent ended its own sandbox: it ended from inside while engine and host were healthy."""


class SandboxRefused(SandboxError):
    """The sandbox answered that an operation is not possible with the files in it."""


class SandboxTimeout(SandboxError, TimeoutError):
    """The sandbox did not answer, not even after its own time limit."""


class Interrupted(CooperBenchError):
    """The run is being stopped. Nothing is wrong; rerunning the same command continues it."""


def is_interrupt(error: BaseException) -> bool:
    """Whether this is an interrupt that Python 3.11 turned into another error.

    It does so for an interrupt that arrives while a class is created, as imports do.
    """
    return isinstance(error.__cause__, KeyboardInterrupt)
