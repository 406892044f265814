"""`Sandbox`, the base class of all sandboxes.

Commands and files go through channels, and an end has a reason.
"""

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
"""Seconds by which a command without a time limit may outlast the sandbox's lifetime: so the end of
the lifetime is reported, not a timeout of the command."""
_KILL_SECONDS = 30.0
_KILLED_EXIT_CODE = 137
_MAX_REASON_LENGTH = 300
_TERMINATED = "it was terminated"


class Sandbox(ABC):
    """A sandbox as the rest of CooperBench uses it. All methods may be called from several threads.

    A subclass must say how to open a channel (`_open_channel`) and a stream (`open_stream`) and how
    to remove the sandbox (`_remove`). It may override `_run_last`, `_find_reason` and
    `_was_silenced`.

    Every method that uses the sandbox may raise the errors listed in `contract.py`; after its end
    all raise SandboxDead.
    """

    _losses: ClassVar[tuple[type[InfraError], ...]] = ()
    """Errors besides SandboxDead that may mean its end; `_find_reason` then tells whether they
    do."""

    def __init__(
        self,
        *,
        lifetime_seconds: float,
        workdir: str,
        on_end: Callable[[Any], None] = lambda _: None,
    ) -> None:
        """Keep the settings; `on_end` is called with the sandbox when it has been removed."""
        self._lifetime_seconds = lifetime_seconds
        self._deadline = time.monotonic() + lifetime_seconds
        self._workdir = workdir
        self._on_end = on_end
        self._end_lock = threading.Lock()
        self._removed = False
        self._end_reason = ""
        self._destroyed = False
        """Whether it was ended from inside, not by its lifetime, its backend or CooperBench."""
        self._numbers = count(1)
        """Numbers for channels and streams: each needs a folder or a mark of its own."""
        self._idle_channels: list[Channel] = []
        self._channels_closed = False
        self._channels_lock = threading.Lock()
        self._had_channel = False

    # Commands and files.

    def exec(self, *args: str) -> CommandResult:
        """Run a command without a time limit of its own, in the working directory."""
        return self.run(args)

    def run(  # noqa: PLR0913  # all are keywords with a default
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
    ) -> CommandResult:
        """Run a command in a process group of its own.

        Args:
            argv: The command. It is not interpreted by a shell.
            timeout_seconds: Time limit; None means the sandbox's lifetime. A command that reaches
                it is killed with all its processes; the result has the exit code 124, `timed_out`
                and the output so far.
            cwd: Working directory, relative to the sandbox's. If it does not exist, the exit code
            is 126.
            env: Variables in addition to those of the sandbox.
            stdin: Input of the command.
            output_limit: Bytes kept of stdout and of stderr each.

        If the command kills or stops the shell that runs it (`pkill -9 bash`) while the sandbox
        lives on, the result has the exit code 137 or 124 and a note on stderr.
        """
        if timeout_seconds is None:
            timeout_seconds = self._deadline - time.monotonic() + _BEYOND_LIFETIME_SECONDS
        command = Command(
            argv=argv,
            timeout_seconds=timeout_seconds,
            cwd=self._path(cwd or ""),
            env=env or {},
            stdin=stdin,
            output_limit=output_limit,
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
        """Run the sandbox's last command, a test run, whose result cannot be forged from inside.

        If the backend can, the host itself observes output and exit code, and no process of
        CooperBench is left inside. Afterwards the sandbox can only be ended. If exit code 137 means
        that the sandbox was killed from outside, SandboxDead is raised.
        """
        self._check_alive()
        command = Command(
            argv=argv,
            timeout_seconds=timeout_seconds,
            cwd=self._path(""),
            env=env or {},
            output_limit=output_limit,
        )
        try:
            return self._run_last(command)
        finally:
            self._end_reason = self._end_reason or "its last command was run"

    def run_checked(
        self, argv: Sequence[str], failed: str, timeout_seconds: float, cwd: str = ""
    ) -> str:
        """Return the stdout of a command.

        If it fails, raise a SandboxError that begins with `failed`.
        """
        result = self.run(argv, timeout_seconds=timeout_seconds, cwd=cwd)
        if result.returncode:
            output = result.stderr_read().strip() or result.stdout_read().strip()
            raise SandboxError(f"{failed}: {printable(output)[-_MAX_REASON_LENGTH:]}")
        return result.stdout_read()

    def run_script(self, name: str, *arguments: str) -> str:
        """Run a script of this package on the repository; return the last line that it prints."""
        argv = ["bash", "-c", sandbox_script(name), name, REPO_DIR, *arguments]
        failed = f"{REPO_DIR} cannot be prepared ({name})"
        output = self.run_checked(argv, failed, SCRIPT_SECONDS, cwd="/")
        return output.strip().rpartition("\n")[2]

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a file atomically, and create its folders.

        A relative path starts in the working directory.
        """
        self._move_file(lambda channel: channel.write_file(self._path(path), data, mode))

    def read_file(self, path: str) -> bytes:
        """Read a whole file.

        Raises:
            FileNotFoundError: There is no such file.
            SandboxRefused: It is not a regular file, may not be read or is larger than
            `channel.READ_FILE_LIMIT`.
        """
        return self._move_file(lambda channel: channel.read_file(self._path(path)))

    @abstractmethod
    def open_stream(self, argv: Sequence[str]) -> Stream:
        """Start a command that talks over its stdin and stdout for as long as it likes."""

    def end_stream(self, mark: str) -> None:
        """Kill the processes that a stream has started, found by its mark."""
        # If the sandbox has ended, so has the stream.
        with suppress(InfraError):
            self._run(_kill_command(mark))

    # Its end.

    def end(self, reason: str) -> None:
        """Kill everything in it and remove it.

        Only the first reason is kept; calling it again does nothing.
        """
        with self._end_lock:
            self._end_reason = self._end_reason or reason
            if self._removed:
                return
            self._removed = True
            try:
                self._remove()
            finally:
                self._on_end(self)

    def terminate(self) -> None:
        """Kill everything in it and remove it. Calling it again does nothing."""
        self.end(_TERMINATED)

    @property
    def is_terminated(self) -> bool:
        """Whether `terminate` has ended it, and nothing else before."""
        return self._end_reason == _TERMINATED

    def death(self) -> SandboxDead:
        """Return the error for any use after its end."""
        reason = self._end_reason or "its processes were killed"
        error_class = SandboxDestroyed if self._destroyed else SandboxDead
        return error_class(f"the sandbox has ended: {reason}")

    # For subclasses to implement.

    @abstractmethod
    def _open_channel(self) -> Channel:
        """Open another channel, ready for use.

        Raises:
            SandboxDead: The sandbox has ended.
            ChannelUnavailable: A tool that the channel needs is missing inside.
        """

    @abstractmethod
    def _remove(self) -> None:
        """Kill everything in it and remove it. Called once."""

    def _run_last(self, command: Command) -> CommandResult:
        """Run a command whose result cannot be forged from inside; by default an ordinary one."""
        return self._run(command)

    def _find_reason(self) -> str:
        """Return why it is not running; empty if it is running or nobody knows.

        Called after an error. Streams may end before the sandbox's state says so.
        """
        return ""

    def _was_silenced(self) -> bool:
        """Return whether a sandbox that does not answer was certainly silenced from inside."""
        return False

    # Channels.

    def _run(self, command: Command) -> CommandResult:
        """Run a command on a channel.

        If the channel breaks or does not answer while the sandbox lives on, the command has killed
        or stopped its own shell (`pkill -9 bash`). That is the command's doing and therefore a
        result with a note, not an error.
        """
        mark = ""
        with self._alive():
            try:
                with self._channel() as channel:
                    mark = channel.next_mark()
                    return channel.run(command)
            except ChannelBroken as error:
                # What has killed this channel may have killed the idle ones, too.
                self._close_idle_channels()
                # Opening another channel shows that the sandbox lives.
                with self._channel(fresh=True):
                    return _lost_result(error, _KILLED_EXIT_CODE)
            except SandboxTimeout as error:
                with self._channel(fresh=True) as channel:
                    # The command must not outlive its time limit.
                    channel.run(_kill_command(mark))
                return _lost_result(error, TIMEOUT_EXIT_CODE)

    def _move_file(self, action: Callable[[Channel], T]) -> T:
        """Read or write a file; if a command has killed the channel, retry once on a new one."""
        with self._alive():
            try:
                with self._channel() as channel:
                    return action(channel)
            except (ChannelBroken, SandboxTimeout):
                with self._channel(fresh=True) as channel:
                    return action(channel)

    @contextmanager
    def _channel(self, *, fresh: bool = False) -> Iterator[Channel]:
        """Lend an idle channel, or a new one, for the length of a `with` block."""
        channel = None
        with self._channels_lock:
            if self._idle_channels and not fresh:
                channel = self._idle_channels.pop()
        if channel is None:
            channel = self._new_channel()
        try:
            yield channel
        finally:
            with self._channels_lock:
                keep = channel.usable and not self._channels_closed
                if keep:
                    self._idle_channels.append(channel)
            if not keep:
                channel.close()

    def _new_channel(self) -> Channel:
        try:
            channel = self._open_channel()
        except ChannelUnavailable as error:
            if not self._had_channel:
                raise
            raise self._closed_to_commands(error) from error
        self._had_channel = True
        return channel

    def _closed_to_commands(self, error: SandboxError) -> SandboxDead:
        """End a sandbox that has lost what a channel needs; return the error.

        It had everything when it was created, so the agent has taken that away.
        """
        self._destroyed = True
        self.end(f"no command can be started in it any more ({error})")
        return self.death()

    def _close_channels(self) -> None:
        """Close the idle channels. Threads close those that they use."""
        with self._channels_lock:
            self._channels_closed = True
        self._close_idle_channels()

    def _close_idle_channels(self) -> None:
        with self._channels_lock:
            idle_channels, self._idle_channels = self._idle_channels, []
        for channel in idle_channels:
            channel.close()

    # Finding out whether it lives.

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """Wrap each use of the sandbox: if it has ended, raise `death()`.

        If it does not answer, end it.
        """
        self._check_alive()
        losses: tuple[type[InfraError], ...] = (SandboxDead, *self._losses)
        try:
            yield
        except SandboxTimeout as error:
            self._destroyed = self._was_silenced()
            self.end("it did not answer")
            if self._destroyed:
                raise self.death() from error
            raise
        except losses as error:
            has_ended = self._find_end()
            if not has_ended and not isinstance(error, SandboxDead):
                raise
            if not self._end_reason:
                # Nobody outside has ended it.
                self._destroyed = True
            self.end("its processes were killed")
            raise self.death() from error

    def _check_alive(self) -> None:
        if self._end_reason:
            raise self.death()

    def _find_end(self) -> bool:
        """Return whether it has ended; find out the reason."""
        if not self._end_reason:
            reason = self._find_reason()
            # If it was ended meanwhile, that reason is the better one.
            self._end_reason = self._end_reason or reason
        return bool(self._end_reason)

    def _path(self, path: str) -> str:
        return posixpath.join(self._workdir, path)


def _kill_command(mark: str) -> Command:
    argv = ["sh", "-c", sandbox_script("kill_marked.sh"), "kill", mark]
    return Command(argv, timeout_seconds=_KILL_SECONDS, cwd="/")


def _lost_result(error: SandboxError, code: int) -> CommandResult:
    note = f"[the shell that ran the command was killed or stopped, its output is lost: {error}]\n"
    return CommandResult(code, stderr=note.encode(), timed_out=code == TIMEOUT_EXIT_CODE)
