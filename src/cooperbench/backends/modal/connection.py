"""The connection to the user's account at Modal: calls with time limits, retries, and a limit on concurrent requests.

Modal's client is asynchronous, and its blocking calls have no time limit. Here every call has one: it runs on an event
loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from cooperbench.backends.modal.faults import NO_TOKEN, NOT_INSTALLED, RateLimited, Unavailable, faults
from cooperbench.errors import Interrupted, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from concurrent.futures import Future

    import modal

    from cooperbench.errors import InfraError

T = TypeVar("T")

CALL_SECONDS = 120.0
"""For what Modal answers at once, including its client's own retries."""
RETRY_SECONDS = 20.0
"""How long a call is repeated that was rate limited or could not be carried out."""
CREATE_RETRY_SECONDS = 60.0
"""The same for making a sandbox. The layers above retry too, and can be interrupted in between."""
CREATE_ATTEMPTS = 5
"""While Modal is unavailable; its client has tried a few times before each."""
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 5.0
_LONGEST_CREATE_PAUSE_SECONDS = 15.0
_NO_RETRIES_SECONDS = 60.0


def require_client() -> None:
    """UserError where the client or a token is missing. Does not connect."""
    if find_spec("modal") is None:
        raise UserError(NOT_INSTALLED)
    with faults("reading Modal's configuration"):
        from modal.config import config

        tokens = ("token_id", "token_secret"), ("oauth_refresh_token", "oauth_client_id")
        if not any(all(config.get(name) for name in names) for names in tokens):
            raise UserError(NO_TOKEN)


class EventLoop:
    """One thread, however many calls are in progress."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="modal-calls", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], limit_seconds: float) -> T:
        """Its result; TimeoutError when it takes longer. Whatever ends the wait cancels the work too."""
        future = self.spawn(work)
        try:
            return future.result(max(limit_seconds, 0.0))
        finally:
            future.cancel()

    def spawn(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)


_event_loops: dict[int, EventLoop] = {}
_event_loops_lock = threading.Lock()


def event_loop() -> EventLoop:
    """The one of this process; a forked child gets its own."""
    with _event_loops_lock:
        if os.getpid() not in _event_loops:
            _event_loops[os.getpid()] = EventLoop()
        return _event_loops[os.getpid()]


class Connection:
    """A connected client, and the app that our sandboxes belong to. Of one process."""

    def __init__(self, app_name: str) -> None:
        require_client()
        self.event_loop = event_loop()
        self.app_name = app_name
        from modal.config import config

        self.environment = str(config.get("environment") or "")
        self._no_retries_until = 0.0
        self.client, self.app = self.call_with_retries("connecting to Modal", self._connect)

    def call(self, doing: str, work: Coroutine[Any, Any, T], limit_seconds: float = CALL_SECONDS) -> T:
        """Every request to Modal goes through here: with a time limit, and with errors of ours."""
        with faults(doing, self.environment):
            return self.event_loop.call(work, limit_seconds)

    def call_with_retries(
        self,
        doing: str,
        make_work: Callable[[], Coroutine[Any, Any, T]],
        limit_seconds: float = CALL_SECONDS,
        *,
        retry_on: tuple[type[InfraError], ...] = (RateLimited, Unavailable),
    ) -> T:
        """`call` for what does no harm when it is done twice.

        Where retrying did not help, nothing is retried for a while: with Modal out of reach, ending a hundred
        sandboxes must not take a hundred times as long.
        """
        deadline, pause_seconds = time.monotonic() + RETRY_SECONDS, _FIRST_PAUSE_SECONDS
        while True:
            try:
                return self.call(doing, make_work(), limit_seconds)
            except retry_on:
                now = time.monotonic()
                if now < self._no_retries_until:
                    raise
                if now + pause_seconds >= deadline:
                    self._no_retries_until = now + _NO_RETRIES_SECONDS
                    raise
            time.sleep(pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311  # jitter
            pause_seconds = min(pause_seconds * 2, _LONGEST_PAUSE_SECONDS)

    async def _connect(self) -> tuple[modal.Client, modal.App]:
        import modal

        client = await modal.Client.from_env.aio()
        app = await modal.App.lookup.aio(self.app_name, client=client, create_if_missing=True)
        return client, app


class CreationLimit:
    """How many sandboxes are asked for at once: half as many when Modal says "rate limited", then slowly more again.

    Shared by all threads that make sandboxes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._slots = most
        self._taken = 0
        self._successes = 0
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._not_before = 0.0
        self._epoch = 0
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Nobody waits any longer: the run is being stopped."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()

    @property
    def slots(self) -> int:
        """How many there are at the moment."""
        return self._slots

    def call(self, work: Callable[[], T]) -> T:
        """`work` in one of the slots, again while Modal is overloaded or unavailable."""
        deadline = time.monotonic() + CREATE_RETRY_SECONDS
        attempt = 0
        while True:
            try:
                with self._slot() as epoch:
                    result = work()
            except RateLimited:
                self._slow_down(epoch)
                if time.monotonic() >= deadline:
                    raise
                continue
            except Unavailable:
                attempt += 1
                pause = _FIRST_PAUSE_SECONDS * 2**attempt * random.uniform(0.5, 1.0)  # noqa: S311  # jitter
                if attempt >= CREATE_ATTEMPTS or time.monotonic() + pause >= deadline:
                    raise
                self._stopped.wait(pause)
                continue
            self._speed_up()
            return result

    @contextmanager
    def _slot(self) -> Iterator[int]:
        with self._changed:
            while self._taken >= self._slots or time.monotonic() < self._not_before:
                if self._stopped.is_set():
                    raise Interrupted("stopped")
                pause_seconds = self._not_before - time.monotonic()
                self._changed.wait(pause_seconds if pause_seconds > 0 else None)
            if self._stopped.is_set():
                raise Interrupted("stopped")
            self._taken += 1
            epoch = self._epoch
        try:
            yield epoch
        finally:
            with self._changed:
                self._taken -= 1
                self._changed.notify_all()

    def _slow_down(self, epoch: int) -> None:
        """Half the slots, once for all requests that were in progress together."""
        with self._changed:
            if epoch == self._epoch:
                self._epoch += 1
                self._successes = 0
                self._slots = max(1, min(self._slots, self._taken + 1) // 2)
                self._not_before = time.monotonic() + self._pause_seconds * random.uniform(0.75, 1.25)  # noqa: S311
                self._pause_seconds = min(self._pause_seconds * 2, _LONGEST_CREATE_PAUSE_SECONDS)
            self._changed.notify_all()

    def _speed_up(self) -> None:
        """One slot more whenever all of them have been used successfully once."""
        with self._changed:
            self._successes += 1
            self._pause_seconds = max(self._pause_seconds / 2, _FIRST_PAUSE_SECONDS)
            if self._successes >= self._slots and self._slots < self._most:
                self._successes = 0
                self._slots += 1
                self._changed.notify_all()
