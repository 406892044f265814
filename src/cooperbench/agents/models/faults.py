"""Whose fault it is when a model call fails, and whether asking again makes sense.

Judged by LiteLLM's exception classes. Its mapping of providers' errors is not complete, so the words of the two
commonest misfits are looked at as well: a context that is full, and an account that is empty. A 400 is the user's (a
parameter that the provider does not take) when it meets the first request, and an outcome of the agent later, when
only the conversation has changed.
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from time import time
from typing import Any

from cooperbench.errors import AgentFailure, CooperBenchError, UserError
from cooperbench.redaction import redact
from cooperbench.text import printable

CONTEXT_OVERFLOW = "context_overflow"
REFUSED = "content_policy"
REJECTED = "request_rejected"
_CONTEXT_WORDS = re.compile(
    r"context[ _](?:length|window|size)|maximum context|(?:prompt|input) is too long|too many (?:input )?tokens",
    re.IGNORECASE,
)
_EMPTY_ACCOUNT_WORDS = re.compile(
    r"insufficient[_ ](?:quota|credits|balance|funds)|exceeded your current quota|credit balance is too low"
    r"|payment required|billing",
    re.IGNORECASE,
)
_MAY_BE_ABOUT_MONEY = (400, 403, 429)
_PREFIXES = re.compile(r"^(?:(?:litellm\.)?\w+(?:Error|Exception|Timeout)(?::| -) )+")
"""LiteLLM puts the names of its classes and the provider's before what the provider said."""
_LONGEST_DETAIL = 300


def final_error(error: Exception, model: str, litellm: Any, *, first_call: bool) -> CooperBenchError | None:
    """What to raise instead of an error that will not go away; None where asking again may help."""
    kinds = litellm.exceptions
    status = getattr(error, "status_code", None)
    text = detail(error)
    where = f"model {printable(model)!r}"
    if "No module named" in text:
        return UserError(f"{where} needs a package that is not installed: {text}")
    if isinstance(error, kinds.ContextWindowExceededError):
        return AgentFailure(CONTEXT_OVERFLOW, text)
    if isinstance(error, kinds.ContentPolicyViolationError):
        return AgentFailure(REFUSED, text)
    if status == 402 or (status in _MAY_BE_ABOUT_MONEY and _EMPTY_ACCOUNT_WORDS.search(text)):
        return UserError(f"{where}: the account is used up: {text}")
    if isinstance(error, kinds.AuthenticationError):
        return UserError(f"{where}: the provider does not accept the key: {text}")
    if isinstance(error, kinds.PermissionDeniedError) or status == 403:
        return UserError(f"{where}: the provider does not allow it: {text}")
    if isinstance(error, kinds.NotFoundError):
        return UserError(f"{where}: the provider does not have it: {text}")
    if isinstance(error, (kinds.BadRequestError, kinds.UnprocessableEntityError)) or status == 413:
        if _CONTEXT_WORDS.search(text) or status == 413:
            return AgentFailure(CONTEXT_OVERFLOW, text)
        if first_call:
            return UserError(f"{where}: the provider refuses the request: {text}")
        return AgentFailure(REJECTED, text)
    return None


def detail(error: BaseException) -> str:
    """What the provider said, as one line without secrets."""
    text = _PREFIXES.sub("", " ".join(str(error).split()))
    # The framework of the first user of this module adds advice about commands of its own.
    text = text.replace(" You can permanently set your API key with `mini-extra config set KEY VALUE`.", "")
    text = printable(redact(text)) or type(error).__name__
    return text if len(text) <= _LONGEST_DETAIL else text[:_LONGEST_DETAIL] + "…"


def retry_after_seconds(error: BaseException) -> float | None:
    """How long the provider asks to wait, if it does."""
    headers = _headers(error)
    milliseconds, value = headers.get("retry-after-ms"), headers.get("retry-after")
    try:
        if milliseconds is not None:
            return max(0.0, float(milliseconds) / 1000)
        if value is None:
            return None
        if re.fullmatch(r"\d+(\.\d*)?", value.strip()):
            return float(value)
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except ValueError:
        return None


def _headers(error: BaseException) -> dict[str, str]:
    """Of the provider's answer; LiteLLM keeps them in one of two places."""
    found: dict[str, str] = {}
    for source in (
        getattr(getattr(error, "response", None), "headers", None),
        getattr(error, "litellm_response_headers", None),
    ):
        found |= {str(name).lower(): str(value) for name, value in dict(source or {}).items()}
    return found
