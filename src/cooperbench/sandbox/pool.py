"""As many channels into one sandbox as there are threads that use it at once."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cooperbench.sandbox.channel import Channel, ChannelBroken
from cooperbench.sandbox.contract import DEFAULT_OUTPUT_LIMIT, CommandResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_MOST_CHANNELS = 64


class ChannelPool:
    """Lends an idle channel, or opens another one.

    `open_channel` raises SandboxDead where the sandbox has ended. When a channel breaks while the sandbox lives on,
    the command has killed its own shell (`pkill -9 bash`): that is the command's doing and therefore a result, 137
    with a note, not an error. Files are moved again, once, through a new channel.
    """

    def __init__(self, open_channel: Callable[[], Channel]) -> None:
        self._open_channel = open_channel
        self._idle: list[Channel] = []
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(_MOST_CHANNELS)
        self._closed = False

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float,
        cwd: str,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
    ) -> CommandResult:
        """See `Channel.run`."""
        try:
            with self._lend() as channel:
                return channel.run(
                    argv,
                    timeout_seconds=timeout_seconds,
                    cwd=cwd,
                    env=env,
                    stdin=stdin,
                    output_limit=output_limit,
                )
        except ChannelBroken as error:
            note = f"[the shell that ran the command was killed, its output is lost: {error}]\n"
            with self._lend(fresh=True):
                return CommandResult(137, stderr=note.encode())

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """See `Channel.write_file`."""
        try:
            with self._lend() as channel:
                channel.write_file(path, data, mode)
        except ChannelBroken:
            with self._lend(fresh=True) as channel:
                channel.write_file(path, data, mode)

    def read_file(self, path: str) -> bytes:
        """See `Channel.read_file`."""
        try:
            with self._lend() as channel:
                return channel.read_file(path)
        except ChannelBroken:
            with self._lend(fresh=True) as channel:
                return channel.read_file(path)

    def open_one(self) -> None:
        """Have a channel at hand before the first command."""
        with self._lend():
            pass

    def close(self) -> None:
        """Let go of all channels; those in use are let go of by their threads."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for channel in idle:
            channel.close()

    @contextmanager
    def _lend(self, *, fresh: bool = False) -> Iterator[Channel]:
        with self._slots:
            with self._lock:
                channel = self._idle.pop() if self._idle and not fresh else None
            if channel is None:
                channel = self._open_channel()
            try:
                yield channel
            finally:
                with self._lock:
                    keep = channel.usable and not self._closed
                    if keep:
                        self._idle.append(channel)
                if not keep:
                    channel.close()
