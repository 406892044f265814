"""One sandbox at Modal: what is asked for when it is created, and its life from then to its end.

A container under gVisor on a machine of Modal's, with its own file system, processes, limits and network. Commands go
through channels: a long-lived exec each, so that a command costs one round trip instead of the three of an exec.
"""

from __future__ import annotations

import logging
import posixpath
import secrets
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cooperbench.backends.modal.exec_transport import ExecTransport
from cooperbench.backends.modal.faults import Gone, Lost, RateLimited, Unavailable
from cooperbench.errors import InfraError, SandboxDead, SandboxError
from cooperbench.sandbox import channel_script
from cooperbench.sandbox.base_sandbox import BaseSandbox
from cooperbench.sandbox.channel import Channel, ChannelPool
from cooperbench.sandbox.transport import stream_over

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import modal

    from cooperbench.backends.modal.connection import Connection
    from cooperbench.backends.modal.settings import Share
    from cooperbench.sandbox.contract import Stream

_FIRST_COMMAND = ("sh", "-c", "while :; do sleep 86400 & wait $!; done")
"""Keeps a sandbox running until its lifetime is over; a loop, since a command in it may kill the sleep."""
_EXEC = """
PATH=/cooperbench/bin:$PATH COOPERBENCH_COMMAND=$1
export PATH COOPERBENCH_COMMAND
mkdir -p /cooperbench/bin /patches "$2" 2>/dev/null
cd -- "$2"
shift 2
exec "$@"
"""
_CHANNEL = """
if command -v bash >/dev/null 2>&1; then unset COOPERBENCH_COMMAND; exec bash -c "$1" channel "$2" "$3"; fi
echo "cooperbench-channel unavailable bash is missing"
"""
_MOVE_INTO_PLACE = """
if [ -d "$2" ]; then echo "it is a folder" >&2; rm -f -- "$1"; exit 1; fi
chmod "$3" "$1" && mv -f -- "$1" "$2" && exit 0
rm -f -- "$1"
exit 1
"""
_SCRATCH_DIR = "/cooperbench/channels"
_START_SECONDS = 600.0
"""Images that have to be fetched to a machine first take a while."""
_LARGE_BYTES = 512 * 1024
"""From here on, files are written through the filesystem API instead of a channel."""
_FILE_SECONDS = 600.0
_DYING_SECONDS = 5.0
_TERMINATE_SECONDS = 60.0
_LIFETIME_OVER = 124
_KILLED = 137
_log = logging.getLogger("cooperbench")


@dataclass(frozen=True)
class Resources:
    cpu: Share
    memory_mib: Share
    gpu: str = ""


@dataclass(frozen=True)
class Network:
    """None for `domains` and `cidrs`: no limit; empty: nothing."""

    blocked: bool = False
    domains: tuple[str, ...] | None = None
    """Reached by TLS at port 443: Modal reads the name that the client asks for."""
    cidrs: tuple[str, ...] | None = None
    tunnel_ports: tuple[int, ...] = ()
    """Inside the sandbox, each reached through a tunnel with TLS. A sandbox that is blocked can have none."""


@dataclass(frozen=True)
class SandboxSpec:
    """What Modal is asked for."""

    name: str
    tags: Mapping[str, str]
    lifetime_seconds: int
    resources: Resources
    network: Network
    regions: tuple[str, ...] = ()


async def create_remote(connection: Connection, image: modal.Image, spec: SandboxSpec) -> modal.Sandbox:
    import modal

    cpu, memory, network = spec.resources.cpu, spec.resources.memory_mib, spec.network
    try:
        return await modal.Sandbox.create.aio(
            *_FIRST_COMMAND,
            app=connection.app,
            client=connection.client,
            name=spec.name,
            tags=dict(spec.tags),
            image=image,
            timeout=spec.lifetime_seconds,
            workdir="/",
            gpu=spec.resources.gpu or None,
            region=list(spec.regions) or None,
            cpu=(cpu.reserved, cpu.most),
            memory=(int(memory.reserved), int(memory.most)),
            block_network=network.blocked,
            outbound_domain_allowlist=None if network.domains is None else list(network.domains),
            outbound_cidr_allowlist=None if network.cidrs is None else list(network.cidrs),
            encrypted_ports=list(network.tunnel_ports),
        )
    except modal.exception.AlreadyExistsError:
        # An earlier attempt has made it, and only its answer was lost.
        return await modal.Sandbox.from_name.aio(connection.app_name, spec.name, client=connection.client)


