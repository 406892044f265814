"""The host's end of a channel into a sandbox: one long-lived bash (`channel.sh`) that runs commands and moves files.

Starting a process through a container engine costs 100-250 ms; through a channel it costs a few. How the bytes get
there is a `Transport`.
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
"""How long the host waits beyond the limit that is enforced inside, which kills within about two seconds."""
READ_FILE_LIMIT = 256 * 1024 * 1024
"""Larger files are refused: they would fill the memory of the harness."""

_INLINE_LIMIT = 8192
"""Larger contents follow the request as raw bytes, for which the other end starts a process."""
_SMALLEST_CHUNK = 65536
_MAX_LINE_LENGTH = 1000
_READ_SIZE = 1 << 18
_MAX_TIMEOUT_SECONDS = 20 * 24 * 3600.0
"""poll(2) cannot wait for 25 days."""
_READ_SECONDS = 120.0
_BYTES_PER_SECOND = 1_000_000
"""The slowest that we expect bulk data to move."""

_UNSAFE = re.compile(rb"[^ -&(-\[\]-~]")
_RESULT = re.compile(
    rb"= (\d+) (\d{1,3}) ([01]) (-?\d{1,18}) ([tb]) (\d+) (\d+) ([tb]) (\d+) (\d+)"
)
_DONE = re.compile(rb"= (\d+) ok")
_REFUSED = re.compile(rb"! (\d+) (missing|failed|broken) (\d+)")
_END_MARK = b"\0cooperbench-channel end\0"
_CLOSING = re.compile(rb"\.[ 0]*")


@dataclass(frozen=True)
class Command:
    """What `Sandbox.run` was asked for, with nothing left open."""

    argv: Sequence[str]
    timeout_seconds: float
    cwd: str
    """Absolute."""
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    output_limit: int = DEFAULT_OUTPUT_LIMIT


class ChannelUnavailable(SandboxError):
    """This sandbox lacks a tool that the channel needs."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"commands cannot be run in this sandbox: {reason}")
        self.reason = reason


class ChannelBroken(SandboxDead):
    """The channel ended or lost its place. Whether the sandbox lives, whoever opened the channel must find out."""


def quote(word: bytes) -> bytes:
    """One word for bash, in printable ASCII on one line, whatever bytes it has."""
    if b"\0" in word:
        raise ValueError("arguments, paths and variables cannot contain NUL bytes")
    return b"$'" + _UNSAFE.sub(lambda match: b"\\x%02x" % match[0][0], word) + b"'"


def as_bytes(word: str) -> bytes:
    """Text that came from bytes that are not UTF-8 goes back to these bytes."""
    return word.encode("utf-8", "surrogateescape")


def _env_words(env: Mapping[str, str]) -> list[bytes]:
    """For env(1): some names have a meaning to bash, or are none for it."""
    for name in env:
        if not name or "=" in name:
            raise ValueError(f"not a name for a variable: {name!r}")
    return [b"%d" % len(env), *(as_bytes(f"{name}={value}") for name, value in env.items())]


def _content_words(data: bytes) -> tuple[list[bytes], bytes]:
    """SIZE and TEXT of a request, and what follows it."""
    if len(data) <= _INLINE_LIMIT and b"\0" not in data:
        return [b"0", data], b""
    return [b"%d" % len(data), b""], data


class Transport(Protocol):
    """The two ends of one long-lived process. Deadlines are values of `time.monotonic()`."""

    def send(self, data: bytes, deadline: float) -> None:
        """Write all of it; TimeoutError at the deadline, OSError where the other end is gone."""

    def receive(self, deadline: float) -> bytes:
        """What has come, at least one byte; b"" means that the other end is gone; TimeoutError at the deadline."""

    def close(self) -> None:
        """Let go of it. For the thread that uses it; calling it again does nothing."""


