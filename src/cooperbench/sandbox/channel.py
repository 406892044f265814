"""The host's end of a channel into a sandbox.

One long-lived bash (`channel.sh`) that runs commands and moves files.

Starting a process through a container engine takes 100-250 ms, through a channel a few. The
protocol is described at the top of `channel.sh`. A `Transport` moves the bytes.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
import select
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from cooperbench.errors import SandboxDead, SandboxError, SandboxRefused, SandboxTimeout
from cooperbench.sandbox.contract import DEFAULT_OUTPUT_LIMIT, TIMEOUT_EXIT_CODE, CommandResult
from cooperbench.text import printable

READY = b"cooperbench-channel 1 ready"
UNAVAILABLE = b"cooperbench-channel unavailable "
BACKSTOP_SECONDS = 15.0
"""Seconds that the host waits beyond the time limit inside the sandbox, which kills within about
two seconds."""
READ_FILE_LIMIT = 256 * 1024 * 1024
"""Bytes of the largest file that is read: a larger one would fill the memory of the host
process."""

_INLINE_LIMIT = 8192
"""Bytes of content that can be part of a request's line. Larger content needs another process
inside."""
_MIN_CHUNK_SIZE = 65536
_MAX_LINE_LENGTH = 1000
_MAX_MESSAGE_LENGTH = 1 << 20
_READ_SIZE = 1 << 18
_MAX_TIMEOUT_SECONDS = 20 * 24 * 3600.0
"""poll(2) cannot wait for 25 days."""
_READ_SECONDS = 120.0
_MIN_BYTES_PER_SECOND = 1_000_000
"""Speed of the slowest connection that is expected to move bulk data."""

_UNSAFE_BYTE = re.compile(rb"[^ -&(-\[\]-~]")
_RUN_ANSWER = re.compile(
    rb"""
    =\ (?P<id>\d+)
    \ (?P<exit_code>\d{1,3})
    \ (?P<timed_out>[01])
    \ (?P<microseconds>-?\d{1,18})
    \ (?P<out_kind>[tb])\ (?P<out_length>\d+)\ (?P<out_cut>\d+)
    \ (?P<err_kind>[tb])\ (?P<err_length>\d+)\ (?P<err_cut>\d+)
    """,
    re.VERBOSE,
)
_OK_ANSWER = re.compile(rb"= (?P<id>\d+) ok")
_ERROR_ANSWER = re.compile(rb"! (?P<id>\d+) (?P<kind>missing|failed|broken) (?P<length>\d+)")
_CLOSING_LINE = re.compile(rb"\.[ 0]*")
_END_MARKER = b"\0cooperbench-channel end\0"


@dataclass(frozen=True)
class Command:
    """Arguments of `Sandbox.run`, with all defaults filled in."""

    argv: Sequence[str]
    timeout_seconds: float
    cwd: str
    """Absolute path."""
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    output_limit: int = DEFAULT_OUTPUT_LIMIT


class ChannelUnavailable(SandboxError):
    """A tool that the channel needs is missing in the sandbox."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"commands cannot be run in this sandbox: {reason}")
        self.reason = reason


class ChannelBroken(SandboxDead):
    """The channel ended or violated the protocol.

    The caller has to find out whether the sandbox still lives.
    """


def quote(word: bytes) -> bytes:
    """Quote a word of any bytes for bash, in printable ASCII on one line."""
    if b"\0" in word:
        raise ValueError("arguments, paths and variables cannot contain NUL bytes")
    return b"$'" + _UNSAFE_BYTE.sub(lambda match: b"\\x%02x" % match[0][0], word) + b"'"


def as_bytes(text: str) -> bytes:
    """Encode text; if it was decoded from bytes that are not UTF-8, return these bytes."""
    return text.encode("utf-8", "surrogateescape")


def _env_arguments(env: Mapping[str, str]) -> list[bytes]:
    """Return ENV_COUNT and ENV of a request."""
    for name in env:
        if not name or "=" in name:
            raise ValueError(f"not a valid name of a variable: {name!r}")
    assignments = [as_bytes(f"{name}={value}") for name, value in env.items()]
    return [b"%d" % len(env), *assignments]


