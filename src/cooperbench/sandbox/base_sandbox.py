"""What all sandboxes have in common: commands and files go through channels, and an end has a reason."""

from __future__ import annotations

import posixpath
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, ClassVar, TypeVar

from cooperbench.errors import (
    InfraError,
    SandboxDead,
    SandboxDestroyed,
    SandboxError,
    SandboxTimeout,
)
from cooperbench.models import REPO_DIR
from cooperbench.sandbox import sandbox_script
from cooperbench.sandbox.channel import Channel, ChannelBroken, ChannelUnavailable, Command
from cooperbench.sandbox.contract import (
    DEFAULT_OUTPUT_LIMIT,
    TIMEOUT_EXIT_CODE,
    CommandResult,
    Stream,
)
from cooperbench.text import printable

T = TypeVar("T")

SCRIPT_SECONDS = 900
_BEYOND_LIFETIME_SECONDS = 30.0
"""So that the end of a sandbox's lifetime is reported as such, not as a command's time limit."""
_KILL_SECONDS = 30.0


class Sandbox(ABC):
    """A sandbox as the rest of CooperBench uses it. All methods may be called from several threads.

    Where it runs, how a channel into it is opened and how it ends is each backend's own.
    """

    _losses: ClassVar[tuple[type[InfraError], ...]] = ()
    """Errors that may mean its end, besides SandboxDead: then `_find_reason` is asked."""

    def __init__(
        self,
        *,
        lifetime_seconds: float,
        workdir: str,
        on_end: Callable[[Any], None] = lambda _: None,
    ) -> None:
        """`on_end` is called with the sandbox when it has been removed."""
        self._lifetime_seconds = lifetime_seconds
        self._deadline = time.monotonic() + lifetime_seconds
        self._workdir = workdir
        self._on_end = on_end
        self._end_lock = threading.Lock()
        self._removed = False
        self._end_reason = ""
        self._destroyed = False
        """It ended from inside, not by its lifetime, its backend or the harness."""
        self._numbers = count(1)
        """Of channels and streams: each needs a folder or a mark of its own."""
        self._idle_channels: list[Channel] = []
        self._channels_closed = False
        self._channels_lock = threading.Lock()
        self._had_channel = False

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
        """Run one command in a process group of its own; None means as long as the sandbox lives."""
        if timeout_seconds is None:
            timeout_seconds = self._deadline - time.monotonic() + _BEYOND_LIFETIME_SECONDS
        command = Command(
            argv, timeout_seconds, self._path(cwd or ""), env or {}, stdin, output_limit
        )
        return self._run(command)

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

    def run_checked(
        self, argv: Sequence[str], failed: str, timeout_seconds: float, cwd: str = ""
    ) -> str:
        """What the command prints; where it fails, a SandboxError that begins with `failed`."""
        done = self.run(argv, timeout_seconds=timeout_seconds, cwd=cwd)
        if done.returncode:
            said = done.stderr_read().strip() or done.stdout_read().strip()
            raise SandboxError(f"{failed}: {printable(said)[-300:]}")
        return done.stdout_read()

    def run_script(self, name: str, *arguments: str) -> str:
        """A script of this package, on the repository; the last line that it prints."""
        argv = ["bash", "-c", sandbox_script(name), name, REPO_DIR, *arguments]
        said = self.run_checked(
            argv, f"{REPO_DIR} cannot be prepared ({name})", SCRIPT_SECONDS, "/"
        )
        return said.strip().rpartition("\n")[2]

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a file whole, making its folders."""
        self._move_file(lambda channel: channel.write_file(self._path(path), data, mode))

    def read_file(self, path: str) -> bytes:
        """Read a file whole; FileNotFoundError where there is none."""
        return self._move_file(lambda channel: channel.read_file(self._path(path)))

    @abstractmethod
    def open_stream(self, argv: Sequence[str]) -> Stream:
        """Start a command that talks over its stdin and stdout for as long as it likes."""

    def end(self, reason: str) -> None:
        """Kill everything in it and remove it, noting the first reason. Calling it again does nothing."""
        with self._end_lock:
            self._end_reason = self._end_reason or reason
            if not self._removed:
                self._removed = True
                try:
                    self._remove()
                finally:
                    self._on_end(self)

    def terminate(self) -> None:
        self.end("it was terminated")

    def death(self) -> SandboxDead:
        """The error for any use after its end."""
        kind = SandboxDestroyed if self._destroyed else SandboxDead
        return kind(f"the sandbox has ended: {self._end_reason or 'its processes were killed'}")

    def _closed_to_commands(self, error: SandboxError) -> SandboxDead:
        """It had all that a channel needs when it was made: who works there has taken that away."""
        self._destroyed = True
        self.end(f"no command can be started in it any more ({error})")
        return self.death()

    @abstractmethod
    def _remove(self) -> None: ...

    @abstractmethod
    def _open_channel(self) -> Channel:
        """Another one, ready for use; SandboxDead where the sandbox has ended."""

    def _run(self, command: Command) -> CommandResult:
        """Where a channel breaks, or does not answer, while the sandbox lives on, the command has killed or stopped its
        own shell (`pkill -9 bash`): that is the command's doing and therefore a result, with a note, not an error.
        """
        mark = ""
        with self._alive():
            try:
                with self._channel() as channel:
                    mark = channel.next_mark()
                    return channel.run(command)
            except ChannelBroken as error:
                with self._channel(fresh=True):
                    return _lost_result(error, 137)
            except SandboxTimeout as error:
                with self._channel(fresh=True) as channel:
                    # It must not outlive its time limit.
                    channel.run(_kill_command(mark))
                return _lost_result(error, TIMEOUT_EXIT_CODE)

    def _run_last(self, command: Command) -> CommandResult:
        return self._run(command)

    def _move_file(self, action: Callable[[Channel], T]) -> T:
        """Again, once, through a new channel, if a command has killed the first one."""
        with self._alive():
            try:
                with self._channel() as channel:
                    return action(channel)
            except (ChannelBroken, SandboxTimeout):
                with self._channel(fresh=True) as channel:
                    return action(channel)

    @contextmanager
    def _channel(self, *, fresh: bool = False) -> Iterator[Channel]:
        """An idle channel, or another one."""
        with self._channels_lock:
            channel = self._idle_channels.pop() if self._idle_channels and not fresh else None
        if channel is None:
            try:
                channel = self._open_channel()
            except ChannelUnavailable as error:
                if not self._had_channel:
                    raise
                raise self._closed_to_commands(error) from error
            self._had_channel = True
        try:
            yield channel
        finally:
            with self._channels_lock:
                keep = channel.usable and not self._channels_closed
                if keep:
                    self._idle_channels.append(channel)
            if not keep:
                channel.close()

    def _close_channels(self) -> None:
        """Those in use are closed by their threads."""
        with self._channels_lock:
            self._channels_closed = True
            idle, self._idle_channels = self._idle_channels, []
        for channel in idle:
            channel.close()

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
            # If it was ended meanwhile, that reason is the better one.
            self._end_reason = self._end_reason or reason
        return bool(self._end_reason)

    def end_stream(self, mark: str) -> None:
        """End what a stream has started, found by its mark."""
        # With the sandbox the stream has ended too.
        with suppress(InfraError):
            self._run(_kill_command(mark))

    def _check_alive(self) -> None:
        if self._end_reason:
            raise self.death()

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """Around each use of the sandbox: says why it is dead; one that does not answer is ended."""
        losses: tuple[type[InfraError], ...] = (SandboxDead, *self._losses)
        self._check_alive()
        try:
            yield
        except SandboxTimeout as error:
            self._destroyed = self._was_silenced()
            self.end("it did not answer")
            if self._destroyed:
                raise self.death() from error
            raise
        except losses as error:
            # Not every loss is the sandbox's end.
            if not self._find_end() and not isinstance(error, SandboxDead):
                raise
            self._destroyed |= not self._end_reason
            self.end("its processes were killed")
            raise self.death() from error

    def _path(self, path: str) -> str:
        return posixpath.join(self._workdir, path)


def _kill_command(mark: str) -> Command:
    return Command(["sh", "-c", sandbox_script("kill_marked.sh"), "kill", mark], _KILL_SECONDS, "/")


def _lost_result(error: SandboxError, code: int) -> CommandResult:
    note = f"[the shell that ran the command was killed or stopped, its output is lost: {error}]\n"
    return CommandResult(code, stderr=note.encode(), timed_out=code == TIMEOUT_EXIT_CODE)
