"""Opening and ending sandboxes: `SandboxManager` is one backend for the length of a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Literal, Self, TypeVar, cast

from cooperbench.dataset.image_names import image_name
from cooperbench.errors import Interrupted, UserError
from cooperbench.git import kill_running_git
from cooperbench.models import Image, Task
from cooperbench.retry import finish_despite_interrupts, run_in_daemon_threads
from cooperbench.sandbox import contract
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.plain_sandbox import PlainSandbox

T = TypeVar("T")
_IMAGE_WORKERS = 4
_IMAGE_SECONDS = 2.0
"""How long an ended session waits for images that are being made; what cannot be broken off ends with the process."""


def open_sandbox(
    backend: contract.EvalBackend,
    image: str,
    *,
    timeout_seconds: int,
    workdir: str = "/workspace",
    options: contract.SandboxOptions,
) -> Sandbox:
    """Create a sandbox that lives for at most `timeout_seconds`, a `PlainSandbox` where the backend has only `exec`.

    A backend that takes no options cannot be asked for a network policy: its author decides about the network.
    """
    can = contract.capabilities_of(backend)
    if options.programs is not None and not can.programs:
        raise UserError(
            "this backend cannot run command-line agents: it cannot show their programs in a sandbox"
        )
    with contract.foreign_errors(f"the backend could not make a sandbox of {image}"):
        if can.networks:
            contract.check_network(can, options)
            full = cast("contract.FullBackend", backend)
            sandbox = full.create_sandbox(image, timeout_seconds, workdir, options=options)
        else:
            sandbox = backend.create_sandbox(image, timeout=timeout_seconds, workdir=workdir)
    if isinstance(sandbox, Sandbox):
        return sandbox
    return PlainSandbox(sandbox, lifetime_seconds=timeout_seconds, workdir=workdir)


class SandboxManager:
    """A backend with its images, its open sandboxes and the threads that use them.

    Leaving its `with` block ends every sandbox, every thread and everything that the backend holds, also on Ctrl-C.
    """

    def __init__(self, backend: contract.EvalBackend) -> None:
        self.backend = backend
        self.stop = threading.Event()
        """Once set, no more sandboxes are opened."""
        self._open: set[Sandbox] = set()
        self._images: dict[Task, Future[Image]] = {}
        self._image_threads: list[threading.Thread] = []
        self._pools: list[ThreadPoolExecutor] = []

    @property
    def streams(self) -> bool:
        return contract.capabilities_of(self.backend).streams

    def check(self) -> None:
        """UserError where the backend cannot work at all."""
        self._call_backend("check")

    def prepare(self, tasks: Iterable[Task], progress: Callable[[Task, int, int], None]) -> None:
        """Make the images of tasks ready, reporting after each how many of how many are done.

        UserError at once where the backend cannot work at all. A task that cannot be prepared fails alone, in `image`.
        """
        wanted = list(dict.fromkeys(task for task in tasks if task not in self._images))
        if wanted:
            self.check()
        images, threads = run_in_daemon_threads(
            self._prepare_image, wanted, _IMAGE_WORKERS, "image"
        )
        self._images |= images
        self._image_threads += threads
        for number, task in enumerate(wanted, 1):
            self._images[task].exception()
            progress(task, number, len(wanted))

    def image(self, task: Task) -> Image:
        """The task's image, prepared now if it is not yet."""
        if task not in self._images:
            self.prepare([task], lambda *_: None)
        return self._images[task].result()

    def open(
        self, image: str, *, timeout_seconds: int, options: contract.SandboxOptions
    ) -> Sandbox:
        """A sandbox that ends with the session if nobody ends it before."""
        if self.stop.is_set():
            raise Interrupted("stopped")
        sandbox = open_sandbox(
            self.backend, image, timeout_seconds=timeout_seconds, options=options
        )
        self._open.add(sandbox)
        if self.stop.is_set():
            # Stopped while it was being made: the session's end may have missed it.
            self.end(sandbox)
            raise Interrupted("stopped")
        return sandbox

    def end(self, sandbox: Sandbox) -> None:
        sandbox.terminate()
        self._open.discard(sandbox)

    @contextmanager
    def sandbox(
        self, image: str, *, timeout_seconds: int, options: contract.SandboxOptions
    ) -> Iterator[Sandbox]:
        sandbox = self.open(image, timeout_seconds=timeout_seconds, options=options)
        try:
            yield sandbox
        finally:
            self.end(sandbox)

    def pool(self, size: int, name: str) -> ThreadPoolExecutor:
        """Threads that end with the session."""
        pool = ThreadPoolExecutor(size, thread_name_prefix=name)
        self._pools.append(pool)
        return pool

    def drain(
        self, futures: Iterable[Future[T]], follow_up: Callable[[T], Future[T] | None]
    ) -> None:
        """Wait until all are done; a result may add another one. The first failure is raised at once."""
        waiting = set(futures)
        while waiting:
            # The timeout lets Ctrl-C through.
            done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in done:
                following = follow_up(future.result())
                if following is not None:
                    waiting.add(following)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is KeyboardInterrupt:
            kill_running_git()
        # The second Ctrl-C arrives here, while we wait: nothing may stay behind then either.
        finish_despite_interrupts(self._close)

    def _close(self) -> None:
        self.stop.set()
        for image in self._images.values():
            with suppress(InvalidStateError):
                image.set_exception(Interrupted("stopped"))
        self._call_backend("interrupt")
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)
        self._end_all()
        for pool in self._pools:
            pool.shutdown(wait=True)
        self._end_all()
        self._call_backend("close")
        deadline = time.monotonic() + _IMAGE_SECONDS
        for thread in self._image_threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _call_backend(self, method: Literal["check", "interrupt", "close"]) -> None:
        if hasattr(self.backend, method):
            getattr(self.backend, method)()

    def _end_all(self) -> None:
        for sandbox in list(self._open):
            # One that cannot be ended must not keep the others alive.
            with suppress(Exception):
                self.end(sandbox)

    def _prepare_image(self, task: Task) -> Image:
        if not hasattr(self.backend, "prepare"):
            return Image(image_name(task))
        with contract.foreign_errors(f"{task.label} could not be prepared"):
            return cast("contract.FullBackend", self.backend).prepare(task)
