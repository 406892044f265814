"""Where work is done side by side: pools of threads over one backend, and an orderly end whatever happens.

Leaving the `with` block ends every sandbox, every thread and whatever the backend holds, also on Ctrl-C, also on the
second one.
"""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Protocol, Self, TypeVar, cast

from cooperbench.sandbox.contract import capabilities_of
from cooperbench.sandbox.guard import SandboxGuard
from cooperbench.sandbox.prepared import PreparedImages
from cooperbench.signals import finished

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from cooperbench.sandbox.contract import EvalBackend, InterruptibleBackend

T = TypeVar("T")


class _Closing(Protocol):
    def close(self) -> None: ...


class Workshop:
    """One backend, its open sandboxes and its images, and the threads that use them."""

    def __init__(self, backend: EvalBackend) -> None:
        self.stop = threading.Event()
        self.guard = SandboxGuard(backend, self.stop)
        self.images = PreparedImages(backend)
        self._backend = backend
        self._pools: list[ThreadPoolExecutor] = []

    def pool(self, size: int, name: str) -> ThreadPoolExecutor:
        pool = ThreadPoolExecutor(size, thread_name_prefix=name)
        self._pools.append(pool)
        return pool

    def drain(self, futures: Iterable[Future[T]], follow_up: Callable[[T], Future[T] | None]) -> None:
        """Until all are done; a result may bring a further one. The first failure is raised at once."""
        waiting = set(futures)
        while waiting:
            # The pause lets Ctrl-C through.
            done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in done:
                following = follow_up(future.result())
                if following is not None:
                    waiting.add(following)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The second Ctrl-C comes here, while we wait: nothing may stay behind for it either.
        finished(self._end)

    def _end(self) -> None:
        self.stop.set()
        if capabilities_of(self._backend).interrupts:
            cast("InterruptibleBackend", self._backend).interrupt()
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)
        self.guard.terminate_all()
        for pool in self._pools:
            pool.shutdown(wait=True)
        self.guard.terminate_all()
        if capabilities_of(self._backend).closes:
            cast("_Closing", self._backend).close()
