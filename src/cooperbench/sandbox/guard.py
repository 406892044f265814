"""Every sandbox that is open, so that stopping a run ends all of them."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from cooperbench.errors import Interrupted
from cooperbench.sandbox.access import open_sandbox
from cooperbench.sandbox.contract import capabilities_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cooperbench.sandbox.contract import EvalBackend, RichSandbox, SandboxOptions


class SandboxGuard:
    """Opens sandboxes of one backend and knows which are open. Once stopped it opens no more."""

    def __init__(self, backend: EvalBackend, stop: threading.Event) -> None:
        self.backend = backend
        self.stop = stop
        self._open: set[RichSandbox] = set()
        self._lock = threading.Lock()

    @property
    def streams(self) -> bool:
        return capabilities_of(self.backend).streams

    def open(self, image: str, *, timeout_seconds: int, options: SandboxOptions) -> RichSandbox:
        """A sandbox that `terminate_all` will end, if nobody does before."""
        if self.stop.is_set():
            raise Interrupted("stopped")
        sandbox = open_sandbox(self.backend, image, timeout_seconds=timeout_seconds, options=options)
        with self._lock:
            self._open.add(sandbox)
        if self.stop.is_set():
            # Stopped while it was being made: terminate_all may have missed it.
            self.end(sandbox)
            raise Interrupted("stopped")
        return sandbox

    def end(self, sandbox: RichSandbox) -> None:
        with self._lock:
            self._open.discard(sandbox)
        sandbox.terminate()

    def terminate_all(self) -> None:
        while True:
            with self._lock:
                if not self._open:
                    return
                sandbox = self._open.pop()
            # One that cannot be ended must not keep the others alive.
            with suppress(Exception):
                sandbox.terminate()

    @contextmanager
    def sandbox(self, image: str, *, timeout_seconds: int, options: SandboxOptions) -> Iterator[RichSandbox]:
        sandbox = self.open(image, timeout_seconds=timeout_seconds, options=options)
        try:
            yield sandbox
        finally:
            self.end(sandbox)
