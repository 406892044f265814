"""What goes wrong at Google Cloud, said in one line: what happened, and the command that fixes it.

`UserError` for what the user must fix, `InfraError` and its children for what may be gone when tried again. Exceptions
of Google's clients are told apart by class where that is enough, by the server's words where it is not.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cooperbench.errors import CooperBenchError, InfraError, UserError
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

OTHERWISE = "or use --backend local or --backend docker"
NOT_INSTALLED = f"Google's clients are not installed: pip install 'cooperbench[gcp]'; {OTHERWISE}"
SIGN_IN = "gcloud auth application-default login"
QUOTAS_PAGE = "https://console.cloud.google.com/iam-admin/quotas"
_LONGEST_WORDS = 300
_DISABLED = (
    r"SERVICE_DISABLED|accessNotConfigured|has not been used in project|API .*is disabled|is not enabled"
)
_BILLING = r"\bbilling\b|BILLING_DISABLED|billing account"
_SERVICE = r"\b([a-z]+)\.googleapis\.com"
_QUOTA = r"\bquota\b|QUOTA_EXCEEDED|quotaExceeded|insufficient regional quota"
_RATE = r"rateLimitExceeded|RATE_LIMIT|per minute|per 100 seconds|rate limit|too many requests"
_STOCKOUT = r"ZONE_RESOURCE_POOL_EXHAUSTED|does not have enough resources|resource pool exhausted|stockout"
_SIGN_IN_WORDS = r"invalid_grant|reauth|could not automatically determine credentials|default credentials"
_SERVICES = {"compute": "Compute Engine", "batch": "Batch", "storage": "Cloud Storage"}
_LIBRARIES = ("google", "requests", "urllib3", "grpc")


class QuotaExceeded(UserError):
    """The project may not have more of it."""


class PermissionDenied(UserError):
    """The account lacks a permission."""


class OutOfMachines(InfraError):
    """The zone has none of that type just now."""


class NotFound(InfraError):
    """Google does not know it, or not any more."""


class Unavailable(InfraError):
    """Google did not answer, or said that it cannot just now. Worth another try."""


def words_of(error: BaseException) -> str:
    """Google's own words, on one line, without the address that was asked."""
    words = re.sub(r"\s+", " ", str(error) or type(error).__name__)
    words = re.sub(r"^\d{3} ((GET|POST|PUT|DELETE|PATCH) \S+: )?", "", words)
    return printable(words)[:_LONGEST_WORDS].strip()


def translated(error: Exception, doing: str) -> CooperBenchError:
    """The error of ours for one of the clients, their transport or the operating system."""
    if isinstance(error, ModuleNotFoundError):
        return UserError(NOT_INSTALLED)
    words, everything = (
        words_of(error),
        f"{error} {getattr(error, 'reason', '')} {getattr(error, 'errors', '')}",
    )
    code = _code(error)
    if _is_about_signing_in(error, code, everything):
        return UserError(f"{doing}: Authentication failed ({words}): {SIGN_IN}")
    if re.search(_BILLING, everything, re.IGNORECASE) and code in (400, 403, None):
        fix = "gcloud billing projects link PROJECT --billing-account ACCOUNT"
        return UserError(f"{doing}: billing is not enabled ({words}): {fix}")
    if re.search(_DISABLED, everything, re.IGNORECASE) and code in (403, None):
        service = (re.search(_SERVICE, everything) or ["", "compute"])[1]
        name = _SERVICES.get(service, service)
        project = _project_in(everything)
        fix = f"gcloud services enable {service}.googleapis.com{project}"
        return UserError(f"{doing}: API not enabled ({name}): {fix}")
    if re.search(_STOCKOUT, everything, re.IGNORECASE):
        return OutOfMachines(
            f"{doing}: the zone has no such machines just now ({words}); set GCP_ZONE or GCP_MACHINE_TYPE"
        )
    if code == 429 or re.search(_RATE, everything, re.IGNORECASE):
        return Unavailable(f"{doing}: rate limited by Google ({words}); reduce the concurrency with -c")
    if re.search(_QUOTA, everything, re.IGNORECASE):
        return QuotaExceeded(
            f"{doing}: Insufficient quota ({words}): request more at {QUOTAS_PAGE}, or reduce the concurrency with -c"
        )
    if code == 403:
        return PermissionDenied(
            f"{doing}: the account may not do that ({words}): gcloud auth list tells whose it is"
        )
    if code == 404:
        return NotFound(f"{doing}: Google does not know it ({words})")
    if code in (400, 412, 501):
        return UserError(f"{doing}: Google refuses it: {words}")
    if code is None and not _is_theirs(error):
        return InfraError(f"{doing}: {type(error).__name__}: {words}")
    return Unavailable(f"{doing}: {words}")


@contextmanager
def faults(doing: str) -> Iterator[None]:
    """Around calls of Google's clients, and around importing them: errors of ours instead of theirs."""
    try:
        yield
    except CooperBenchError:
        raise
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("google"):
            raise
        raise translated(error, doing) from error
    except Exception as error:
        if not _is_theirs(error):
            raise
        raise translated(error, doing) from error


def _code(error: Exception) -> int | None:
    """The HTTP status of an answer of Google's."""
    code = getattr(error, "code", None)
    if callable(code):
        return None
    return code if isinstance(code, int) else None


def _is_about_signing_in(error: Exception, code: int | None, everything: str) -> bool:
    if code == 401 or re.search(_SIGN_IN_WORDS, everything, re.IGNORECASE):
        return True
    named = type(error)
    return named.__module__.startswith("google.auth") and named.__name__ != "TransportError"


def _project_in(everything: str) -> str:
    found = re.search(r"projects?[/ =]+['\"]?([a-z0-9][a-z0-9-]{3,62})", everything)
    return f" --project {found[1]}" if found else ""


def _is_theirs(error: Exception) -> bool:
    return isinstance(error, OSError | TimeoutError) or type(error).__module__.split(".")[0] in _LIBRARIES
