"""Docker on a machine: the docker backend on its engine, with networks, images and registries as they are there.

Sandboxes, channels and limits are those of the docker backend. A machine pulls or builds a task's image when the task's
first sandbox is placed on it. An image that comes from a registry must be the same everywhere: the digest that was seen
on the first machine is the one that counts. Google's registries want to know who asks: whoever signed in to Google
Cloud need not sign in with Docker as well.
"""

from __future__ import annotations

import os
import re
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cooperbench.backends.docker.backend import DockerBackend
from cooperbench.backends.docker.containers import NO_TALK, Attachment, Networks
from cooperbench.backends.docker.engine import ANSWER_SECONDS, Engine
from cooperbench.backends.docker.engine import faults as engine_faults
from cooperbench.backends.docker.images import ImageStore
from cooperbench.backends.docker.settings import read_settings
from cooperbench.backends.gcp.faults import faults
from cooperbench.backends.image_digest import resolve_digest
from cooperbench.dataset.discovery import demo_dir
from cooperbench.dataset.images import ENVIRONMENT_VARIABLE, PUBLISHED_TEMPLATE, image_name, image_template
from cooperbench.errors import InfraError, SandboxError
from cooperbench.models import Image
from cooperbench.sandbox.base_sandbox import OpenSandboxes
from cooperbench.sandbox.contract import SandboxOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cooperbench.backends.docker.sandbox import DockerSandbox
    from cooperbench.backends.gcp.machines import Machine
    from cooperbench.backends.gcp.ssh import Tunnel
    from cooperbench.models import Task

GIT_PORT = 8418
_NOBODY = "192.0.2.1"
"""An address that is nobody's: else the engine would ask the machine's name servers for its containers."""
_AGENTS = "#agents"
_MOST_IDLE_CONNECTIONS = 64
_ANY_VERSION = "1.41"
_GOOGLES = re.compile(r"[a-z0-9-]+-docker\.pkg\.dev|(?:[a-z]+\.)?gcr\.io")
_TOKEN_SECONDS = 45 * 60
"""Tokens hold for an hour."""
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_SIGNED_IN = "_cooperbench_signed_in"


class MachineEngine(DockerBackend):
    """The docker backend on the engine of a machine."""

    def __init__(self, machine: str, tunnel: Tunnel, on_release: Callable[[], None]) -> None:
        super().__init__(mounts=())
        self._there = _connect(machine, f"unix://{tunnel.socket}", lambda: tunnel.open)
        self._process, self._session = os.getpid(), machine.removeprefix("cooperbench-")
        self._images = ImageStore(self._there, self.settings)
        self._networks = MachineNetworks(self._there, self._session, team_bridge(machine))
        self._placed: set[DockerSandbox] = set()
        self._placing = threading.Lock()
        self._on_release = on_release
        self._open: _OpenOnMachine = _OpenOnMachine(self._release)

    @property
    def engine(self) -> Engine:
        if self._there.closed:
            raise SandboxError(f"{self._there.where} is gone")
        return self._there

    @property
    def images(self) -> ImageStore:
        assert self._images is not None
        return self._images

    def create_sandbox(
        self,
        image: str,
        timeout: int = 600,
        workdir: str = "/workspace",
        *,
        options: SandboxOptions | None = None,
    ) -> DockerSandbox:
        """One that has a place, which is free again when it ends. Those that make images have none."""
        return self._place(self._make(image, timeout, workdir, options or SandboxOptions()))

    def create_server(self, image: str, timeout: int) -> DockerSandbox:
        """For a program of ours that others are to reach: on the machine's own network."""
        sign_in(self.engine.api, [image])
        return self._place(self._make(image, timeout, "/", SandboxOptions("git"), Attachment("host")))

    def _place(self, sandbox: DockerSandbox) -> DockerSandbox:
        with self._placing:
            self._placed.add(sandbox)
        if sandbox not in self._open.all():
            self._release(sandbox)
        return sandbox

    def _release(self, sandbox: DockerSandbox) -> None:
        with self._placing:
            if sandbox not in self._placed:
                return
            self._placed.discard(sandbox)
        self._on_release()

    def abandon(self) -> None:
        """The connection is closed and its machine deleted: sandboxes only have to know."""
        for sandbox in self._open.all():
            sandbox.end("its machine was deleted")
        self._there.close()

    def close(self) -> None:
        """Whoever deletes the machine calls `abandon`."""


class _OpenOnMachine(OpenSandboxes["DockerSandbox"]):
    """Tells when one has ended."""

    def __init__(self, on_end: Callable[[DockerSandbox], None]) -> None:
        super().__init__()
        self._on_end = on_end

    def all(self) -> list[DockerSandbox]:
        with self._lock:
            return list(self._open)

    def discard(self, sandbox: DockerSandbox) -> None:
        super().discard(sandbox)
        self._on_end(sandbox)


