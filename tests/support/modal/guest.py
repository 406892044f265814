"""Sandboxes of the control plane of ours: real processes in the isolation of the local backend."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from modal_proto import api_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cooperbench.backends.local.sandbox import LocalSandbox
    from cooperbench.sandbox.contract import Stream

_EXEC = """
dir=$1 errors=$2
mkdir -p "$dir"
[ -d /tmp/bare ] && PATH=/tmp/bare
exec 2>/dev/null # what this shell says of the command's end is not the command's
[ "$errors" = pipe ] && err=$dir/err || err=/dev/null
[ "$3" ] && cd "$3"
shift 3
"$@" 2>"$err"
echo $? >"$dir/code.part"
mv "$dir/code.part" "$dir/code"
"""
_SAVE = "cd / && mkdir -p cooperbench/wheels && tar -c --exclude 'tmp/.exec-*' cooperbench/wheels home opt patches tmp workspace"
_RESTORE = "cd / && find home opt patches tmp workspace -mindepth 1 -delete && tar -xp"
_CODE = 'until [ -s "$1/code" ]; do sleep 0.05; done; cat "$1/code"'


class Exec:
    """One command. What it wrote so far can be read from any place, as often as one likes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._changed = asyncio.Event()
        self.out = bytearray()
        self.err = b""
        self.ended = False
        self.code: int | None = None
        self.stdin = bytearray()
        self.written = 0
        self.stdin_closed = False

    def grew(self, data: bytes) -> None:
        """From any thread; nothing means that it has ended."""

        def note() -> None:
            self.out.extend(data)
            self.ended = self.ended or not data
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(note)

    async def read_out(self, offset: int) -> AsyncIterator[bytes]:
        while True:
            changed = self._changed
            if offset < len(self.out):
                part = bytes(self.out[offset : offset + 65536])
                offset += len(part)
                yield part
            elif self.ended:
                return
            else:
                await changed.wait()

    async def write(self, data: bytes, eof: bool) -> None:
        raise NotImplementedError

    async def wait(self) -> int:
        raise NotImplementedError

    def stop(self) -> None:
        """With its sandbox."""
        self.grew(b"")


class Command(Exec):
    """A real one."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        local: LocalSandbox,
        exec_id: str,
        argv: list[str],
        workdir: str,
        *,
        errors: bool,
        timeout_seconds: float,
    ) -> None:
        super().__init__(loop)
        self._local = local
        self._dir = f"/tmp/.exec-{exec_id}"
        words = [
            "bash",
            "-c",
            _EXEC,
            "exec",
            self._dir,
            "pipe" if errors else "none",
            workdir,
            *argv,
        ]
        self._waiting: asyncio.Task[int] | None = None
        self._stream: Stream = local.open_stream(words)
        threading.Thread(target=self._pump, daemon=True).start()
        if timeout_seconds:
            timer = threading.Timer(timeout_seconds, self._kill)
            timer.daemon = True
            timer.start()

    async def write(self, data: bytes, eof: bool) -> None:
        def put() -> None:
            with contextlib.suppress(OSError, ValueError):
                if data:
                    self._stream.stdin.write(data)
                if eof:
                    self._stream.stdin.close()

        await asyncio.to_thread(put)

    async def wait(self) -> int:
        def ask() -> int:
            found = self._local.run(["bash", "-c", _CODE, "code", self._dir], timeout_seconds=600)
            with contextlib.suppress(FileNotFoundError):
                self.err = self._local.read_file(f"{self._dir}/err")
            assert found.stdout, found
            return int(found.stdout)

        if self._waiting is None:
            self._waiting = asyncio.create_task(asyncio.to_thread(ask))
        self.code = await asyncio.shield(self._waiting)
        return self.code

    def _kill(self) -> None:
        """At its time limit, with what it started."""
        with contextlib.suppress(Exception):  # the sandbox has ended
            if self._local.run(["test", "-e", f"{self._dir}/code"]).returncode:
                self._stream.close()
                self._local.write_file(f"{self._dir}/code", b"137\n")

    def _pump(self) -> None:
        reader: Any = self._stream.stdout
        with contextlib.suppress(OSError, ValueError):
            while data := reader.read1(65536):
                self.grew(data)
        for end in (self._stream.stdin, self._stream.stdout):
            with contextlib.suppress(OSError):
                end.close()
        self.grew(b"")


class Guest:
    """One sandbox."""

    def __init__(
        self,
        number: int,
        definition: api_pb2.Sandbox,
        tags: dict[str, str],
        *,
        old: bool,
    ) -> None:
        # The client tells the older kind by the shape of its id.
        self.sandbox_id = f"sb-{number:022d}" if old else f"sb-{number:022d}-v2"
        self.task_id = f"ta-{number:022d}" + ("" if old else "V")
        self.definition = definition
        self.tags = tags
        self.created_at = time.time()
        self.local: LocalSandbox | None = None
        self.execs: dict[str, Exec] = {}
        self.result: api_pb2.GenericResult | None = None

    def look(self) -> api_pb2.GenericResult | None:
        """How it ended; None while it runs."""
        if self.result is None and self.local is not None and self.local.has_ended():
            late = time.time() >= self.created_at + self.definition.timeout_secs - 0.5
            self.finish(
                api_pb2.GenericResult.GENERIC_STATUS_TIMEOUT
                if late
                else api_pb2.GenericResult.GENERIC_STATUS_FAILURE,
                137,
            )
        return self.result

    def finish(self, status: api_pb2.GenericResult.GenericStatus.ValueType, code: int) -> None:
        self.result = self.result or api_pb2.GenericResult(status=status, exitcode=code)
        for command in self.execs.values():
            command.stop()

    def terminate(self) -> None:
        """Blocks until nothing of it is left."""
        self.finish(api_pb2.GenericResult.GENERIC_STATUS_TERMINATED, 137)
        if self.local is not None:
            self.local.terminate()

    def start_exec(
        self,
        exec_id: str,
        argv: list[str],
        workdir: str,
        *,
        errors: bool,
        timeout_seconds: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Blocks. The same id again is the same command: the client asks again when an answer was lost."""
        assert self.local is not None
        if exec_id not in self.execs:
            self.execs[exec_id] = Command(
                loop,
                self.local,
                exec_id,
                argv,
                workdir,
                errors=errors,
                timeout_seconds=timeout_seconds,
            )

    def files(self) -> bytes:
        """An archive of what commands can write to."""
        assert self.local is not None
        stream = self.local.open_stream(["bash", "-c", _SAVE])
        with stream.stdin, stream.stdout:
            data = stream.stdout.read()
            stream.close()
        return data

    def folder(self, path: str) -> bytes:
        assert self.local is not None
        stream = self.local.open_stream(["tar", "-c", "-C", path, "."])
        with stream.stdin, stream.stdout:
            data = stream.stdout.read()
            stream.close()
        return data

    def add_folder(self, path: str, data: bytes) -> None:
        assert self.local is not None
        done = self.local.run(
            ["bash", "-c", 'mkdir -p "$1" && tar -xp -C "$1"', "-", path], stdin=data
        )
        assert done.returncode == 0, done

    def fill(self, data: bytes) -> None:
        """What `files` gave, in place of what is there."""
        assert self.local is not None
        done = self.local.run(["bash", "-c", _RESTORE], stdin=data)
        assert done.returncode == 0, done
