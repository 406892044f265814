"""The stdin and stdout of a process in a container, over a connection that the engine has handed over to us.

What comes back is in frames, eight bytes of header and then the content, so that stdout and stderr are apart.
"""

from __future__ import annotations

import contextlib
import io
import select
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_READ_SIZE = 1 << 18
_LONGEST_WAIT_SECONDS = 1.0
_NOT_NOW = (BlockingIOError, TimeoutError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_STDERR_KEPT = 4000
_OVERTAKEN_SECONDS = 0.5
_HEADER_SIZE = 8
STDERR = 2


class Frame(NamedTuple):
    source: int
    """1 for stdout, 2 for stderr."""
    data: bytes


class Frames:
    """Takes bytes as they come and gives the frames in them, parts of frames included."""

    def __init__(self) -> None:
        self._header = b""
        self._source = 0
        self._left = 0

    def feed(self, data: bytes) -> Iterator[Frame]:
        rest = memoryview(data)
        while rest:
            if not self._left:
                missing = _HEADER_SIZE - len(self._header)
                self._header += rest[:missing]
                rest = rest[missing:]
                if len(self._header) == _HEADER_SIZE:
                    self._source = self._header[0]
                    self._left = int.from_bytes(self._header[4:], "big")
                    self._header = b""
                continue
            part = rest[: self._left]
            rest = rest[len(part) :]
            self._left -= len(part)
            yield Frame(self._source, bytes(part))


class ContainerStream:
    """A `Transport`; stderr is kept aside."""

    def __init__(self, handle: Any, end_mark: bytes = b"") -> None:
        """`handle` is what docker-py calls the socket: a SocketIO, an SSLSocket or a channel of ssh.

        `end_mark` on stderr says that nothing more will come on stdout, although the connection stays.
        """
        self._handle = handle
        self._end_mark = end_mark
        self._socket: Any = getattr(handle, "_sock", handle)
        self._frames = Frames()
        # One thread may send while another receives, so that neither can set a time limit on the socket.
        self._socket.settimeout(0)
        self._busy = threading.Lock()
        self._early = _already_read(handle)
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
        while True:
            ending = bool(self._end_mark) and self._end_mark in self.stderr
            try:
                # The mark may have overtaken what was written before it.
                frames = self.receive_frames(time.monotonic() + _OVERTAKEN_SECONDS if ending else deadline)
            except TimeoutError:
                if not ending:
                    raise
                break
            if not frames:
                break
            out = b"".join(frame.data for frame in frames if frame.source != STDERR)
            err = b"".join(frame.data for frame in frames if frame.source == STDERR)
            self.stderr = (self.stderr + err)[-_STDERR_KEPT:]
            if out:
                return out
        return b""

    def receive_frames(self, deadline: float) -> list[Frame]:
        """At least one; none means that the other end is gone."""
        with self._receiving:
            while True:
                data = self._receive_raw(deadline)
                if not data:
                    return []
                if frames := list(self._frames.feed(data)):
                    return frames

    def _receive_raw(self, deadline: float) -> bytes:
        if self._early:
            data, self._early = self._early, b""
            return data
        while not self._closed:
            try:
                with self._busy:
                    received: bytes = self._socket.recv(_READ_SIZE)
            except _NOT_NOW:
                self._wait(select.POLLIN, deadline)
            except OSError:
                break
            else:
                return received
        return b""

    def _wait(self, event: int, deadline: float) -> None:
        left_seconds = deadline - time.monotonic()
        if left_seconds <= 0:
            raise TimeoutError("no answer in time")
        poller = select.poll()
        poller.register(self._socket.fileno(), event)
        # In turns: a stream that is closed by another thread, or one that cannot be polled for writing, is seen then.
        poller.poll(min(left_seconds, _LONGEST_WAIT_SECONDS) * 1000)

    def half_close(self) -> None:
        """No more input: the process at the other end reads end of file."""
        with contextlib.suppress(OSError, AttributeError):
            # A TLS socket's own shutdown would end reading too.
            plain = isinstance(self._socket, socket.socket)
            (socket.socket.shutdown if plain else type(self._socket).shutdown)(self._socket, socket.SHUT_WR)

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
