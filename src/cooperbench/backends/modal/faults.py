"""What goes wrong at Modal, said in one line: what happened, and the command that mends it.

`UserError` for what the user must mend, `InfraError` and its children for what may be gone when tried again. Exceptions
of the client are told apart by class where that is enough, by the server's words where it is not.
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
_LONGEST_WORDS = 300
_QUOTA = r"\b(billing|budget|spend|spending|payment|credits?|plan limit|usage limit|suspended)\b"
_LIBRARIES = ("modal", "grpclib", "h2", "aiohttp", "synchronicity")


class Unavailable(InfraError):
    """Modal did not answer, or said that it cannot just now. Worth another try."""


class RateLimited(InfraError):
    """Modal was asked too often."""


class Gone(SandboxError):
    """Modal does not know the sandbox or the command in it any more."""


class Lost(SandboxError):
    """A command's input or output cannot be followed any more, whatever became of the command."""


def words_of(error: BaseException) -> str:
    """Modal's own words, on one line."""
    return printable(re.sub(r"\s+", " ", str(error) or type(error).__name__))[:_LONGEST_WORDS].strip()


def translated(error: Exception, doing: str, environment: str = "") -> CooperBenchError:
    """The error of ours for one of the client, its transport or the operating system."""
    from modal import exception as modal

    words = words_of(error)
    if isinstance(error, modal.AuthError):
        if "missing" in words.lower():
            return UserError(NO_TOKEN)
        mend = "modal token new, or check MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
        return UserError(f"Modal refuses the token ({words}): {mend}; {OTHERWISE}")
    if isinstance(error, modal.ImageBuildError):
        image = re.search(r"\bim-\w+", words)
        see = f" (see it with: modal image logs {image[0]})" if image else ""
        return UserError(f"{doing}: the image cannot be built: {words}{see}")
    if isinstance(error, modal.PermissionDeniedError):
        return UserError(
            f"{doing}: the token may not do that ({words}): modal profile current tells whose it is"
        )
    if isinstance(error, modal.VersionError):
        return UserError(f"{doing}: {words}: pip install --upgrade 'cooperbench[modal]'")
    if isinstance(error, modal.ResourceExhaustedError):
        if re.search(_QUOTA, words, re.IGNORECASE):
            return UserError(
                f"{doing}: the workspace's quota is used up ({words}): see https://modal.com/settings/usage"
            )
        return RateLimited(f"{doing}: rate limited by Modal ({words}); reduce the concurrency with -c")
    if isinstance(error, modal.NotFoundError) and "environment" in words.lower():
        named = f" {environment!r}" if environment else ""
        return UserError(
            f"Modal has no environment{named} ({words}): modal environment list, then set MODAL_ENVIRONMENT"
        )
    if isinstance(error, modal.NotFoundError | modal.ConflictError | modal.ClientClosed):
        return Gone(f"{doing}: {words}")
    if isinstance(error, modal.InvalidError | modal.UnimplementedError):
        return UserError(f"{doing}: Modal refuses it: {words}")
    if isinstance(error, TimeoutError):
        return SandboxTimeout(f"{doing}: Modal did not answer in time")
    if _is_passing(error):
        return Unavailable(f"{doing}: {words}")
    return SandboxError(f"{doing}: {words}")


def _is_passing(error: Exception) -> bool:
    from modal import exception as modal

    known = (modal.ServiceError, modal.InternalError, modal.InternalFailure, modal.ConnectionError, OSError)
    return isinstance(error, known) or type(error).__module__.split(".")[0] in ("grpclib", "h2", "aiohttp")


@contextmanager
def faults(doing: str, environment: str = "") -> Iterator[None]:
    """Everything that the client throws inside leaves as an error of ours."""
    try:
        yield
    except CooperBenchError:
        raise
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__module__.split(".")[0] not in _LIBRARIES:
            raise
        raise translated(error, doing, environment) from error
