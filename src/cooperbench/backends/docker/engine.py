"""The container engine: find it, connect to it and use its HTTP API through docker-py.

Only this module imports docker-py. `Engine.faults` translates the engine's errors: `UserError` for
what the user must fix, `InfraError` (and its subclasses) for what a retry may fix.
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
from contextlib import closing, contextmanager, suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from cooperbench.backends.docker.attached import Attached, Refused, attach
from cooperbench.errors import CooperBenchError, InfraError, SandboxError, SandboxTimeout, UserError
from cooperbench.sandbox.contract import NEEDED_TOOLS
from cooperbench.temporary import owned_prefix
from cooperbench.text import head_and_tail, printable

ANSWER_SECONDS = 120
_PODMAN_START_SECONDS = 30.0
_RUN_UNTIL_STDIN_CLOSES = """
"$@" </dev/null &
service=$!
while read -r line; do :; done
kill -KILL "$service"
wait "$service"
"""
"""Ends Podman's service with this process, whose end closes the script's stdin."""
_MAX_IDLE_CONNECTIONS = 64
_ANY_VERSION = "1.41"
_MAX_MESSAGE = 300
_NOT_FOUND = 404
_CONTAINER_GONE = re.compile(
    r"""
    no\ such\ container
    | not\ running
    | can\ only\ create\ exec\ sessions\ on\ running
    | container\ state\ improper
    """,
    re.IGNORECASE | re.VERBOSE,
)
_ADVICE = {
    r"no space left on device|disk quota exceeded": (
        "the engine's disk is full; free some space: {client} system prune -a"
    ),
    r"bind source path does not exist|invalid mount|statfs .*: no such file": (
        "check the mount's source"
    ),
    r'exec: "?(sh|/bin/sh)"?.* (not found|no such file)|executable file `?sh`? not found': (
        f"the image has no sh; {NEEDED_TOOLS}"
    ),
    r"requires buildkit|buildkit is enabled|unknown flag: mount|unknown instruction: [a-z<{]": (
        "its Dockerfile needs BuildKit; build it with: {client} build -t NAME FOLDER"
    ),
}
"""What the user can do, by patterns in the engine's message."""


class EngineGone(InfraError):
    """The engine no longer answers."""


class NotThere(SandboxError):
    """The container, image or network does not exist, or the container has ended."""


def engine_message(error: Any) -> str:
    """Return the engine's own message on one line."""
    api_error: Any = import_module("docker.errors").APIError
    message: object = error
    if isinstance(error, api_error) and error.explanation:
        message = error.explanation
    if isinstance(message, bytes):
        message = message.decode("utf-8", "replace")
    text = str(message) or type(error).__name__
    return printable(re.sub(r"\s+", " ", text)).strip()


def translate(error: Exception, doing: str, client: str = "docker") -> CooperBenchError:
    """Translate an error of docker-py, requests or the operating system into one of ours."""
    import requests
    from urllib3.exceptions import HTTPError

    message = engine_message(error)
    line = f"{doing}: {head_and_tail(message, _MAX_MESSAGE, ' … ')}"
    for pattern, advice in _ADVICE.items():
        if re.search(pattern, message, re.IGNORECASE):
            return UserError(f"{line} - {advice.format(client=client)}")
    if isinstance(error, requests.exceptions.ReadTimeout | TimeoutError):
        return SandboxTimeout(f"{doing}: the engine did not answer in time")
    if isinstance(error, requests.exceptions.ConnectionError | ConnectionError | HTTPError):
        return EngineGone(f"{doing}: the engine is gone ({message[:_MAX_MESSAGE]})")
    if _status_code(error) == _NOT_FOUND or _CONTAINER_GONE.search(message):
        return NotThere(line)
    return SandboxError(line)


def _status_code(error: Exception) -> int | None:
    """Return the HTTP status of an error response; None if there was no response."""
    import requests

    if isinstance(error, Refused):
        return error.status
    if isinstance(error, requests.exceptions.RequestException) and error.response is not None:
        return error.response.status_code
    return None


