"""A check that a model server answers, before the first sandbox is opened."""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable

from cooperbench.errors import UserError
from cooperbench.runner.config import AgentSpec
from cooperbench.secrets import redact
from cooperbench.text import printable

_TIMEOUT_SECONDS = 10.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Treat a redirect as the answer: its target is not the server that was asked about."""

    def redirect_request(self, *_: object) -> None:
        """Follow no redirect."""


def check_model_servers(specs: Iterable[AgentSpec]) -> None:
    """Raise UserError if the server of a `--base-url` cannot be reached."""
    urls = {spec.base_url: spec.model for spec in specs if spec.base_url and spec.model}
    for url, model in urls.items():
        problem = connection_problem(url)
        if problem is not None:
            raise UserError(
                f"the server of model {printable(model)!r} is not reachable at "
                f"{printable(redact(url))}: {problem}; start it or correct --base-url"
            )


def connection_problem(url: str) -> str | None:
    """Return why a server cannot be reached; None if it gives any HTTP answer.

    Error statuses count as answers: which paths exist, and who may ask, differs between servers.
    """
    headers = {"User-Agent": "cooperbench"}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  # http(s) only
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        with opener.open(request, timeout=_TIMEOUT_SECONDS):
            return None
    except urllib.error.HTTPError as error:
        error.close()
        return None
    except urllib.error.URLError as error:
        # The model client may be configured to accept a certificate that we cannot verify.
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            return None
        return _describe(error.reason)
    except (OSError, http.client.HTTPException) as error:
        return _describe(error)


def _describe(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return f"no answer within {_TIMEOUT_SECONDS:g} s"
    if isinstance(reason, http.client.HTTPException):
        return f"the answer is not HTTP ({type(reason).__name__})"
    if isinstance(reason, OSError) and reason.strerror:
        return printable(reason.strerror)
    return printable(str(reason))
