"""The engine: found, connected to, and used over its HTTP API with docker-py, which is imported only here.

`faults` turns errors of the engine into one line: `UserError` for what the user must fix, `InfraError` (and its
subclasses) for what may work when tried again.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from cooperbench.errors import CooperBenchError, InfraError, SandboxError, SandboxTimeout, UserError
from cooperbench.temporary import owned_prefix
from cooperbench.text import head_and_tail, printable

ANSWER_SECONDS = 120
NEEDED_TOOLS = "tasks need sh, bash 4.4 or newer, GNU coreutils and git in the image"
_PODMAN_START_SECONDS = 30.0
_ENDS_WITH_US = """
"$@" </dev/null &
service=$!
while read -r line; do :; done
kill -KILL "$service"
wait "$service"
"""
"""Ends Podman's service with this process: its stdin closes then, also after SIGKILL."""
_MAX_IDLE_CONNECTIONS = 64
_ANY_VERSION = "1.41"
_MAX_WORDS = 300
_GONE = "no such container|not running|can only create exec sessions on running|container state improper"
_ADVICE = {
    "no space left on device|disk quota exceeded": "the engine's disk is full; free some space:"
    " {client} system prune -a",
    "bind source path does not exist|invalid mount|statfs .*: no such file": "check the mount's source",
    r'exec: "?(sh|/bin/sh)"?.* (not found|no such file)|executable file `?sh`? not found': "the image has no sh; "
    + NEEDED_TOOLS,
    "requires buildkit|buildkit is enabled|unknown flag: mount|unknown instruction: [a-z<{]": "its Dockerfile needs"
    " BuildKit; build it with: {client} build -t NAME FOLDER",
}
"""What the user can do, by the engine's words."""


class EngineGone(InfraError):
    """The engine does not answer any more."""


class NotThere(SandboxError):
    """The engine does not know the container, image or network, or the container has ended."""


def words_of(error: BaseException) -> str:
    """The engine's own words, on one line."""
    explanation = getattr(error, "explanation", None)
    if isinstance(explanation, bytes):
        explanation = explanation.decode("utf-8", "replace")
    return printable(re.sub(r"\s+", " ", str(explanation or error or type(error).__name__))).strip()


def translated(error: Exception, doing: str, client: str = "docker") -> CooperBenchError:
    """Our error for one of docker-py, requests or the operating system."""
    import requests
    from urllib3.exceptions import HTTPError

    words = words_of(error)
    line = f"{doing}: {head_and_tail(words, _MAX_WORDS, ' … ')}"
    for pattern, advice in _ADVICE.items():
        if re.search(pattern, words, re.IGNORECASE):
            return UserError(f"{line} - {advice.format(client=client)}")
    if isinstance(error, requests.exceptions.ReadTimeout | TimeoutError):
        return SandboxTimeout(f"{doing}: the engine did not answer in time")
    if isinstance(error, requests.exceptions.ConnectionError | ConnectionError | HTTPError):
        return EngineGone(f"{doing}: the engine is gone ({words[:_MAX_WORDS]})")
    status = getattr(getattr(error, "response", None), "status_code", None)
    gone = status == 404 or re.search(_GONE, words, re.IGNORECASE)
    return NotThere(line) if gone else SandboxError(line)


def cannot_connect(error: Exception, where: str, wanted: str) -> UserError:
    """The line for an engine, the `wanted` one, that never answered."""
    # The operating system's words, where there are any: what libraries wrap around them tells nothing more.
    words = words_of(error)
    found = re.search(r"\[Errno \d+\] [^'\"()]+", words)
    words = found[0] if found else words[:_MAX_WORDS]
    what, podman = f"cannot connect to {wanted} at {where}", wanted == "Podman"
    if isinstance(error, ImportError) or "paramiko" in words:
        advice = "pip install 'docker[ssh]'"
    elif "Permission denied" in words and not podman:
        what = f"no permission to use the engine at {where}"
        advice = "sudo usermod -aG docker $USER and log in again"
    elif podman:
        advice = "start it: systemctl --user start podman.socket, or set CONTAINER_HOST"
    else:
        advice = (
            "start it: sudo systemctl start docker, or start Docker Desktop; or set DOCKER_HOST"
        )
    return UserError(f"{what}: {advice}; or use --backend local ({words})")


class Engine:
    """A connection to one engine, safe to share between threads. `api` is docker-py's low-level client."""

    def __init__(
        self, api: Any, where: str, *, podman: bool, service: PodmanService | None = None
    ) -> None:
        """`service` ends with it."""
        self.api = api
        self.where = where
        self.podman = podman
        self.client = "podman" if podman else "docker"
        """What users call on the command line."""
        self._service = service

    @cached_property
    def info(self) -> dict[str, Any]:
        """What the engine says of itself, asked once."""
        with self.faults("asking the engine what it can do"):
            return dict(self.api.info())

    @contextmanager
    def faults(self, doing: str) -> Iterator[None]:
        """Turns errors of the engine into ours."""
        try:
            yield
        except CooperBenchError:
            raise
        except Exception as error:
            library = type(error).__module__.split(".")[0]
            if not isinstance(error, OSError) and library not in ("docker", "requests", "urllib3"):
                raise
            raise translated(error, doing, self.client) from error

    def exec(self, container: str, argv: list[str], cwd: str | None = None) -> Any:
        """Start a command in a running container; its stdin and stdout: what docker-py calls a socket."""
        made = self.api.exec_create(container, argv, stdin=True, workdir=cwd)
        return self.api.exec_start(made["Id"], socket=True)

    def remove_container(self, container: str) -> None:
        """Kill and remove, at once; one that is gone already is fine."""
        try:
            with self.faults("removing a container"):
                self.api.remove_container(container, force=True, v=True)
        except NotThere:
            pass
        except SandboxError as error:
            if "already in progress" not in str(error):
                raise

    def close(self) -> None:
        self.api.close()
        if self._service is not None:
            self._service.close()