def connection_error(error: Exception, where: str, engine: str) -> UserError:
    """Return the error for an engine (`Podman` or `the Docker daemon`) that never answered."""
    reason = engine_message(error)
    # Keep only the operating system's message: the libraries' wrapping adds nothing.
    system_message = re.search(r"\[Errno \d+\] [^'\"()]+", reason)
    reason = system_message[0] if system_message else reason[:_MAX_MESSAGE]
    problem = f"cannot connect to {engine} at {where}"
    is_podman = engine == "Podman"
    if isinstance(error, ImportError) or "paramiko" in reason:
        advice = "pip install 'docker[ssh]'"
    elif "Permission denied" in reason and not is_podman:
        problem = f"no permission to use the engine at {where}"
        advice = "sudo usermod -aG docker $USER and log in again"
    elif is_podman:
        advice = "start it: systemctl --user start podman.socket, or set CONTAINER_HOST"
    else:
        advice = (
            "start it: sudo systemctl start docker, or start Docker Desktop; or set DOCKER_HOST"
        )
    return UserError(f"{problem}: {advice}; or use --backend local ({reason})")


class Engine:
    """A connection to one engine, safe to share between threads."""

    def __init__(
        self,
        api: Any,
        where: str,
        *,
        podman: bool,
        service: PodmanService | None = None,
        address: str | None = None,
    ) -> None:
        """Store the connection; `service` is a private Podman service that ends with it."""
        self.api = api
        """docker-py's low-level client."""
        self.where = where
        """The engine's name in messages: its address, or its machine."""
        self._address = address or where
        self.podman = podman
        self.client = "podman" if podman else "docker"
        """The engine's command-line client."""
        self._service = service

    @cached_property
    def info(self) -> dict[str, Any]:
        """The engine's description of itself, requested once."""
        with self.faults("reading the engine's description"):
            return dict(self.api.info())

    @contextmanager
    def faults(self, doing: str) -> Iterator[None]:
        """Translate errors of the engine into ours."""
        try:
            yield
        except CooperBenchError:
            raise
        except Exception as error:
            library = type(error).__module__.split(".")[0]
            is_ours = isinstance(error, (OSError, Refused))
            if not is_ours and library not in ("docker", "requests", "urllib3", "paramiko"):
                raise
            raise translate(error, doing, self.client) from error

    def exec(self, container: str, argv: list[str], cwd: str | None = None) -> Attached:
        """Start a command in a container; return the connection to its stdin and stdout."""
        execution = self.api.exec_create(container, argv, stdin=True, workdir=cwd)
        path = f"/exec/{execution['Id']}/start"
        return attach(
            self.api, self._address, path, {"Detach": False, "Tty": False}, ANSWER_SECONDS
        )

    def attach_to(self, container: str) -> Attached:
        """Return the connection to stdin and stdout of a container's first process."""
        path = f"/containers/{container}/attach?stdin=1&stdout=1&stderr=1&stream=1"
        return attach(self.api, self._address, path, None, ANSWER_SECONDS)

    def remove_container(self, container: str) -> None:
        """Kill and remove a container, if it still exists."""
        try:
            with self.faults("removing a container"):
                self.api.remove_container(container, force=True, v=True)
        except NotThere:
            pass
        except SandboxError as error:
            if "already in progress" not in str(error):
                raise

    def close(self) -> None:
        """Close the connection and the private service."""
        self.api.close()
        if self._service is not None:
            self._service.close()


class PodmanService:
    """A private service for Podman's HTTP API. It ends with `close` or with this process."""

    def __init__(self, executable: str) -> None:
        """Start the service; UserError if that fails."""
        program = shutil.which(executable)
        if program is None:
            raise UserError(
                f"no program {executable!r} found; install Podman, or use --backend local"
            )
        self._folder = Path(tempfile.mkdtemp(prefix=owned_prefix("podman")))
        self.url = f"unix://{self._folder}/podman.sock"
        argv = [program, "system", "service", "--time=0", self.url]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", _RUN_UNTIL_STDIN_CLOSES, "podman", *argv],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                # Podman's helpers write a file `oom` to their working directory.
                cwd=self._folder,
            )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the service. Calling it again does nothing."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait(self) -> None:
        """Wait until the service answers."""
        deadline = time.monotonic() + _PODMAN_START_SECONDS
        log = ""
        # The shell keeps running if the service fails at once, so only the log shows a failure.
        while time.monotonic() < deadline and "Error:" not in log:
            with suppress(OSError):
                _probe_socket(self.url)
                return
            time.sleep(0.02)
            log = (self._folder / "log").read_text("utf-8", "replace").strip()
        reason = printable(log.rpartition("\n")[2]) or "no reason given"
        raise UserError(
            f"podman system service did not start: {reason}; try `podman info`, or --backend local"
        )


