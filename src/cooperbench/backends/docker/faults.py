"""What goes wrong with an engine, said in one line: what happened, and what to do about it.

`UserError` for what the user must fix, `InfraError` (and its children) for what may be gone when tried again.
Exceptions of docker-py and requests are told apart by class where they have one, by the engine's words where not.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from cooperbench.errors import CooperBenchError, InfraError, SandboxError, SandboxTimeout, UserError
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cooperbench.models import Task

UNREACHABLE = (
    "no such host|dial tcp|lookup .*|i/o timeout|connection refused|network is unreachable|context deadline"
)
_STEP = re.compile(r"step \d+/\d+ ?: *", re.IGNORECASE)
_FROM = re.compile(r"^[ \t]*FROM[ \t]+(?:--\S+[ \t]+)*(\S+)", re.IGNORECASE | re.MULTILINE)
_ARG = re.compile(r"^[ \t]*ARG[ \t]+(\w+)(?:=(\S*))?", re.IGNORECASE | re.MULTILINE)
_ARGUMENT = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")
_LONGEST_WORDS = 300
_NEEDED_TOOLS = "tasks need sh, bash 4.4 or newer, GNU coreutils and git in the image"


class EngineGone(InfraError):
    """The engine does not answer any more."""


class NotThere(SandboxError):
    """The engine does not know the container, image or network."""


class NotRunning(SandboxError):
    """The container is there but has ended."""


class _Advice(NamedTuple):
    pattern: str
    advice: str


_USER_ERRORS = (
    _Advice(
        "no space left on device|disk quota exceeded",
        "the engine's disk is full; free some space: {client} system prune -a",
    ),
    _Advice(
        "bind source path does not exist|invalid mount|statfs .*: no such file", "check the mount's source"
    ),
    _Advice(
        r'exec: "?(sh|/bin/sh)"?.* (not found|no such file)|executable file `?sh`? not found',
        f"the image has no sh; {_NEEDED_TOOLS}",
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
    for pattern, advice in _USER_ERRORS:
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


def lacks_tool(image: str, reason: str) -> UserError:
    """The line for an image in which no channel can work; `reason` is the channel's self test's."""
    missing = re.fullmatch(r"(\S+) is missing", reason)
    if missing:
        return UserError(f"the image {image} has no {missing[1]}: add it to its Dockerfile, tasks need it")
    return UserError(f"the image {image} cannot be used ({reason}): {_NEEDED_TOOLS}")


def _cause(words: str) -> str:
    """The operating system's word for it, where there is one: what libraries wrap around it tells nothing more."""
    found = re.search(r"\[Errno \d+\] [^'\"()]+", words)
    return found[0] if found else words


def cannot_connect(error: Exception, where: str, *, podman: bool) -> UserError:
    """The line for an engine that never answered."""
    words = _cause(words_of(error))
    if isinstance(error, ImportError) or "paramiko" in words:
        return UserError(f"{where} needs another package: pip install 'docker[ssh]'; or use --backend local")
    if "Permission denied" in words or "PermissionError" in words:
        advice = (
            "run as the user whose Podman it is, or unset CONTAINER_HOST"
            if podman
            else "sudo usermod -aG docker $USER and log in again"
        )
        return UserError(f"no permission to use the engine at {where}: {advice}; or use --backend local")
    if podman:
        advice = "start it: systemctl --user start podman.socket, or set CONTAINER_HOST"
        return UserError(f"cannot connect to Podman at {where}: {advice}; or use --backend local ({words})")
    advice = "start it: sudo systemctl start docker, or start Docker Desktop; or set DOCKER_HOST"
    return UserError(
        f"cannot connect to the Docker daemon at {where}: {advice}; or use --backend local ({words})"
    )


def build_failed(
    task: Task, name: str, problem: str, lines: list[str], client: str, build_args: Mapping[str, str]
) -> CooperBenchError:
    """What the engine said, and the last words of the build."""
    said = [line.strip() for line in lines if line.strip() and not line.startswith("Removing intermediate")]
    last = f" after: {printable(said[-1])[:200]}" if said else ""
    error = translated(RuntimeError(problem), f"building {name}", client)
    if isinstance(error, UserError):
        return error
    step = next((line for line in reversed(said) if _STEP.match(line)), "")
    if re.search(UNREACHABLE, problem) and (start := _FROM.search(_STEP.sub("", step))):
        image, argument = _base_image(task, start[1], build_args)
        another = f", or name another one: COOPERBENCH_BUILD_ARGS={argument}=…" if argument else ""
        return UserError(
            f"{task.label}: building {name} failed: its base image {image} is not there and no registry can be"
            f" reached; get it: {client} pull {image}, or import one under that name ({client} load,"
            f" {client} import){another}"
        )
    return UserError(
        f"{task.label}: building {name} failed: {printable(words_of(RuntimeError(problem)))}{last}"
        f" (see it with: {client} build {task.path})"
    )


def _base_image(task: Task, named: str, given: Mapping[str, str]) -> tuple[str, str | None]:
    """The image of a FROM as an engine shows it (Podman with its arguments filled in), and the argument for it."""
    dockerfile = task.dockerfile.read_text("utf-8", "replace")
    first = _FROM.search(dockerfile)
    declared = _ARG.findall(dockerfile, 0, first.start() if first else 0)
    values = {name: given.get(name) or default.strip("\"'") for name, default in declared}

    def filled(image: str) -> str:
        return _ARGUMENT.sub(lambda found: values.get(found[1] or found[2]) or found[3] or "", image)

    written = next((one for one in _FROM.findall(dockerfile) if named in (one, filled(one))), named)
    used = (found[1] or found[2] for found in _ARGUMENT.finditer(written))
    return printable(filled(written)), next((name for name in used if name in values), None)
