"""The connection to the user's account at Modal: calls with time limits and retries, and Modal's errors as ours.

Blocking calls of Modal's client have no time limit: here its asynchronous ones run on an event loop of our own.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import threading
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from cooperbench.errors import CooperBenchError, InfraError, SandboxError, SandboxTimeout, UserError
from cooperbench.retry import retry_for
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from concurrent.futures import Future

    import modal

    Work = Callable[[], Coroutine[Any, Any, "T"]]

T = TypeVar("T")

CALL_SECONDS = 120.0
"""For what Modal answers at once, including its client's own retries."""
RETRY_SECONDS = 20.0
"""How long a call is repeated that was rate limited or could not be carried out."""
CREATE_RETRY_SECONDS = 60.0
"""The same for making an image or a sandbox. The layers above retry too."""
_MAX_CREATING = 50
_MAX_MESSAGE = 300
_OTHERWISE = "or use --backend local or --backend docker"
_QUOTA = r"\b(billing|budget|spend|spending|payment|credits?|plan limit|usage limit|suspended)\b"
_TRANSPORTS = ("grpclib", "h2", "aiohttp")
"""The libraries under the client, whose errors mean that Modal was not reached."""


class RateLimited(InfraError):
    """There were too many requests."""


class Unavailable(SandboxError):
    """Modal did not answer, said that it cannot just now, or lost what was on its way. Worth another try."""


class Gone(SandboxError):
    """Modal does not know the sandbox, the command in it or the image any more."""


_TEMPORARY = (RateLimited, Unavailable)


def require_client() -> None:
    if find_spec("modal") is None:
        install = "pip install 'cooperbench[modal]' and modal token new"
        raise UserError(f"Modal's client is not installed: {install}; {_OTHERWISE}")


class Connection:
    """A connected client, and the app that our sandboxes belong to. Of one process, until its backend is closed."""

    def __init__(self, app_name: str) -> None:
        require_client()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="modal-calls", daemon=True).start()
        self.app_name = app_name
        self.session = secrets.token_hex(8)
        """A tag of all sandboxes that are made through it."""
        self.process = os.getpid()
        self.stopped = threading.Event()
        """Once set, nothing more is created: the run is being stopped."""
        self._slots = threading.BoundedSemaphore(_MAX_CREATING)
        try:
            self.client, self.app = self.call("connecting to Modal", self._connect)
        except Gone as error:
            raise UserError(
                f"{error}: modal environment list, then set MODAL_ENVIRONMENT"
            ) from error

    def spawn(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call_once(self, doing: str, work: Coroutine[Any, Any, T], limit_seconds: float) -> T:
        """With a time limit, and with our errors. When the wait ends, the work is cancelled."""
        with faults(doing):
            future = self.spawn(work)
            try:
                return future.result(max(limit_seconds, 0.0))
            finally:
                future.cancel()

    def call(
        self,
        doing: str,
        make_work: Work[T],
        limit_seconds: float = CALL_SECONDS,
        *,
        retry_on: tuple[type[InfraError], ...] = _TEMPORARY,
    ) -> T:
        """`call_once` with retries."""
        attempt = partial(self._attempt, doing, make_work, limit_seconds)
        return retry_for(RETRY_SECONDS, attempt, retry_on, threading.Event())

    def create(self, doing: str, make_work: Work[T], limit_seconds: float) -> T:
        """`call` for images and sandboxes: so many at once, with more patience, until the run is stopped."""
        attempt = partial(self._attempt, doing, make_work, limit_seconds)
        with self._slots:
            return retry_for(CREATE_RETRY_SECONDS, attempt, _TEMPORARY, self.stopped)

    def _attempt(self, doing: str, make_work: Work[T], limit_seconds: float) -> T:
        return self.call_once(doing, make_work(), limit_seconds)

    async def _connect(self) -> tuple[modal.Client, modal.App]:
        import modal

        client = await modal.Client.from_env.aio()
        app = await modal.App.lookup.aio(self.app_name, client=client, create_if_missing=True)
        return client, app


@contextmanager
def faults(doing: str) -> Iterator[None]:
    """Turns errors of the client into ours, in one line with what to do."""
    try:
        yield
    except CooperBenchError:
        raise
    except Exception as error:
        if not isinstance(error, OSError) and _library(error) not in (
            "modal",
            "synchronicity",
            *_TRANSPORTS,
        ):
            raise
        raise _translated(error, doing) from error


def _translated(error: Exception, doing: str) -> CooperBenchError:
    """`UserError` for what the user must fix, `InfraError` and its children for what may be gone when tried again."""
    from modal import exception as modal

    message = printable(re.sub(r"\s+", " ", str(error) or type(error).__name__))[
        :_MAX_MESSAGE
    ].strip()
    match error:
        case modal.AuthError():
            remedy = "modal token new, or check MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
            return UserError(f"Modal knows no such token: {remedy}; {_OTHERWISE} ({message})")
        case modal.ImageBuildError() if "due to external shut-down" in message:
            return Unavailable(f"{doing}: {message}")
        case modal.ImageBuildError():
            see = f"see it with: modal image logs {error.image_id}"
            return UserError(f"{doing}: the image cannot be built: {message} ({see})")
        case modal.VersionError():
            return UserError(f"{doing}: {message}: pip install --upgrade 'cooperbench[modal]'")
        case modal.ResourceExhaustedError() if re.search(_QUOTA, message, re.IGNORECASE):
            see = "see https://modal.com/settings/usage"
            return UserError(f"{doing}: the workspace's quota is used up ({message}): {see}")
        case modal.ResourceExhaustedError():
            return RateLimited(
                f"{doing}: rate limited by Modal ({message}); reduce the concurrency with -c"
            )
        case modal.NotFoundError() | modal.ConflictError() | modal.ClientClosed():
            return Gone(f"{doing}: {message}")
        case modal.InvalidError() | modal.UnimplementedError() | modal.PermissionDeniedError():
            return UserError(f"{doing}: Modal refuses it: {message}")
        case TimeoutError() | modal.TimeoutError():
            return SandboxTimeout(f"{doing}: Modal did not answer in time")
        case (
            modal.ServiceError()
            | modal.InternalError()
            | modal.InternalFailure()
            | modal.ConnectionError()
        ):
            return Unavailable(f"{doing}: {message}")
    lost = isinstance(error, OSError | modal.DataLossError) or _library(error) in _TRANSPORTS
    return (Unavailable if lost else SandboxError)(f"{doing}: {message}")


def _library(error: Exception) -> str:
    return type(error).__module__.partition(".")[0]
