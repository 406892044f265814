"""Opening and ending sandboxes: `SandboxManager` holds one backend for the length of a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Self, TypeVar

from cooperbench.bounded import kill_running_calls
from cooperbench.errors import Interrupted, UserError
from cooperbench.git import kill_running_git
from cooperbench.models import Image, Task
from cooperbench.retry import finish_despite_interrupts, run_in_daemon_threads
from cooperbench.sandbox.backend import adapted_backend
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.contract import (
    EvalBackend,
    SandboxOptions,
    as_sandbox_errors,
    check_network,
)
from cooperbench.sandbox.plain_sandbox import PlainSandbox

T = TypeVar("T")
_IMAGE_WORKERS = 4
_IMAGE_SECONDS = 2.0
"""Seconds that a closing manager waits for images that are being prepared. What goes on longer ends
with the process."""
_POLL_SECONDS = 0.5
"""Seconds after which a wait is interrupted, so that Python can handle Ctrl-C."""


def open_sandbox(
    backend: EvalBackend,
    image: str,
    *,
    timeout_seconds: int,
    workdir: str = "/workspace",
    options: SandboxOptions,
) -> Sandbox:
    """Create a sandbox that lives for at most `timeout_seconds`.

    If the backend's sandboxes have only `exec`, the result is a `PlainSandbox`. If the backend does
    not take options, the network policy is ignored: the backend's author decides about the network.

    Raises:
        UserError: The backend does not support what the options ask for.
        SandboxError: The sandbox could not be created.
    """
    full_backend = adapted_backend(backend)
    capabilities = full_backend.capabilities
    if options.programs is not None and not capabilities.programs:
        raise UserError(
            "this backend cannot run command-line agents: "
            "its sandboxes cannot show a folder of this machine"
        )
    if capabilities.networks:
        check_network(capabilities, options)
    with as_sandbox_errors(f"the backend could not create a sandbox from {image}"):
        sandbox = full_backend.create_sandbox(image, timeout_seconds, workdir, options=options)
    if isinstance(sandbox, Sandbox):
        return sandbox
    return PlainSandbox(sandbox, lifetime_seconds=timeout_seconds, workdir=workdir)


class SandboxManager:
    """A backend with its images, its open sandboxes and the threads that use them.

    Leaving its `with` block ends every sandbox and every thread and closes the backend, also after
    Ctrl-C.
    """

    def __init__(self, backend: EvalBackend) -> None:
        self.backend = adapted_backend(backend)
        self.stop = threading.Event()
        """Once set, no more sandboxes are opened."""
        self._open: set[Sandbox] = set()
        self._images: dict[Task, Future[Image]] = {}
        self._image_threads: list[threading.Thread] = []
        self._pools: list[ThreadPoolExecutor] = []

    @property
    def streams(self) -> bool:
        """Whether sandboxes have `open_stream`."""
        return self.backend.capabilities.streams

    def check(self) -> None:
        """Raise UserError if the backend cannot work at all."""
        self.backend.check()

    def prepare(self, tasks: Iterable[Task], progress: Callable[[Task, int, int], None]) -> None:
        """Prepare the images of tasks. After each one, call `progress(task, number, total)`.

        `preparation_error` then says whether it failed.

        Raises UserError at once if the backend cannot work at all. If a single task cannot be
        prepared, only `image` raises an error for it.
        """
        new_tasks = list(dict.fromkeys(task for task in tasks if task not in self._images))
        if new_tasks:
            self.check()
        images, threads = run_in_daemon_threads(
            self._prepare_image, new_tasks, _IMAGE_WORKERS, "image"
        )
        self._images |= images
        self._image_threads += threads
        for number, task in enumerate(new_tasks, 1):
            self.preparation_error(task)
            progress(task, number, len(new_tasks))

    def preparation_error(self, task: Task) -> BaseException | None:
        """Return why the image of a task could not be prepared; wait until that is known."""
        return self._images[task].exception()

    def image(self, task: Task) -> Image:
        """Return the task's image; prepare it now if necessary."""
        if task not in self._images:
            self.prepare([task], lambda *_: None)
        return self._images[task].result()

    def open(self, image: str, *, timeout_seconds: int, options: SandboxOptions) -> Sandbox:
        """Open a sandbox. It ends with this manager at the latest.

        Raises Interrupted after `stop` was set.
        """
        if self.stop.is_set():
            raise Interrupted("stopped")
        sandbox = open_sandbox(
            self.backend, image, timeout_seconds=timeout_seconds, options=options
        )
        self._open.add(sandbox)
        if self.stop.is_set():
            # It was stopped while the sandbox was being created, so `_close` may have missed it.
            self.end(sandbox)
            raise Interrupted("stopped")
        return sandbox

    def end(self, sandbox: Sandbox) -> None:
        """Terminate one sandbox."""
        self._open.discard(sandbox)
        sandbox.terminate()

    def has_been_ended(self, sandbox: Sandbox) -> bool:
        """Whether this manager has ended a sandbox that it had opened."""
        return sandbox not in self._open

    @contextmanager
    def sandbox(
        self, image: str, *, timeout_seconds: int, options: SandboxOptions
    ) -> Iterator[Sandbox]:
        """Open a sandbox for the length of a `with` block."""
        sandbox = self.open(image, timeout_seconds=timeout_seconds, options=options)
        try:
            yield sandbox
        finally:
            self.end(sandbox)

    def pool(self, size: int, name: str) -> ThreadPoolExecutor:
        """Create a thread pool that is shut down with this manager."""
        pool = ThreadPoolExecutor(size, thread_name_prefix=name)
        self._pools.append(pool)
        return pool

    def drain(
        self, futures: Iterable[Future[T]], follow_up: Callable[[T], Future[T] | None]
    ) -> None:
        """Wait for all futures, and for those that `follow_up` adds for a result.

        Raise the first failure at once.
        """
        waiting = set(futures)
        while waiting:
            done, waiting = wait(waiting, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                next_future = follow_up(future.result())
                if next_future is not None:
                    waiting.add(next_future)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is KeyboardInterrupt:
            kill_running_git()
            kill_running_calls()
        # A second Ctrl-C arrives while this waits. Nothing may stay behind then either.
        finish_despite_interrupts(self._close)

    def _close(self) -> None:
        self.stop.set()
        for image in self._images.values():
            with suppress(InvalidStateError):
                image.set_exception(Interrupted("stopped"))
        self.backend.interrupt()
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)
        # Ending the sandboxes makes the threads return that use them. These may still open others
        # meanwhile.
        self._end_all()
        for pool in self._pools:
            pool.shutdown(wait=True)
        self._end_all()
        self.backend.close()
        deadline = time.monotonic() + _IMAGE_SECONDS
        for thread in self._image_threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _end_all(self) -> None:
        for sandbox in list(self._open):
            # A sandbox that cannot be ended must not keep the others alive.
            with suppress(Exception):
                self.end(sandbox)

    def _prepare_image(self, task: Task) -> Image:
        with as_sandbox_errors(f"{task.label} could not be prepared"):
            return self.backend.prepare(task)
