"""Everything that can go wrong, by whose fault it is."""

from __future__ import annotations


class CooperBenchError(Exception):
    """Base of all errors that CooperBench raises on purpose."""


class UserError(CooperBenchError, ValueError):
    """Bad input: one clear line that says what and where; the command line exits with 2."""


class RunStopped(UserError):
    """A problem that every pair would have, raised by an agent at work: the whole run ends with this line."""


class AgentFailure(CooperBenchError):
    """An agent ended without submitting. Its work so far is handed in and scored."""

    def __init__(self, status: str, message: str = "") -> None:
        super().__init__(message or status)
        self.status = status
        """Why, as it stands in result.json, e.g. `step_limit`."""


class InfraError(CooperBenchError, RuntimeError):
    """A sandbox, a server or a provider failed. Retried, then recorded; never scored as the agent's."""


class SandboxError(InfraError):
    """A sandbox could not be made, or did not do what it was told."""


class SandboxDead(SandboxError):
    """The sandbox is gone: terminated, out of memory, killed. What ran in it has no result."""


class SandboxDestroyed(SandboxDead):
    """It ended from inside, while engine and host were healthy: the agent that worked in it did that."""


class SandboxRefused(SandboxError):
    """The sandbox answered, and what it was asked for cannot be done with the files in it."""


class SandboxTimeout(SandboxError, TimeoutError):
    """The sandbox did not answer, although its own time limit should have made it answer."""


class Interrupted(CooperBenchError):
    """The run was told to stop. Nothing is wrong; the same command continues it."""
