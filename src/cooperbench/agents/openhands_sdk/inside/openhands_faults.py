"""Whose fault it is when a conversation breaks off. Runs in OpenHands' environment."""

from __future__ import annotations

from model_faults import Verdict, judge_model_error
from openhands.sdk.llm.exceptions import types as faults

_OUTCOMES = (
    (faults.LLMContextWindowExceedError, "context_overflow"),
    (faults.LLMContentPolicyViolationError, "content_policy"),
    (faults.LLMMalformedConversationHistoryError, "request_rejected"),
    (faults.LLMMalformedActionError, "format_error"),
    (faults.LLMNoActionError, "format_error"),
    (faults.FunctionCallConversionError, "format_error"),
    (faults.FunctionCallValidationError, "format_error"),
    (faults.FunctionCallNotExistsError, "format_error"),
)


def judge(error: BaseException, model: str, *, first_call: bool) -> Verdict:
    """The SDK has tried again already where that made sense, and put the provider's error into one of its own."""
    text = " ".join(str(error).split())[:300] or type(error).__name__
    for kind, status in _OUTCOMES:
        if isinstance(error, kind):
            return Verdict("done", status, text)
    if isinstance(error, faults.LLMAuthenticationError):
        return Verdict("failed", "user", f"model {model!r}: the provider does not accept the key: {text}")
    if isinstance(error, faults.LLMContextWindowTooSmallError):
        return Verdict("failed", "user", f"model {model!r}: {text}")
    if isinstance(error, faults.LLMBadRequestError):
        if first_call:
            return Verdict("failed", "user", f"model {model!r}: the provider refuses the request: {text}")
        return Verdict("done", "request_rejected", text)
    cause = error.__cause__ if isinstance(error, faults.LLMError) and error.__cause__ else error
    return judge_model_error(cause, model, first_call=first_call)
