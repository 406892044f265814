"""One sandbox at Modal: a container under gVisor.

Commands go through channels. A channel is one long-lived exec, so that a command costs one round
trip instead of the three of an exec. The last command, which decides a verdict, is an exec of its
own, so that Modal reports its output and exit code.
"""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import time
from typing import TYPE_CHECKING, Any

from cooperbench import errors
from cooperbench.backends.modal.connection import (
    Connection,
    Gone,
    RateLimited,
    Unavailable,
    translated_errors,
)
from cooperbench.backends.streams import stream_over
from cooperbench.sandbox import sandbox_script
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.channel import BACKSTOP_SECONDS, CappedOutput, Channel, Command
from cooperbench.sandbox.contract import TIMEOUT_EXIT_CODE, CommandResult, ResourceUse, Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    import modal
    from modal.container_process import ContainerProcess
    from modal.io_streams import StreamReader

    from cooperbench.backends.modal.settings import ModalSettings

FIRST_COMMAND = ("sh", "-c", "while :; do sleep 86400 & wait $!; done")
"""Keeps a sandbox running. It is a loop because a command in the sandbox may kill the sleep."""
_EXEC = """
export PATH="/cooperbench/bin:$PATH"
[ -z "$1" ] || export COOPERBENCH_COMMAND="$1"
mkdir -p /cooperbench/bin /patches "$2" 2>/dev/null
cd -- "$2" || exit 126
shift 2
exec "$@"
"""
_CHANNEL = """
if command -v bash >/dev/null 2>&1; then exec bash -c "$1" channel "$2" "$3"; fi
echo "cooperbench-channel unavailable bash is missing"
"""
_COPY = 'for folder; do cp -a -- "$folder" "$folder.before" || exit; done'
_PUT_BACK = 'for folder; do rm -rf -- "$folder" && mv -- "$folder.before" "$folder" || exit; done'
_VCPUS_PER_CORE = 2
"""Modal counts physical cores, which have two vCPUs."""
_SCRATCH_DIR = "/cooperbench/channels"
_SLOW_SECONDS = 600.0
"""Timeout for operations that may wait for an image, a copied folder or long input."""
_SHOWN_SECONDS = 3600
_SNAPSHOT_SECONDS = 900
_DYING_SECONDS = 5.0
_DRAIN_SECONDS = 5.0
"""Time for output after the exit: a background process may keep the stream open."""
_TERMINATE_SECONDS = 60.0
_KILLED = 137
_FIRST_PROCESS_ENDED = ("SUCCESS", "FAILURE")
_OUT_OF_MEMORY = ("KERNEL_OOM_KILL", "MEMORY_THRASHING_EVICTION")
"""The sandbox used too much memory. MEMORY_MANAGER_EVICTION means that Modal's machine did."""
_PIECE_BYTES = 1 << 20
"""Size of one request; servers reject messages of a few megabytes."""
_MAX_WAITING_PIECES = 256
_ENDED_BY_DEADLINE = -1
"""Exit code that the client reports if an exec reached its timeout."""
_log = logging.getLogger("cooperbench")


