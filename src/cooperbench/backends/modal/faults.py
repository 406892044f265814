"""Errors of Modal's client as errors of ours, in one line: what happened, and the command that fixes it.

`UserError` for what the user must fix, `InfraError` and its children for what may be gone when tried again. Exceptions
of the client are told apart by class where that is enough, by the server's message where it is not.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cooperbench.errors import CooperBenchError, InfraError, SandboxError, SandboxTimeout, UserError
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

OTHERWISE = "or use --backend local or --backend docker"
NOT_INSTALLED = (
    f"Modal's client is not installed: pip install 'cooperbench[modal]' and modal token new; {OTHERWISE}"
)
NO_TOKEN = f"there is no token for Modal: modal token new; {OTHERWISE}"
_LONGEST_MESSAGE = 300
_QUOTA = r"\b(billing|budget|spend|spending|payment|credits?|plan limit|usage limit|suspended)\b"
_LIBRARIES = ("modal", "grpclib", "h2", "aiohttp", "synchronicity")


class Unavailable(InfraError):
    """Modal did not answer, or said that it cannot just now. Worth another try."""


class RateLimited(InfraError):
    """Modal refused since there were too many requests."""


class Gone(SandboxError):
    """Modal does not know the sandbox or the command in it any more."""


class Lost(SandboxError):
    """A command's input or output cannot be followed any more, whatever became of the command."""


def message_of(error: BaseException) -> str:
    """Modal's own message, on one line."""
    return printable(re.sub(r"\s+", " ", str(error) or type(error).__name__))[:_LONGEST_MESSAGE].strip()


def translate(error: Exception, doing: str, environment: str = "") -> CooperBenchError:
    """The error of ours for one of the client, its transport or the operating system."""
    from modal import exception as modal

    message = message_of(error)
    if isinstance(error, modal.AuthError):
        if "missing" in message.lower():
            return UserError(NO_TOKEN)
        remedy = "modal token new, or check MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
        return UserError(f"Modal refuses the token ({message}): {remedy}; {OTHERWISE}")
    if isinstance(error, modal.ImageBuildError):
        image = re.search(r"\bim-\w+", message)
        see = f" (see it with: modal image logs {image[0]})" if image else ""
        return UserError(f"{doing}: the image cannot be built: {message}{see}")
    if isinstance(error, modal.PermissionDeniedError):
        return UserError(
            f"{doing}: the token may not do that ({message}): modal profile current tells whose it is"
        )
    if isinstance(error, modal.VersionError):
        return UserError(f"{doing}: {message}: pip install --upgrade 'cooperbench[modal]'")
    if isinstance(error, modal.ResourceExhaustedError):
        if re.search(_QUOTA, message, re.IGNORECASE):
            return UserError(
                f"{doing}: the workspace's quota is used up ({message}): see https://modal.com/settings/usage"
            )
        return RateLimited(f"{doing}: rate limited by Modal ({message}); reduce the concurrency with -c")
    if isinstance(error, modal.NotFoundError) and "environment" in message.lower():
        named = f" {environment!r}" if environment else ""
        return UserError(
            f"Modal has no environment{named} ({message}): modal environment list, then set MODAL_ENVIRONMENT"
        )
    if isinstance(error, modal.NotFoundError | modal.ConflictError | modal.ClientClosed):
        return Gone(f"{doing}: {message}")
    if isinstance(error, modal.InvalidError | modal.UnimplementedError):
        return UserError(f"{doing}: Modal refuses it: {message}")
    if isinstance(error, TimeoutError):
        return SandboxTimeout(f"{doing}: Modal did not answer in time")
    if _is_temporary(error):
        return Unavailable(f"{doing}: {message}")
    return SandboxError(f"{doing}: {message}")


def _is_temporary(error: Exception) -> bool:
    from modal import exception as modal

    known = (modal.ServiceError, modal.InternalError, modal.InternalFailure, modal.ConnectionError, OSError)
    return isinstance(error, known) or type(error).__module__.split(".")[0] in ("grpclib", "h2", "aiohttp")


@contextmanager
def faults(doing: str, environment: str = "") -> Iterator[None]:
    """Whatever the client raises inside leaves as an error of ours."""
    try:
        yield
    except CooperBenchError:
        raise
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__module__.split(".")[0] not in _LIBRARIES:
            raise
        raise translate(error, doing, environment) from error
