"""LiteLLM, as the harness uses it: what cannot work, what a failed call means and when to try again, what one used.

A provider that refuses one agent for a while (429) refuses all that use the same key: they all wait. The time until
which nobody asks is a file's modification time, so that agents in other processes and on other nodes see it too.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import logging
import os
import random
import re
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from cooperbench import secrets
from cooperbench.agents.base import retry_timeout_seconds
from cooperbench.errors import AgentFailure, InfraError, UserError
from cooperbench.models import Usage
from cooperbench.retry import backoff_seconds
from cooperbench.settings import default_cache_dir
from cooperbench.text import printable

DEFAULT_CALL_SECONDS = 600.0
"""How long one attempt may take."""
MAX_PAUSE_SECONDS = 60.0
MAX_SHARED_PAUSE_SECONDS = 120.0
"""A clock of another node that is wrong must not keep agents from their work."""
NO_OTHER_RETRIES = {"num_retries": 0, "max_retries": 0}
_TOO_MANY_REQUESTS = 429
CONTEXT_OVERFLOW, CONTENT_POLICY, REQUEST_REJECTED = (
    "context_overflow",
    "content_policy",
    "request_rejected",
)
_CONTEXT_WORDS = re.compile(
    r"context[ _](?:length|window|size)|maximum context|(?:prompt|input) is too long|too many (?:input )?tokens",
    re.IGNORECASE,
)
_EMPTY_ACCOUNT_WORDS = re.compile(
    r"insufficient[_ ](?:quota|credits|balance|funds)|exceeded your current quota|credit balance is too low"
    r"|payment required|billing",
    re.IGNORECASE,
)
_FOR_THE_USER = {
    401: "the provider does not accept the key",
    403: "the provider does not allow it",
    404: "the provider does not have it",
}
_PREFIXES = re.compile(r"^(?:(?:litellm\.)?\w*(?:Error|Exception|Timeout)(?::| -) )+")
"""LiteLLM puts the names of its classes and the provider's before what the provider said."""
_MAX_DETAIL_CHARACTERS = 300
_IMPORT_SETTINGS = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # prices from the package, not from the network
    "LITELLM_MODE": "PRODUCTION",  # else it loads the .env of whatever folder is above the package
    "MAX_IMAGE_URL_DOWNLOAD_SIZE_MB": "0",  # nothing is fetched here for an agent
}
_CREDENTIAL_KWARGS = (
    "api_key", "api_base", "base_url", "azure_ad_token", "vertex_credentials", "aws_access_key_id", "aws_profile_name",
)  # fmt: skip
_CREDENTIALS = {
    # Of providers whose credentials may be in several places: variables, a file, and what to do without any.
    "vertex_ai": (
        "GOOGLE_APPLICATION_CREDENTIALS VERTEXAI_CREDENTIALS VERTEXAI_PROJECT GOOGLE_CLOUD_PROJECT",
        "~/.config/gcloud/application_default_credentials.json",
        "`gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS and VERTEXAI_PROJECT",
    ),
    "bedrock": (
        "AWS_ACCESS_KEY_ID AWS_PROFILE AWS_BEARER_TOKEN_BEDROCK AWS_ROLE_ARN AWS_WEB_IDENTITY_TOKEN_FILE",
        "~/.aws",
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    ),
}
_lock = threading.Lock()
_pauses_folder: Path | None = None


