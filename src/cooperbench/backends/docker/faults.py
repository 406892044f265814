"""What goes wrong with an engine, said in one line: what happened, and the command that mends it.

`UserError` for what the user must mend, `InfraError` (and its children) for what may be gone when tried again.
Exceptions of docker-py and requests are told apart by class where they have one, by the engine's words where not.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from cooperbench.errors import CooperBenchError, InfraError, SandboxError, SandboxTimeout, UserError
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST_WORDS = 300
NEEDED_TOOLS = "sandboxes need sh, bash, coreutils and git in the image"


class EngineGone(InfraError):
    """The engine does not answer any more."""


class NotThere(SandboxError):
    """The engine does not know the container, image or network."""


class NotRunning(SandboxError):
    """The container is there but has ended."""


class _Advice(NamedTuple):
    pattern: str
    advice: str


_USERS_BUSINESS = (
    _Advice(
        "no space left on device|disk quota exceeded",
        "the engine's disk is full; free some space: {client} system prune -a",
    ),
    _Advice(
        "bind source path does not exist|invalid mount|statfs .*: no such file", "check the mount's source"
    ),
    _Advice(
        r'exec: "?(sh|/bin/sh)"?.* (not found|no such file)|executable file `?sh`? not found',
        f"the image has no sh; {NEEDED_TOOLS}",
    ),
    _Advice(
        "requires buildkit|buildkit is enabled|unknown flag: mount|unknown instruction: [a-z<{]",
        "its Dockerfile needs BuildKit; build it with: {client} build -t NAME FOLDER",
    ),
)


def words_of(error: BaseException) -> str:
    """The engine's own words, on one line; of many the first, and the last, which tell the cause."""
    line = _all_words(error)
    half = _LONGEST_WORDS // 2
    return line if len(line) <= _LONGEST_WORDS else f"{line[:half]} … {line[-half:]}"


def _all_words(error: BaseException) -> str:
    explanation = getattr(error, "explanation", None)
    if isinstance(explanation, bytes):
        explanation = explanation.decode("utf-8", "replace")
    text = str(explanation or error or type(error).__name__)
    return printable(re.sub(r"\s+", " ", text)).strip()


def translated(error: Exception, doing: str, client: str = "docker") -> CooperBenchError:
    """The error of ours for one of docker-py, requests or the operating system."""
    import requests
    from urllib3.exceptions import HTTPError

    words = words_of(error)
    for pattern, advice in _USERS_BUSINESS:
        if re.search(pattern, _all_words(error), re.IGNORECASE):
            return UserError(f"{doing}: {words} - {advice.format(client=client)}")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, requests.exceptions.ReadTimeout | TimeoutError):
        return SandboxTimeout(f"{doing}: the engine did not answer in time")
    if isinstance(error, requests.exceptions.ConnectionError | ConnectionError | HTTPError):
        return EngineGone(f"{doing}: the engine is gone ({words})")
    # Podman, where a container is being removed at this moment, speaks of an error of its own.
    if status == 404 or "no such container" in words.lower():
        return NotThere(f"{doing}: {words}")
    if re.search(
        r"is not running|not running|can only create exec sessions on running|container state improper", words
    ):
        return NotRunning(f"{doing}: {words}")
    return SandboxError(f"{doing}: {words}")


@contextmanager
def faults(doing: str, client: str = "docker") -> Iterator[None]:
    """Everything that the engine throws inside leaves as an error of ours."""
    try:
        yield
    except CooperBenchError:
        raise
    except Exception as error:
        if not _is_engines(error):
            raise
        raise translated(error, doing, client) from error


def _is_engines(error: Exception) -> bool:
    return isinstance(error, OSError) or type(error).__module__.split(".")[0] in (
        "docker",
        "requests",
        "urllib3",
    )


def _cause(words: str) -> str:
    """The operating system's word for it, where there is one: what libraries wrap around it tells nothing more."""
    found = re.search(r"\[Errno \d+\] [^'\"()]+", words)
    return found[0] if found else words


def cannot_connect(error: Exception, where: str, *, podman: bool) -> UserError:
    """The line for an engine that never answered."""
    words = _cause(words_of(error))
    if "paramiko" in words:
        return UserError(f"{where} needs another package: pip install 'docker[ssh]'; or use --backend local")
    if "Permission denied" in words or "PermissionError" in words:
        mend = (
            "run as the user whose Podman it is, or unset CONTAINER_HOST"
            if podman
            else "sudo usermod -aG docker $USER and log in again"
        )
        return UserError(f"no permission to use the engine at {where}: {mend}; or use --backend local")
    if podman:
        mend = "start it: systemctl --user start podman.socket, or set CONTAINER_HOST"
        return UserError(f"cannot connect to Podman at {where}: {mend}; or use --backend local ({words})")
    mend = "start it: sudo systemctl start docker, or start Docker Desktop; or set DOCKER_HOST"
    return UserError(
        f"cannot connect to the Docker daemon at {where}: {mend}; or use --backend local ({words})"
    )