def _connect(machine: str, address: str, is_open: Callable[[], bool]) -> Engine:
    with engine_faults(f"connecting to the engine of {machine}"):
        docker: Any = import_module("docker")
        asking = docker.APIClient(base_url=address, version=_ANY_VERSION, timeout=ANSWER_SECONDS)
        try:
            version = str(asking.version(api_version=False)["ApiVersion"])
        finally:
            asking.close()
        api = docker.APIClient(
            base_url=address, version=version, timeout=ANSWER_SECONDS, max_pool_size=_MOST_IDLE_CONNECTIONS
        )
    return Engine(_WhileOpen(api, is_open), f"machine {machine}", podman=False)


class _WhileOpen:
    """docker-py's client, asked nothing once the connection is gone: it would leave a socket open each time."""

    def __init__(self, api: Any, is_open: Callable[[], bool]) -> None:
        self._api = api
        self._is_open = is_open

    def close(self) -> None:
        self._api.close()

    def __getattr__(self, name: str) -> Any:
        if not self._is_open():
            raise ConnectionError("the connection to its machine was lost")
        return getattr(self._api, name)


def team_bridge(machine: str) -> str:
    """The interface that the rules on a machine are about; Linux takes 15 characters."""
    return f"cbteam-{machine.rpartition('-')[2]}"


def bridge_metadata(machine: str) -> dict[str, str]:
    """What the start-up script has to know for them."""
    return {"cooperbench-bridge": team_bridge(machine), "cooperbench-git-port": str(GIT_PORT)}


class MachineNetworks(Networks):
    """Of one machine's engine."""

    def __init__(self, engine: Engine, session: str, bridge: str) -> None:
        super().__init__(engine, session)
        self._bridge = bridge
        self._team = ""

    def attachment(self, options: SandboxOptions) -> Attachment:
        if options.network != "none" or not options.reaches:
            return super().attachment(options)
        with self._lock:
            if not self._team:
                self._team = self.create({**NO_TALK, "com.docker.network.bridge.name": self._bridge})
            return Attachment(self._team, (_NOBODY,))


class TaskImages:
    """Of one backend object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[str, Task] = {}
        self._digests: dict[Task, str] = {}
        self._registry_is_out_of_reach = False

    def describe(self, task: Task) -> Image:
        """References for `create_sandbox`, and the digest where a registry tells it without being signed in to."""
        template = os.environ.get(ENVIRONMENT_VARIABLE)
        name = image_name(task, image_template(template) if template else PUBLISHED_TEMPLATE)
        reference = f"{task.label}={name}"
        with self._lock:
            self._tasks[reference] = self._tasks[reference + _AGENTS] = task
        return Image(reference, reference + _AGENTS, self._told_by_registry(task, name))

    def task_of(self, reference: str) -> Task | None:
        """None for a name that is a registry's."""
        with self._lock:
            return self._tasks.get(reference)

    def _told_by_registry(self, task: Task, name: str) -> str:
        in_the_demo = task.path.resolve().is_relative_to(demo_dir().resolve())
        if in_the_demo or self._registry_is_out_of_reach or read_settings().pull == "never":
            return ""
        try:
            return resolve_digest(name)
        except InfraError as error:
            self._registry_is_out_of_reach = isinstance(error.__cause__, OSError)
            return ""

    def name_on(self, machine: Machine, reference: str) -> str:
        """What a machine's engine calls it, once it has it."""
        task = self.task_of(reference)
        if task is None:
            return reference
        made = machine.prepare(task)
        with self._lock:
            first = self._digests.setdefault(task, made.digest)
        if first != made.digest and not task.dockerfile.is_file():
            raise InfraError(
                f"{task.label}: {made.reference} has changed in its registry ({made.digest}, it was {first})"
            )
        return (made.agent_reference or made.reference) if reference.endswith(_AGENTS) else made.reference


def google_hosts(names: Iterable[str]) -> list[str]:
    """The registries of Google's among those of these images."""
    return sorted({host for host in (name.partition("/")[0] for name in names) if _GOOGLES.fullmatch(host)})


def sign_in(api: Any, names: Iterable[str]) -> None:
    """Let an engine's client (docker-py's) use the user's credentials at the registries of these images."""
    known: dict[str, float] = getattr(api, _SIGNED_IN, {})
    for host in google_hosts(names):
        if time.monotonic() - known.get(host, -_TOKEN_SECONDS) < _TOKEN_SECONDS:
            continue
        api.login("oauth2accesstoken", _token(), registry=f"https://{host}", reauth=True)
        known[host] = time.monotonic()
    setattr(api, _SIGNED_IN, known)


def _token() -> str:
    with faults("asking for a token for the registry"):
        import google.auth
        from google.auth.transport.requests import Request

        credentials: Any = google.auth.default(scopes=[_SCOPE])[0]
        credentials.refresh(Request())
        return str(credentials.token)