@contextmanager
def _no_collections() -> Iterator[None]:
    """Half of LiteLLM's import is the search for garbage among half a million objects, all of which stay."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        # What agents say is searched less often: it stops 200 of them for 0.2 s, and finds 20 objects a step.
        gc.set_threshold(*gc.get_threshold()[:2], 100)


@cache
def load_litellm() -> Any:
    """The module `litellm`, without its network look-ups, prints and search for .env files."""
    with _lock, warnings.catch_warnings():
        # Deprecations inside of it are not for our users.
        warnings.simplefilter("ignore")
        litellm: Any = import_extra("litellm", "asking a model", _IMPORT_SETTINGS)
    for message in ("Pydantic serializer warnings", "Items? .* on TypedDict class"):
        # About its own declarations, when it imports the rest of itself and when it copies answers.
        warnings.filterwarnings("ignore", message, UserWarning)
    # For calls outside of the gateway, which LiteLLM would leave open.
    client = import_module("httpx").Client(timeout=DEFAULT_CALL_SECONDS, follow_redirects=True)
    litellm.client_session = client
    atexit.register(client.close)
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        # Its complaints would go through the live display; what matters arrives as an exception.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return litellm


def import_extra(module: str, purpose: str, settings: Mapping[str, str]) -> Any:
    """A module of the extra `agents`, with these environment variables where the user has not set them."""
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    try:
        with _no_collections():
            return import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{purpose} needs the package {error.name or error}, which is not installed: "
            "pip install 'cooperbench[agents]'"
        ) from error


def warm_up() -> None:
    """Do now what the first call would wait for: LiteLLM imports most of itself with the first completion."""
    litellm = load_litellm()
    parameters = {"type": "object", "properties": {}}
    with socket.socket() as unused, suppress(Exception), _no_collections():
        # Bound and not listening: a call that fails at once, after everything has been imported.
        unused.bind(("127.0.0.1", 0))
        litellm.completion(
            model="openai/none",
            messages=[{"role": "user", "content": "none"}],
            tools=[{"type": "function", "function": {"name": "none", "parameters": parameters}}],
            api_base=f"http://127.0.0.1:{unused.getsockname()[1]}",
            api_key="none",
            timeout=5,
            **NO_OTHER_RETRIES,
        )


def warm_up_gateway() -> None:
    """The same for agents that ask through the gateway."""
    with _no_collections():
        from cooperbench.gateway.server import Gateway
    warm_up()
    Gateway.shared()


def check_model(model: str, kwargs: Mapping[str, Any], base_url: str | None = None) -> None:
    """Raise UserError for a model of no known provider, or one that there is no key for.

    `kwargs`, from the agent config, is in every call: an `api_key` or `api_base` there is the user's responsibility.
    """
    kwargs = {**kwargs, **({"api_base": base_url} if base_url else {})}
    litellm = load_litellm()
    remember_secrets(kwargs)
    shown = printable(model)
    try:
        _, provider, *_ = litellm.get_llm_provider(
            model, api_base=kwargs.get("api_base") or kwargs.get("base_url")
        )
    except Exception as error:
        raise UserError(
            f"model {shown!r}: LiteLLM knows no provider of it; put the provider first, e.g. "
            f"openai/{shown} or gemini/{shown} (https://docs.litellm.ai/docs/providers)"
        ) from error
    if any(kwargs.get(name) for name in _CREDENTIAL_KWARGS):
        return
    if provider in _CREDENTIALS:
        variables, file, advice = _CREDENTIALS[provider]
        if not any(map(os.environ.get, variables.split())) and not Path(file).expanduser().exists():
            raise UserError(f"model {shown!r}: there are no credentials for {provider}: {advice}")
        return
    absent = litellm.validate_environment(model)["missing_keys"]
    keys = [name for name in absent if secrets.is_secret_name(name)]
    if keys:
        raise UserError(
            f"model {shown!r} needs {' or '.join(keys)}: set it in the environment or in .env, "
            "or api_key in the agent config"
        )


def remember_secrets(kwargs: Mapping[str, Any]) -> None:
    """Have the secrets among the settings of an agent config redacted from now on."""
    for name, value in kwargs.items():
        if isinstance(value, dict):
            remember_secrets({str(key): inner for key, inner in value.items()})
        elif isinstance(value, str) and (
            secrets.is_secret_name(name) or name.lower() == "authorization"
        ):
            secrets.remember_secret(value.removeprefix("Bearer "), name)


@dataclass
class Attempts:
    """At one model call: whether to try again, and when."""

    model: str
    first_call: bool
    """Whether this agent has had no answer yet: then a refused request is the user's to mend."""
    count: int = 0
    _first_failure: float | None = None

    def failed(self, error: Exception, note: Callable[[str], None]) -> float:
        """Seconds to wait before the next attempt; what makes no sense to try again is raised as an error of ours."""
        self.count += 1
        text = error_text(error)
        if final := classify_model_error(error, text, self.model, first_call=self.first_call):
            raise final from error
        now = time.monotonic()
        self._first_failure = self._first_failure or now
        pause = _pause_seconds(error, self.count)
        if now + pause > self._first_failure + retry_timeout_seconds():
            problem = f"model {self.model!r} did not answer in {self.count} attempts: {text}"
            raise InfraError(problem) from error
        if getattr(error, "status_code", None) == _TOO_MANY_REQUESTS:
            pause_all(self.model, pause)
        note(f"model call failed, again in {pause:.1f} s: {text}")
        return pause


def classify_model_error(
    error: Exception, text: str, model: str, *, first_call: bool
) -> AgentFailure | UserError | None:
    """What a failed call means, by its HTTP status; None where it may go away when the model is asked again.

    A refused request (400, 422) is the user's fault when it is the first one (a parameter that the provider does not
    take), and an outcome of the agent later, when only the conversation has changed.
    """
    status, kinds = getattr(error, "status_code", None), load_litellm().exceptions
    refused = status in (400, 422)
    if isinstance(error, kinds.ContextWindowExceededError):
        return AgentFailure(CONTEXT_OVERFLOW, text)
    if isinstance(error, kinds.ContentPolicyViolationError):
        return AgentFailure(CONTENT_POLICY, text)
    problem = _FOR_THE_USER.get(status or 0, "")
    if "No module named" in text:
        problem = "needs a package that is not installed"
    elif status == 402 or (status in (400, 403, 429) and _EMPTY_ACCOUNT_WORDS.search(text)):
        problem = "the account is used up"
    elif status == 413 or (refused and _CONTEXT_WORDS.search(text)):
        return AgentFailure(CONTEXT_OVERFLOW, text)
    elif refused and not first_call:
        return AgentFailure(REQUEST_REJECTED, text)
    elif refused:
        problem = "the provider refuses the request"
    return UserError(f"model {model!r}: {problem}: {text}") if problem else None