def _content_arguments(data: bytes) -> tuple[list[bytes], bytes]:
    """Return SIZE and TEXT of a request, and the raw bytes that follow its line."""
    if len(data) <= _INLINE_LIMIT and b"\0" not in data:
        return [b"0", data], b""
    return [b"%d" % len(data), b""], data


class Transport(Protocol):
    """A connection to one long-lived process. Deadlines are values of `time.monotonic()`."""

    def send(self, data: bytes, deadline: float) -> None:
        """Write all data.

        Raises:
            TimeoutError: The deadline has passed.
            OSError: The other end is gone.
        """

    def receive(self, deadline: float) -> bytes:
        """Return the data that has arrived, at least one byte.

        B"" means that the other end is gone.

        Raises:
            TimeoutError: The deadline has passed.
            OSError: The connection failed.
        """

    def close(self) -> None:
        """Close the connection.

        Called by the thread that uses it; calling it again does nothing.
        """


class PipeTransport:
    """A `Transport` over two file descriptors, which it owns."""

    def __init__(self, write_fd: int, read_fd: int) -> None:
        os.set_blocking(write_fd, False)
        os.set_blocking(read_fd, False)
        self._write_fd = write_fd
        self._read_fd = read_fd
        self._closed = False

    def send(self, data: bytes, deadline: float) -> None:
        """Write all data."""
        unsent = memoryview(data)
        while unsent:
            wait_for(self._write_fd, select.POLLOUT, deadline)
            with suppress(BlockingIOError):
                written = os.write(self._write_fd, unsent[:_READ_SIZE])
                unsent = unsent[written:]

    def receive(self, deadline: float) -> bytes:
        """Return the data that has arrived; b"" means that the other end is gone."""
        while True:
            wait_for(self._read_fd, select.POLLIN, deadline)
            try:
                return os.read(self._read_fd, _READ_SIZE)
            except BlockingIOError:
                continue

    def close(self) -> None:
        """Close both descriptors."""
        if self._closed:
            return
        self._closed = True
        os.close(self._write_fd)
        os.close(self._read_fd)


def wait_for(fd: int, event: int, deadline: float) -> None:
    """Wait for an event of poll(2), or for the end of the file; TimeoutError at the deadline."""
    poller = select.poll()
    poller.register(fd, event)
    left_seconds = max(deadline - time.monotonic(), 0.0)
    if not poller.poll(min(left_seconds, _MAX_TIMEOUT_SECONDS) * 1000):
        raise TimeoutError("no answer in time")


