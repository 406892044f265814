"""One table says what a failed model call means: the same error ends in the same way whichever agent met it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.agents.llm import Attempts, load_litellm
from cooperbench.errors import AgentFailure, InfraError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.xdist_group("litellm")
MODEL = "openai/m"
OVERFLOW, REJECTED, FILTERED, USER, INFRA = (
    "context_overflow",
    "request_rejected",
    "content_policy",
    "user",
    "infra",
)


def named(kind: str, text: str) -> Callable[[], Exception]:
    def make() -> Exception:
        error: Exception = getattr(load_litellm().exceptions, kind)(
            text, llm_provider="openai", model=MODEL
        )
        return error

    return make


def unprocessable(text: str) -> Callable[[], Exception]:
    def make() -> Exception:
        import httpx

        response = httpx.Response(422, request=httpx.Request("POST", "http://localhost"))
        error: Exception = load_litellm().exceptions.UnprocessableEntityError(
            text, model=MODEL, llm_provider="openai", response=response
        )
        return error

    return make


def status(code: int, text: str) -> Callable[[], Exception]:
    """As LiteLLM passes on what it has no class for."""

    def make() -> Exception:
        error: Exception = load_litellm().exceptions.APIError(
            code, text, llm_provider="openai", model=MODEL
        )
        return error

    return make


CASES: dict[str, tuple[Callable[[], Exception], str, str]] = {
    # What came, what it is for the first call, and later.
    "402": (status(402, "no money"), USER, USER),
    "403 by status": (status(403, "not for you"), USER, USER),
    "413": (status(413, "body too large"), OVERFLOW, OVERFLOW),
    "422": (unprocessable("odd"), USER, REJECTED),
    "422 about the context": (unprocessable("maximum context is 8"), OVERFLOW, OVERFLOW),
    "payment required, 400": (named("BadRequestError", "Payment required"), USER, USER),
    "payment required, 429": (named("RateLimitError", "payment required"), USER, USER),
    "too many tokens": (named("BadRequestError", "too many tokens: 9 > 8"), OVERFLOW, OVERFLOW),
    "too many input tokens": (named("BadRequestError", "too many input tokens"), OVERFLOW, OVERFLOW),
    "credit": (named("BadRequestError", "Your credit balance is too low"), USER, USER),
    "quota": (named("RateLimitError", "You exceeded your current quota"), USER, USER),
    "package": (named("APIConnectionError", "No module named 'boto3'"), USER, USER),
    "bad request": (named("BadRequestError", "odd"), USER, REJECTED),
    "context": (named("ContextWindowExceededError", "full"), OVERFLOW, OVERFLOW),
    "filter": (named("ContentPolicyViolationError", "no"), FILTERED, FILTERED),
    "key": (named("AuthenticationError", "who?"), USER, USER),
    "model": (named("NotFoundError", "which?"), USER, USER),
    "rate": (named("RateLimitError", "slow down: too many tokens per minute"), INFRA, INFRA),
    "server": (named("InternalServerError", "oops"), INFRA, INFRA),
    "no error of a provider": (lambda: ValueError("odd"), INFRA, INFRA),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("first_call", [True, False])
def test_every_agent_judges_alike(
    case: str, first_call: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOPERBENCH_MODEL_RETRY_TIMEOUT", "0")
    make, first, later = CASES[case]
    expected = first if first_call else later
    assert ended(make(), first_call=first_call) == expected


def ended(error: Exception, *, first_call: bool) -> str:
    with pytest.raises((AgentFailure, UserError, InfraError)) as caught:
        Attempts(MODEL, first_call).failed(error, lambda _: None)
    if isinstance(caught.value, AgentFailure):
        return caught.value.status
    return USER if isinstance(caught.value, UserError) else INFRA


def test_names_of_classes_are_left_out_of_what_the_provider_said() -> None:
    attempts = Attempts(MODEL, first_call=False)
    notes: list[str] = []
    attempts.failed(named("Timeout", "APITimeoutError - Request timed out.")(), notes.append)
    assert notes[0].endswith(" s: Request timed out.")
