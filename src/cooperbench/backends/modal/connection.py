"""The connection to the user's Modal account: calls with timeouts, retries and translated errors.

Blocking calls of Modal's client have no timeout, so this module runs the asynchronous ones on its
own event loop.
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
"""Timeout of a short call, including the client's own retries."""
RETRY_SECONDS = 20.0
"""How long a call is retried that was rate limited or failed temporarily."""
CREATE_RETRY_SECONDS = 60.0
"""How long the creation of an image or a sandbox is retried. Callers retry too."""
_MAX_CREATING = 50
_MAX_MESSAGE = 300
_SHUT_DOWN = "due to external shut-down"
"""Part of Modal's message if it interrupted a build."""
_ALTERNATIVE = "or use --backend local or --backend docker"
_QUOTA = r"\b(billing|budget|spend|spending|payment|credits?|plan limit|usage limit|suspended)\b"
_TRANSPORTS = ("grpclib", "h2", "aiohttp")
"""Libraries below the client; their errors mean that Modal was not reached."""


class RateLimited(InfraError):
    """Modal rejected a call because of too many requests."""


class Unavailable(SandboxError):
    """Modal did not answer, is temporarily unable to, or lost the connection. A retry may help."""


class Gone(SandboxError):
    """The sandbox, the command in it or the image no longer exists."""


_TEMPORARY = (RateLimited, Unavailable)


def require_client() -> None:
    """Raise UserError if Modal's client is not installed."""
    if find_spec("modal") is None:
        install = "pip install 'cooperbench[modal]' and modal token new"
        raise UserError(f"Modal's client is not installed: {install}; {_ALTERNATIVE}")


class Connection:
    """A connected client and the app that owns our sandboxes.

    It belongs to one process and lives until its backend is closed.
    """

    def __init__(self, app_name: str) -> None:
        require_client()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="modal-calls", daemon=True).start()
        self.app_name = app_name
        self.session = secrets.token_hex(8)
        """A tag of all sandboxes that are created through this connection."""
        self.process = os.getpid()
        self.stopped = threading.Event()
        """Once set, nothing more is created, because the run is being stopped."""
        self._slots = threading.BoundedSemaphore(_MAX_CREATING)
        try:
            self.client, self.app = self.call("connecting to Modal", self._connect)
        except Gone as error:
            raise UserError(
                f"{error}: modal environment list, then set MODAL_ENVIRONMENT"
            ) from error

    def spawn(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the connection's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call_once(self, doing: str, work: Coroutine[Any, Any, T], limit_seconds: float) -> T:
        """Run a coroutine with a timeout, translating errors; it is cancelled at the timeout."""
        with translated_errors(doing):
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
        """Run `call_once` with retries; `make_work` creates the coroutine of each attempt."""
        attempt = partial(self._attempt, doing, make_work, limit_seconds)
        return retry_for(RETRY_SECONDS, attempt, retry_on, threading.Event())

    def create(self, doing: str, make_work: Work[T], limit_seconds: float) -> T:
        """Create an image or a sandbox: like `call`, with longer retries and a limit on calls."""
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
def translated_errors(doing: str) -> Iterator[None]:
    """Translate errors of Modal's client into ours: one line that says what to do."""
    try:
        yield
    except CooperBenchError:
        raise
    except Exception as error:
        libraries = ("modal", "synchronicity", *_TRANSPORTS)
        if not isinstance(error, OSError) and _library(error) not in libraries:
            raise
        raise _translate(error, doing) from error


def _translate(error: Exception, doing: str) -> CooperBenchError:
    """Return a UserError for what the user must fix, else an InfraError, which a retry may fix."""
    text = re.sub(r"\s+", " ", str(error) or type(error).__name__)
    message = printable(text)[:_MAX_MESSAGE].strip()
    if translated := _translate_user_error(error, doing, message):
        return translated
    return _translate_temporary_error(error, doing, message)


def _translate_user_error(  # noqa: PLR0911  # a table of errors
    error: Exception, doing: str, message: str
) -> UserError | None:
    """Return a UserError if the user has to change something."""
    from modal import exception as modal

    match error:
        case modal.AuthError():
            remedy = "modal token new, or check MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
            return UserError(f"Modal rejects the token: {remedy}; {_ALTERNATIVE} ({message})")
        case modal.ImageBuildError() if _SHUT_DOWN not in message:
            see = f"see it with: modal image logs {error.image_id}"
            return UserError(f"{doing}: the image cannot be built: {message} ({see})")
        case modal.VersionError():
            return UserError(f"{doing}: {message}: pip install --upgrade 'cooperbench[modal]'")
        case modal.ResourceExhaustedError() if re.search(_QUOTA, message, re.IGNORECASE):
            see = "see https://modal.com/settings/usage"
            return UserError(f"{doing}: the workspace's quota is exhausted ({message}): {see}")
        case modal.ConflictError():
            return None  # a subclass of InvalidError
        case modal.InvalidError() | modal.UnimplementedError() | modal.PermissionDeniedError():
            return UserError(f"{doing}: Modal rejects it: {message}")
    return None


def _translate_temporary_error(  # noqa: PLR0911  # a table of errors
    error: Exception, doing: str, message: str
) -> InfraError:
    """Return an InfraError whose type says whether a retry may help."""
    from modal import exception as modal

    match error:
        case modal.ImageBuildError():
            return Unavailable(f"{doing}: {message}")
        case modal.ResourceExhaustedError():
            return RateLimited(
                f"{doing}: rate limited by Modal ({message}); reduce the concurrency with -c"
            )
        case modal.NotFoundError() | modal.ConflictError() | modal.ClientClosed():
            return Gone(f"{doing}: {message}")
        case TimeoutError() | modal.TimeoutError():
            return SandboxTimeout(f"{doing}: Modal did not answer in time")
        case (
            modal.ServiceError()
            | modal.InternalError()
            | modal.InternalFailure()
            | modal.ConnectionError()
        ):
            return Unavailable(f"{doing}: {message}")
    if isinstance(error, OSError | modal.DataLossError) or _library(error) in _TRANSPORTS:
        return Unavailable(f"{doing}: {message}")
    return SandboxError(f"{doing}: {message}")


def _library(error: Exception) -> str:
    """Return the name of the package that defines an error."""
    return type(error).__module__.partition(".")[0]
