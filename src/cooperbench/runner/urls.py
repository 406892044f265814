"""Checks of the URLs in the options of a run, before anything is written."""

from __future__ import annotations

from urllib.parse import urlsplit

from cooperbench.errors import UserError
from cooperbench.text import printable


def check_collector(url: str) -> None:
    """Raise UserError if traces cannot be sent to a URL, whoever answers there."""
    from cooperbench.export.otlp import endpoint_of, require_packages

    require_packages()
    endpoint_of(url)


def check_base_url(url: str) -> None:
    """Raise UserError unless this is an absolute HTTP URL."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number
        is_valid = False
    if not is_valid:
        raise UserError(
            f"--base-url {printable(url)!r} is not a URL; write it like http://localhost:8000/v1"
        )