class PodmanService:
    """Podman itself needs no daemon, its HTTP API does. Ends with `close` or with this process."""

    def __init__(self, executable: str) -> None:
        found = shutil.which(executable)
        if found is None:
            raise UserError(
                f"there is no {executable!r} to start; install Podman, or use --backend local"
            )
        self._folder = Path(tempfile.mkdtemp(prefix=owned_prefix("podman")))
        self.url = f"unix://{self._folder}/podman.sock"
        argv = [found, "system", "service", "--time=0", self.url]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", _ENDS_WITH_US, "podman", *argv],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                # Podman's helpers leave a file `oom` where they stand.
                cwd=self._folder,
            )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Calling it again does nothing."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait(self) -> None:
        deadline, said = time.monotonic() + _PODMAN_START_SECONDS, ""
        # The shell lives on when the service fails at once: only the log shows that.
        while time.monotonic() < deadline and "Error:" not in said:
            with suppress(OSError):
                _knock(self.url)
                return
            time.sleep(0.02)
            said = (self._folder / "log").read_text("utf-8", "replace").strip()
        why = printable(said.rpartition("\n")[2]) or "no reason given"
        raise UserError(
            f"podman system service did not start: {why}; try `podman info`, or --backend local"
        )


def connect(executable: str = "docker") -> Engine:
    """UserError, in one line, where no engine answers. What answers may be Podman although Docker was asked for.

    Podman's is where CONTAINER_HOST says, else at a socket in the usual places, else a private service.
    """
    try:
        docker: Any = import_module("docker")
    except ModuleNotFoundError as error:
        hint = "pip install 'cooperbench[docker]'; or use --backend local"
        raise UserError(f"the docker backend needs the Python package docker: {hint}") from error
    if not Path(executable).name.endswith("podman"):
        if executable != "docker" and shutil.which(executable) is None:
            raise UserError(
                f"there is no {executable!r}; MSWEA_DOCKER_EXECUTABLE is docker or a podman"
            )
        where, options = _docker_address(docker)
        return _connect_to(docker, where, options)
    if named := os.environ.get("CONTAINER_HOST"):
        return _connect_to(docker, named, wanted="Podman")
    # Root's is for root: containers are each user's own.
    places = [os.environ.get("XDG_RUNTIME_DIR"), "/run" if os.getuid() == 0 else None]
    for place in filter(None, places):
        # Nobody may serve a socket any more.
        with suppress(UserError):
            return _connect_to(docker, f"unix://{place}/podman/podman.sock", wanted="Podman")
    service = PodmanService(executable)
    try:
        return _connect_to(docker, service.url, wanted="Podman", service=service)
    except BaseException:
        service.close()
        raise


def _docker_address(docker: Any) -> tuple[str, dict[str, Any]]:
    """DOCKER_HOST with its companions, else the context that the docker command would use."""
    name = os.environ.get("DOCKER_CONTEXT")
    try:
        if os.environ.get("DOCKER_HOST"):
            options = dict(docker.utils.kwargs_from_env())
            return options.pop("base_url", os.environ["DOCKER_HOST"]), options
        context = docker.ContextAPI.get_context(name)
    except Exception as error:
        raise UserError(
            f"DOCKER_HOST or the docker context in use cannot be read: {error}"
        ) from error
    if context is None and name:
        known = ", ".join(sorted(found.Name for found in docker.ContextAPI.contexts()))
        raise UserError(f"DOCKER_CONTEXT names {name!r}, which is not there; there are: {known}")
    if context is None or context.Name == "default" or not context.Host:
        return "unix:///var/run/docker.sock", {}
    return context.Host, {"tls": context.TLSConfig} if context.TLSConfig else {}


def _connect_to(
    docker: Any,
    where: str,
    options: dict[str, Any] | None = None,
    wanted: str = "the Docker daemon",
    service: PodmanService | None = None,
) -> Engine:
    try:
        if where.startswith("unix://"):
            # docker-py would say so too that nobody is there, but leave its own end open.
            _knock(where)
        api, about = open_api(docker, where, options or {})
    except Exception as error:
        raise cannot_connect(error, where, wanted) from error
    parts = {str(part.get("Name")) for part in about.get("Components") or []}
    return Engine(api, where, podman="Podman Engine" in parts, service=service)


def _knock(where: str) -> None:
    """OSError where nobody is at a socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(ANSWER_SECONDS)
        probe.connect(where.removeprefix("unix://"))


def open_api(docker: Any, where: str, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """docker-py's client with the engine's version, and what the engine says of that."""
    idle = _MAX_IDLE_CONNECTIONS
    api = docker.APIClient(where, _ANY_VERSION, ANSWER_SECONDS, max_pool_size=idle, **options)
    # There is no proxy to a socket of this machine, and looking for one takes time with every request.
    api.trust_env = not where.startswith("unix://")
    try:
        # docker-py's own way of asking for the version leaves a socket open where nobody answers.
        about: dict[str, Any] = api.version(api_version=False)
        api._version = str(about["ApiVersion"])
    except BaseException:
        api.close()
        raise
    return api, about
