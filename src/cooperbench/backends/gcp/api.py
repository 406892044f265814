"""What all of Google's APIs have in common: how clients are made, what goes wrong, and whose things are.

Errors are one line each: what happened, and the command that fixes it. `UserError` is for what the user must fix,
`InfraError` and its children for what may be gone when tried again. Everything that we make has labels, by which it is
found again, and only by which: what has none of ours is never touched.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from cooperbench.errors import CooperBenchError, InfraError, UserError
from cooperbench.sandbox.ownership import Owner, is_dead, this_owner
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from google.api_core.retry import Retry

COMPUTE_ENDPOINT_VARIABLE = "COOPERBENCH_GCP_COMPUTE_ENDPOINT"
BATCH_ENDPOINT_VARIABLE = "COOPERBENCH_GCP_BATCH_ENDPOINT"
STORAGE_ENDPOINT_VARIABLE = "STORAGE_EMULATOR_HOST"
"""The client's own variable."""
OURS = "cooperbench"
RUN = "cooperbench-run"
PURPOSE = "cooperbench-purpose"
HOST = "cooperbench-host"
BOOT = "cooperbench-boot"
PROCESS = "cooperbench-process"
SESSION = "cooperbench-session"
"""The names of labels."""
SIGN_IN = "gcloud auth application-default login"
NOT_INSTALLED = (
    "Google's clients are not installed: pip install 'cooperbench[gcp]';"
    " or use --backend local or --backend docker"
)
_LIBRARIES = ("google", "requests", "urllib3", "grpc")
_LONGEST_WORDS = 300
_LONGEST_LABEL = 63
_RETRY_SECONDS = 120.0


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


class _Fault(NamedTuple):
    """One kind of refusal: told by its HTTP status or by what Google says."""

    kind: type[CooperBenchError]
    codes: tuple[int, ...]
    pattern: str
    line: str


_FAULTS = (
    _Fault(
        UserError,
        (401,),
        r"google\.auth\.exceptions\.(?!TransportError)|invalid_grant|reauth|default credentials",
        f"Authentication failed ({{words}}): {SIGN_IN}",
    ),
    _Fault(
        UserError,
        (),
        r"\bbilling\b|BILLING_DISABLED",
        "billing is not enabled ({words}): gcloud billing projects link PROJECT --billing-account ACCOUNT",
    ),
    _Fault(
        UserError,
        (),
        r"SERVICE_DISABLED|accessNotConfigured|has not been used in project|API .*is disabled|is not enabled",
        "API not enabled ({service}): gcloud services enable {service}.googleapis.com{project}",
    ),
    _Fault(
        OutOfMachines,
        (),
        r"ZONE_RESOURCE_POOL_EXHAUSTED|does not have enough resources|stockout",
        "the zone has no such machines just now ({words}); set GCP_ZONE or GCP_MACHINE_TYPE",
    ),
    _Fault(
        Unavailable,
        (429,),
        r"rateLimitExceeded|RATE_LIMIT|per minute|rate limit|too many requests",
        "rate limited by Google ({words}); reduce the concurrency with -c",
    ),
    _Fault(
        QuotaExceeded,
        (),
        r"\bquota\b|QUOTA_EXCEEDED|quotaExceeded",
        "Insufficient quota ({words}): request more at https://console.cloud.google.com/iam-admin/quotas,"
        " or reduce the concurrency with -c",
    ),
    _Fault(
        PermissionDenied,
        (403,),
        "",
        "the account may not do that ({words}): gcloud auth list tells whose it is",
    ),
    _Fault(NotFound, (404,), "", "Google does not know it ({words})"),
    _Fault(UserError, (400, 409, 412, 501), "", "Google refuses it: {words}"),
)


def translated(error: Exception, doing: str) -> CooperBenchError:
    """The error of ours for one of the clients, their transport or the operating system."""
    if isinstance(error, ModuleNotFoundError):
        return UserError(NOT_INSTALLED)
    words = re.sub(r"\s+", " ", str(error) or type(error).__name__)
    words = re.sub(r"^\d{3} ((GET|POST|PUT|DELETE|PATCH) \S+: )?", "", words)
    words = printable(words)[:_LONGEST_WORDS].strip()
    kind = f"{type(error).__module__}.{type(error).__name__}"
    everything = f"{kind} {error} {getattr(error, 'reason', '')} {getattr(error, 'errors', '')}"
    service = (re.search(r"\b([a-z]+)\.googleapis\.com", everything) or ["", "compute"])[1]
    named = re.search(r"projects?[/ =]+['\"]?([a-z0-9][a-z0-9-]{3,62})", everything)
    project = f" --project {named[1]}" if named else ""
    code = getattr(error, "code", None)
    for fault in _FAULTS:
        if code in fault.codes or (fault.pattern and re.search(fault.pattern, everything, re.IGNORECASE)):
            return fault.kind(f"{doing}: {fault.line.format(words=words, service=service, project=project)}")
    return Unavailable(f"{doing}: {words}")


@contextmanager
def faults(doing: str) -> Iterator[None]:
    """Around calls of Google's clients, and around importing them: errors of ours instead of theirs."""
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


def resource_labels(run_name: str, purpose: str, **others: str) -> dict[str, str]:
    """For a job, a machine or a disk of this process; `run_name` is empty where there is none."""
    owner = this_owner()
    labels = {
        OURS: "1",
        RUN: run_name or "-",
        PURPOSE: purpose,
        HOST: f"{owner.machine}-{owner.user}",
        BOOT: owner.boot,
        PROCESS: f"{owner.namespace}-{owner.pid}-{owner.start}",
        **others,
    }
    return {name: _fit(value) for name, value in labels.items()}


def host_filter() -> str:
    """As the APIs take it: what this user has made from this machine."""
    owner = this_owner()
    return f'labels.{OURS}="1" AND labels.{HOST}="{_fit(f"{owner.machine}-{owner.user}")}"'


def is_leftover(labels: Mapping[str, str], *, running: bool = True) -> bool:
    """Is it ours, and its maker certainly gone?"""
    owner = owner_of(labels)
    return owner is not None and is_dead(owner, running=running)


def owner_of(labels: Mapping[str, str]) -> Owner | None:
    """None for what is not ours."""
    host, process = labels.get(HOST, "").split("-"), labels.get(PROCESS, "").split("-", 2)
    if labels.get(OURS) != "1" or len(host) != 2 or len(process) != 3 or not process[1].isdecimal():
        return None
    namespace, pid, start = process
    return Owner(host[0], labels.get(BOOT, ""), namespace, host[1], int(pid), start)


def _fit(text: str) -> str:
    """Google takes small letters, digits, `_` and `-`."""
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower())[:_LONGEST_LABEL].strip("-") or "-"
