"""Commands and files without a channel, for images that lack bash or a usable tool: one exec of Modal's each.

Slower: a command takes several requests. Needs sh and env in the image, and grep to end a command that runs out of its
time. Files go through Modal's filesystem API, which needs nothing in the image but chmod and mv.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from typing import TYPE_CHECKING

from cooperbench.backends.modal.files import FileProblem, place, read_whole, upload
from cooperbench.sandbox.channel import BACKSTOP_SECONDS, READ_FILE_LIMIT
from cooperbench.sandbox.contract import DEFAULT_OUTPUT_LIMIT, TIMEOUT_EXIT_CODE, CommandResult
from cooperbench.sandbox.unchanneled import Kept, kill_script

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import modal
    from modal.container_process import ContainerProcess
    from modal.io_streams import StreamReader

    from cooperbench.backends.modal.account import Account

_RUN = """
COOPERBENCH_COMMAND=$1 PATH=/cooperbench/bin:$PATH
export COOPERBENCH_COMMAND PATH
cd -- "$2" || exit 126
shift 2
exec "$@"
"""
_PIECE_BYTES = 1 << 20
_LATE_SECONDS = 1.0
"""How long to wait for output after the command's end: a background process may hold it open."""


class PlainExec:
    """What a `ChannelPool` does, without channels."""

    def __init__(self, account: Account, remote: modal.Sandbox) -> None:
        self._account = account
        self._remote = remote

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
        mark = secrets.token_hex(8)
        variables = [f"{name}={value}" for name, value in (env or {}).items()]
        command = ["sh", "-c", _RUN, "sh", mark, cwd, *(["env", *variables] if variables else []), *argv]
        kept = Kept(output_limit), Kept(output_limit)
        started = time.monotonic()
        code = self._account.call(
            "running a command",
            self._run(command, stdin, kept, timeout_seconds, mark),
            timeout_seconds + 4 * BACKSTOP_SECONDS,
        )
        out, err = kept
        seconds = round(time.monotonic() - started, 6)
        timed_out = code is None
        return CommandResult(
            TIMEOUT_EXIT_CODE if code is None else code,
            out.data,
            err.data,
            out.cut,
            err.cut,
            timed_out,
            seconds,
        )

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        beside = upload(self._account, self._remote, path, data)
        done = self.run(place(beside, path, mode), timeout_seconds=BACKSTOP_SECONDS, cwd="/")
        if done.returncode:
            raise FileProblem(f"cannot write {path} in the sandbox: {done.stderr_read().strip()[-200:]}")

    def read_file(self, path: str) -> bytes:
        return read_whole(self._account, self._remote, path, READ_FILE_LIMIT)

    def close(self) -> None:
        """Nothing is held."""

    async def _run(
        self, command: list[str], stdin: bytes, kept: tuple[Kept, Kept], timeout_seconds: float, mark: str
    ) -> int | None:
        """The exit code; None where the time was over."""
        process = await self._remote.exec.aio(*command, text=False)
        reading = [
            asyncio.ensure_future(_collect(stream, part))
            for stream, part in zip((process.stdout, process.stderr), kept, strict=True)
        ]
        feeding = asyncio.ensure_future(_feed(process, stdin))
        waiting = asyncio.ensure_future(process.wait.aio())
        try:
            done, _ = await asyncio.wait([waiting], timeout=timeout_seconds)
            if not done:
                await self._kill(mark)
            await asyncio.wait(reading, timeout=_LATE_SECONDS if done else BACKSTOP_SECONDS)
            for part in reading:
                if part.done():
                    part.result()
            return waiting.result() if done else None
        finally:
            for task in (*reading, feeding, waiting):
                task.cancel()

    async def _kill(self, mark: str) -> None:
        killer = await self._remote.exec.aio("sh", "-c", kill_script(), "kill", mark, text=False)
        await asyncio.wait_for(killer.wait.aio(), BACKSTOP_SECONDS)


async def _collect(stream: StreamReader[bytes], kept: Kept) -> None:
    async for chunk in stream:
        kept.add(chunk)


async def _feed(process: ContainerProcess[bytes], data: bytes) -> None:
    # The command may not want it.
    with contextlib.suppress(Exception):
        for start in range(0, len(data), _PIECE_BYTES):
            process.stdin.write(data[start : start + _PIECE_BYTES])
            await process.stdin.drain.aio()
        process.stdin.write_eof()
        await process.stdin.drain.aio()