class Channel:
    """One connection to a `channel.sh`, for one thread at a time.

    After ChannelBroken or SandboxTimeout it cannot be used any more.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._buffer = bytearray()
        """Bytes that were received but not read yet."""
        self._last_id = 0
        self._mark = secrets.token_hex(8)
        self._broken = ""
        """Why it cannot be used; empty if it can."""

    def handshake(self, timeout_seconds: float = 30.0) -> None:
        """Wait until the other end is ready.

        Raises:
            ChannelUnavailable: A tool is missing inside.
            ChannelBroken: The other end has ended or is not a `channel.sh`.
            SandboxTimeout: There was no greeting in time.
        """
        line = self._read_line(time.monotonic() + timeout_seconds)
        if line.startswith(UNAVAILABLE):
            raise ChannelUnavailable(_show(line[len(UNAVAILABLE) :]))
        if line != READY:
            raise self._break(f"it began with {_show(line)!r}")

    def run(self, command: Command) -> CommandResult:
        """Run one command; see `Sandbox.run`."""
        if not command.argv:
            raise ValueError("a command needs at least one word")
        timeout_seconds = min(max(command.timeout_seconds, 0.001), _MAX_TIMEOUT_SECONDS)
        # The other end keeps the first and the last chunk of each stream.
        chunk_size = max(command.output_limit // 2, _MIN_CHUNK_SIZE)
        stdin_arguments, payload = _content_arguments(command.stdin)
        arguments = [
            as_bytes(self.next_mark()),
            b"%d" % max(1, round(timeout_seconds * 1000)),
            b"%d" % chunk_size,
            *stdin_arguments,
            as_bytes(command.cwd),
            *_env_arguments(command.env),
            *(as_bytes(word) for word in command.argv),
        ]
        deadline = time.monotonic() + timeout_seconds + BACKSTOP_SECONDS
        deadline += len(payload) / _MIN_BYTES_PER_SECOND
        self._send_request(b"run", arguments, payload, deadline)
        answer = self._read_answer(_RUN_ANSWER, "the sandbox could not run a command", deadline)
        stdout = CappedOutput(command.output_limit)
        stdout.add(self._read_body(answer, "out", chunk_size, deadline))
        stdout.cut += int(answer["out_cut"])
        stderr = CappedOutput(command.output_limit)
        stderr.add(self._read_body(answer, "err", chunk_size, deadline))
        stderr.cut += int(answer["err_cut"])
        self._read_closing_line(deadline)
        timed_out = answer["timed_out"] == b"1"
        exit_code = TIMEOUT_EXIT_CODE if timed_out else int(answer["exit_code"])
        return CommandResult(
            returncode=exit_code,
            stdout=stdout.taken(),
            stderr=stderr.taken(),
            stdout_cut=stdout.cut,
            stderr_cut=stderr.cut,
            timed_out=timed_out,
            duration_seconds=max(int(answer["microseconds"]), 0) / 1e6,
        )

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a file whole or not at all, and create its folders.

        SandboxRefused if that is impossible.
        """
        content_arguments, payload = _content_arguments(data)
        arguments = [
            as_bytes(self.next_mark()),
            b"%o" % mode,
            *content_arguments,
            as_bytes(path),
        ]
        deadline = time.monotonic() + 2 * BACKSTOP_SECONDS + len(data) / _MIN_BYTES_PER_SECOND
        self._send_request(b"write", arguments, payload, deadline)
        self._read_answer(_OK_ANSWER, f"cannot write {path} in the sandbox", deadline)
        self._broken = ""

    def read_file(self, path: str) -> bytes:
        """Read a whole file.

        FileNotFoundError if there is none, SandboxRefused if it cannot be read.
        """
        deadline = time.monotonic() + _READ_SECONDS
        problem = f"cannot read {path} in the sandbox"
        max_bytes = READ_FILE_LIMIT + 1
        self._send_request(b"read", [b"%d" % max_bytes, as_bytes(path)], b"", deadline)
        self._read_answer(_OK_ANSWER, problem, deadline)
        data = self._read_base64(max_bytes, deadline)
        self._read_closing_line(deadline)
        if len(data) > READ_FILE_LIMIT:
            raise SandboxRefused(f"{problem}: it is larger than {READ_FILE_LIMIT} bytes")
        return data

    @property
    def usable(self) -> bool:
        """Whether another request can be sent."""
        return not self._broken

    def close(self) -> None:
        """Close the transport, at which the other end exits.

        Called by the thread that uses the channel.
        """
        self._broken = self._broken or "it was closed"
        self._transport.close()

    def next_mark(self) -> str:
        """Return the mark that the processes of the next command will have in their environment."""
        return f"{self._mark}.{self._last_id + 1}"

    def _send_request(
        self, kind: bytes, arguments: Iterable[bytes], payload: bytes, deadline: float
    ) -> None:
        if self._broken:
            raise ChannelBroken(f"the channel into the sandbox is gone: {self._broken}")
        request_id = self._last_id + 1
        quoted = [quote(argument) for argument in arguments]
        line = b" ".join([kind, b"%d" % request_id, *quoted])
        self._last_id = request_id
        # Until its answer has been read to the end.
        self._broken = "a request was interrupted"
        try:
            self._transport.send(line + b"\n", deadline)
            if payload:
                self._transport.send(payload, deadline)
        except TimeoutError:
            raise self._silence() from None
        except OSError as error:
            raise self._break(str(error)) from error

    def _read_answer(
        self, expected: re.Pattern[bytes], problem: str, deadline: float
    ) -> re.Match[bytes]:
        """Read the first line of an answer.

        An error answer raises an error that begins with `problem`.
        """
        header = self._read_line(deadline)
        error_answer = _ERROR_ANSWER.fullmatch(header)
        if error_answer and error_answer["kind"] == b"broken":
            length = min(int(error_answer["length"]), _MAX_LINE_LENGTH)
            raise self._break(_show(self._read_exactly(length, deadline)))
        answer = error_answer or expected.fullmatch(header)
        if answer is None or int(answer["id"]) != self._last_id:
            raise self._break(f"it answered {_show(header)!r}")
        if error_answer is None:
            return answer
        length = min(int(error_answer["length"]), _MAX_MESSAGE_LENGTH)
        message = self._read_exactly(length, deadline)
        self._broken = ""
        is_missing = error_answer["kind"] == b"missing"
        error_class = FileNotFoundError if is_missing else SandboxRefused
        raise error_class(f"{problem}: {_show(message)}")

    def _read_body(
        self, answer: re.Match[bytes], stream: str, chunk_size: int, deadline: float
    ) -> bytes:
        """Read what a command wrote to a stream, `out` or `err`."""
        data = self._read_exactly(int(answer[f"{stream}_length"]), deadline)
        if answer[f"{stream}_kind"] == b"t":
            return data
        data += self._read_base64(2 * chunk_size, deadline)
        # The marker of the quick way may be among it; see channel.sh.
        return data.replace(_END_MARKER, b"", 1)

    def _read_base64(self, max_bytes: int, deadline: float) -> bytes:
        max_line_length = max_bytes * 4 // 3 + _MAX_LINE_LENGTH
        encoded = self._read_line(deadline, max_line_length)
        try:
            return base64.b64decode(encoded, validate=True)
        except binascii.Error as error:
            raise self._break(f"its answer is not base64 ({error})") from error

    def _read_closing_line(self, deadline: float) -> None:
        line = self._read_line(deadline)
        if not _CLOSING_LINE.fullmatch(line):
            raise self._break(f"it closed its answer with {_show(line)!r}")
        self._broken = ""

    def _read_line(self, deadline: float, max_length: int = _MAX_LINE_LENGTH) -> bytes:
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > max_length:
                raise self._break(f"it answered {_show(bytes(self._buffer[:80]))!r}")
            self._receive(deadline)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _read_exactly(self, size: int, deadline: float) -> bytes:
        while len(self._buffer) < size:
            self._receive(deadline)
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _receive(self, deadline: float) -> None:
        """Add what arrives to the buffer."""
        try:
            data = self._transport.receive(deadline)
        except TimeoutError:
            raise self._silence() from None
        except OSError as error:
            raise self._break(str(error)) from error
        if not data:
            raise self._break("it ended")
        self._buffer += data

    def _break(self, reason: str) -> ChannelBroken:
        """Close the transport; return the error to raise."""
        self._broken = reason
        self._transport.close()
        return ChannelBroken(f"the channel into the sandbox broke: {reason}")

    def _silence(self) -> SandboxTimeout:
        """Close the transport, since there was no answer; return the error to raise."""
        self._break("it did not answer in time")
        return SandboxTimeout(
            "the sandbox did not answer, although its own time limit should have made it answer"
        )


class CappedOutput:
    """Output that arrives in pieces; the first and the last half of `limit` bytes are kept."""

    def __init__(self, limit: int) -> None:
        self._max_head_bytes = limit // 2
        self._max_tail_bytes = limit - self._max_head_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self.cut = 0
        """Number of bytes that were left out."""

    def add(self, data: bytes) -> None:
        """Add a piece."""
        room = self._max_head_bytes - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        # Not with every piece: removing bytes from the front moves the rest.
        if len(self._tail) > 2 * self._max_tail_bytes:
            self._shorten()

    def taken(self) -> bytes:
        """Return the bytes that were kept."""
        self._shorten()
        return bytes(self._head + self._tail)

    def _shorten(self) -> None:
        excess = max(len(self._tail) - self._max_tail_bytes, 0)
        self.cut += excess
        del self._tail[:excess]


def _show(data: bytes) -> str:
    """Return the beginning of bytes for a message."""
    return printable(data[:200].decode("utf-8", "replace"))
