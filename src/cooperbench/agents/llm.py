"""The harness's use of LiteLLM: loading it, checking models, failed calls and retries, prices.

A provider that rate-limits one agent (429) rate-limits all agents with the same key, so they all
wait. The end of the wait is stored as the modification time of a file, which agents in other
processes and on other nodes see too.
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
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from cooperbench import secrets
from cooperbench.agents.base import retry_timeout_seconds
from cooperbench.errors import AgentFailure, InfraError, UserError
from cooperbench.models import Usage
from cooperbench.retry import backoff_seconds
from cooperbench.settings import default_cache_dir
from cooperbench.text import printable

ModelKwargs = Mapping[str, Any]
"""Settings of an agent config that are arguments of every model call."""
DEFAULT_CALL_SECONDS = 600.0
"""Timeout of one attempt."""
MAX_PAUSE_SECONDS = 60.0
MAX_SHARED_PAUSE_SECONDS = 120.0
"""Limit for pauses of other nodes, whose clocks may be wrong."""
NO_OTHER_RETRIES = {"num_retries": 0, "max_retries": 0}
"""Arguments that keep LiteLLM from retrying: the harness does it."""
CONTEXT_OVERFLOW = "context_overflow"
CONTENT_POLICY = "content_policy"
REQUEST_REJECTED = "request_rejected"
_TOO_MANY_REQUESTS = 429
_REJECTED = (400, 422)
_CONTEXT_WORDS = re.compile(
    r"""
    context[ _](?:length|window|size|limit)
    | maximum\ context
    | (?:prompt|input)\ is\ too\ long
    | too\ many\ (?:input\ )?tokens
    | input\ tokens\ exceed
    | exceeds\ the\ maximum\ number\ of\ tokens  # Gemini
    """,
    re.IGNORECASE | re.VERBOSE,
)
_CONTENT_POLICY_WORDS = re.compile(
    r"""
    content_policy_violation
    | content\ filtering\ policy                 # Anthropic
    | content_filter
    | ResponsibleAIPolicyViolation               # Azure
    | result\ of\ our\ safety\ system            # OpenAI
    """,
    re.IGNORECASE | re.VERBOSE,
)
_EXHAUSTED_QUOTA_WORDS = re.compile(
    r"""
    insufficient[_ ](?:quota|credits|balance|funds)
    | exceeded\ your\ current\ quota
    | credit\ balance\ is\ too\ low
    | payment\ required
    | billing
    """,
    re.IGNORECASE | re.VERBOSE,
)
_USER_PROBLEMS = {
    401: "the provider rejects the API key",
    403: "the provider denies access",
    404: "the provider does not have this model",
}
"""Problems that every agent of a run would have, by HTTP status."""
_CLASS_NAMES = re.compile(r"^(?:(?:litellm\.)?\w*(?:Error|Exception|Timeout)(?::| -) )+")
"""Names of classes, which LiteLLM puts before the provider's message."""
_MAX_DETAIL_CHARACTERS = 300
_IMPORT_SETTINGS = {
    # Use the prices in the package, do not download any.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    # Do not load the .env file of a folder above the package.
    "LITELLM_MODE": "PRODUCTION",
    # Do not download images for an agent.
    "MAX_IMAGE_URL_DOWNLOAD_SIZE_MB": "0",
}
_CREDENTIAL_KWARGS = (
    "api_key",
    "api_base",
    "base_url",
    "azure_ad_token",
    "vertex_credentials",
    "aws_access_key_id",
    "aws_profile_name",
)
_OLDEST_GENERATION_THRESHOLD = 100
_lock = threading.Lock()
_pauses_folder: Path | None = None


class _Credentials(NamedTuple):
    """Places where a provider's credentials may be."""

    variables: tuple[str, ...]
    file: str
    advice: str
    """What to do if there are none."""


