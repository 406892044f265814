"""The engine: found, connected to, and asked over its HTTP API with docker-py, which is imported only here.

Docker's is where DOCKER_HOST or the docker context in use says. Podman's is where CONTAINER_HOST or DOCKER_HOST says,
else at a socket of its own in the usual places, else a private service that lives as long as this process: Podman
itself needs no daemon, its HTTP API does.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cooperbench.backends.docker.faults import NotThere, cannot_connect, faults
from cooperbench.backends.docker.stream import ContainerStream
from cooperbench.errors import CooperBenchError, SandboxError, UserError
from cooperbench.sandbox.ownership import lock_path, locked
from cooperbench.settings import default_cache_dir
from cooperbench.temporary import owned_prefix
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

T = TypeVar("T")

ANSWER_SECONDS = 120
_PAUSES_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)
_LOST_ITS_PLACE = "(layer|image|container) not known|identifier is not an? (layer|image|container)"
CHANNEL_ENDED = b"cooperbench-supervisor: the channel has ended"
"""What `supervisor.sh` says on stderr."""
_PODMAN_START_SECONDS = 30.0
_ENDS_WITH_US = """
"$@" </dev/null &
service=$!
while read -r line; do :; done
kill -KILL "$service"
wait "$service"
"""
"""Ends Podman's service when we do: our end of its stdin closes, whichever way we die."""
_MOST_IDLE_CONNECTIONS = 64
_ANY_VERSION = "1.41"


class Engine:
    """A connection to one engine, safe to share between threads. `api` is docker-py's low-level client."""

    def __init__(self, api: Any, where: str, *, podman: bool, service: PodmanService | None = None) -> None:
        self.api = api
        self.where = where
        self.podman = podman
        self._service = service
        self._lock = threading.Lock()
        self._changing = threading.Lock()
        self._info: dict[str, Any] | None = None
        self.closed = False
        self.has_init = True
        """Until it turns out that the engine lacks the small init that reaps orphans."""

    @property
    def client(self) -> str:
        """What users call on the command line."""
        return "podman" if self.podman else "docker"

    @property
    def info(self) -> dict[str, Any]:
        """What the engine says of itself, asked once."""
        with self._lock:
            if self._info is None:
                with self.faults("asking the engine what it can do"):
                    self._info = dict(self.api.info())
            return self._info

    def changing_images(self, action: Callable[[], T]) -> T:
        """Do something that adds or removes images.

        Podman's storage loses its place when several do so at once, and finds it again: there it is done one at a time
        by all processes of this user, whichever service of Podman each talks to, and again if somebody else was at it.
        """
        if not self.podman:
            return action()
        with self._changing, locked(self._storage_lock()):
            for pause_seconds in _PAUSES_SECONDS:
                try:
                    return action()
                except CooperBenchError as error:
                    if not re.search(_LOST_ITS_PLACE, str(error)):
                        raise
                time.sleep(pause_seconds)
            return action()

    def _storage_lock(self) -> Path:
        storage = f"{self.info.get('Name')} {self.info.get('DockerRootDir')}"
        return lock_path(default_cache_dir() / "podman", storage)

    def faults(self, doing: str) -> AbstractContextManager[None]:
        """Everything that the engine throws inside leaves as an error of ours."""
        return faults(doing, self.client)

    def attach(self, container: str) -> ContainerStream:
        """The stdin and stdout of a container's first process, before it is started."""
        params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        return ContainerStream(self.api.attach_socket(container, params=params), CHANNEL_ENDED)

    def exec(self, container: str, argv: list[str], cwd: str | None = None) -> ContainerStream:
        """Start a command in a running container."""
        made = self.api.exec_create(container, argv, stdin=True, workdir=cwd)
        return ContainerStream(self.api.exec_start(made["Id"], socket=True))

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
        if self.closed:
            return
        self.closed = True
        self.api.close()
        if self._service is not None:
            self._service.close()


