"""One container, from its creation to its removal, and the connections into it.

Its first process is the supervisor, which no process inside can kill. So the cause of its end is known: it can only
be killed from outside, which the engine reports, or by the kernel when the sandbox has used up its memory.
"""

from __future__ import annotations

import contextlib
import io
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
from typing import Any

from cooperbench import errors
from cooperbench.backends.docker.engine import NEEDED_TOOLS, Engine, EngineGone, NotThere
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
from cooperbench.sandbox.contract import TIMEOUT_EXIT_CODE, CommandResult, Stream
from cooperbench.text import printable

SCRATCH_DIR = "/cooperbench/scratch"
"""For what channels keep."""
_LIFETIME_OVER = 86
_STREAM_ENDED = 87
_KILLED = 137
_UNKNOWN_STATUS = "255"
_CLOCKS_APART_SECONDS = 2.0
_DYING_SECONDS = 5.0
_EVENT_SECONDS = 0.5
"""After which an engine has written down what it was asked to do."""
_WATCH = "(while read -r line; do :; done; while kill -KILL -1; do sleep 1; done) <&3 3<&- >/dev/null 2>&1 &"
"""Ends a judged container when the harness has gone: what is left of its input ends then."""
_UNTRACEABLE = "setpriv --egid 1 --keep-groups"
"""Starts bash with another effective group, which bash gives back at once. To the kernel it then is a process that has
changed its credentials: without CAP_SYS_PTRACE nobody may trace it, write to its memory or open its descriptors."""
_STREAM = 'export COOPERBENCH_COMMAND="$1"; shift; exec "$@"'
CHANNEL_ENDED = b"cooperbench-supervisor: the channel has ended"
"""On stderr: nothing more will come on stdout, although the connection stays."""
_READ_SIZE = 1 << 18
_MAX_WAIT_SECONDS = 1.0
_NOT_NOW = (BlockingIOError, TimeoutError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_STDERR_KEPT = 4000
_OVERTAKEN_SECONDS = 0.5
_HEADER_SIZE = 8
_MAX_ARCHIVE_BYTES = 200 * 1024**2
_STDERR = 2
_log = logging.getLogger("cooperbench")


def first_command(lifetime_seconds: float, *, judged: bool, trusted: bool) -> list[str]:
    """What a container is started with. `trusted`: its image's tools have been tried before."""
    supervisor = resources.files(__package__).joinpath("supervisor.sh").read_text("utf-8")
    seconds = str(max(1, round(lifetime_seconds)))
    channel = "" if judged else sandbox_script("channel.sh")
    words = ["sh", "-c", supervisor, "supervisor", channel, f"{SCRATCH_DIR}/1", seconds]
    return [*words, "trusted" if trusted else ""]


def lacks_tool(image: str, reason: str) -> errors.UserError:
    """The line for an image in which no channel can work; `reason` is the channel's self test's."""
    return errors.UserError(f"the image {image} cannot be used: {reason}; {NEEDED_TOOLS}")


class DockerSandbox(Sandbox):
    """A container."""

    _losses = (NotThere, EngineGone)

    def __init__(
        self,
        engine: Engine,
        container: str,
        stream: ContainerStream,
        *,
        image: str,
        lifetime_seconds: float,
        workdir: str,
        judged: bool,
        on_end: Callable[[DockerSandbox], None],
    ) -> None:
        """Takes over a container that has just been started, and `stream`, the stdin and stdout of its supervisor."""
        super().__init__(lifetime_seconds=lifetime_seconds, workdir=workdir, on_end=on_end)
        self.container = container
        self.image = image
        self._engine = engine
        self._stream = stream
        next(self._numbers)  # the supervisor's channel
        self._files: list[tuple[str, bytes, int]] | None = [] if judged else None
        """Of a judged one: what its only command needs."""
        if judged:
            return
        # A channel that breaks must not close the supervisor's stream, as that ends the container.
        held: Any = SimpleNamespace(send=stream.send, receive=stream.receive, close=lambda: None)
        first = Channel(held)
        try:
            first.handshake()
        except ChannelUnavailable as error:
            raise lacks_tool(image, error.reason) from error
        except (errors.SandboxDead, errors.SandboxTimeout) as error:
            raise errors.SandboxError(
                f"the sandbox did not start: {self._find_reason() or error}"
            ) from error
        self._idle_channels.append(first)

    def open_stream(self, argv: Sequence[str]) -> Stream:
        mark = f"stream-{self.container[:12]}-{next(self._numbers)}"
        command = ["sh", "-c", _STREAM, "sh", mark, *argv]
        with self._alive(), self._engine.faults("opening a stream"):
            stream = ContainerStream(self._engine.exec(self.container, command, self._workdir))
        return stream_over(stream, self, mark)

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        if self._files is None:
            super().write_file(path, data, mode)
        else:
            self._files.append((self._path(path), data, mode))

    def show_folder(self, path: str, other: Sandbox, target: str) -> None:
        """In another sandbox, as a tar file made by the engine: nothing in this container is needed for it."""
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
            # Nothing more can be done now; the next start removes what is left.
            _log.warning("%s", error)
        finally:
            self._close_channels()
            self._stream.close()

    def _run_last(self, command: Command) -> CommandResult:
        if self._files is None:
            raise errors.SandboxError("the sandbox was not made for a judged command")
        deadline = time.monotonic() + command.timeout_seconds
        out, err = CappedOutput(command.output_limit), CappedOutput(command.output_limit)
        script = _last_script(command, self._files)
        request = b"".join([b"%d\n" % len(script), script, *(data for _, data, _ in self._files)])
        code, timed_out, started = TIMEOUT_EXIT_CODE, False, 0.0
        try:
            self._stream.send(request, deadline)
            while frames := self._stream.receive_frames(deadline):
                for source, data in frames:
                    if source != _STDERR and not started and data.startswith(READY):
                        started, data = time.monotonic(), data[len(READY) + 1 :]
                    (err if source == _STDERR or not started else out).add(data)
            code = self._exit_code(deadline)
        except TimeoutError:
            timed_out = True
        except OSError as error:
            started = 0.0
            err.add(str(error).encode())
        if not started:
            why = printable(err.taken().decode("utf-8", "replace").strip())[-300:]
            raise errors.SandboxError(f"the sandbox did not take its command: {why or 'no answer'}")
        seconds = time.monotonic() - started
        return CommandResult(code, out.taken(), err.taken(), out.cut, err.cut, timed_out, seconds)

    def _exit_code(self, deadline: float) -> int:
        """Of the container, whose output has ended."""
        left_seconds = max(deadline - time.monotonic(), _DYING_SECONDS)
        with self._engine.faults("waiting for a container's end"):
            code = int(self._engine.api.wait(self.container, timeout=left_seconds)["StatusCode"])
        if self._engine.podman:
            # It says 0 for a container that is being removed.
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
            raise (self.death() if self._find_end() else self._closed_to_commands(error)) from error
        return channel

    def _find_reason(self) -> str:
        deadline = time.monotonic() + _DYING_SECONDS
        try:
            while (state := self._state()).get("Running"):
                if time.monotonic() >= deadline:
                    return ""
                time.sleep(0.05)
            code = state.get("ExitCode")
            if code == _LIFETIME_OVER and time.monotonic() > self._deadline - _CLOCKS_APART_SECONDS:
                return f"it reached its lifetime of {self._lifetime_seconds:g} s"
            if code == _STREAM_ENDED:
                return "the connection to its engine was lost"
            if code == _KILLED and self._was_killed_from_outside():
                return "its container was killed from outside"
        except NotThere:
            return "somebody removed its container"
        except errors.SandboxTimeout:
            raise  # an engine that does not answer about this container may answer about others
        except errors.InfraError as error:
            return str(error)
        self._destroyed = True
        if code == _KILLED:
            return (
                "it ran out of its memory, or was killed in a way that its engine does not know of"
            )
        return f"its container ended with exit code {code} {state.get('Error') or ''}".strip()

    def _was_silenced(self) -> bool:
        try:
            return bool(self._state().get("Running"))
        except errors.InfraError:
            return False

    def _state(self) -> Mapping[str, Any]:
        with self._engine.faults("asking for a container's state"):
            state: dict[str, Any] = self._engine.api.inspect_container(self.container)["State"]
        return state

    def _was_killed_from_outside(self) -> bool:
        """Does the engine say so? The kernel, which kills for the sandbox's own memory, is not always told of by it.

        With an end of unknown status it says that the process which it has beside each container was killed.
        """
        time.sleep(_EVENT_SECONDS)
        filters, now = (
            {"container": [self.container], "event": ["kill", "die"]},
            f"{time.time():.6f}",
        )
        with self._engine.faults("asking who killed a container"):
            events = list(self._engine.api.events(since=0, until=now, filters=filters, decode=True))
        codes = [event["Actor"]["Attributes"].get("exitCode") for event in events]
        return _UNKNOWN_STATUS in codes or "kill" in [event["Action"] for event in events]


def _last_script(command: Command, files: list[tuple[str, bytes, int]]) -> bytes:
    """For sh: writes files and becomes the command, which nobody may trace where the image and its user allow that."""
    lines = []
    for path, data, mode in files:
        place, folder = shlex.quote(path), shlex.quote(posixpath.dirname(path))
        lines.append(f"[ -d {folder} ] || mkdir -p {folder}")
        lines.append(f"head -c {len(data)} <&3 >{place} || exit 126")
        lines += [f"chmod {mode:o} {place}"] if mode != 0o644 else []
    lines += [
        _WATCH,
        "exec 3<&-",
        f"echo {READY.decode()}",
        f"cd -- {shlex.quote(command.cwd)} || exit 126",
    ]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in command.env.items()]
    words = shlex.join(command.argv)
    lines += [
        f"{_UNTRACEABLE} true 2>/dev/null && exec {_UNTRACEABLE} {words}",
        f"exec {words}",
        "",
    ]
    return as_bytes("\n".join(lines))