_CREDENTIALS = {
    "vertex_ai": _Credentials(
        variables=(
            "GOOGLE_APPLICATION_CREDENTIALS",
            "VERTEXAI_CREDENTIALS",
            "VERTEXAI_PROJECT",
            "GOOGLE_CLOUD_PROJECT",
        ),
        file="~/.config/gcloud/application_default_credentials.json",
        advice="run `gcloud auth application-default login`, "
        "or set GOOGLE_APPLICATION_CREDENTIALS and VERTEXAI_PROJECT",
    ),
    "bedrock": _Credentials(
        variables=(
            "AWS_ACCESS_KEY_ID",
            "AWS_PROFILE",
            "AWS_BEARER_TOKEN_BEDROCK",
            "AWS_ROLE_ARN",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
        ),
        file="~/.aws",
        advice="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    ),
}


class ProviderError(Exception):
    """An error response of a provider that was asked without LiteLLM."""

    def __init__(self, status_code: int, message: str, headers: Mapping[str, str]) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.headers = headers


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Import without garbage collections, which take half of the time and find nothing.

    Afterwards raise the threshold of the oldest generation: each collection of it stops 200 agents
    for 0.2 s and frees 20 objects per step.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(*gc.get_threshold()[:2], _OLDEST_GENERATION_THRESHOLD)


@cache
def load_litellm() -> Any:
    """Return the module `litellm`, without its downloads, prints and search for .env files."""
    with _lock, warnings.catch_warnings():
        # Deprecations inside of LiteLLM do not concern our users.
        warnings.simplefilter("ignore")
        litellm: Any = import_extra("litellm", "calling a model", _IMPORT_SETTINGS)
    for message in ("Pydantic serializer warnings", "Items? .* on TypedDict class"):
        # Later imports inside of LiteLLM and copies of its replies cause these.
        warnings.filterwarnings("ignore", message, UserWarning)
    # LiteLLM would not close its own client at the end of the process.
    client = import_module("httpx").Client(timeout=DEFAULT_CALL_SECONDS, follow_redirects=True)
    litellm.client_session = client
    atexit.register(client.close)
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    # The harness records replies itself.
    litellm.disable_streaming_logging = True
    # Otherwise requests in Anthropic's format go to the responses API of models named openai/…,
    # which most servers do not have.
    litellm.use_chat_completions_url_for_anthropic_messages = True
    # LiteLLM looks for its proxy server with every request in Anthropic's format. The import fails,
    # because packages are missing, and takes 9 ms each time. None lets it fail at once.
    sys.modules.setdefault("litellm.proxy.proxy_server", None)  # type: ignore[arg-type]
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        # Log lines would break the live display. Problems arrive as exceptions anyway.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return litellm


def import_extra(module: str, purpose: str, settings: Mapping[str, str]) -> Any:
    """Import a module of the extra `agents`.

    `settings` are environment variables for it, unless the user has set them.
    """
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    try:
        with _garbage_collection_paused():
            return import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{purpose} needs the package {error.name or error}, which is not installed: "
            "pip install 'cooperbench[agents]'"
        ) from error


def warm_up() -> None:
    """Import the modules that LiteLLM imports with the first completion."""
    litellm = load_litellm()
    parameters = {"type": "object", "properties": {}}
    with socket.socket() as unused, suppress(Exception), _garbage_collection_paused():
        # The port is bound but nobody listens: the call fails at once, after all imports.
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
    """Import LiteLLM and start the gateway."""
    with _garbage_collection_paused():
        from cooperbench.gateway.server import Gateway
    warm_up()
    Gateway.shared()


def check_model(model: str, kwargs: ModelKwargs, base_url: str | None = None) -> None:
    """Check that the model's provider is known and that there are credentials for it.

    `kwargs` are the settings of the agent config for every call. If there is an `api_key` or an
    `api_base` among them, credentials are not checked.

    Raises:
        UserError: The model cannot be called.
    """
    if base_url:
        kwargs = {**kwargs, "api_base": base_url}
    litellm = load_litellm()
    remember_secrets(kwargs)
    model_name = printable(model)
    try:
        _, provider, *_ = litellm.get_llm_provider(
            model, api_base=kwargs.get("api_base") or kwargs.get("base_url")
        )
    except Exception as error:
        raise UserError(
            f"model {model_name!r}: LiteLLM does not know its provider; "
            "put the provider first, e.g. "
            f"openai/{model_name} or gemini/{model_name} (https://docs.litellm.ai/docs/providers)"
        ) from error
    if any(kwargs.get(name) for name in _CREDENTIAL_KWARGS):
        return
    if provider in _CREDENTIALS:
        _check_credentials(model_name, provider, _CREDENTIALS[provider])
        return
    missing = litellm.validate_environment(model)["missing_keys"]
    keys = [name for name in missing if secrets.is_secret_name(name)]
    if keys:
        raise UserError(
            f"model {model_name!r} needs {' or '.join(keys)}: "
            "set it in the environment or in .env, or api_key in the agent config"
        )


def _check_credentials(model: str, provider: str, credentials: _Credentials) -> None:
    has_variable = any(os.environ.get(name) for name in credentials.variables)
    if not has_variable and not Path(credentials.file).expanduser().exists():
        raise UserError(
            f"model {model!r}: there are no credentials for {provider}: {credentials.advice}"
        )


def remember_secrets(kwargs: ModelKwargs) -> None:
    """Redact the secrets among the settings of an agent config from now on."""
    for name, value in kwargs.items():
        if isinstance(value, dict):
            remember_secrets({str(key): inner for key, inner in value.items()})
            continue
        is_secret = secrets.is_secret_name(name) or name.lower() == "authorization"
        if isinstance(value, str) and is_secret:
            secrets.remember_secret(value.removeprefix("Bearer "), name)


