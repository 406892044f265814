"""Whose fault it is when a model call fails in a worker. Runs in the environment of a framework, which has LiteLLM."""

from __future__ import annotations

import re
from typing import NamedTuple

from litellm import exceptions as provider

_CONTEXT = re.compile(
    r"context[ _](?:length|window|size)|maximum context|(?:prompt|input) is too long", re.IGNORECASE
)
_EMPTY_ACCOUNT = re.compile(
    r"insufficient[_ ](?:quota|credits|balance|funds)|exceeded your current quota|credit balance is too low|billing",
    re.IGNORECASE,
)
_LONGEST = 300


class Verdict(NamedTuple):
    """The worker's last message."""

    type: str
    """`done` or `failed`."""
    kind: str
    """The status of one that is done; `user` or `infra` of one that failed."""
    message: str


def judge_model_error(error: BaseException, model: str, *, first_call: bool) -> Verdict:
    """For an error that did not go away when the framework asked again."""
    text = " ".join(str(error).split())[:_LONGEST] or type(error).__name__
    where = f"model {model!r}"
    if isinstance(error, provider.ContextWindowExceededError):
        return Verdict("done", "context_overflow", text)
    if isinstance(error, provider.ContentPolicyViolationError):
        return Verdict("done", "content_policy", text)
    if isinstance(error, provider.AuthenticationError):
        return Verdict("failed", "user", f"{where}: the provider does not accept the key: {text}")
    if isinstance(error, provider.PermissionDeniedError):
        return Verdict("failed", "user", f"{where}: the provider does not allow it: {text}")
    if isinstance(error, provider.NotFoundError):
        return Verdict("failed", "user", f"{where}: the provider does not have it: {text}")
    if isinstance(error, (provider.RateLimitError, provider.BadRequestError)) and _EMPTY_ACCOUNT.search(text):
        return Verdict("failed", "user", f"{where}: the account is used up: {text}")
    if isinstance(error, provider.BadRequestError):
        if _CONTEXT.search(text):
            return Verdict("done", "context_overflow", text)
        if first_call:
            return Verdict("failed", "user", f"{where}: the provider refuses the request: {text}")
        return Verdict("done", "request_rejected", text)
    return Verdict("failed", "infra", f"{type(error).__name__}: {text}")
