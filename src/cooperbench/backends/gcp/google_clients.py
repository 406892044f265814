"""What all of Google's APIs have in common: how clients are made and asked, what goes wrong, and labels.

Everything that we make has labels and is found by them: nothing without our labels is touched.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from cooperbench.backends.ownership import HOST_LABEL, this_owner
from cooperbench.errors import CooperBenchError, InfraError, UserError
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from google.api_core.retry import Retry

T = TypeVar("T")

COMPUTE_ENDPOINT_VARIABLE = "COOPERBENCH_GCP_COMPUTE_ENDPOINT"
BATCH_ENDPOINT_VARIABLE = "COOPERBENCH_GCP_BATCH_ENDPOINT"
STORAGE_ENDPOINT_VARIABLE = "STORAGE_EMULATOR_HOST"
"""The client's own variable."""
OURS = "cooperbench"
RUN = "cooperbench-run"
PURPOSE = "cooperbench-purpose"
"""The names of labels, besides those of the owner."""
CALL_SECONDS = 60.0
SIGN_IN = "gcloud auth application-default login"
NOT_INSTALLED = (
    "Google's clients are not installed: pip install 'cooperbench[gcp]';"
    " or use --backend local or --backend docker"
)
_LIBRARIES = ("google", "requests", "urllib3", "grpc")
_MAX_WORDS = 300
_MAX_LABEL = 63
_RETRY_SECONDS = 120.0


class QuotaExceeded(UserError):
    """The project may not have more of it."""


class OutOfMachines(InfraError):
    """The zone has none of that type just now."""


class NotFound(InfraError):
    """Google does not know it, or not any more."""


class Unavailable(InfraError):
    """Google did not answer, or said that it cannot just now. Worth another try."""


_FAULTS: tuple[tuple[type[CooperBenchError], str, str], ...] = (
    (
        UserError,
        r"^401 |google\.auth\.exceptions\.(?!TransportError)|invalid_grant|reauth|default credentials",
        f"Authentication failed ({{words}}): {SIGN_IN}",
    ),
    (
        UserError,
        r"\bbilling\b|BILLING_DISABLED",
        "billing is not enabled ({words}): gcloud billing projects link PROJECT --billing-account ACCOUNT",
    ),
    (
        UserError,
        r"SERVICE_DISABLED|accessNotConfigured|has not been used in project|API .*is disabled|is not enabled",
        "API not enabled ({service}): gcloud services enable {service}.googleapis.com{project}",
    ),
    (
        OutOfMachines,
        r"ZONE_RESOURCE_POOL_EXHAUSTED|does not have enough resources|stockout",
        "the zone has no such machines just now ({words}); set GCP_ZONE or GCP_MACHINE_TYPE",
    ),
    (
        Unavailable,
        r"^429 |rateLimitExceeded|RATE_LIMIT|per minute|rate limit|too many requests",
        "rate limited by Google ({words}); reduce the concurrency with -c",
    ),
    (
        QuotaExceeded,
        r"\bquota\b|QUOTA_EXCEEDED|quotaExceeded",
        "Insufficient quota ({words}): request more at https://console.cloud.google.com/iam-admin/quotas, or use -c",
    ),
    (
        UserError,
        r"^403 ",
        "the account may not do that ({words}): gcloud auth list tells whose it is",
    ),
    (NotFound, r"^404 ", "Google does not know it ({words})"),
    (UserError, r"^(400|409|412|501) ", "Google refuses it: {words}"),
)
"""Kinds of refusals, told by the HTTP status or by what Google says; the first that fits counts."""


def translated(error: Exception, doing: str) -> CooperBenchError:
    """Our error for one of the clients, their transport or the operating system."""
    if isinstance(error, ModuleNotFoundError):
        return UserError(NOT_INSTALLED)
    words = re.sub(r"\s+", " ", str(error) or type(error).__name__)
    words = re.sub(r"^\d{3} ((GET|POST|PUT|DELETE|PATCH) \S+: )?", "", words)
    words = printable(words)[:_MAX_WORDS].strip()
    kind, code = f"{type(error).__module__}.{type(error).__name__}", getattr(error, "code", None)
    everything = (
        f"{code} {kind} {error} {getattr(error, 'reason', '')} {getattr(error, 'errors', '')}"
    )
    service = (re.search(r"\b([a-z]+)\.googleapis\.com", everything) or ["", "compute"])[1]
    named = re.search(r"projects?[/ =]+['\"]?([a-z0-9][a-z0-9-]{3,62})", everything)
    project = f" --project {named[1]}" if named else ""
    for fault, pattern, line in _FAULTS:
        if re.search(pattern, everything, re.IGNORECASE):
            return fault(f"{doing}: {line.format(words=words, service=service, project=project)}")
    return Unavailable(f"{doing}: {words}")


@contextmanager
def faults(doing: str) -> Iterator[None]:
    """Around calls and imports of Google's clients: turns their errors into ours."""
    try:
        yield
    except CooperBenchError:
        raise
    except Exception as error:
        if not _is_theirs(error):
            raise
        raise translated(error, doing) from error


def _is_theirs(error: Exception) -> bool:
    if isinstance(error, ModuleNotFoundError):
        return (error.name or "").startswith("google")
    return isinstance(error, OSError) or type(error).__module__.split(".")[0] in _LIBRARIES


def ask(doing: str, method: Callable[..., T], *request: Any, **arguments: Any) -> T | None:
    """What a client's method answers, which may be called twice; None for what is not there."""
    try:
        with faults(doing):
            return method(*request, **arguments, timeout=CALL_SECONDS, retry=patient())
    except NotFound:
        return None


@cache
def patient() -> Retry:
    """For calls that may be made twice: again while Google does not answer or says that it is too much."""
    from google.api_core.retry import Retry

    def passes(error: Exception) -> bool:
        return _is_theirs(error) and isinstance(translated(error, ""), Unavailable)

    return Retry(predicate=passes, initial=0.5, maximum=10.0, timeout=_RETRY_SECONDS)


def client_options(variable: str = COMPUTE_ENDPOINT_VARIABLE) -> dict[str, Any]:
    """For Google's clients. An endpoint without TLS is a server for tests: it gets no credentials."""
    endpoint = os.environ.get(variable, "")
    if not endpoint:
        return {}
    from google.api_core.client_options import ClientOptions
    from google.auth import credentials

    nobody: Any = credentials.AnonymousCredentials
    anonymous = {"credentials": nobody()} if endpoint.startswith("http:") else {}
    return {"client_options": ClientOptions(api_endpoint=endpoint), **anonymous}


def resource_labels(run_name: str, purpose: str) -> dict[str, str]:
    """For a job, a machine or a disk of this process; `run_name` is empty where there is none."""
    return {OURS: "1", RUN: _label(run_name), PURPOSE: _label(purpose), **this_owner().labels}


def _label(text: str) -> str:
    """Google takes small letters, digits, `_` and `-`."""
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower())[:_MAX_LABEL].strip("-") or "-"


def host_filter() -> str:
    """As the APIs take it: what this user has made from this machine."""
    return f'labels.{HOST_LABEL}="{this_owner().labels[HOST_LABEL]}"'