@dataclass
class Attempts:
    """The attempts at one model call: whether to retry, and when."""

    model: str
    first_call: bool
    """Whether the agent has not had a reply yet. Then a rejected request is the user's problem."""
    count: int = 0
    _first_failure: float | None = None

    def failed(self, error: Exception, note: Callable[[str], None]) -> float:
        """Return the seconds until the next attempt.

        Raises:
            AgentFailure: The conversation is the reason.
            UserError: Every agent would have this problem.
            InfraError: The provider has failed for longer than the retry timeout.
        """
        self.count += 1
        text = error_text(error)
        final_error = classify_model_error(error, text, self.model, first_call=self.first_call)
        if final_error:
            raise final_error from error
        now = time.monotonic()
        self._first_failure = self._first_failure or now
        pause = _pause_seconds(error, self.count)
        if now + pause > self._first_failure + retry_timeout_seconds():
            problem = f"model {self.model!r} did not reply in {self.count} attempts: {text}"
            raise InfraError(problem) from error
        if status_of(error) == _TOO_MANY_REQUESTS:
            pause_all(self.model, pause)
        note(f"model call failed, next attempt in {pause:.1f} s: {text}")
        return pause


def classify_model_error(
    error: Exception, text: str, model: str, *, first_call: bool
) -> AgentFailure | UserError | None:
    """Return what a failed call means for the agent or the run; None if a retry may help.

    A rejected request (400, 422) is the user's problem if it is the first one: there is a parameter
    that the provider does not accept. Later only the conversation has changed, so that it is an
    outcome of the agent.
    """
    status = status_of(error)
    failure = _conversation_failure(error, text, status)
    if failure:
        return AgentFailure(failure, text)
    problem = _user_problem(status, text)
    if not problem and status in _REJECTED:
        if _CONTEXT_WORDS.search(text):
            return AgentFailure(CONTEXT_OVERFLOW, text)
        if not first_call:
            return AgentFailure(REQUEST_REJECTED, text)
        problem = "the provider rejects the request"
    if not problem:
        return None
    return UserError(f"model {model!r}: {problem}: {text}")


def _user_problem(status: int | None, text: str) -> str:
    """Return the problem that every agent of the run would have; empty if there is none."""
    if "No module named" in text:
        return "a package is not installed"
    if status == 402 or (status in (400, 403, 429) and _EXHAUSTED_QUOTA_WORDS.search(text)):
        return "the account's quota is exhausted"
    return _USER_PROBLEMS.get(status or 0, "")


def _conversation_failure(error: Exception, text: str, status: int | None) -> str:
    """Return the status of the failure if the error is certainly about the conversation."""
    exceptions = load_litellm().exceptions
    if isinstance(error, exceptions.ContextWindowExceededError) or status == 413:
        return CONTEXT_OVERFLOW
    if isinstance(error, exceptions.ContentPolicyViolationError):
        return CONTENT_POLICY
    if status == 400 and _CONTENT_POLICY_WORDS.search(text):
        return CONTENT_POLICY
    return ""


def status_of(error: Exception) -> int | None:
    """Return the HTTP status of an error of ours or of LiteLLM; None if it has none."""
    status: int | None = getattr(error, "status_code", None)
    return status


def error_text(error: Exception) -> str:
    """Return the provider's message on one line."""
    text = _CLASS_NAMES.sub("", " ".join(str(error).split()))
    text = printable(secrets.redact(text)) or type(error).__name__
    # Redact before cutting: half a secret would not be recognized.
    if len(text) > _MAX_DETAIL_CHARACTERS:
        text = text[:_MAX_DETAIL_CHARACTERS] + "…"
    return text


def ask(model: str, call: Callable[[], Any], *, first_call: bool) -> Any:
    """Return the result of `call()`, with retries. For callers that are not agents.

    Raises the same errors as `Attempts.failed`.
    """
    attempts = Attempts(model, first_call)
    while True:
        time.sleep(shared_pause(model))
        try:
            return call()
        except Exception as error:
            time.sleep(attempts.failed(error, lambda _: None))


class TextAnswer(NamedTuple):
    """A model's answer, and what it used."""

    text: str
    usage: Usage


def ask_for_text(
    model: str, messages: Sequence[Mapping[str, str]], max_tokens: int, *, first_call: bool
) -> TextAnswer:
    """Return a model's answer to a conversation, with retries. For callers that are not agents.

    Raises the same errors as `Attempts.failed`.
    """
    litellm = load_litellm()

    def complete() -> Any:
        """Call the model."""
        return litellm.completion(
            model=model,
            messages=list(messages),
            timeout=DEFAULT_CALL_SECONDS,
            temperature=0,
            max_tokens=max_tokens,
            drop_params=True,
            **NO_OTHER_RETRIES,
        )

    started = time.monotonic()
    response = ask(model, complete, first_call=first_call)
    usage = usage_of(response, model, time.monotonic() - started)
    return TextAnswer(response.choices[0].message.content or "", usage)