class ContainerStream:
    """A `Transport`; stderr is kept aside."""

    def __init__(self, handle: Any) -> None:
        """`handle` is what docker-py calls the socket: a SocketIO, an SSLSocket or a channel of ssh."""
        self._handle = handle
        self._socket: Any = getattr(handle, "_sock", handle)
        # One thread may send while another receives, so that neither can set a time limit on the socket.
        self._socket.settimeout(0)
        self._busy = threading.Lock()
        self._buffer = bytearray(_already_read(handle))
        self._receiving = threading.Lock()
        self._closed = False
        self.stderr = b""
        """The end of what came on stderr."""

    def send(self, data: bytes, deadline: float) -> None:
        rest = memoryview(data)
        while rest:
            try:
                with self._busy:
                    rest = rest[self._socket.send(rest[:_READ_SIZE]) :]
            except _NOT_NOW:
                self._wait(select.POLLOUT, deadline)

    def receive(self, deadline: float) -> bytes:
        out = b""
        while not out:
            ending = CHANNEL_ENDED in self.stderr
            try:
                # The mark may have overtaken what was written before it.
                frames = self.receive_frames(
                    time.monotonic() + _OVERTAKEN_SECONDS if ending else deadline
                )
            except TimeoutError:
                if not ending:
                    raise
                return b""
            if not frames:
                return b""
            out = b"".join(data for source, data in frames if source != _STDERR)
            err = b"".join(data for source, data in frames if source == _STDERR)
            self.stderr = (self.stderr + err)[-_STDERR_KEPT:]
        return out

    def receive_frames(self, deadline: float) -> list[tuple[int, bytes]]:
        """At least one, each with its source; none means that the other end is gone."""
        with self._receiving:
            while not (frames := self._whole_frames()):
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

    def _whole_frames(self) -> list[tuple[int, bytes]]:
        """What has come of them, out of the buffer."""
        frames, start = [], 0
        while len(self._buffer) >= (begin := start + _HEADER_SIZE):
            end = begin + int.from_bytes(self._buffer[start + 4 : begin], "big")
            if len(self._buffer) < end:
                break
            frames.append((self._buffer[start], bytes(self._buffer[begin:end])))
            start = end
        del self._buffer[:start]
        return frames

    def _wait(self, event: int, deadline: float) -> None:
        # In turns: a stream that is closed by another thread, or one that cannot be polled for writing, is seen then.
        turn = time.monotonic() + _MAX_WAIT_SECONDS
        try:
            wait_for(self._socket.fileno(), event, min(deadline, turn))
        except TimeoutError:
            if deadline <= turn:
                raise

    def close(self) -> None:
        """From any thread; one that is receiving is woken up first, as its descriptor must not vanish under it."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._receiving.acquire(timeout=5):
            try:
                # The response holds the connection's pool; the handle holds the socket. Either may be closed already.
                response = getattr(self._handle, "_response", None)
                for held in (response, self._handle, self._socket):
                    with contextlib.suppress(OSError, ValueError):
                        if held is not None:
                            held.close()
                self._handle = None
            finally:
                self._receiving.release()


def _already_read(handle: Any) -> bytes:
    """The first bytes may have come together with the HTTP header and lie in its reader's buffer."""
    response = getattr(handle, "_response", None)
    reader = getattr(getattr(getattr(response, "raw", None), "_fp", None), "fp", None)
    if not isinstance(reader, io.BufferedReader):
        return b""
    try:
        return reader.read1(len(reader.peek()))
    except (OSError, ValueError):
        return b""
