"""What a failed model call means: the one table, for agents inside the harness and for workers.

Standard library only, and nothing of ours: this file is also on the path of the frameworks' environments. Errors are
judged by the HTTP status that LiteLLM's exceptions carry. Two of its classes say more than their status (400); its
mapping of providers' errors is not complete, so the words of the two commonest misfits are looked at as well: a full
context and an empty account.

A request that is refused (400, 422) is the user's fault when it is the first one (a parameter that the provider does
not take), and an outcome of the agent later, when only the conversation has changed.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

CONTEXT_OVERFLOW = "context_overflow"
CONTENT_POLICY = "content_policy"
REQUEST_REJECTED = "request_rejected"
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
_FOR_THE_USER = {
    401: "the provider does not accept the key",
    403: "the provider does not allow it",
    404: "the provider does not have it",
}
_PREFIXES = re.compile(r"^(?:(?:litellm\.)?\w+(?:Error|Exception|Timeout)(?::| -) )+")
"""LiteLLM puts the names of its classes and the provider's before what the provider said."""
_LONGEST_DETAIL = 300


class Verdict(NamedTuple):
    """The same as a worker's last message."""

    type: str
    """`done` or `failed`."""
    kind: str
    """The agent's status if done; `user` or `infra` if failed."""
    message: str


def judge_model_error(error: BaseException, model: str, *, first_call: bool, text: str = "") -> Verdict:
    """`infra` is what may go away when the model is asked again. `text`: what the provider said, if not `detail`."""
    text = text or detail(error)
    status = getattr(error, "status_code", None)
    if _is_litellm(error, "ContextWindowExceededError"):
        return Verdict("done", CONTEXT_OVERFLOW, text)
    if _is_litellm(error, "ContentPolicyViolationError"):
        return Verdict("done", CONTENT_POLICY, text)
    if "No module named" in text:
        return for_user(model, f"needs a package that is not installed: {text}")
    if status == 402 or (status in _MAY_BE_ABOUT_MONEY and _EMPTY_ACCOUNT_WORDS.search(text)):
        return for_user(model, f"the account is used up: {text}")
    if status in _FOR_THE_USER:
        return for_user(model, f"{_FOR_THE_USER[status]}: {text}")
    if status == 413 or (status in (400, 422) and _CONTEXT_WORDS.search(text)):
        return Verdict("done", CONTEXT_OVERFLOW, text)
    if status in (400, 422) and first_call:
        return for_user(model, f"the provider refuses the request: {text}")
    if status in (400, 422):
        return Verdict("done", REQUEST_REJECTED, text)
    return Verdict("failed", "infra", f"{type(error).__name__}: {text}")


def for_user(model: str, message: str) -> Verdict:
    """What no pair would do better with: it stops the run."""
    return Verdict("failed", "user", f"model {model!r}: {message}")


def detail(error: BaseException, clean: Callable[[str], str] = str) -> str:
    """What the provider said, as one line; `clean` gets it before it is cut, since half a secret is not recognised."""
    text = clean(_PREFIXES.sub("", " ".join(str(error).split()))) or type(error).__name__
    return text if len(text) <= _LONGEST_DETAIL else text[:_LONGEST_DETAIL] + "…"


def _is_litellm(error: BaseException, name: str) -> bool:
    """LiteLLM is not imported for this: an error of its own can only come from where it has been."""
    kind = getattr(sys.modules.get("litellm.exceptions"), name, ())
    return isinstance(error, kind)