def _pause_seconds(error: Exception, attempt: int) -> float:
    """Return the pause that the provider wants, or one that grows with each attempt."""
    for headers in _headers_of(error):
        with suppress(ValueError):
            seconds = float(headers.get("retry-after", ""))
            return _with_jitter(max(0.0, seconds))
    return backoff_seconds(attempt, MAX_PAUSE_SECONDS)


def _headers_of(error: Exception) -> list[Mapping[str, str]]:
    """Return the headers of the provider's response. LiteLLM stores them in one of two places."""
    if isinstance(error, ProviderError):
        return [error.headers]
    response = getattr(error, "response", None)
    candidates = [
        getattr(response, "headers", None),
        getattr(error, "litellm_response_headers", None),
    ]
    return [headers for headers in candidates if headers]


def share_pauses(folder: Path) -> None:
    """Share pauses with everyone who uses this folder, not only with processes of this machine."""
    global _pauses_folder
    _pauses_folder = folder


def pause_all(model: str, seconds: float) -> None:
    """Let all agents that use the model's key wait."""
    path = _pause_path(model)
    until = time.time() + min(seconds, MAX_SHARED_PAUSE_SECONDS)
    # If the file cannot be written, each agent gets the provider's refusal by itself.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or until > path.stat().st_mtime:
            path.touch()
            os.utime(path, (until, until))


def shared_pause(model: str) -> float:
    """Return the seconds to wait before the next call."""
    try:
        remaining = _pause_path(model).stat().st_mtime - time.time()
    except OSError:
        return 0.0
    if 0 < remaining <= MAX_SHARED_PAUSE_SECONDS:
        return _with_jitter(remaining)
    return 0.0


def _pause_path(model: str) -> Path:
    provider = model.partition("/")[0] if "/" in model else "openai"
    key = os.environ.get(f"{provider.upper()}_API_KEY", "")
    name = hashlib.sha256(f"{provider}\0{key}".encode()).hexdigest()[:16]
    return (_pauses_folder or default_cache_dir() / "rate-limits") / name


def _with_jitter(seconds: float) -> float:
    """Return up to 10 % more, so that agents do not all return at the same moment."""
    return seconds * random.uniform(1.0, 1.1)  # noqa: S311  # jitter is not a secret


def usage_of(response: Any, model: str, seconds: float) -> Usage:
    """Return the usage of one call that took `seconds`.

    `response` is LiteLLM's. A model without a known price counts as unpriced, not as free.
    """
    cost = _cost_of(response, model)
    is_unpriced = cost is None or (cost <= 0 and not has_price(model))
    tokens = response.usage

    def count(name: str) -> int:
        # Agents have replies without usage, or with one that cannot be read.
        return getattr(tokens, name, None) or 0

    details = getattr(tokens, "prompt_tokens_details", None)
    cached = getattr(details, "cached_tokens", None) or count("cache_read_input_tokens")
    return Usage(
        calls=1,
        model_seconds=seconds,
        cost=cost or 0.0,
        unpriced_calls=1 if is_unpriced else 0,
        prompt_tokens=count("prompt_tokens"),
        completion_tokens=count("completion_tokens"),
        cached_tokens=cached,
    )


def _cost_of(response: Any, model: str) -> float | None:
    """Return the cost of a call in US dollars; None if the price is not known."""
    litellm = load_litellm()
    is_stated = getattr(response.usage, "cost", None) is not None
    if not is_stated and not has_price(model):
        known_prices = len(litellm.model_cost)
        if _is_unknown(model, response.model, known_prices):
            return None
    try:
        return float(litellm.completion_cost(response, model=model))
    except Exception:
        # The reply itself is good. Only its price is not known.
        return None


@lru_cache(maxsize=1000)
def _is_unknown(
    model: str,
    replied_as: str | None,
    known_prices: int,  # noqa: ARG001  # part of the cache key
) -> bool:
    """Return whether LiteLLM has no price for a model.

    The answer is cached because a failed lookup takes twice as long as a successful one.
    `known_prices` is the number of prices in LiteLLM's list, which agents may extend.
    """
    litellm = load_litellm()
    usage = litellm.Usage(prompt_tokens=1, completion_tokens=1, total_tokens=2)
    try:
        litellm.completion_cost(litellm.ModelResponse(model=replied_as, usage=usage), model=model)
    except Exception:
        return True
    return False


def has_price(model: str) -> bool:
    """Return whether the model is in LiteLLM's price list, perhaps with a price of zero."""
    names = (model, model.partition("/")[2])
    prices = [load_litellm().model_cost.get(name, {}) for name in names]
    return any("input_cost_per_token" in price for price in prices)