class PipeTransport:
    """A Transport over two file descriptors, which it owns."""

    def __init__(self, write_fd: int, read_fd: int) -> None:
        os.set_blocking(write_fd, False)
        os.set_blocking(read_fd, False)
        self._write_fd = write_fd
        self._read_fd = read_fd
        self._closed = False

    def send(self, data: bytes, deadline: float) -> None:
        rest = memoryview(data)
        while rest:
            wait_for(self._write_fd, select.POLLOUT, deadline)
            with suppress(BlockingIOError):
                rest = rest[os.write(self._write_fd, rest[:_READ_SIZE]) :]

    def receive(self, deadline: float) -> bytes:
        while True:
            wait_for(self._read_fd, select.POLLIN, deadline)
            try:
                return os.read(self._read_fd, _READ_SIZE)
            except BlockingIOError:
                continue

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        os.close(self._write_fd)
        os.close(self._read_fd)


def wait_for(fd: int, event: int, deadline: float) -> None:
    """Until a file can be read or written (an event of poll(2)) or has ended; TimeoutError at the deadline."""
    poller = select.poll()
    poller.register(fd, event)
    if not poller.poll(min(max(deadline - time.monotonic(), 0.0), _MAX_TIMEOUT_SECONDS) * 1000):
        raise TimeoutError("no answer in time")


