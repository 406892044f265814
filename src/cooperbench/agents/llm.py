"""How language models are asked, through LiteLLM, by whatever runs inside the harness. Nothing here knows a framework.

The import of LiteLLM takes seconds, so nothing of it is imported before `load_litellm()`, which may be called early in
a thread (`warm_up`). `check_model` says beforehand what cannot work, `Caller` asks and tries again, `usage_of` counts
tokens and money; what a failure means is said in `worker/model_faults`.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
import re
import socket
import threading
import time
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cooperbench import secrets
from cooperbench.agents.worker import model_faults
from cooperbench.errors import AgentFailure, CooperBenchError, InfraError, UserError
from cooperbench.models import Usage
from cooperbench.retry import backoff_seconds
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

EXTRA = "pip install 'cooperbench[agents]'"
PATIENCE_VARIABLE = "COOPERBENCH_MODEL_PATIENCE"
DEFAULT_PATIENCE_SECONDS = 300.0
DEFAULT_CALL_SECONDS = 600.0
"""How long one attempt may take."""
LONGEST_PAUSE_SECONDS = 60.0
NO_OTHER_RETRIES = {"num_retries": 0, "max_retries": 0}
_WAKE_SECONDS = 0.2
"""How often a waiting agent checks whether it has to end."""
_IMPORT_SETTINGS = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # prices from the package, not from the network
    "LITELLM_MODE": "PRODUCTION",  # else it loads the .env of whatever folder is above the package
}
_CREDENTIAL_KWARGS = (
    "api_key", "api_base", "base_url", "azure_ad_token", "vertex_credentials", "aws_access_key_id", "aws_profile_name",
)  # fmt: skip
_AMBIENT = {
    "vertex_ai": (
        "GOOGLE_APPLICATION_CREDENTIALS VERTEXAI_CREDENTIALS VERTEXAI_PROJECT GOOGLE_CLOUD_PROJECT",
        Path("~/.config/gcloud/application_default_credentials.json"),
        "`gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS and VERTEXAI_PROJECT",
    ),
    "bedrock": (
        "AWS_ACCESS_KEY_ID AWS_PROFILE AWS_BEARER_TOKEN_BEDROCK AWS_ROLE_ARN AWS_WEB_IDENTITY_TOKEN_FILE",
        Path("~/.aws"),
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    ),
}
"""Providers whose credentials may be in several places: variables, a file, and what to do without any."""
_lock = threading.Lock()


@cache
def load_litellm() -> Any:
    """The module `litellm`, without its network look-ups, prints and search for .env files.

    A UserError that names the extra where it is not installed.
    """
    with _lock, environment(_IMPORT_SETTINGS), warnings.catch_warnings():
        # Deprecations inside of it are not for our users.
        warnings.simplefilter("ignore")
        try:
            litellm: Any = import_module("litellm")
        except ModuleNotFoundError as error:
            raise missing_package(error, "asking a model") from error
    for message in ("Pydantic serializer warnings", "Item .* on TypedDict class"):
        # About its own declarations, when it imports the rest of itself and when it copies answers.
        warnings.filterwarnings("ignore", message, UserWarning)
    # One pool for all agents of a process: LiteLLM's own would let a hundred wait for each other.
    httpx: Any = import_module("httpx")
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    litellm.client_session = httpx.Client(limits=limits, timeout=DEFAULT_CALL_SECONDS, follow_redirects=True)
    atexit.register(litellm.client_session.close)
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        # Its complaints would go through the live display; what matters arrives as an exception.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return litellm


def warm_up() -> None:
    """Do now what the first call would wait for: LiteLLM imports most of itself with the first completion."""
    litellm = load_litellm()
    parameters = {"type": "object", "properties": {}}
    with socket.socket() as unused, suppress(Exception):
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


def missing_package(error: ModuleNotFoundError, what: str) -> UserError:
    return UserError(f"{what} needs the package {error.name or error}, which is not installed: {EXTRA}")


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for the time of an import; what the user has set stays."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def check_model(model: str, kwargs: Mapping[str, Any]) -> None:
    """Raise UserError for a model of no known provider, or one that there is no key for.

    `kwargs` is what the agent config adds to every call: an `api_key` or `api_base` there is the user's own
    responsibility. Whether the provider has the model is known with the first answer only.
    """
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
    if provider in _AMBIENT:
        variables, file, advice = _AMBIENT[provider]
        if not any(os.environ.get(name) for name in variables.split()) and not file.expanduser().exists():
            raise UserError(f"model {shown!r}: there are no credentials for {provider}: {advice}")
        return
    absent = litellm.validate_environment(model)["missing_keys"]
    keys = [name for name in absent if secrets.is_secret_name(name)]
    if keys:
        raise UserError(
            f"model {shown!r} needs {' or '.join(keys)}: set it in the environment or in .env, "
            "or model.model_kwargs.api_key in the agent config"
        )


def remember_secrets(kwargs: Mapping[str, Any]) -> None:
    """Have the secrets among the settings of an agent config redacted from now on."""
    for name, value in kwargs.items():
        if isinstance(value, dict):
            remember_secrets({str(key): inner for key, inner in value.items()})
        elif isinstance(value, str) and (secrets.is_secret_name(name) or name.lower() == "authorization"):
            secrets.remember(value.removeprefix("Bearer "), name)


def patience_seconds() -> float:
    """For how long a failing call is tried again, from its first failure on."""
    value = os.environ.get(PATIENCE_VARIABLE)
    try:
        return DEFAULT_PATIENCE_SECONDS if value is None else max(0.0, float(value))
    except ValueError:
        raise UserError(f"{PATIENCE_VARIABLE} is {value!r}; it is a number of seconds") from None


@dataclass
class Caller:
    """Asks one model on behalf of one agent: tries again while that makes sense, stops when the agent has to end.

    LiteLLM and the frameworks above it retry too, each in its own way, deaf to Ctrl-C and to time limits; they are
    told not to. A call that is in flight when the agent has to end is left behind in its daemon thread.
    """

    model: str
    check: Callable[[], None]
    """Raises when the agent has to end; called often."""
    note: Callable[[str], None]
    """Takes what people should find in the log."""
    patience: float = field(default_factory=patience_seconds)
    answered: int = 0
    again: Callable[[], None] = lambda: None
    """Called before another attempt at the same call."""

    def ask(self, call: Callable[[], Any]) -> Any:
        """`call()`, until it answers. What it raises in the end is an error of ours."""
        first_failure: float | None = None
        attempt = 0
        while True:
            self.check()
            attempt += 1
            try:
                answer = self._call_in_thread(call)
            except Exception as error:
                # What ends the agent may look like a failure of the call.
                self.check()
                final = final_error(error, self.model, first_call=self.answered == 0)
                if final is not None:
                    raise final from error
                now = time.monotonic()
                first_failure = first_failure or now
                pause = _pause_seconds(attempt, retry_after_seconds(error))
                if now + pause > first_failure + self.patience:
                    raise InfraError(
                        f"model {self.model!r} did not answer in {attempt} attempts: {error_text(error)}"
                    ) from error
                self.note(f"model call failed, again in {pause:.1f} s: {error_text(error)}")
                self._wait(pause)
                self.again()
            else:
                self.answered += 1
                return answer

    def _call_in_thread(self, call: Callable[[], Any]) -> Any:
        done = threading.Event()
        answers: list[Any] = []
        errors: list[Exception] = []

        def work() -> None:
            try:
                answers.append(call())
            except Exception as error:
                errors.append(error)
            finally:
                done.set()

        threading.Thread(target=work, name="model-call", daemon=True).start()
        while not done.wait(_WAKE_SECONDS):
            self.check()
        if errors:
            raise errors[0]
        return answers[0]

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.check()
            time.sleep(min(_WAKE_SECONDS, left))


def final_error(error: Exception, model: str, *, first_call: bool) -> CooperBenchError | None:
    """What to raise instead of an error that will not go away; None where asking again may help."""
    verdict = model_faults.judge_model_error(error, model, first_call=first_call, text=error_text(error))
    if verdict.type == "done":
        return AgentFailure(verdict.kind, verdict.message)
    return UserError(verdict.message) if verdict.kind == "user" else None


def error_text(error: BaseException) -> str:
    """What the provider said, as one line without secrets."""
    return model_faults.detail(error, _cleaned)


def _cleaned(text: str) -> str:
    # mini-swe-agent adds advice about a command of its own.
    advice = " You can permanently set your API key with `mini-extra config set KEY VALUE`."
    return printable(secrets.redact(text.replace(advice, "")))


def retry_after_seconds(error: BaseException) -> float | None:
    """How long the provider asks to wait, if it does."""
    headers: dict[str, str] = {}
    # LiteLLM keeps them in one of two places.
    response = getattr(error, "response", None)
    for source in (getattr(response, "headers", None), getattr(error, "litellm_response_headers", None)):
        headers |= {str(name).lower(): str(value) for name, value in dict(source or {}).items()}
    milliseconds, value = headers.get("retry-after-ms"), headers.get("retry-after")
    try:
        if milliseconds is not None:
            return max(0.0, float(milliseconds) / 1000)
        if value is None:
            return None
        if re.fullmatch(r"\d+(\.\d*)?", value.strip()):
            return float(value)
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _pause_seconds(attempt: int, asked_for: float | None) -> float:
    """What the provider asked for and a little more, so that not all agents come back at once; else growing."""
    if asked_for is not None:
        return asked_for * random.uniform(1.0, 1.1)  # noqa: S311  # jitter, not a secret
    return backoff_seconds(attempt, LONGEST_PAUSE_SECONDS)


def usage_of(response: Any, model: str, seconds: float, litellm: Any) -> Usage:
    """What one call used. `seconds` is how long the agent waited for this answer.

    A model that LiteLLM's price list does not have is counted as unpriced, never as free; one at zero is free.
    """
    tokens = getattr(response, "usage", None)
    cost = _cost(response, model, litellm)
    details = getattr(tokens, "prompt_tokens_details", None)
    return Usage(
        cost=cost or 0.0,
        prompt_tokens=_count(tokens, "prompt_tokens"),
        completion_tokens=_count(tokens, "completion_tokens"),
        # Providers say it in two ways.
        cached_tokens=_count(details, "cached_tokens") or _count(tokens, "cache_read_input_tokens"),
        calls=1,
        model_seconds=seconds,
        unpriced_calls=int(cost is None),
    )


def _cost(response: Any, model: str, litellm: Any) -> float | None:
    try:
        cost = float(litellm.completion_cost(response, model=model))
    except Exception:
        # Whatever it stumbles over, it is the price that is not known; the answer itself is good.
        return None
    names = (model, model.partition("/")[2])
    listed = any("input_cost_per_token" in litellm.model_cost.get(name, {}) for name in names)
    return cost if cost > 0 or listed else None


def _count(source: Any, name: str) -> int:
    value = getattr(source, name, None)
    return int(value) if isinstance(value, (int, float)) else 0
