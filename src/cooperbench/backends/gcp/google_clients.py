"""Shared by all of Google's APIs: options of clients, calls with retries, errors, and labels.

Everything that we create has labels. Nothing without our labels is ever touched.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

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
"""The variable that Google's own client reads."""
OURS = "cooperbench"
RUN = "cooperbench-run"
PURPOSE = "cooperbench-purpose"
"""Names of labels; the owner's labels come in addition."""
CALL_SECONDS = 60.0
SIGN_IN = "gcloud auth application-default login"
NOT_INSTALLED = (
    "Google's clients are not installed: pip install 'cooperbench[gcp]';"
    " or use --backend local or --backend docker"
)
_LIBRARIES = ("google", "requests", "urllib3", "grpc")
_MAX_MESSAGE = 300
_MAX_LABEL = 63
_RETRY_SECONDS = 120.0


class QuotaExceeded(UserError):
    """A quota of the project is exhausted."""


class OutOfMachines(InfraError):
    """The zone has no machine of the requested type at the moment."""


class NotFound(InfraError):
    """The resource does not exist, or not any more."""


class Unavailable(InfraError):
    """Google did not answer or is temporarily unable to. A retry may help."""


class _ErrorRule(NamedTuple):
    """A kind of error, recognized by its HTTP status or its text."""

    error: type[CooperBenchError]
    pattern: re.Pattern[str]
    message: str
    """Our message, with {reason}, {service} and {project}."""


def _rule(error: type[CooperBenchError], pattern: str, message: str) -> _ErrorRule:
    return _ErrorRule(error, re.compile(pattern, re.IGNORECASE | re.VERBOSE), message)


_ERROR_RULES = (
    _rule(
        UserError,
        r"""
        ^401\s
        | google\.auth\.exceptions\.(?!TransportError)
        | invalid_grant | reauth | default\ credentials
        """,
        f"Authentication failed ({{reason}}): {SIGN_IN}",
    ),
    _rule(
        UserError,
        r"\bbilling\b | BILLING_DISABLED",
        "billing is not enabled ({reason}):"
        " gcloud billing projects link PROJECT --billing-account ACCOUNT",
    ),
    _rule(
        UserError,
        r"""
        SERVICE_DISABLED | accessNotConfigured
        | has\ not\ been\ used\ in\ project | API\ .*is\ disabled | is\ not\ enabled
        """,
        "API not enabled ({service}): gcloud services enable {service}.googleapis.com{project}",
    ),
    _rule(
        OutOfMachines,
        r"ZONE_RESOURCE_POOL_EXHAUSTED | does\ not\ have\ enough\ resources | stockout",
        "the zone has no such machines at the moment ({reason}); set GCP_ZONE or GCP_MACHINE_TYPE",
    ),
    _rule(
        Unavailable,
        r"""
        ^429\s | rateLimitExceeded | RATE_LIMIT
        | per\ minute | rate\ limit | too\ many\ requests
        """,
        "rate limited by Google ({reason}); reduce the concurrency with -c",
    ),
    _rule(
        QuotaExceeded,
        r"\bquota\b | QUOTA_EXCEEDED | quotaExceeded",
        "Insufficient quota ({reason}):"
        " request more at https://console.cloud.google.com/iam-admin/quotas, or use -c",
    ),
    _rule(
        UserError,
        r"^403\s",
        "the account lacks permission ({reason}): gcloud auth list shows which account is used",
    ),
    _rule(NotFound, r"^404\s", "not found at Google ({reason})"),
    _rule(UserError, r"^(400|409|412|501)\s", "rejected by Google: {reason}"),
)
"""Checked in order; the first match decides."""
_SERVICE = re.compile(r"\b([a-z]+)\.googleapis\.com")
_PROJECT = re.compile(r"projects?[/ =]+['\"]?([a-z0-9][a-z0-9-]{3,62})")