class Channel:
    """One conversation with a `channel.sh`, for one thread at a time.

    After ChannelBroken, or SandboxTimeout (no answer although the time limit inside has passed), it is of no more use.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._buffer = bytearray()
        self._last_id = 0
        self._mark = secrets.token_hex(8)
        self._broken = ""

    def handshake(self, timeout_seconds: float = 30.0) -> None:
        """Wait until the other end is ready; ChannelUnavailable where it says that it cannot work."""
        line = self._line(time.monotonic() + timeout_seconds)
        if line.startswith(UNAVAILABLE):
            raise ChannelUnavailable(_show(line[len(UNAVAILABLE) :]))
        if line != READY:
            raise self._break(f"it began with {_show(line)!r}")

    def run(self, command: Command) -> CommandResult:
        """Run one command; see `Sandbox.run`. A folder that is not there is the result 126."""
        if not command.argv:
            raise ValueError("a command needs at least one word")
        timeout_seconds = min(max(command.timeout_seconds, 0.001), _MAX_TIMEOUT_SECONDS)
        chunk = max(command.output_limit // 2, _SMALLEST_CHUNK)
        content, payload = _content_words(command.stdin)
        words = [
            as_bytes(self.next_mark()),
            b"%d" % max(1, round(timeout_seconds * 1000)),
            b"%d" % chunk,
            *content,
            as_bytes(command.cwd),
            *_env_words(command.env),
            *map(as_bytes, command.argv),
        ]
        limit_seconds = timeout_seconds + BACKSTOP_SECONDS + len(payload) / _BYTES_PER_SECOND
        deadline = time.monotonic() + limit_seconds
        match = self._ask(
            "the sandbox could not run a command", _RESULT, b"run", words, payload, deadline
        )
        _, code, timed_out, micros, out_kind, out_size, out_cut, err_kind, err_size, err_cut = (
            match.groups()
        )
        out, err = CappedOutput(command.output_limit), CappedOutput(command.output_limit)
        for kept, kind, size in ((out, out_kind, out_size), (err, err_kind, err_size)):
            data = self._exactly(int(size), deadline)
            if kind == b"b":
                data = (data + self._encoded(2 * chunk, deadline)).replace(_END_MARK, b"", 1)
            kept.add(data)
        out.cut += int(out_cut)
        err.cut += int(err_cut)
        self._close_answer(deadline)
        exit_code, late = (TIMEOUT_EXIT_CODE, True) if timed_out == b"1" else (int(code), False)
        seconds = max(int(micros), 0) / 1e6
        return CommandResult(exit_code, out.taken(), err.taken(), out.cut, err.cut, late, seconds)

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a file whole or not at all, making its folders."""
        content, payload = _content_words(data)
        deadline = time.monotonic() + 2 * BACKSTOP_SECONDS + len(data) / _BYTES_PER_SECOND
        words = [as_bytes(self.next_mark()), b"%o" % mode, *content, as_bytes(path)]
        self._ask(f"cannot write {path} in the sandbox", _DONE, b"write", words, payload, deadline)
        self._broken = ""

    def read_file(self, path: str) -> bytes:
        """Read a file whole; FileNotFoundError where there is none."""
        deadline = time.monotonic() + _READ_SECONDS
        problem = f"cannot read {path} in the sandbox"
        words = [b"%d" % (READ_FILE_LIMIT + 1), as_bytes(path)]
        self._ask(problem, _DONE, b"read", words, b"", deadline)
        data = self._encoded(READ_FILE_LIMIT + 1, deadline)
        self._close_answer(deadline)
        if len(data) > READ_FILE_LIMIT:
            raise SandboxRefused(f"{problem}: it is larger than {READ_FILE_LIMIT} bytes")
        return data

    @property
    def usable(self) -> bool:
        return not self._broken

    def close(self) -> None:
        """Let go of the other end, which ends at that. For the thread that has the channel."""
        self._broken = self._broken or "it was closed"
        self._transport.close()

    def next_mark(self) -> str:
        """What the processes of the next command will have in their environment."""
        return f"{self._mark}.{self._last_id + 1}"

    def _ask(
        self,
        problem: str,
        expected: re.Pattern[bytes],
        kind: bytes,
        words: Iterable[bytes],
        payload: bytes,
        deadline: float,
    ) -> re.Match[bytes]:
        """Send a request; returns the answer's first line as `expected`. A refusal is an error about the `problem`."""
        if self._broken:
            raise ChannelBroken(f"the channel into the sandbox is gone: {self._broken}")
        line = b" ".join([kind, b"%d" % (self._last_id + 1), *map(quote, words)])
        self._last_id += 1
        self._broken = "a request was interrupted"  # until its answer has been read to the end
        try:
            self._transport.send(line + b"\n", deadline)
            if payload:
                self._transport.send(payload, deadline)
        except TimeoutError:
            raise self._silence() from None
        except OSError as error:
            raise self._break(str(error)) from error
        header = self._line(deadline)
        refused = _REFUSED.fullmatch(header)
        if refused and refused[2] == b"broken":
            raise self._break(
                _show(self._exactly(min(int(refused[3]), _MAX_LINE_LENGTH), deadline))
            )
        match = refused or expected.fullmatch(header)
        if match is None or int(match[1]) != self._last_id:
            raise self._break(f"it answered {_show(header)!r}")
        if refused is None:
            return match
        message = self._exactly(min(int(refused[3]), 1 << 20), deadline)
        self._broken = ""
        error_class = FileNotFoundError if refused[2] == b"missing" else SandboxRefused
        raise error_class(f"{problem}: {_show(message)}")

    def _encoded(self, most_bytes: int, deadline: float) -> bytes:
        encoded = self._line(deadline, limit=most_bytes * 4 // 3 + _MAX_LINE_LENGTH)
        try:
            return base64.b64decode(encoded, validate=True)
        except binascii.Error as error:
            raise self._break(f"its answer is not base64 ({error})") from error

    def _close_answer(self, deadline: float) -> None:
        closing = self._line(deadline)
        if not _CLOSING.fullmatch(closing):
            raise self._break(f"it closed its answer with {_show(closing)!r}")
        self._broken = ""

    def _line(self, deadline: float, limit: int = _MAX_LINE_LENGTH) -> bytes:
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > limit:
                raise self._break(f"it answered {_show(bytes(self._buffer[:80]))!r}")
            self._fill(deadline)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _exactly(self, size: int, deadline: float) -> bytes:
        while len(self._buffer) < size:
            self._fill(deadline)
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _fill(self, deadline: float) -> None:
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
        self._broken = reason
        self._transport.close()
        return ChannelBroken(f"the channel into the sandbox broke: {reason}")

    def _silence(self) -> SandboxTimeout:
        self._break("it did not answer in time")
        return SandboxTimeout(
            "the sandbox did not answer, although its own time limit should have made it answer"
        )


class CappedOutput:
    """Output as it comes, of which the first and the last half of `limit` bytes are kept."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._most_in_tail = limit - self._half
        self._head = bytearray()
        self._tail = bytearray()
        self.cut = 0

    def add(self, data: bytes) -> None:
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._most_in_tail:
            self._shorten()

    def taken(self) -> bytes:
        self._shorten()
        return bytes(self._head + self._tail)

    def _shorten(self) -> None:
        extra = max(len(self._tail) - self._most_in_tail, 0)
        self.cut += extra
        del self._tail[:extra]


def _show(data: bytes) -> str:
    return printable(data[:200].decode("utf-8", "replace"))