class ModalSandbox(BaseSandbox):
    """A sandbox of Modal's."""

    _losses = (Gone, Lost, Unavailable)

    def __init__(
        self,
        connection: Connection,
        remote: modal.Sandbox,
        *,
        resources: Resources,
        lifetime_seconds: float,
        workdir: str,
        trusted: bool,
        on_end: Callable[[ModalSandbox], None],
    ) -> None:
        """Takes over a sandbox that has just been made; ChannelUnavailable where its image lacks bash or another tool.

        `trusted`: the image's tools have been tested before.
        """
        super().__init__(lifetime_seconds=lifetime_seconds, workdir=workdir)
        self.remote = remote
        self.resources = resources
        self._connection = connection
        self._started = time.monotonic()
        self._trusted = trusted
        self._on_end = on_end
        self._transports: set[ExecTransport] = set()
        self._lock = threading.Lock()
        self._end_lock = threading.Lock()
        self._ended = False
        self.seconds = 0.0
        """How long it ran; 0 while it runs."""
        self._commands = pool = ChannelPool(self._open_channel)
        try:
            with self._alive():
                pool.open_one()
            self._trusted = True
        except BaseException as error:
            self.end("it was given up while starting")
            if isinstance(error, SandboxDead):
                raise SandboxError(f"the sandbox did not start: {error}") from error
            raise

    @property
    def name(self) -> str:
        """Modal's id of it, as in its dashboard."""
        return self.remote.object_id

    @property
    def age_seconds(self) -> float:
        return self.seconds or time.monotonic() - self._started

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        with self._alive():
            if len(data) < _LARGE_BYTES or not self._write_large(self._path(path), data, mode):
                self._commands.write_file(self._path(path), data, mode)

    def open_stream(self, argv: Sequence[str]) -> Stream:
        mark = f"stream-{self.name}-{next(self._numbers)}"
        with self._alive():
            transport = self._start_exec(mark, list(argv))
        return stream_over(transport, lambda: self._end_stream(mark))

    def end(self, reason: str, *, already: bool = False) -> None:
        """End everything in it, unless that was done `already`. Calling it again does nothing."""
        with self._end_lock:
            self._end_reason = self._end_reason or reason
            if self._ended:
                return
            self._ended = True
            try:
                self._connection.call_with_retries(
                    "ending a sandbox", lambda: self._terminate(already=already), _TERMINATE_SECONDS
                )
            except Gone:
                pass
            except InfraError as error:
                # Nothing more can be done now: its lifetime ends it, or the next start does.
                _log.warning("%s", error)
            finally:
                self.seconds = time.monotonic() - self._started
                self._commands.close()
                with self._lock:
                    transports, self._transports = self._transports, set()
                for transport in transports:
                    transport.close()
                self._on_end(self)

    def _write_large(self, path: str, data: bytes, mode: int) -> bool:
        """False where the filesystem API refuses: the channel then says why."""
        import modal

        temporary = posixpath.join(posixpath.dirname(path), f".cooperbench-{secrets.token_hex(8)}")

        async def write() -> None:
            await self.remote.filesystem.write_bytes.aio(data, temporary)

        try:
            self._connection.call(f"writing {path}", write(), _FILE_SECONDS)
        except SandboxError as error:
            if isinstance(error.__cause__, modal.exception.SandboxFilesystemError):
                _log.debug("%s", error)
                return False
            raise
        command = ["sh", "-c", _MOVE_INTO_PLACE, "move", temporary, path, f"{mode:o}"]
        done = self.run(command, timeout_seconds=60, cwd="/")
        if done.returncode:
            raise SandboxError(f"cannot write {path} in the sandbox: {done.stderr_read().strip()[-200:]}")
        return True

    def _open_channel(self) -> Channel:
        self._check_alive()
        scratch = f"{_SCRATCH_DIR}/{next(self._numbers)}"
        trusted = "trusted" if self._trusted else ""
        argv = ["sh", "-c", _CHANNEL, "channel", channel_script(), scratch, trusted]
        try:
            channel = Channel(self._start_exec("", argv))
            channel.handshake(_START_SECONDS)
        except (Gone, SandboxDead) as error:
            if self._find_end():
                raise self.death() from error
            raise SandboxError(f"no channel into the sandbox: {error}") from error
        return channel

    def _start_exec(self, mark: str, argv: list[str]) -> ExecTransport:
        async def start() -> ExecTransport:
            from modal.stream_type import StreamType

            command = ["sh", "-c", _EXEC, "sh", mark, self._workdir, *argv]
            process = await self.remote.exec.aio(*command, stderr=StreamType.DEVNULL, text=False)
            return ExecTransport(self._connection.event_loop, process, self._forget_transport)

        # Only what was certainly not started may be started again.
        transport = self._connection.call_with_retries(
            "starting a command", start, _START_SECONDS, retry_on=(RateLimited,)
        )
        with self._lock:
            self._transports.add(transport)
        if self._end_reason:
            transport.close()
        return transport

    def _forget_transport(self, transport: ExecTransport) -> None:
        with self._lock:
            self._transports.discard(transport)

    async def _terminate(self, *, already: bool) -> None:
        if not already:
            await self.remote.terminate.aio()
        remote: Any = self.remote  # the types of its `detach` are left out
        await remote.detach.aio()

    def _find_reason(self) -> str:
        deadline = time.monotonic() + _DYING_SECONDS
        while True:
            try:
                code = self._connection.call_with_retries(
                    "asking for a sandbox's state", self.remote.poll.aio
                )
            except Gone as error:
                return self._end_reason or f"Modal does not know it any more ({error})"
            except InfraError as error:
                return str(error)
            if code is not None:
                return self._reason_in(code)
            if time.monotonic() >= deadline or self._end_reason:
                return self._end_reason
            time.sleep(0.2)

    def _reason_in(self, code: int) -> str:
        if code == _LIFETIME_OVER:
            return f"it reached its lifetime of {self._lifetime_seconds:g} s"
        if code == _KILLED:
            return "its processes were killed"
        return f"its first process ended with exit code {code}"