def translate(error: Exception, doing: str) -> CooperBenchError:
    """Translate an error of a client, its transport or the operating system into one of ours."""
    if isinstance(error, ModuleNotFoundError):
        return UserError(NOT_INSTALLED)
    reason = re.sub(r"\s+", " ", str(error) or type(error).__name__)
    reason = re.sub(r"^\d{3} ((GET|POST|PUT|DELETE|PATCH) \S+: )?", "", reason)
    reason = printable(reason)[:_MAX_MESSAGE].strip()
    details = _error_details(error)
    for rule in _ERROR_RULES:
        if rule.pattern.search(details):
            service = _SERVICE.search(details)
            project = _PROJECT.search(details)
            message = rule.message.format(
                reason=reason,
                service=service[1] if service else "compute",
                project=f" --project {project[1]}" if project else "",
            )
            return rule.error(f"{doing}: {message}")
    return Unavailable(f"{doing}: {reason}")


def _error_details(error: Exception) -> str:
    """Return everything an error says on one line: HTTP status, type, message, reason, causes."""
    from google.api_core.exceptions import GoogleAPICallError

    name = f"{type(error).__module__}.{type(error).__name__}"
    if isinstance(error, GoogleAPICallError):
        return f"{error.code} {name} {error} {error.reason or ''} {error.errors}"
    return f"None {name} {error}"


@contextmanager
def translated_errors(doing: str) -> Iterator[None]:
    """Translate errors of Google's clients, also those of importing them."""
    try:
        yield
    except CooperBenchError:
        raise
    except Exception as error:
        if not _is_client_error(error):
            raise
        raise translate(error, doing) from error


def _is_client_error(error: Exception) -> bool:
    """Tell whether an error comes from a client library or the operating system."""
    if isinstance(error, ModuleNotFoundError):
        return (error.name or "").startswith("google")
    return isinstance(error, OSError) or type(error).__module__.split(".")[0] in _LIBRARIES


def call(doing: str, method: Callable[..., T], *request: Any, **arguments: Any) -> T | None:
    """Call an idempotent method of a client with retries; return None if nothing is found."""
    try:
        with translated_errors(doing):
            return method(*request, **arguments, timeout=CALL_SECONDS, retry=retry_policy())
    except NotFound:
        return None


@cache
def retry_policy() -> Retry:
    """Return the retry policy of idempotent calls: retry outages and rate limits."""
    from google.api_core.retry import Retry

    def _is_temporary(error: Exception) -> bool:
        return _is_client_error(error) and isinstance(translate(error, ""), Unavailable)

    return Retry(predicate=_is_temporary, initial=0.5, maximum=10.0, timeout=_RETRY_SECONDS)


def client_options(variable: str = COMPUTE_ENDPOINT_VARIABLE) -> dict[str, Any]:
    """Return the options of a client with the endpoint in an environment variable, if it is set.

    An endpoint without TLS is a test server and gets no credentials.
    """
    endpoint = os.environ.get(variable, "")
    if not endpoint:
        return {}
    from google.api_core.client_options import ClientOptions
    from google.auth import credentials

    options: dict[str, Any] = {"client_options": ClientOptions(api_endpoint=endpoint)}
    if endpoint.startswith("http:"):
        anonymous: Any = credentials.AnonymousCredentials
        options["credentials"] = anonymous()
    return options


def resource_labels(run_name: str, purpose: str) -> dict[str, str]:
    """Return the labels of a job, a machine or a disk of this process."""
    return {OURS: "1", RUN: _label(run_name), PURPOSE: _label(purpose), **this_owner().labels}


def _label(text: str) -> str:
    """Return a text as a label, which has only lower-case letters, digits, `_` and `-`."""
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower())[:_MAX_LABEL].strip("-") or "-"


def host_filter() -> str:
    """Return the filter for resources of this user from this machine, in the APIs' syntax."""
    return f'labels.{HOST_LABEL}="{this_owner().labels[HOST_LABEL]}"'
