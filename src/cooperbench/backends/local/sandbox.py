"""One local sandbox, from its folder to its end.

Isolated by namespaces of this machine's kernel, with no capabilities and no way to other users: it sees the
operating system and a few tools read-only, its own folders, and its own processes. What is less isolated than a
container: the memory and the processors are shared without limits (only soft limits on the number of processes and on
file sizes), the disk is the host's, there is no system call filter, and with the network policy `public` it is on the
host's own network, services on localhost included.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
from typing import TYPE_CHECKING

from cooperbench.backends.local.bubblewrap import last_line
from cooperbench.backends.local.mounts import IO_DIR, LIB_DIR, SCRATCH_DIR, SHELL
from cooperbench.errors import SandboxDead, SandboxError
from cooperbench.sandbox.base_sandbox import BaseSandbox
from cooperbench.sandbox.channel import Channel, ChannelPool, as_bytes, quote
from cooperbench.sandbox.transport import CommandStream, PipeTransport
from cooperbench.temporary import remove_tree

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from cooperbench.backends.local.bubblewrap import Bubblewrap
    from cooperbench.backends.local.mounts import Content, RootFsBuilder
    from cooperbench.sandbox.contract import SandboxOptions, Stream

_ANSWER_SECONDS = 60.0
_READY = b"cooperbench-supervisor ready"


class LocalSandbox(BaseSandbox):
    """A sandbox of namespaces, and the folder that holds its files."""

    def __init__(
        self,
        folder: Path,
        builder: RootFsBuilder,
        bubblewrap: Bubblewrap,
        content: Content,
        *,
        lifetime_seconds: float,
        workdir: str,
        options: SandboxOptions,
        on_end: Callable[[LocalSandbox], None],
    ) -> None:
        """Takes over `folder`, which is empty, and removes it in the end."""
        super().__init__(lifetime_seconds=lifetime_seconds, workdir=workdir)
        self._folder = folder
        self._on_end = on_end
        self._end_lock = threading.Lock()
        self._removed = False
        expired = f"it reached its lifetime of {lifetime_seconds:g} s"
        self._timer = threading.Timer(min(lifetime_seconds, threading.TIMEOUT_MAX), self.end, [expired])
        self._timer.daemon = True
        log = folder / "log"
        try:
            (folder / "labels.json").write_text(json.dumps(dict(options.labels)), "utf-8")
            rootfs = builder.build(folder, content, options.network, overlays=bubblewrap.overlays)
            argv = [SHELL, f"{LIB_DIR}/supervisor.sh", IO_DIR, SCRATCH_DIR, workdir]
            if builder.tools_proven:
                argv.append("trusted")
            share_network = options.network == "public"
            self._started = bubblewrap.start(rootfs, argv, builder.env(), log, share_network=share_network)
        except BaseException:
            remove_tree(folder)
            raise
        self._supervisor = _Supervisor(self._started.process, folder / "io")
        pool = self._commands = ChannelPool(self._open_channel)
        self._timer.start()
        try:
            self._supervisor.wait_until_ready()
            pool.open_one()
            builder.tools_proven = True
        except BaseException as error:
            reason = last_line(log)
            self.terminate()
            if isinstance(error, SandboxDead):
                raise SandboxError(f"the sandbox did not start: {reason or error}") from error
            raise

    def open_stream(self, argv: Sequence[str]) -> Stream:
        with self._alive():
            return self._supervisor.open_stream(argv)

    def end(self, reason: str) -> None:
        """Kill everything in it, then remove its files. Calling it again does nothing."""
        with self._end_lock:
            self._end_reason = self._end_reason or reason
            self._started.kill()
            if self._removed:
                return
            self._removed = True
            self._timer.cancel()
            self._started.wait()
            self._commands.close()
            self._supervisor.close()
            for work in self._folder.glob("*-work/work"):
                work.chmod(0o700)  # an overlay leaves it closed even to its owner
            remove_tree(self._folder)
        self._on_end(self)

    def _open_channel(self) -> Channel:
        self._check_alive()
        return self._supervisor.open_channel()


class _Supervisor:
    """The connection to the first process of a sandbox (`supervisor.sh`), which opens channels and streams.

    Each has a pair of named pipes in a folder that the sandbox sees read-only, so that nothing inside can put something
    else in their place for the harness to open. Threads take turns.
    """

    def __init__(self, process: subprocess.Popen[bytes], io_dir: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._transport = PipeTransport(os.dup(process.stdin.fileno()), os.dup(process.stdout.fileno()))
        process.stdin.close()
        process.stdout.close()
        self._io_dir = io_dir
        self._lock = threading.Lock()
        self._buffer = b""
        self._count = 0
        self._closed = False

    def wait_until_ready(self) -> None:
        with self._lock:
            line = self._line(time.monotonic() + _ANSWER_SECONDS)
        if line != _READY:
            raise SandboxError("the sandbox began with something else than expected")

    def open_channel(self) -> Channel:
        write_fd, read_fd, _ = self._open("channel", [])
        channel = Channel(PipeTransport(write_fd, read_fd))
        channel.handshake()
        return channel

    def open_stream(self, argv: Sequence[str]) -> CommandStream:
        mark = secrets.token_hex(8)
        write_fd, read_fd, group = self._open("stream", [mark.encode(), *map(as_bytes, argv)])
        os.set_blocking(read_fd, True)
        stdin, stdout = os.fdopen(write_fd, "wb", buffering=0), os.fdopen(read_fd, "rb")
        return CommandStream(stdin, stdout, lambda: self._kill(mark, group))

    def _kill(self, mark: str, group: str) -> None:
        # With the sandbox its commands have ended.
        with self._lock, contextlib.suppress(SandboxError):
            self._ask([b"kill", mark.encode(), group.encode()])

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._transport.close()

    def _open(self, kind: str, words: list[bytes]) -> tuple[int, int, str]:
        """Our ends of a new pair of pipes, and the process group at the other ends."""
        with self._lock:
            self._count += 1
            into, out_of = (self._io_dir / f"{self._count}.{name}" for name in ("in", "out"))
            held: list[int] = []
            try:
                os.mkfifo(into, 0o600)
                os.mkfifo(out_of, 0o600)
                # Opened for both, so that neither side waits for the other; let go of below, for EPIPE's sake.
                held.append(os.open(into, os.O_RDWR | os.O_CLOEXEC))
                read_fd = os.open(out_of, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                held.append(read_fd)
                answer = self._ask([kind.encode(), b"%d" % self._count, *words])
                write_fd = os.open(into, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.set_blocking(write_fd, True)
                held.remove(read_fd)
                return write_fd, read_fd, answer
            finally:
                for fd in held:
                    os.close(fd)
                into.unlink(missing_ok=True)
                out_of.unlink(missing_ok=True)

    def _ask(self, words: list[bytes]) -> str:
        deadline = time.monotonic() + _ANSWER_SECONDS
        if self._closed:
            raise SandboxDead("the sandbox has ended")
        try:
            self._transport.send(b" ".join(map(quote, words)) + b"\n", deadline)
        except OSError as error:
            raise SandboxDead("the sandbox has ended") from error
        status, _, rest = self._line(deadline).decode("ascii", "replace").partition(" ")
        if status != "ok":
            raise SandboxError(f"the sandbox could not open a {words[0].decode()}")
        return rest

    def _line(self, deadline: float) -> bytes:
        while b"\n" not in self._buffer:
            try:
                data = self._transport.receive(deadline)
            except OSError as error:
                raise SandboxDead("the sandbox does not answer") from error
            if not data or len(self._buffer) > 1000:
                raise SandboxDead("the sandbox has ended")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line