class PodmanService:
    """Starts in the constructor, ends with `close` or with this process."""

    def __init__(self, executable: str) -> None:
        found = shutil.which(executable)
        if found is None:
            raise UserError(f"there is no {executable!r} to start; install Podman, or use --backend local")
        self._folder = Path(tempfile.mkdtemp(prefix=owned_prefix("podman")))
        path = self._folder / "podman.sock"
        self.url = f"unix://{path}"
        self._log = self._folder / "log"
        self._lock = threading.Lock()
        self._closed = False
        argv = [found, "system", "service", "--time=0", self.url]
        with self._log.open("wb") as log:
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
            self._wait_for(path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Calling it again does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait_for(self, path: Path) -> None:
        deadline = time.monotonic() + _PODMAN_START_SECONDS
        while time.monotonic() < deadline and not self._ended():
            with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
                probe.connect(str(path))
                return
            time.sleep(0.02)
        lines = self._log.read_text("utf-8", "replace").strip().splitlines()
        raise UserError(
            f"podman system service did not start: {printable(lines[-1]) if lines else 'no word why'};"
            " try `podman info`, or use --backend local"
        )

    def _ended(self) -> bool:
        """The watcher outlives a service that fails at once, so the log is what tells."""
        return self._process.poll() is not None or "Error:" in self._log.read_text("utf-8", "replace")


def is_podman(executable: str) -> bool:
    return Path(executable).name.endswith("podman")


def connect(executable: str = "docker") -> Engine:
    """UserError, in one line, where no engine answers. What answers may be Podman although Docker was asked for."""
    docker = _sdk()
    if not is_podman(executable):
        where, options = _docker_address(docker)
        return _connect_to(docker, where, options, podman=False)
    if named := os.environ.get("CONTAINER_HOST"):
        return _connect_to(docker, named, {}, podman=True)
    for where in _podman_addresses():
        try:
            engine = _connect_to(docker, where, {}, podman=True)
        except UserError:
            continue  # a socket that nobody serves any more
        if engine.podman:
            return engine
        engine.close()
    service = PodmanService(executable)
    try:
        return _connect_to(docker, service.url, {}, podman=True, service=service)
    except BaseException:
        service.close()
        raise


def _sdk() -> Any:
    try:
        return import_module("docker")
    except ModuleNotFoundError as error:
        raise UserError(
            "the docker backend needs the Python package docker: pip install 'cooperbench[docker]';"
            " or use --backend local"
        ) from error


def _docker_address(docker: Any) -> tuple[str, dict[str, Any]]:
    """DOCKER_HOST with its companions, else the context that the docker command would use."""
    if os.environ.get("DOCKER_HOST"):
        try:
            options = dict(docker.utils.kwargs_from_env())
        except Exception as error:
            raise UserError(f"DOCKER_HOST and its certificates cannot be used: {error}") from error
        return options.pop("base_url", os.environ["DOCKER_HOST"]), options
    name = os.environ.get("DOCKER_CONTEXT")
    try:
        context = docker.ContextAPI.get_context(name) if name else docker.ContextAPI.get_current_context()
    except Exception as error:
        raise UserError(f"the docker context {name or 'in use'} cannot be read: {error}") from error
    if context is None and name:
        known = ", ".join(sorted(found.Name for found in docker.ContextAPI.contexts()))
        raise UserError(f"DOCKER_CONTEXT names {name!r}, which is not there; there are: {known}")
    host = getattr(context, "Host", None)
    if not host or context.Name == "default":
        return "unix:///var/run/docker.sock", {}
    tls = getattr(context, "TLSConfig", None)
    return host, {"tls": tls} if tls else {}


def _connect_to(
    docker: Any, where: str, options: dict[str, Any], *, podman: bool, service: PodmanService | None = None
) -> Engine:
    def make(version: str) -> Any:
        api = docker.APIClient(
            base_url=where,
            version=version,
            timeout=ANSWER_SECONDS,
            max_pool_size=_MOST_IDLE_CONNECTIONS,
            **options,
        )
        # There is no proxy to a socket of this machine, and looking for one takes time with every request.
        api.trust_env = not where.startswith("unix://")
        return api

    try:
        _check_socket(where)
        # docker-py's own way of asking for the version leaves a socket open where nobody answers.
        asking = make(_ANY_VERSION)
        try:
            about = asking.version(api_version=False)
        finally:
            asking.close()
        parts = {str(part.get("Name")) for part in about.get("Components") or []}
        return Engine(make(str(about["ApiVersion"])), where, podman="Podman Engine" in parts, service=service)
    except Exception as error:
        raise cannot_connect(error, where, podman=podman) from error


def _check_socket(where: str) -> None:
    """OSError where nobody is at a socket; docker-py would say so too, but leave its own end open."""
    if where.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(ANSWER_SECONDS)
            probe.connect(where.removeprefix("unix://"))


def _podman_addresses() -> list[str]:
    """DOCKER_HOST may be meant for Podman too; its own sockets; root's is for root: containers are each user's own."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    sockets = [Path(runtime) / "podman" / "podman.sock"] if runtime else []
    sockets += [Path("/run/podman/podman.sock")] if os.getuid() == 0 else []
    named = os.environ.get("DOCKER_HOST")
    return [*([named] if named else []), *(f"unix://{path}" for path in sockets if path.is_socket())]
