"""Google's registries want to know who asks. Whoever signed in to Google Cloud need not sign in with Docker as well."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from cooperbench.backends.gcp.faults import faults

if TYPE_CHECKING:
    from collections.abc import Iterable

_GOOGLES = re.compile(r"[a-z0-9-]+-docker\.pkg\.dev|(?:[a-z]+\.)?gcr\.io")
_TOKEN_SECONDS = 45 * 60
"""Tokens hold for an hour."""
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_SIGNED_IN = "_cooperbench_signed_in"


def google_hosts(names: Iterable[str]) -> list[str]:
    """The registries of Google's among those of these images."""
    return sorted({host for host in (name.partition("/")[0] for name in names) if _GOOGLES.fullmatch(host)})


def sign_in(api: Any, names: Iterable[str]) -> None:
    """Let an engine's client (docker-py's) use the user's credentials at the registries of these images."""
    known: dict[str, float] = getattr(api, _SIGNED_IN, {})
    for host in google_hosts(names):
        if time.monotonic() - known.get(host, -_TOKEN_SECONDS) < _TOKEN_SECONDS:
            continue
        api.login("oauth2accesstoken", _token(), registry=f"https://{host}", reauth=True)
        known[host] = time.monotonic()
    setattr(api, _SIGNED_IN, known)


def _token() -> str:
    with faults("asking for a token for the registry"):
        import google.auth
        from google.auth.transport.requests import Request

        credentials: Any = google.auth.default(scopes=[_SCOPE])[0]
        credentials.refresh(Request())
        return str(credentials.token)
