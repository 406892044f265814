"""Sandboxes that are started before anybody asks for them.

Starting a container is work for processors that others need too: two at once take longer than one, and their networks
are made one after the other. Whoever knows what will be wanted next says so, and does not wait when the time comes.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from cooperbench.errors import CooperBenchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.eval.backends.base import SandboxOptions
    from cooperbench.eval.backends.docker.sandbox import DockerSandbox

_AT_ONCE = 2
"""The sandboxes of a pair."""


class Wanted(NamedTuple):
    """What `create_sandbox` is called with."""

    image: str
    timeout: int
    workdir: str
    options: SandboxOptions


class StartedAhead:
    """Those of one session that nobody has taken yet. `start` makes one whose lifetime has not begun."""

    def __init__(self, start: Callable[[Wanted], DockerSandbox]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._waiting: list[tuple[Wanted, Future[DockerSandbox]]] = []
        self._starters = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="ahead")
        self._closed = False

    def expect(self, wanted: Wanted) -> Callable[[], None]:
        """Start one in the background; returns what calls it off. Nobody is told where that fails."""
        with self._lock:
            if self._closed:
                return lambda: None
            entry = wanted, self._starters.submit(self._start, wanted)
            self._waiting.append(entry)

        def call_off() -> None:
            with self._lock:
                if entry not in self._waiting:
                    return
                self._waiting.remove(entry)
            _drop(entry[1])

        return call_off

    def take(self, wanted: Wanted) -> DockerSandbox | None:
        """One that was started with these very arguments and still lives; None where there is none."""
        while future := self._pop(wanted):
            if future.cancel():
                return None  # it is still in the queue: starting one oneself is quicker
            try:
                sandbox = future.result()
            except CooperBenchError:
                return None  # whoever starts one now is told why not
            if sandbox.begin():
                return sandbox
            sandbox.end("it died before it was used")
        return None

    def close(self) -> None:
        """End all of them, also those that are just being started."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            _drop(future)
        self._starters.shutdown(wait=True)

    def _pop(self, wanted: Wanted) -> Future[DockerSandbox] | None:
        with self._lock:
            for place, (arguments, future) in enumerate(self._waiting):
                if arguments == wanted:
                    del self._waiting[place]
                    return future
        return None


def _drop(future: Future[DockerSandbox]) -> None:
    if not future.cancel():
        future.add_done_callback(_end)


def _end(future: Future[DockerSandbox]) -> None:
    if not future.exception():
        future.result().end("nobody wanted it any more")
