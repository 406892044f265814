"""LiteLLM, imported once per process, without its network look-ups, its prints and its search for .env files.

The import takes seconds, so whoever needs it says `load()` where it is needed and may call it early in a thread.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import warnings
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cooperbench.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

EXTRA = "pip install 'cooperbench[agents]'"
_SETTINGS = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # prices from the package, not from the network
    "LITELLM_MODE": "PRODUCTION",  # else it loads the .env of whatever folder is above the package
}
_lock = threading.Lock()


@cache
def load() -> Any:
    """The module `litellm`; a UserError that names the extra where it is not installed."""
    with _lock, environment(_SETTINGS), warnings.catch_warnings():
        # Deprecations inside of it are not for users of ours.
        warnings.simplefilter("ignore")
        try:
            litellm: Any = import_module("litellm")
        except ModuleNotFoundError as error:
            raise missing(error, "asking a model") from error
    for message in ("Pydantic serializer warnings", "Item .* on TypedDict class"):
        # About its own declarations, when it imports the rest of itself and when it copies answers.
        warnings.filterwarnings("ignore", message, UserWarning)
    litellm.client_session = _connections()
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        # Its complaints would go through the live display; what matters arrives as an exception.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return litellm


def _connections() -> Any:
    """One pool for all agents of a process: LiteLLM's own would let a hundred wait for each other."""
    httpx: Any = import_module("httpx")
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    client = httpx.Client(limits=limits, timeout=600.0, follow_redirects=True)
    atexit.register(client.close)
    return client


def warm_up() -> None:
    """Do now what the first call would wait for: LiteLLM imports most of itself with the first completion."""
    litellm = load()
    tool = {
        "type": "function",
        "function": {"name": "none", "parameters": {"type": "object", "properties": {}}},
    }
    with socket.socket() as nobody, suppress(Exception):
        # Bound and not listening: a call that fails at once, after everything has been imported.
        nobody.bind(("127.0.0.1", 0))
        litellm.completion(
            model="openai/none",
            messages=[{"role": "user", "content": "none"}],
            tools=[tool],
            api_base=f"http://127.0.0.1:{nobody.getsockname()[1]}",
            api_key="none",
            num_retries=0,
            max_retries=0,
            timeout=5,
        )


def missing(error: ModuleNotFoundError, what: str) -> UserError:
    """The one line for a package that is not there."""
    return UserError(f"{what} needs the package {error.name or error}, which is not installed: {EXTRA}")


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for the time of an import; what the user has set himself stays."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
