"""How language models are asked, through LiteLLM, by whatever runs inside the harness. Nothing here knows a framework.

The import of LiteLLM takes seconds, so nothing of it is imported before `load_litellm()`, which may be called early in
a thread (`warm_up`). `check_model` says beforehand what cannot work, `Caller` asks and tries again (`Attempts`),
`usage_of` counts tokens and money; what a failure means is said in `worker/client`.

A provider that refuses one agent for a while (429) refuses all that use the same key: they all wait. The time until
which nobody asks is a small file's modification time, so that agents in other processes and, in a folder that they
share, on other nodes see it too. One file for each provider and key; the key is in no name.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import random
import socket
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from cooperbench import secrets
from cooperbench.agents.base import patience_seconds
from cooperbench.agents.worker import client
from cooperbench.errors import AgentFailure, InfraError, UserError
from cooperbench.models import Usage
from cooperbench.retry import backoff_seconds
from cooperbench.settings import default_cache_dir
from cooperbench.text import printable

DEFAULT_CALL_SECONDS = 600.0
"""How long one attempt may take."""
LONGEST_PAUSE_SECONDS = 60.0
LONGEST_SHARED_PAUSE_SECONDS = 120.0
"""A clock of another node that is wrong must not keep agents from their work."""
NO_OTHER_RETRIES = {"num_retries": 0, "max_retries": 0}
_TOO_MANY_REQUESTS = 429
_WAKE_SECONDS = 0.2
"""How often a waiting agent checks whether it has to end."""
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


def import_extra(module: str, purpose: str, settings: Mapping[str, str]) -> Any:
    """A module of the extra `agents`, imported with these environment variables where the user has not set them.

    UserError where it is not installed.
    """
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    try:
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
            "or model.model_kwargs.api_key in the agent config"
        )


def remember_secrets(kwargs: Mapping[str, Any]) -> None:
    """Have the secrets among the settings of an agent config redacted from now on."""
    for name, value in kwargs.items():
        if isinstance(value, dict):
            remember_secrets({str(key): inner for key, inner in value.items()})
        elif isinstance(value, str) and (secrets.is_secret_name(name) or name.lower() == "authorization"):
            secrets.remember(value.removeprefix("Bearer "), name)


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
        text = client.detail(error, _cleaned)
        verdict = client.judge_model_error(error, self.model, first_call=self.first_call, text=text)
        if verdict.type == "done":
            raise AgentFailure(verdict.kind, verdict.message) from error
        if verdict.kind == "user":
            raise UserError(verdict.message) from error
        now = time.monotonic()
        self._first_failure = self._first_failure or now
        pause = _pause_seconds(error, self.count)
        if now + pause > self._first_failure + patience_seconds():
            problem = f"model {self.model!r} did not answer in {self.count} attempts: {text}"
            raise InfraError(problem) from error
        if getattr(error, "status_code", None) == _TOO_MANY_REQUESTS:
            pause_all(self.model, pause)
        note(f"model call failed, again in {pause:.1f} s: {text}")
        return pause


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
    answered: int = 0
    again: Callable[[], None] = lambda: None
    """Called before another attempt at the same call."""

    def ask(self, call: Callable[[], Any]) -> Any:
        """`call()`, until it answers. What it raises in the end is an error of ours."""
        attempts = Attempts(self.model, first_call=self.answered == 0)
        while True:
            if shared := shared_pause(self.model):
                self._pause(shared)
            self.check()
            try:
                answer = self._call_in_thread(call)
            except Exception as error:
                # What ends the agent may look like a failure of the call.
                self.check()
                self._pause(attempts.failed(error, self.note))
            else:
                self.answered += 1
                return answer

    def _call_in_thread(self, call: Callable[[], Any]) -> Any:
        answer: Future[Any] = Future()

        def work() -> None:
            try:
                answer.set_result(call())
            except Exception as error:
                answer.set_exception(error)

        threading.Thread(target=work, name="model-call", daemon=True).start()
        while wait([answer], _WAKE_SECONDS).not_done:
            self.check()
        return answer.result()

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.check()
            time.sleep(min(_WAKE_SECONDS, left))
        self.again()


def _cleaned(text: str) -> str:
    # mini-swe-agent adds advice about a command of its own.
    advice = " You can permanently set your API key with `mini-extra config set KEY VALUE`."
    return printable(secrets.redact(text.replace(advice, "")))


def _pause_seconds(error: BaseException, attempt: int) -> float:
    """What the provider asks for; else growing."""
    # LiteLLM keeps the headers in one of two places.
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    others = getattr(error, "litellm_response_headers", None) or {}
    with suppress(KeyError, ValueError):
        return _jittered(max(0.0, float(headers.get("retry-after") or others["retry-after"])))
    return backoff_seconds(attempt, LONGEST_PAUSE_SECONDS)


def share_pauses(folder: Path) -> None:
    """With all that use this folder, instead of with this machine's processes."""
    global _pauses_folder
    _pauses_folder = folder


def pause_all(model: str, seconds: float) -> None:
    """Nobody who uses this model's key asks before this time is over."""
    path = _pause_path(model)
    until = time.time() + min(seconds, LONGEST_SHARED_PAUSE_SECONDS)
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
    return _jittered(left) if 0 < left <= LONGEST_SHARED_PAUSE_SECONDS else 0.0


def _pause_path(model: str) -> Path:
    provider = model.partition("/")[0] if "/" in model else "openai"
    key = os.environ.get(f"{provider.upper()}_API_KEY", "")
    name = hashlib.sha256(f"{provider}\0{key}".encode()).hexdigest()[:16]
    return (_pauses_folder or default_cache_dir() / "rate-limits") / name


def _jittered(seconds: float) -> float:
    """A little more, so that not all agents come back at once."""
    return seconds * random.uniform(1.0, 1.1)  # noqa: S311  # jitter, not a secret


def usage_of(response: Any, model: str, seconds: float) -> Usage:
    """What one call used. `seconds` is how long the agent waited for this answer."""
    used = client.litellm_usage(response, model)
    return Usage(calls=1, model_seconds=seconds, unpriced_calls=int(used.pop("unpriced")), **used)