class ModalSandbox(Sandbox):
    """A sandbox at Modal."""

    _losses = (Gone, Unavailable)

    def __init__(  # noqa: PLR0913  # the parts of a sandbox
        self,
        connection: Connection,
        remote: modal.Sandbox,
        settings: ModalSettings,
        lifetime_seconds: float,
        workdir: str,
        on_end: Callable[[ModalSandbox], None],
    ) -> None:
        """Take over a new sandbox; ChannelUnavailable if its image lacks a tool."""
        super().__init__(lifetime_seconds=lifetime_seconds, workdir=workdir, on_end=on_end)
        self.remote = remote
        self._settings = settings
        self._connection = connection
        self._started = time.monotonic()
        self._transports: list[ExecTransport] = []
        self._ended = 0.0
        self._excluded_folders: tuple[str, ...] = ()
        try:
            with self._alive(), self._channel():
                pass
        except BaseException as error:
            self.end("it failed to start")
            if isinstance(error, errors.SandboxDead):
                raise errors.SandboxError(f"the sandbox did not start: {error}") from error
            raise

    @property
    def name(self) -> str:
        """The sandbox's id in Modal's dashboard."""
        return self.remote.object_id

    @property
    def resource_use(self) -> ResourceUse:
        """The resources reserved until now, or until the sandbox ended."""
        seconds = (self._ended or time.monotonic()) - self._started
        vcpus = self._settings.cpu.reserved * _VCPUS_PER_CORE
        gib = self._settings.memory.reserved / 1024
        return ResourceUse(1, "sandbox", seconds, seconds * vcpus, seconds * gib)

    def open_stream(self, argv: Sequence[str]) -> Stream:
        """Start a command and return its stdin and stdout."""
        mark = f"stream-{self.name}-{next(self._numbers)}"
        with self._alive():
            transport = self._start_exec(mark, list(argv))
        return stream_over(transport, self, mark)

    def exclude_from_snapshot(self, folders: tuple[str, ...]) -> None:
        """Keep later changes to these folders out of a snapshot."""
        self._excluded_folders = folders
        done = self.run(
            ["sh", "-c", _COPY, "copy", *folders], timeout_seconds=_SLOW_SECONDS, cwd="/"
        )
        if done.returncode:
            self.end("its folders could not be copied")
            raise errors.SandboxError(
                f"{', '.join(folders)} cannot be copied: {done.stderr_read().strip()[-200:]}"
            )

    def snapshot(self) -> str:
        """Store the files as an image and return its id; then the sandbox can only be ended."""
        put_back = ["sh", "-c", _PUT_BACK, "put-back", *self._excluded_folders]
        done = self.run_last(put_back, timeout_seconds=_SLOW_SECONDS)
        if done.returncode:
            raise errors.SandboxError(
                f"the snapshot cannot be made: {done.stderr_read().strip()[-200:]}"
            )
        image = self._connection.call(
            "storing a sandbox's files",
            lambda: self.remote.snapshot_filesystem.aio(timeout=_SNAPSHOT_SECONDS),
            _SNAPSHOT_SECONDS + 30.0,
        )
        return image.object_id

    def show_folder(self, path: str, other: ModalSandbox, target: str) -> None:
        """Mount a folder in another sandbox, without help from inside this one."""

        async def _show() -> None:
            image = await self.remote.snapshot_directory.aio(
                path, timeout=_SNAPSHOT_SECONDS, ttl=_SHOWN_SECONDS
            )
            await other.remote.mount_image.aio(target, image)

        try:
            with self._alive():
                self._connection.call("copying a folder", _show, _SNAPSHOT_SECONDS + 30.0)
        except errors.InfraError as error:
            raise errors.SandboxRefused(str(error)) from error

    def _remove(self) -> None:
        self._ended = time.monotonic()
        try:
            self._connection.call("ending a sandbox", self._terminate, _TERMINATE_SECONDS)
        except Gone:
            pass
        except errors.InfraError as error:
            # Its lifetime or the next start of the harness ends it.
            _log.warning("%s", error)
        finally:
            self._close_transports()

    def _run_last(self, command: Command) -> CommandResult:
        with self._alive():
            # Only the first process may still run when the last command starts.
            for transport in self._close_transports():
                transport.wait_until_ended(_TERMINATE_SECONDS)
            limit_seconds = command.timeout_seconds + _SLOW_SECONDS + 2 * BACKSTOP_SECONDS
            return self._connection.call_once(
                "running a command", self._exec_last(command), limit_seconds
            )

    async def _exec_last(self, command: Command) -> CommandResult:
        """Run a command as an exec of its own."""
        variables = [f"{name}={value}" for name, value in command.env.items()]
        argv = ["env", *variables, "sh", "-c", 'exec "$@" </dev/null', "sh", *command.argv]
        exec_argv = self._exec_argv("", argv, command.cwd)
        limit_seconds = max(1, math.ceil(command.timeout_seconds))
        process = await self.remote.exec.aio(*exec_argv, timeout=limit_seconds, text=False)
        started = time.monotonic()
        out = CappedOutput(command.output_limit)
        err = CappedOutput(command.output_limit)
        readers = [
            asyncio.ensure_future(_read_output(process.stdout, out)),
            asyncio.ensure_future(_read_output(process.stderr, err)),
        ]
        try:
            # Modal ends the command at its timeout; the backstop covers the case that it does not.
            code = await asyncio.wait_for(process.wait.aio(), limit_seconds + BACKSTOP_SECONDS)
            ended, _ = await asyncio.wait(readers, timeout=_DRAIN_SECONDS)
            for reader in ended:
                reader.result()
        except TimeoutError:
            code = _ENDED_BY_DEADLINE
        finally:
            for reader in readers:
                reader.cancel()
        seconds = time.monotonic() - started
        timed_out = code == _ENDED_BY_DEADLINE or (code == _KILLED and seconds >= limit_seconds)
        if timed_out:
            code = TIMEOUT_EXIT_CODE
        if timed_out and await self.remote.poll.aio() is not None:
            raise Gone("the sandbox ended while the command ran")
        return CommandResult(code, out.taken(), err.taken(), out.cut, err.cut, timed_out, seconds)

    def _open_channel(self) -> Channel:
        self._check_alive()
        scratch = f"{_SCRATCH_DIR}/{next(self._numbers)}"
        trusted = "trusted" if self._had_channel else ""
        argv = ["sh", "-c", _CHANNEL, "channel", sandbox_script("channel.sh"), scratch, trusted]
        try:
            channel = Channel(self._start_exec("", argv))
            channel.handshake(_SLOW_SECONDS)
        except errors.SandboxDead as error:
            if self._find_end():
                raise
            raise errors.SandboxError(f"no channel into the sandbox: {error}") from error
        return channel

    def _start_exec(self, mark: str, argv: list[str]) -> ExecTransport:
        async def _start() -> ExecTransport:
            from modal.stream_type import StreamType

            exec_argv = self._exec_argv(mark, argv)
            process = await self.remote.exec.aio(*exec_argv, stderr=StreamType.DEVNULL, text=False)
            return ExecTransport(self._connection, process)

        # Retry only if the command was certainly not started.
        transport = self._connection.call(
            "starting a command", _start, _SLOW_SECONDS, retry_on=(RateLimited,)
        )
        self._transports.append(transport)
        if self._end_reason:
            transport.close()
        return transport

    def _exec_argv(self, mark: str, argv: list[str], cwd: str = "") -> list[str]:
        return ["sh", "-c", _EXEC, "sh", mark, cwd or self._workdir, *argv]

    def _close_transports(self) -> list[ExecTransport]:
        """Close all open transports and return them."""
        open_transports = [transport for transport in self._transports if not transport.closed]
        self._close_channels()
        for transport in open_transports:
            transport.close()
        return open_transports

    async def _terminate(self) -> None:
        await self.remote.terminate.aio()
        remote: Any = self.remote  # `detach` is not in the client's type stubs
        await remote.detach.aio()

    def _find_reason(self) -> str:
        try:
            return self._connection.call("asking for a sandbox's state", self._wait, _DYING_SECONDS)
        except errors.SandboxTimeout:
            return ""
        except errors.InfraError as error:
            return str(error)

    async def _wait(self) -> str:
        """Wait until the sandbox has ended; return why, and record whether the agent ended it."""
        import modal
        from modal_proto.api_pb2 import GenericResult

        try:
            await self.remote.wait.aio()
        except modal.exception.SandboxTimeoutError:
            return f"it reached its lifetime of {self._lifetime_seconds:g} s"
        except modal.exception.SandboxTerminatedError:
            return "it was terminated at Modal, not by the harness"
        # Only the status in the metadata distinguishes an eviction by Modal, which is retried, from
        # a kill inside the sandbox, which is scored. Modal has no public function that returns it.
        metadata: Any = self.remote._get_metadata()
        names = {value: name for name, value in GenericResult.GenericStatus.items()}
        status = names.get(metadata.result.status, "unknown").removeprefix("GENERIC_STATUS_")
        code = self.remote.returncode
        self._destroyed = status in (*_FIRST_PROCESS_ENDED, *_OUT_OF_MEMORY)
        if status not in _FIRST_PROCESS_ENDED:
            return f"Modal ended it: {status.lower().replace('_', ' ')}"
        if code == _KILLED:
            return "its processes were killed"
        return f"its first process ended with {code}"


