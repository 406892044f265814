"""One local sandbox, from its folder to its end.

Isolated by namespaces of this machine's kernel, with no capabilities and no way to other users: it sees the
operating system and a few tools read-only, its own folders, and its own processes. What is less isolated than a
container: the memory and the processors are shared without limits (only soft limits on the number of processes and on
file sizes), the disk is the host's, there is no system call filter, and with the network policy `public` it is on the
host's own network, services on localhost included.
"""

from __future__ import annotations

import json
import threading
import weakref
from typing import TYPE_CHECKING

from cooperbench.backends.local.control import Control
from cooperbench.backends.local.keeper import keeper
from cooperbench.backends.local.launcher import last_line
from cooperbench.backends.local.view import IO_DIR, LIB_DIR, SCRATCH_DIR, SHELL
from cooperbench.errors import SandboxDead, SandboxError
from cooperbench.sandbox.base_sandbox import BaseSandbox
from cooperbench.sandbox.channel import ChannelPool
from cooperbench.temporary import remove_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from cooperbench.backends.local.launcher import Means
    from cooperbench.backends.local.view import Content, HostView
    from cooperbench.sandbox.channel import Channel
    from cooperbench.sandbox.contract import SandboxOptions, Stream


class LocalSandbox(BaseSandbox):
    """A sandbox of namespaces, and the folder that holds its files."""

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
        super().__init__(lifetime_seconds=lifetime_seconds, workdir=workdir)
        self._folder = folder
        self._on_end = on_end
        self._end_lock = threading.Lock()
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
        pool = self._commands = ChannelPool(self._open_channel)
        try:
            self._control.wait_until_ready()
            pool.open_one()
            host.tools_proven = True
        except BaseException as error:
            reason = last_line(log)
            self.terminate()
            if isinstance(error, SandboxDead):
                raise SandboxError(f"the sandbox did not start: {reason or error}") from error
            raise
        _end_in_time(self, self._deadline)

    def open_stream(self, argv: Sequence[str]) -> Stream:
        with self._alive():
            return self._control.open_stream(argv)

    def end(self, reason: str) -> None:
        """Kill everything in it, then remove its files. Calling it again does nothing."""
        with self._end_lock:
            self._end_reason = self._end_reason or reason
            self._started.kill()
            if self._removed:
                return
            self._removed = True
            self._started.wait()
            self._commands.close()
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

    def _open_channel(self) -> Channel:
        self._check_alive()
        return self._control.open_channel()


def _end_in_time(sandbox: LocalSandbox, deadline: float) -> None:
    """The keeper must not be what keeps a forgotten sandbox's memory."""
    reference = weakref.ref(sandbox)

    def expire() -> None:
        found = reference()
        if found is not None:
            found.expire()

    keeper().at(deadline, expire)
