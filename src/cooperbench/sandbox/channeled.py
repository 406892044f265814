"""What all sandboxes with channels have in common: commands and files go through them, and an end has a reason.

For backends of ours. Where a sandbox runs, how a channel into it is opened and how it ends is each backend's own.
"""

from __future__ import annotations

import posixpath
import threading
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from cooperbench.errors import InfraError, SandboxDead, SandboxTimeout
from cooperbench.sandbox.contract import DEFAULT_OUTPUT_LIMIT, CommandResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cooperbench.sandbox.contract import Stream

S = TypeVar("S", bound="ChanneledSandbox")

_BEYOND_LIFETIME_SECONDS = 30.0
"""So that the end of a sandbox's lifetime is told as such, not as a command's time limit."""


class Commands(Protocol):
    """A `ChannelPool`, or what takes its place where no channel can be had. Paths are absolute."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float,
        cwd: str,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
    ) -> CommandResult: ...

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None: ...

    def read_file(self, path: str) -> bytes: ...

    def close(self) -> None: ...


class ChanneledSandbox(ABC):
    """A `RichSandbox` with streams. Its maker sets `_commands` before anybody uses it."""

    _commands: Commands

    def __init__(self, *, lifetime_seconds: float, workdir: str) -> None:
        self._lifetime_seconds = lifetime_seconds
        self._deadline = time.monotonic() + lifetime_seconds
        self._workdir = workdir
        self._end_reason = ""

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
        left_seconds = self._deadline - time.monotonic() + _BEYOND_LIFETIME_SECONDS
        with self._alive():
            return self._commands.run(
                argv,
                timeout_seconds=left_seconds if timeout_seconds is None else timeout_seconds,
                cwd=self._path(cwd or ""),
                env=env,
                stdin=stdin,
                output_limit=output_limit,
            )

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
        return SandboxDead(f"the sandbox has ended: {self._end_reason or 'its processes were killed'}")

    def _has_ended(self, error: InfraError) -> bool:
        """Is this error the sandbox's end? May find out the reason."""
        return isinstance(error, SandboxDead)

    def _check_alive(self) -> None:
        if self._end_reason:
            raise self.death()

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """Around whatever needs the sandbox: says why it is dead; one that does not answer is ended."""
        self._check_alive()
        try:
            yield
        except SandboxTimeout:
            self.end("it did not answer")
            raise
        except InfraError as error:
            if not self._has_ended(error):
                raise
            self.end("its processes were killed")
            raise self.death() from error

    def _path(self, path: str) -> str:
        return posixpath.join(self._workdir, path)


class OpenSandboxes(Generic[S]):
    """Those of one backend that have not ended yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[S] = set()

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
