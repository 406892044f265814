"""Sandboxes behind a service, an engine or a cloud: it is asked whether one still runs when something fails."""

from __future__ import annotations

from abc import abstractmethod
from itertools import count
from typing import ClassVar

from cooperbench.errors import InfraError, SandboxDead
from cooperbench.sandbox.channeled import ChanneledSandbox
from cooperbench.sandbox.unchanneled import kill_script

_KILL_SECONDS = 30.0


class DistantSandbox(ChanneledSandbox):
    """With a channel, or with plain exec where its image allows none."""

    _losses: ClassVar[tuple[type[InfraError], ...]]
    """Errors that may mean its end: then the service is asked."""

    def __init__(self, *, lifetime_seconds: float, workdir: str) -> None:
        super().__init__(lifetime_seconds=lifetime_seconds, workdir=workdir)
        self.without_channel = ""
        """Why there is no channel; empty where there is one."""
        self._numbers = count(1)
        """Of channels and streams: each needs a place or a mark of its own."""

    @abstractmethod
    def _find_reason(self) -> str:
        """Why it is not running; empty if it is. Its streams may end a moment before its state says so."""

    def _has_ended(self, error: InfraError) -> bool:
        """Not every loss is told as one, and not every trouble is a loss."""
        if isinstance(error, SandboxDead):
            self._find_end()
            return True
        return isinstance(error, self._losses) and self._find_end()

    def _find_end(self) -> bool:
        if not self._end_reason:
            reason = self._find_reason()
            # Whoever ended it meanwhile knows better.
            self._end_reason = self._end_reason or reason
        return bool(self._end_reason)

    def _end_stream(self, mark: str) -> None:
        """End what a stream has started, told by its mark."""
        if not self._end_reason:
            try:
                self.run(["sh", "-c", kill_script(), "kill", mark], timeout_seconds=_KILL_SECONDS)
            except InfraError:
                return  # with the sandbox the stream has ended too
