"""One sandbox at Modal, from its creation to its end.

A container under gVisor on a machine of Modal's, with its own file system, processes, limits and network. Commands go
through channels: a long-lived exec each, so that a command costs one round trip instead of the three of an exec.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from cooperbench.backends.modal.faults import Gone, Lost, RateLimited, Unavailable
from cooperbench.backends.modal.files import FileProblem, place, upload
from cooperbench.backends.modal.line import Line
from cooperbench.backends.modal.plainexec import PlainExec
from cooperbench.errors import InfraError, SandboxDead, SandboxError
from cooperbench.sandbox import channel_script
from cooperbench.sandbox.base_sandbox import BaseSandbox
from cooperbench.sandbox.channel import Channel, ChannelPool, ChannelUnavailable
from cooperbench.sandbox.transport import stream_over

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import modal

    from cooperbench.backends.modal.account import Account
    from cooperbench.backends.modal.prices import Rate
    from cooperbench.sandbox.contract import Stream

FIRST_COMMAND = ("sh", "-c", "while :; do sleep 86400 & wait $!; done")
"""Keeps a sandbox running until its time is over; a loop, as somebody may kill a sleep that is not his."""
_LINE = """
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
_SCRATCH_DIR = "/cooperbench/channels"
_START_SECONDS = 600.0
"""Images that no machine of Modal's has at hand take a while."""
_LARGE_BYTES = 512 * 1024
"""From here on, files are written through the filesystem API instead of a channel."""
_DYING_SECONDS = 5.0
_TERMINATE_SECONDS = 60.0
_LIFETIME_OVER = 124
_KILLED = 137
_log = logging.getLogger("cooperbench")


class ModalSandbox(BaseSandbox):
    """A sandbox of Modal's."""

    _losses = (Gone, Lost, Unavailable)

    def __init__(
        self,
        account: Account,
        remote: modal.Sandbox,
        *,
        rate: Rate,
        lifetime_seconds: float,
        workdir: str,
        trusted: bool,
        on_end: Callable[[ModalSandbox], None],
    ) -> None:
        """Takes over a sandbox that has just been made; `trusted`: its image's tools have been tried before."""
        super().__init__(lifetime_seconds=lifetime_seconds, workdir=workdir)
        self.remote = remote
        self.rate = rate
        self._account = account
        self._started = time.monotonic()
        self._trusted = trusted
        self._on_end = on_end
        self._lines: set[Line] = set()
        self._lock = threading.Lock()
        self._end_lock = threading.Lock()
        self._ended = False
        self.seconds = 0.0
        """How long it ran; 0 while it runs."""
        pool = ChannelPool(self._open_channel)
        self._commands = pool
        try:
            with self._alive():
                pool.open_one()
            self._trusted = True
        except ChannelUnavailable as error:
            self.without_channel = str(error)
            self._commands = PlainExec(account, remote)
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
            line = self._open_line(mark, list(argv))
        return stream_over(line, lambda: self._end_stream(mark))

    def end(self, reason: str, *, already: bool = False) -> None:
        """End everything in it, unless somebody has `already`. Calling it again does nothing."""
        with self._end_lock:
            self._end_reason = self._end_reason or reason
            if self._ended:
                return
            self._ended = True
            try:
                self._account.insist(
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
                    lines, self._lines = self._lines, set()
                for line in lines:
                    line.close()
                self._on_end(self)

    def _write_large(self, path: str, data: bytes, mode: int) -> bool:
        """False where the filesystem API does not work here, or says no: a channel then says why."""
        try:
            beside = upload(self._account, self.remote, path, data)
        except FileProblem as error:
            _log.debug("%s", error)
            return False
        done = self._commands.run(place(beside, path, mode), timeout_seconds=60, cwd="/")
        if done.returncode:
            raise FileProblem(f"cannot write {path} in the sandbox: {done.stderr_read().strip()[-200:]}")
        return True

    def _open_channel(self) -> Channel:
        self._check_alive()
        scratch = f"{_SCRATCH_DIR}/{next(self._numbers)}"
        argv = [
            "sh",
            "-c",
            _CHANNEL,
            "channel",
            channel_script(),
            scratch,
            "trusted" if self._trusted else "",
        ]
        try:
            channel = Channel(self._open_line("", argv))
            channel.handshake(_START_SECONDS)
        except (Gone, SandboxDead) as error:
            if self._find_end():
                raise self.death() from error
            raise SandboxError(f"no channel into the sandbox: {error}") from error
        return channel

    def _open_line(self, mark: str, argv: list[str]) -> Line:
        async def start() -> Line:
            from modal.stream_type import StreamType

            command = ["sh", "-c", _LINE, "sh", mark, self._workdir, *argv]
            process = await self.remote.exec.aio(*command, stderr=StreamType.DEVNULL, text=False)
            return Line(self._account.loop, process, self._forget_line)

        # Only what was certainly not started may be started again.
        line = self._account.insist("starting a command", start, _START_SECONDS, passing=(RateLimited,))
        with self._lock:
            self._lines.add(line)
        if self._end_reason:
            line.close()
        return line

    def _forget_line(self, line: Line) -> None:
        with self._lock:
            self._lines.discard(line)

    async def _terminate(self, *, already: bool) -> None:
        if not already:
            await self.remote.terminate.aio()
        remote: Any = self.remote  # the types of its `detach` are left out
        await remote.detach.aio()

    def _find_reason(self) -> str:
        deadline = time.monotonic() + _DYING_SECONDS
        while True:
            try:
                code = self._account.insist("asking for a sandbox's state", self.remote.poll.aio)
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
