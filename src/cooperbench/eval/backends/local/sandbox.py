"""One local sandbox, from its folder to its end.

Isolated by namespaces of this machine's kernel, with no capabilities and no way to other users: it sees the
operating system and a few tools read-only, its own folders, and its own processes. What is less isolated than a
container: the memory and the processors are shared without limits (only soft limits on the number of processes and on
file sizes), the disk is the host's, there is no system call filter, and with the network policy `public` it is on the
host's own network, services on localhost included.
"""

from __future__ import annotations

import json
import posixpath
import threading
import time
import weakref
from typing import TYPE_CHECKING

from cooperbench.errors import SandboxDead, SandboxError, SandboxTimeout
from cooperbench.eval.backends.base import DEFAULT_OUTPUT_LIMIT, CommandResult, SandboxOptions
from cooperbench.eval.backends.local.control import Control
from cooperbench.eval.backends.local.keeper import keeper
from cooperbench.eval.backends.local.launcher import last_line
from cooperbench.eval.backends.local.rundir import remove_tree
from cooperbench.eval.backends.local.view import IO_DIR, LIB_DIR, SCRATCH_DIR, SHELL
from cooperbench.eval.backends.pool import ChannelPool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from cooperbench.eval.backends.base import Stream
    from cooperbench.eval.backends.channel import Channel
    from cooperbench.eval.backends.local.launcher import Means
    from cooperbench.eval.backends.local.view import Content, HostView


class LocalSandbox:
    """A `RichSandbox` with streams."""

    def __init__(
        self,
        folder: Path,
        host: HostView,
        means: Means,
        content: Content,
        *,
        lifetime_seconds: float,
        workdir: str,
        options: SandboxOptions,
        on_end: Callable[[LocalSandbox], None],
    ) -> None:
        """Takes over `folder`, which is empty, and removes it in the end."""
        self._folder = folder
        self._workdir = workdir
        self._on_end = on_end
        self._lifetime_seconds = lifetime_seconds
        self._deadline = time.monotonic() + lifetime_seconds
        self._end_lock = threading.Lock()
        self._end_reason = ""
        self._removed = False
        try:
            (folder / "labels.json").write_text(json.dumps(dict(options.labels)), "utf-8")
            view = host.view(folder, content, options.network, overlays=means.overlays)
            argv = [SHELL, f"{LIB_DIR}/supervisor.sh", IO_DIR, SCRATCH_DIR, workdir]
            if host.tools_proven:
                argv.append("trusted")
            log = folder / "log"
            self._started = keeper().call(lambda: means.launcher.start(view, argv, host.env(), log))
        except BaseException:
            remove_tree(folder)
            raise
        self._control = Control(self._started.process, folder / "io")
        self._pool = ChannelPool(self._open_channel)
        try:
            self._control.wait_until_ready()
            self._pool.open_one()
            host.tools_proven = True
        except BaseException as error:
            reason = last_line(log)
            self.terminate()
            if isinstance(error, SandboxDead):
                raise SandboxError(f"the sandbox did not start: {reason or error}") from error
            raise
        _end_in_time(self, self._deadline)

    def exec(self, *args: str) -> CommandResult:
        return self.run(args)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
    ) -> CommandResult:
        self._check_alive()
        left_seconds = self._deadline - time.monotonic()
        with _Translated(self):
            return self._pool.run(
                argv,
                timeout_seconds=left_seconds + 5 if timeout_seconds is None else timeout_seconds,
                cwd=posixpath.join(self._workdir, cwd or ""),
                env=env,
                stdin=stdin,
                output_limit=output_limit,
            )

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        self._check_alive()
        with _Translated(self):
            self._pool.write_file(posixpath.join(self._workdir, path), data, mode)

    def read_file(self, path: str) -> bytes:
        self._check_alive()
        with _Translated(self):
            return self._pool.read_file(posixpath.join(self._workdir, path))

    def open_stream(self, argv: Sequence[str]) -> Stream:
        self._check_alive()
        with _Translated(self):
            return self._control.open_stream(argv)

    def terminate(self) -> None:
        self.end("it was terminated")

    def end(self, reason: str) -> None:
        """Kill everything in it, then remove its files. Calling it again does nothing."""
        with self._end_lock:
            self._end_reason = self._end_reason or reason
            self._started.kill()
            if self._removed:
                return
            self._removed = True
            self._started.wait()
            self._pool.close()
            self._control.close()
            for work in self._folder.glob("*-work/work"):
                work.chmod(0o700)  # an overlay leaves it closed even to its owner
            remove_tree(self._folder)
        self._on_end(self)

    def expire(self) -> None:
        """End it because its time is over; returns at once."""
        if not self._removed:
            self._end_reason = self._end_reason or f"it reached its lifetime of {self._lifetime_seconds:g} s"
            self._started.kill()
            threading.Thread(target=self.end, args=(self._end_reason,), daemon=True).start()

    def death(self) -> SandboxDead:
        """The error for whoever uses it after its end."""
        return SandboxDead(f"the sandbox has ended: {self._end_reason or 'its processes were killed'}")

    def _open_channel(self) -> Channel:
        self._check_alive()
        return self._control.open_channel()

    def _check_alive(self) -> None:
        if self._end_reason:
            raise self.death()


class _Translated:
    """Says why the sandbox is dead; one that does not answer is ended."""

    def __init__(self, sandbox: LocalSandbox) -> None:
        self._sandbox = sandbox

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, SandboxTimeout):
            self._sandbox.end("it did not answer")
        elif isinstance(error, SandboxDead):
            self._sandbox.end("its processes were killed")
            raise self._sandbox.death() from error


def _end_in_time(sandbox: LocalSandbox, deadline: float) -> None:
    """The keeper must not be what keeps a forgotten sandbox's memory."""
    reference = weakref.ref(sandbox)

    def expire() -> None:
        found = reference()
        if found is not None:
            found.expire()

    keeper().at(deadline, expire)