def error_text(error: Exception) -> str:
    """What the provider said, as one line. It is cut last, since half a secret is not recognised."""
    text = _PREFIXES.sub("", " ".join(str(error).split()))
    text = printable(secrets.redact(text)) or type(error).__name__
    return text if len(text) <= _MAX_DETAIL_CHARACTERS else text[:_MAX_DETAIL_CHARACTERS] + "…"


def ask(model: str, call: Callable[[], Any], *, first_call: bool) -> Any:
    """`call()`, until it answers, for callers that are no agent. What it raises in the end is an error of ours."""
    attempts = Attempts(model, first_call)
    while True:
        time.sleep(shared_pause(model))
        try:
            return call()
        except Exception as error:
            time.sleep(attempts.failed(error, lambda _: None))


def _pause_seconds(error: BaseException, attempt: int) -> float:
    """What the provider asks for; else growing."""
    # LiteLLM keeps the headers in one of two places.
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    others = getattr(error, "litellm_response_headers", None) or {}
    with suppress(KeyError, ValueError):
        return _jittered(max(0.0, float(headers.get("retry-after") or others["retry-after"])))
    return backoff_seconds(attempt, MAX_PAUSE_SECONDS)


def share_pauses(folder: Path) -> None:
    """With all that use this folder, instead of with this machine's processes."""
    global _pauses_folder
    _pauses_folder = folder


def pause_all(model: str, seconds: float) -> None:
    """Nobody who uses this model's key asks before this time is over."""
    path = _pause_path(model)
    until = time.time() + min(seconds, MAX_SHARED_PAUSE_SECONDS)
    # Without it each agent meets the refusal by itself.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or until > path.stat().st_mtime:
            path.touch()
            os.utime(path, (until, until))


def shared_pause(model: str) -> float:
    """How long to wait now."""
    try:
        left = _pause_path(model).stat().st_mtime - time.time()
    except OSError:
        return 0.0
    return _jittered(left) if 0 < left <= MAX_SHARED_PAUSE_SECONDS else 0.0


def _pause_path(model: str) -> Path:
    provider = model.partition("/")[0] if "/" in model else "openai"
    key = os.environ.get(f"{provider.upper()}_API_KEY", "")
    name = hashlib.sha256(f"{provider}\0{key}".encode()).hexdigest()[:16]
    return (_pauses_folder or default_cache_dir() / "rate-limits") / name


def _jittered(seconds: float) -> float:
    """A little more, so that not all agents come back at once."""
    return seconds * random.uniform(1.0, 1.1)  # noqa: S311  # jitter, not a secret


def usage_of(response: Any, model: str, seconds: float) -> Usage:
    """What one call used; `seconds` is how long it took. A model without a known price is unpriced, never free."""
    litellm, tokens, cost = load_litellm(), getattr(response, "usage", None), 0.0
    unpriced = not has_price(model)
    stated = getattr(tokens, "cost", None) is not None
    if stated or not (unpriced and _is_unknown(model, response.model, len(litellm.model_cost))):
        try:
            cost = float(litellm.completion_cost(response, model=model))
        except Exception:
            # Whatever it stumbles over, it is the price that is not known; the answer itself is good.
            unpriced = True
    details = getattr(tokens, "prompt_tokens_details", None)
    cached = getattr(details, "cached_tokens", None) or getattr(
        tokens, "cache_read_input_tokens", None
    )
    return Usage(
        calls=1,
        model_seconds=seconds,
        cost=cost,
        unpriced_calls=int(unpriced and cost <= 0),
        prompt_tokens=getattr(tokens, "prompt_tokens", None) or 0,
        completion_tokens=getattr(tokens, "completion_tokens", None) or 0,
        cached_tokens=cached or 0,
    )


@lru_cache(maxsize=1000)
def _is_unknown(model: str, answered_as: str | None, list_length: int) -> bool:  # noqa: ARG001
    """Whether LiteLLM finds no price, which takes it twice as long as a price; agents may add to its list."""
    litellm = load_litellm()
    used = litellm.Usage(prompt_tokens=1, completion_tokens=1, total_tokens=2)
    try:
        litellm.completion_cost(litellm.ModelResponse(model=answered_as, usage=used), model=model)
    except Exception:
        return True
    return False


def has_price(model: str) -> bool:
    """Is the model in LiteLLM's price list? One at zero is free."""
    prices = [load_litellm().model_cost.get(name, {}) for name in (model, model.partition("/")[2])]
    return any("input_cost_per_token" in price for price in prices)