async def _read_output(stream: StreamReader[bytes], output: CappedOutput) -> None:
    async for chunk in stream:
        output.add(chunk)


class ExecTransport:
    """A `Transport` over one exec in a sandbox. Modal's client resumes lost connections."""

    def __init__(self, connection: Connection, process: ContainerProcess[bytes]) -> None:
        self._connection = connection
        self._process = process
        self._chunks: queue.SimpleQueue[bytes | errors.CooperBenchError] = queue.SimpleQueue()
        self.closed = False
        self._reading: Future[None] = connection.spawn(self._read())

    def send(self, data: bytes, deadline: float) -> None:
        """Write data to the command's stdin."""
        for start in range(0, len(data), _PIECE_BYTES):
            self._write(data[start : start + _PIECE_BYTES], deadline)

    def receive(self, deadline: float) -> bytes:
        """Return the next output of the command; b"" if it has ended."""
        if self.closed and self._chunks.empty():
            return b""
        try:
            chunk = self._chunks.get(timeout=max(deadline - time.monotonic(), 0.0))
        except queue.Empty:
            raise TimeoutError("no answer in time") from None
        if isinstance(chunk, Gone):
            return b""
        if isinstance(chunk, errors.CooperBenchError):
            raise Unavailable(f"the connection to the sandbox was lost: {chunk}") from chunk
        return chunk

    def close(self) -> None:
        """Close the connection, from any thread; a thread that is receiving gets b""."""
        if self.closed:
            return
        self.closed = True
        self._reading.cancel()
        self._chunks.put(b"")
        # Not awaited: the command may have ended.
        self._connection.spawn(self._put(b""))

    def wait_until_ended(self, seconds: float) -> None:
        """Wait for the command to end after `close`; SandboxTimeout if it keeps running."""
        self._connection.call_once("ending a command", self._process.wait.aio(), seconds)

    def _write(self, piece: bytes, deadline: float) -> None:
        if self.closed:
            raise BrokenPipeError("the connection to the command is closed")
        try:
            timeout = deadline - time.monotonic()
            self._connection.call_once("writing to a command", self._put(piece), timeout)
        except (Gone, ValueError) as error:
            raise BrokenPipeError(f"the command has ended ({error})") from error

    async def _read(self) -> None:
        try:
            with translated_errors("reading from a command"):
                async for chunk in self._process.stdout:
                    self._chunks.put(chunk)
                    while self._chunks.qsize() > _MAX_WAITING_PIECES:
                        await asyncio.sleep(0.05)
        except errors.CooperBenchError as error:
            self._chunks.put(error)
        else:
            self._chunks.put(b"")

    async def _put(self, piece: bytes) -> None:
        """Write to stdin; an empty piece closes it."""
        if piece:
            self._process.stdin.write(piece)
        else:
            self._process.stdin.write_eof()
        await self._process.stdin.drain.aio()