def connect(executable: str = "docker") -> Engine:
    """Connect to the engine of an executable, `docker` or a `podman`; UserError if none answers.

    The engine at Docker's address may be Podman. For a `podman`, the address is CONTAINER_HOST,
    else one of the usual sockets, else a private service.
    """
    try:
        docker: Any = import_module("docker")
    except ModuleNotFoundError as error:
        hint = "pip install 'cooperbench[docker]'; or use --backend local"
        raise UserError(f"the docker backend needs the Python package docker: {hint}") from error
    if not Path(executable).name.endswith("podman"):
        if executable != "docker" and shutil.which(executable) is None:
            raise UserError(
                f"no program {executable!r} found; MSWEA_DOCKER_EXECUTABLE is docker or a podman"
            )
        where, options = _docker_address(docker)
        return _connect_to(docker, where, "the Docker daemon", options)
    return _connect_to_podman(docker, executable)


def _connect_to_podman(docker: Any, executable: str) -> Engine:
    address = os.environ.get("CONTAINER_HOST")
    if address:
        return _connect_to(docker, address, "Podman")
    runtime_dirs = []
    if os.environ.get("XDG_RUNTIME_DIR"):
        runtime_dirs.append(os.environ["XDG_RUNTIME_DIR"])
    if os.getuid() == 0:
        runtime_dirs.append("/run")
    for runtime_dir in runtime_dirs:
        # A socket may be left over, with no service behind it.
        with suppress(UserError):
            return _connect_to(docker, f"unix://{runtime_dir}/podman/podman.sock", "Podman")
    service = PodmanService(executable)
    try:
        return _connect_to(docker, service.url, "Podman", service=service)
    except BaseException:
        service.close()
        raise


def _docker_address(docker: Any) -> tuple[str, dict[str, Any]]:
    """Return the address of DOCKER_HOST or of the current docker context, and client options."""
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
        names = ", ".join(sorted(context.Name for context in docker.ContextAPI.contexts()))
        raise UserError(f"DOCKER_CONTEXT is {name!r}, which does not exist; available: {names}")
    if context is None or context.Name == "default" or not context.Host:
        return "unix:///var/run/docker.sock", {}
    if context.TLSConfig:
        return context.Host, {"tls": context.TLSConfig}
    return context.Host, {}


def _connect_to(
    docker: Any,
    where: str,
    engine: str,
    options: dict[str, Any] | None = None,
    service: PodmanService | None = None,
) -> Engine:
    try:
        if where.startswith("unix://"):
            # If nothing listens, docker-py would fail too, but leak its own socket.
            _probe_socket(where)
        api, version = open_api(docker, where, options or {})
    except Exception as error:
        raise connection_error(error, where, engine) from error
    components = {str(part.get("Name")) for part in version.get("Components") or []}
    return Engine(api, where, podman="Podman Engine" in components, service=service)


def _probe_socket(where: str) -> None:
    """Raise OSError if nothing listens at a unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(ANSWER_SECONDS)
        probe.connect(where.removeprefix("unix://"))


def open_api(docker: Any, where: str, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return docker-py's client, set to the engine's API version, and the engine's version data."""

    def open_client(version: str) -> Any:
        client = docker.APIClient(
            where, version, ANSWER_SECONDS, max_pool_size=_MAX_IDLE_CONNECTIONS, **options
        )
        # A local socket has no proxy, and looking for one costs time with every request.
        client.trust_env = not where.startswith("unix://")
        return client

    # docker-py's own version detection leaks a socket if nothing answers.
    with closing(open_client(_ANY_VERSION)) as client:
        version: dict[str, Any] = client.version(api_version=False)
    return open_client(str(version["ApiVersion"])), version
