"""One container as a sandbox, and the connections into it.

Its first process is the supervisor, which no process inside can kill. So the cause of its end is
known: it can only be killed from outside, which the engine reports, or by the kernel if the sandbox
has exceeded its memory limit.
"""

from __future__ import annotations

import contextlib
import logging
import posixpath
import select
import shlex
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from types import SimpleNamespace
from typing import Any, NamedTuple

from cooperbench import errors
from cooperbench.backends.docker.attached import Attached
from cooperbench.backends.docker.engine import Engine, EngineGone, NotThere
from cooperbench.backends.streams import stream_over
from cooperbench.sandbox import sandbox_script
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.channel import (
    READY,
    CappedOutput,
    Channel,
    ChannelUnavailable,
    Command,
    as_bytes,
    wait_for,
)
from cooperbench.sandbox.contract import NEEDED_TOOLS, TIMEOUT_EXIT_CODE, CommandResult, Stream
from cooperbench.text import printable

SCRATCH_DIR = "/cooperbench/scratch"
"""Folder for the files of channels."""
_LIFETIME_OVER = 86
_STREAM_ENDED = 87
_KILLED = 137
_UNKNOWN_STATUS = "255"
_CLOCKS_APART_SECONDS = 2.0
_DYING_SECONDS = 5.0
_EVENT_SECONDS = 0.5
"""Time in which an engine records an event."""
_WATCH = (
    "(while read -r line; do :; done; while kill -KILL -1; do sleep 1; done)"
    " <&3 3<&- >/dev/null 2>&1 &"
)
"""Ends the container of a test run if the harness is gone, which closes its input."""
_UNTRACEABLE = "setpriv --egid 1 --keep-groups"
"""Starts bash with another effective group, which bash resets at once.

The kernel then treats it as a process that has changed its credentials: without CAP_SYS_PTRACE, no
process may trace it, write to its memory or open its descriptors.
"""
_STREAM = 'export COOPERBENCH_COMMAND="$1"; shift; exec "$@"'
CHANNEL_ENDED = b"cooperbench-supervisor: the channel has ended"
"""Marker on stderr: the channel has ended although the connection stays open."""
_READ_SIZE = 1 << 18
_MAX_WAIT_SECONDS = 1.0
_NOT_NOW = (BlockingIOError, TimeoutError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_STDERR_KEPT = 4000
_OVERTAKEN_SECONDS = 0.5
_HEADER_SIZE = 8
_MAX_ARCHIVE_BYTES = 200 * 1024**2
_STDERR = 2
_log = logging.getLogger("cooperbench")


def first_command(lifetime_seconds: float, *, for_test_run: bool, trusted: bool) -> list[str]:
    """Return the command of a container; `trusted` skips the self-test of the image's tools."""
    supervisor = resources.files(__package__).joinpath("supervisor.sh").read_text("utf-8")
    seconds = str(max(1, round(lifetime_seconds)))
    channel = "" if for_test_run else sandbox_script("channel.sh")
    argv = ["sh", "-c", supervisor, "supervisor", channel, f"{SCRATCH_DIR}/1", seconds]
    return [*argv, "trusted" if trusted else ""]


def missing_tool(image: str, reason: str) -> errors.UserError:
    """Return the error for an image in which no channel works; `reason` is from the self-test."""
    return errors.UserError(f"the image {image} cannot be used: {reason}; {NEEDED_TOOLS}")


class SandboxFile(NamedTuple):
    """A file to be written in a sandbox."""

    path: str
    data: bytes
    mode: int


class DockerSandbox(Sandbox):
    """A container as a sandbox."""

    _losses = (NotThere, EngineGone)

    def __init__(  # noqa: PLR0913  # the parts of a container, by keyword
        self,
        engine: Engine,
        container: str,
        stream: ContainerStream,
        *,
        image: str,
        lifetime_seconds: float,
        workdir: str,
        for_test_run: bool,
        on_end: Callable[[DockerSandbox], None],
    ) -> None:
        """Take over a started container and `stream`, the stdin and stdout of its supervisor."""
        super().__init__(lifetime_seconds=lifetime_seconds, workdir=workdir, on_end=on_end)
        self.container = container
        self.image = image
        self._engine = engine
        self._stream = stream
        next(self._numbers)  # the first number belongs to the supervisor's channel
        self._files: list[SandboxFile] | None = [] if for_test_run else None
        """Files that the only command of a test run needs; None in other sandboxes."""
        if for_test_run:
            return
        # A broken channel must not close the supervisor's stream, which would end the container.
        transport: Any = SimpleNamespace(
            send=stream.send, receive=stream.receive, close=lambda: None
        )
        first = Channel(transport)
        try:
            first.handshake()
        except ChannelUnavailable as error:
            raise missing_tool(image, error.reason) from error
        except (errors.SandboxDead, errors.SandboxTimeout) as error:
            raise errors.SandboxError(
                f"the sandbox did not start: {self._find_reason() or error}"
            ) from error
        self._idle_channels.append(first)

    def open_stream(self, argv: Sequence[str]) -> Stream:
        """Start a command and return its stdin and stdout."""
        mark = f"stream-{self.container[:12]}-{next(self._numbers)}"
        command = ["sh", "-c", _STREAM, "sh", mark, *argv]
        with self._alive(), self._engine.faults("opening a stream"):
            stream = ContainerStream(self._engine.exec(self.container, command, self._workdir))
        return stream_over(stream, self, mark)

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a file; in the sandbox of a test run, it is written just before the command."""
        if self._files is None:
            super().write_file(path, data, mode)
        else:
            self._files.append(SandboxFile(self._path(path), data, mode))

    def show_folder(self, path: str, other: Sandbox, target: str) -> None:
        """Write a folder as a tar file to another sandbox, without help from inside this one."""
        archive = bytearray()
        with self._alive(), self._engine.faults("copying a folder"):
            pieces, _ = self._engine.api.get_archive(self.container, path)
            for piece in pieces:
                archive += piece
                if len(archive) > _MAX_ARCHIVE_BYTES:
                    raise errors.SandboxRefused(f"{path} has more than {_MAX_ARCHIVE_BYTES} bytes")
        other.write_file(target, bytes(archive))

    def _remove(self) -> None:
        try:
            self._engine.remove_container(self.container)
        except errors.InfraError as error:
            # The next start removes what is left.
            _log.warning("%s", error)
        finally:
            self._close_channels()
            self._stream.close()

    def _run_last(self, command: Command) -> CommandResult:
        if self._files is None:
            raise errors.SandboxError("the sandbox was not created for a test run")
        deadline = time.monotonic() + command.timeout_seconds
        output = _LastOutput(command.output_limit)
        script = _last_script(command, self._files)
        contents = [file.data for file in self._files]
        request = b"".join([b"%d\n" % len(script), script, *contents])
        code = TIMEOUT_EXIT_CODE
        timed_out = False
        try:
            self._stream.send(request, deadline)
            while frames := self._stream.receive_frames(deadline):
                for source, data in frames:
                    output.add(source, data)
            code = self._exit_code(deadline)
        except TimeoutError:
            timed_out = True
        except OSError as error:
            output.started_at = None
            output.stderr.add(str(error).encode())
        if output.started_at is None:
            stderr = output.stderr.taken().decode("utf-8", "replace").strip()
            reason = printable(stderr)[-300:] or "no answer"
            raise errors.SandboxError(f"the sandbox did not run its command: {reason}")
        return CommandResult(
            code,
            output.stdout.taken(),
            output.stderr.taken(),
            output.stdout.cut,
            output.stderr.cut,
            timed_out,
            time.monotonic() - output.started_at,
        )

    def _exit_code(self, deadline: float) -> int:
        """Return the exit code of the container, whose output has ended."""
        timeout = max(deadline - time.monotonic(), _DYING_SECONDS)
        with self._engine.faults("waiting for a container's end"):
            code = int(self._engine.api.wait(self.container, timeout=timeout)["StatusCode"])
        if self._engine.podman:
            # Podman reports 0 for a container that is being removed.
            state = self._state()
            code = int(state["ExitCode"]) if state["Status"] in ("exited", "stopped") else _KILLED
        if code == _KILLED and self._find_end():
            raise self.death()
        return code

    def _open_channel(self) -> Channel:
        self._check_alive()
        scratch = f"{SCRATCH_DIR}/{next(self._numbers)}"
        argv = ["bash", "-c", sandbox_script("channel.sh"), "channel", scratch, "trusted"]
        try:
            with self._engine.faults("opening a channel"):
                channel = Channel(ContainerStream(self._engine.exec(self.container, argv)))
            channel.handshake()
        except errors.SandboxError as error:
            if self._find_end():
                raise self.death() from error
            raise self._closed_to_commands(error) from error
        return channel

    def _find_reason(self) -> str:
        """Return why the container has ended, and record whether the agent ended it.

        Returns "" if the container is still running after a few seconds.
        """
        try:
            state = self._wait_for_end()
            if state is None:
                return ""
            if outside := self._reason_outside(state.get("ExitCode")):
                return outside
        except NotThere:
            return "its container was removed from outside"
        except errors.SandboxTimeout:
            raise  # the engine may still answer about other containers
        except errors.InfraError as error:
            return str(error)
        self._destroyed = True
        code = state.get("ExitCode")
        if code == _KILLED:
            return "it exceeded its memory limit, or was killed without its engine's knowledge"
        return f"its container ended with exit code {code} {state.get('Error') or ''}".strip()

    def _wait_for_end(self) -> Mapping[str, Any] | None:
        """Return the state of the ended container; None if it is still running."""
        deadline = time.monotonic() + _DYING_SECONDS
        while True:
            state = self._state()
            if not state.get("Running"):
                return state
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.05)

    def _reason_outside(self, code: int | None) -> str:
        """Return the reason if the container was ended from outside, else ""."""
        if code == _LIFETIME_OVER and time.monotonic() > self._deadline - _CLOCKS_APART_SECONDS:
            return f"it reached its lifetime of {self._lifetime_seconds:g} s"
        if code == _STREAM_ENDED:
            return "the connection to its engine was lost"
        if code == _KILLED and self._was_killed_from_outside():
            return "its container was killed from outside"
        return ""

    def _was_silenced(self) -> bool:
        try:
            return bool(self._state().get("Running"))
        except errors.InfraError:
            return False

    def _state(self) -> Mapping[str, Any]:
        with self._engine.faults("reading a container's state"):
            state: dict[str, Any] = self._engine.api.inspect_container(self.container)["State"]
        return state

    def _was_killed_from_outside(self) -> bool:
        """Tell whether the engine has recorded a kill, or an end with unknown status.

        The latter means that the engine's shim of the container was killed. Kills by the kernel,
        for exceeding the memory limit, are not always recorded.
        """
        time.sleep(_EVENT_SECONDS)
        filters = {"container": [self.container], "event": ["kill", "die"]}
        now = f"{time.time():.6f}"
        with self._engine.faults("reading a container's events"):
            events = list(self._engine.api.events(since=0, until=now, filters=filters, decode=True))
        codes = [event["Actor"]["Attributes"].get("exitCode") for event in events]
        actions = [event["Action"] for event in events]
        return _UNKNOWN_STATUS in codes or "kill" in actions


class _LastOutput:
    """The output of a test run's command, which starts with a line that is `READY`."""

    def __init__(self, limit: int) -> None:
        self.stdout = CappedOutput(limit)
        self.stderr = CappedOutput(limit)
        """stderr, and everything before the command has started."""
        self.started_at: float | None = None

    def add(self, source: int, data: bytes) -> None:
        """Add a frame of output."""
        if source == _STDERR:
            self.stderr.add(data)
            return
        if self.started_at is None and data.startswith(READY):
            self.started_at = time.monotonic()
            data = data[len(READY) + 1 :]
        if self.started_at is None:
            self.stderr.add(data)
        else:
            self.stdout.add(data)


def _last_script(command: Command, files: Sequence[SandboxFile]) -> bytes:
    """Return a script that writes files and then runs the command, untraceable if possible."""
    lines = []
    for file in files:
        path = shlex.quote(file.path)
        folder = shlex.quote(posixpath.dirname(file.path))
        lines.append(f"[ -d {folder} ] || mkdir -p {folder}")
        lines.append(f"head -c {len(file.data)} <&3 >{path} || exit 126")
        if file.mode != 0o644:
            lines.append(f"chmod {file.mode:o} {path}")
    lines += [
        _WATCH,
        "exec 3<&-",
        f"echo {READY.decode()}",
        f"cd -- {shlex.quote(command.cwd)} || exit 126",
    ]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in command.env.items()]
    command_line = shlex.join(command.argv)
    lines += [
        f"{_UNTRACEABLE} true 2>/dev/null && exec {_UNTRACEABLE} {command_line}",
        f"exec {command_line}",
        "",
    ]
    return as_bytes("\n".join(lines))


