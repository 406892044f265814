"""One machine, from its creation to its deletion: it boots, is connected to, and runs containers.

What happens in its engine is the docker backend's: images, sandboxes, channels and limits are the same as there.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cooperbench.backends.docker.backend import DockerBackend
from cooperbench.backends.docker.containers import Attachment
from cooperbench.backends.docker.engine import ANSWER_SECONDS, Engine
from cooperbench.backends.docker.faults import faults as engine_faults
from cooperbench.backends.docker.images import ImageStore
from cooperbench.backends.gcp import prices
from cooperbench.backends.gcp.compute import SSH_USER
from cooperbench.backends.gcp.faults import Unavailable
from cooperbench.backends.gcp.networks import MachineNetworks, team_bridge
from cooperbench.backends.gcp.registry import sign_in
from cooperbench.backends.gcp.tunnel import Keys, Tunnel
from cooperbench.errors import InfraError, Interrupted, SandboxError, SandboxTimeout
from cooperbench.sandbox.base_sandbox import OpenSandboxes
from cooperbench.sandbox.contract import SandboxOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.backends.docker.sandbox import DockerSandbox
    from cooperbench.backends.gcp.compute import Compute, Wanted
    from cooperbench.backends.gcp.settings import GcpSettings
    from cooperbench.models import Image, Task
    from cooperbench.sandbox.contract import Estimate

_BOOT_SECONDS = 600.0
_LOOK_SECONDS = 1.0
_MOST_LOOK_SECONDS = 5.0
_STATUS_SECONDS = 15.0
_MOST_IDLE_CONNECTIONS = 64
_ANY_VERSION = "1.41"
_GONE = ("", "STOPPING", "STOPPED", "TERMINATED", "SUSPENDED")
_log = logging.getLogger("cooperbench")


class Machine:
    """Made by `start`; nothing else of it may be used before."""

    def __init__(self, settings: GcpSettings, wanted: Wanted, on_release: Callable[[Machine], None]) -> None:
        """`on_release` is called whenever a sandbox on it has ended."""
        self.name = wanted.name
        self._settings = settings
        self._wanted = wanted
        self._started_at = time.monotonic()
        self._ended_at: float | None = None
        self.ends_at = self._started_at + wanted.lifetime_seconds
        self._on_release = on_release
        self._tunnel: Tunnel | None = None
        self._engine: MachineEngine | None = None
        self._lock = threading.Lock()
        self._prepared: dict[Task, Image] = {}
        self._preparing: dict[Task, threading.Lock] = {}
        self.places_taken = 0
        """Sandboxes that are open, being made, or promised. The fleet's business."""

    @property
    def alive(self) -> bool:
        return self._tunnel is None or self._tunnel.open

    @property
    def cost(self) -> Estimate:
        """Until now, or until it was given up."""
        seconds = (self._ended_at or time.monotonic()) - self._started_at
        return prices.estimate(self._wanted.kind, 1, seconds)

    def start(self, compute: Compute, keys: Keys, given_up: Callable[[], bool]) -> None:
        compute.create(self._wanted, keys.public)
        host_key = self._wait_until_ready(compute, given_up)
        address = self.name if self._settings.reach == "iap" else compute.address(self.name)
        self._tunnel = Tunnel(self._settings, keys, self.name, address, host_key, SSH_USER, given_up)
        self._engine = MachineEngine(self.name, self._tunnel, lambda: self._on_release(self))

    def give_up(self) -> None:
        """It is deleted, or will be: it costs no more."""
        self._ended_at = self._ended_at or time.monotonic()

    @property
    def engine(self) -> MachineEngine:
        if self._engine is None or not self.alive:
            words = self._tunnel.last_words if self._tunnel else ""
            raise SandboxError(f"the connection to {self.name} was lost{': ' if words else ''}{words}")
        return self._engine

    def has(self, task: Task | None) -> bool:
        return task in self._prepared

    def prepare(self, task: Task) -> Image:
        """The task's images on this machine: pulled or built when they are first asked for."""
        with self._lock:
            turn = self._preparing.setdefault(task, threading.Lock())
        with turn:
            if task not in self._prepared:
                engine = self.engine
                sign_in(engine.engine.api, engine.images.names_of(task))
                self._prepared[task] = engine.prepare(task)
            return self._prepared[task]

    def close(self) -> None:
        """Let go of it. Deleting it is the fleet's business."""
        if self._tunnel is not None:
            self._tunnel.close()
        if self._engine is not None:
            self._engine.abandon()

    def _wait_until_ready(self, compute: Compute, given_up: Callable[[], bool]) -> str:
        """The host key, told as everything else by guest attributes, which nobody on the way can change."""
        began = time.monotonic()
        next_status_at = began
        while True:
            try:
                told = compute.attributes(self.name)
                if "failed" in told:
                    raise InfraError(f"the machine {self.name} did not get ready: {told['failed'][:300]}")
                if "ready" in told and "host-key" in told:
                    return told["host-key"]
                if time.monotonic() >= next_status_at:
                    self._check_status(compute)
                    next_status_at = time.monotonic() + _STATUS_SECONDS
            except Unavailable as error:
                # Many machines that boot at once may ask more often than Google likes.
                _log.debug("%s; asking again", error)
            if given_up():
                raise Interrupted("stopped")
            waited_seconds = time.monotonic() - began
            if waited_seconds >= _BOOT_SECONDS:
                raise SandboxTimeout(
                    f"the machine {self.name} did not get ready in {_BOOT_SECONDS:.0f} s: see gcloud compute instances"
                    f" get-serial-port-output {self.name} --zone {self._settings.zone}; without a public address it"
                    " needs Cloud NAT"
                )
            time.sleep(min(_LOOK_SECONDS + waited_seconds / 10, _MOST_LOOK_SECONDS))

    def _check_status(self, compute: Compute) -> None:
        if (status := compute.status(self.name)) in _GONE:
            raise InfraError(f"the machine {self.name} ended while booting ({status.lower() or 'deleted'})")


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
        self._open: _Told = _Told(self._release)

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


class _Told(OpenSandboxes["DockerSandbox"]):
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
