"""What all sandboxes have in common: commands and files go through channels, and an end has a reason.

Where a sandbox runs, how a channel into it is opened and how it ends is each backend's own.
"""

from __future__ import annotations

import posixpath
import threading
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from cooperbench.errors import InfraError, SandboxDead, SandboxDestroyed, SandboxTimeout
from cooperbench.sandbox import kill_script
from cooperbench.sandbox.channel import ChannelPool, Command
from cooperbench.sandbox.contract import DEFAULT_OUTPUT_LIMIT, CommandResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cooperbench.sandbox.contract import Stream

S = TypeVar("S", bound="BaseSandbox")

_BEYOND_LIFETIME_SECONDS = 30.0
"""So that the end of a sandbox's lifetime is told as such, not as a command's time limit."""
_KILL_SECONDS = 30.0


class BaseSandbox(ABC):
    """A `RichSandbox` with streams. Subclasses set `_commands` before anybody uses it."""

    _commands: ChannelPool
    _losses: ClassVar[tuple[type[InfraError], ...]] = ()
    """Errors that may mean its end, besides SandboxDead: then `_find_reason` is asked."""

    def __init__(self, *, lifetime_seconds: float, workdir: str) -> None:
        self._lifetime_seconds = lifetime_seconds
        self._deadline = time.monotonic() + lifetime_seconds
        self._workdir = workdir
        self._end_reason = ""
        self._destroyed = False
        """It ended from inside, not by its lifetime, its backend or the harness."""
        self._numbers = count(1)
        """Of channels and streams: each needs a folder or a mark of its own."""

    def exec(self, *args: str) -> CommandResult:
        return self.run(args)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
    ) -> CommandResult:
        if timeout_seconds is None:
            timeout_seconds = self._deadline - time.monotonic() + _BEYOND_LIFETIME_SECONDS
        return self._run(
            Command(argv, timeout_seconds, self._path(cwd or ""), env or {}, stdin, output_limit)
        )

    def run_last(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float,
        env: Mapping[str, str] | None = None,
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
    ) -> CommandResult:
        """The sandbox's last command, which is judged: the host itself sees its output and its exit code.

        Nothing of the harness is left inside that it could reach. Afterwards the sandbox can only be ended. Exit code
        137 may mean that the sandbox was killed from outside, which is then an error.
        """
        self._check_alive()
        command = Command(argv, timeout_seconds, self._path(""), env or {}, b"", output_limit)
        try:
            return self._run_last(command)
        finally:
            self._end_reason = self._end_reason or "its last command was run"

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        with self._alive():
            self._commands.write_file(self._path(path), data, mode)

    def read_file(self, path: str) -> bytes:
        with self._alive():
            return self._commands.read_file(self._path(path))

    @abstractmethod
    def open_stream(self, argv: Sequence[str]) -> Stream: ...

    @abstractmethod
    def end(self, reason: str) -> None:
        """Kill everything in it and remove it, noting the first reason. Calling it again does nothing."""

    def terminate(self) -> None:
        self.end("it was terminated")

    def death(self) -> SandboxDead:
        """The error for whoever uses it after its end."""
        kind = SandboxDestroyed if self._destroyed else SandboxDead
        return kind(f"the sandbox has ended: {self._end_reason or 'its processes were killed'}")

    def _run(self, command: Command) -> CommandResult:
        with self._alive():
            return self._commands.run(command)

    def _run_last(self, command: Command) -> CommandResult:
        return self._run(command)

    def _find_reason(self) -> str:
        """Why it is not running; empty if it is, or if nobody knows. Streams may end before its state says so."""
        return ""

    def _was_silenced(self) -> bool:
        """Of one that does not answer: is it certain that this was brought about from inside?"""
        return False

    def _find_end(self) -> bool:
        """Has it ended? Finds out the reason."""
        if not self._end_reason:
            reason = self._find_reason()
            # Whoever ended it meanwhile knows better.
            self._end_reason = self._end_reason or reason
        return bool(self._end_reason)

    def _has_ended(self, error: InfraError) -> bool:
        """Is this error the sandbox's end? Not every loss is reported as one, and not every error is a loss."""
        if not isinstance(error, (SandboxDead, *self._losses)):
            return False
        return self._find_end() or isinstance(error, SandboxDead)

    def _end_stream(self, mark: str) -> None:
        """End what a stream has started, found by its mark."""
        if not self._end_reason:
            try:
                self.run(["sh", "-c", kill_script(), "kill", mark], timeout_seconds=_KILL_SECONDS)
            except InfraError:
                return  # with the sandbox the stream has ended too

    def _check_alive(self) -> None:
        if self._end_reason:
            raise self.death()

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """Around whatever needs the sandbox: says why it is dead; one that does not answer is ended."""
        self._check_alive()
        try:
            yield
        except SandboxTimeout as error:
            self._destroyed = self._was_silenced()
            self.end("it did not answer")
            if self._destroyed:
                raise self.death() from error
            raise
        except InfraError as error:
            if not self._has_ended(error):
                raise
            self._destroyed |= not self._end_reason
            self.end("its processes were killed")
            raise self.death() from error

    def _path(self, path: str) -> str:
        return posixpath.join(self._workdir, path)


class OpenSandboxes(Generic[S]):
    """Those of one backend that have not ended yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[S] = set()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, sandbox: S) -> None:
        with self._lock:
            self._open.add(sandbox)

    def discard(self, sandbox: S) -> None:
        with self._lock:
            self._open.discard(sandbox)

    def end_all(self, reason: str) -> None:
        with self._lock:
            still_open = list(self._open)
        for sandbox in still_open:
            sandbox.end(reason)