class ContainerStream:
    """A `Transport` to a process in a container; its stderr is kept separately."""

    def __init__(self, attached: Attached) -> None:
        """Take over a connection."""
        self._socket = attached.connection
        # One thread may send while another receives, so neither can set a timeout on the socket.
        self._socket.settimeout(0)
        self._busy = threading.Lock()
        self._buffer = bytearray(attached.first_bytes)
        self._receiving = threading.Lock()
        self._closed = False
        self.stderr = b""
        """The last part of stderr."""

    def send(self, data: bytes, deadline: float) -> None:
        """Write data to the process's stdin."""
        unsent = memoryview(data)
        while unsent:
            try:
                with self._busy:
                    count = self._socket.send(unsent[:_READ_SIZE])
                unsent = unsent[count:]
            except _NOT_NOW:
                self._wait(select.POLLOUT, deadline)

    def receive(self, deadline: float) -> bytes:
        """Return the next output on stdout; b"" if the process or channel has ended."""
        out = b""
        while not out:
            is_ending = CHANNEL_ENDED in self.stderr
            if is_ending:
                # The marker may have overtaken earlier output.
                deadline = time.monotonic() + _OVERTAKEN_SECONDS
            try:
                frames = self.receive_frames(deadline)
            except TimeoutError:
                if not is_ending:
                    raise
                return b""
            if not frames:
                return b""
            out = b"".join(data for source, data in frames if source != _STDERR)
            err = b"".join(data for source, data in frames if source == _STDERR)
            self.stderr = (self.stderr + err)[-_STDERR_KEPT:]
        return out

    def receive_frames(self, deadline: float) -> list[tuple[int, bytes]]:
        """Return at least one frame (source, data); an empty list if the connection has ended."""
        with self._receiving:
            while not (frames := self._take_frames()):
                try:
                    with self._busy:
                        data: bytes = b"" if self._closed else self._socket.recv(_READ_SIZE)
                except _NOT_NOW:
                    self._wait(select.POLLIN, deadline)
                    continue
                except OSError:
                    data = b""
                if not data:
                    return []
                self._buffer += data
            return frames

    def _take_frames(self) -> list[tuple[int, bytes]]:
        """Remove the complete frames from the buffer.

        A frame has a header of 8 bytes: the source, three unused bytes, and the size.
        """
        frames = []
        start = 0
        while len(self._buffer) >= start + _HEADER_SIZE:
            data_start = start + _HEADER_SIZE
            size = int.from_bytes(self._buffer[start + 4 : data_start], "big")
            data_end = data_start + size
            if len(self._buffer) < data_end:
                break
            frames.append((self._buffer[start], bytes(self._buffer[data_start:data_end])))
            start = data_end
        del self._buffer[:start]
        return frames

    def _wait(self, event: int, deadline: float) -> None:
        # Wait in short turns, to notice that another thread has closed the stream, or that it
        # cannot be polled for writing.
        turn = time.monotonic() + _MAX_WAIT_SECONDS
        try:
            wait_for(self._socket.fileno(), event, min(deadline, turn))
        except TimeoutError:
            if deadline <= turn:
                raise

    def close(self) -> None:
        """Close the connection, from any thread.

        A receiving thread is woken up first, because its descriptor must stay valid until then.
        """
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._receiving.acquire(timeout=5):
            try:
                with contextlib.suppress(OSError, ValueError):
                    self._socket.close()
            finally:
                self._receiving.release()
