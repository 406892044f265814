"""The `modal` backend: makes tasks' images ready and starts their sandboxes in the user's account at Modal.

With `--git` a run has a git server in a small sandbox of its own. It is reached through a tunnel of Modal's, which
terminates TLS, at an address that cannot be guessed, and itself reaches nothing. What runs in it, and who may push
what, is in `cooperbench/team/gitserver.py`.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cooperbench.backends.modal.connection import Connection, CreationLimit, require_client
from cooperbench.backends.modal.images import ImageStore
from cooperbench.backends.modal.leftovers import remove_leftovers, remove_session, sandbox_tags
from cooperbench.backends.modal.sandbox import (
    ModalSandbox,
    Network,
    Resources,
    SandboxSpec,
    create_remote,
)
from cooperbench.backends.modal.settings import LONGEST_LIFETIME_SECONDS, ModalSettings, Share, read_settings
from cooperbench.errors import CooperBenchError, InfraError, SandboxError, SandboxTimeout, UserError
from cooperbench.models import Image
from cooperbench.sandbox.channel import ChannelUnavailable
from cooperbench.sandbox.contract import Capabilities, ResourceUse, SandboxOptions, check_network
from cooperbench.sandbox.git_server import DEFAULT_IMAGE, GitServer, SharedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from modal import Tunnel

    from cooperbench.models import Image, Task

_CREATE_SECONDS = 25 * 60.0
"""Modal's client itself waits 21 minutes for a machine."""
_VCPUS_PER_CORE = 2
"""Modal counts physical cores."""
_NEEDED_TOOLS = "images need sh, bash, coreutils and git"
_GIT_PORT = 8418
_GIT_RESOURCES = Resources(cpu=Share(0.25, 2.0), memory_mib=Share(512, 4096))
_GIT_NETWORK = Network(cidrs=(), tunnel_ports=(_GIT_PORT,))
_GIT_WITHOUT_SERVER = "COOPERBENCH_MODAL_GIT=carried needs no server"
_TUNNEL_SECONDS = 90
_log = logging.getLogger("cooperbench")
_backends: weakref.WeakSet[ModalBackend] = weakref.WeakSet()


@dataclass(frozen=True)
class _Session:
    """From the first use of Modal to `close`, in one process."""

    connection: Connection
    images: ImageStore
    name: str
    process: int


class ModalBackend:
    """Sandboxes at Modal. What isolates them is said in `sandbox.py`, what can be set in `settings.py`."""

    options: ClassVar = ("gpu", "image_template")
    capabilities = Capabilities(
        rich=True,
        streams=True,
        options=True,
        networks=frozenset({"none", "public"}),
        prepares=True,
        closes=True,
        checks=True,
        interrupts=True,
        measures=True,
    )

    def __init__(self, **settings: object) -> None:
        """UserError where the client or a token is missing. Connects when it is first used."""
        self.settings: ModalSettings = read_settings(**settings)
        require_client()
        self._lock = threading.Lock()
        self._session: _Session | None = None
        self._creation_limit = CreationLimit(self.settings.most_starting)
        self._used = ResourceUse()
        """By sandboxes that have ended."""
        self._open: set[ModalSandbox] = set()
        self._proven: set[str] = set()
        """Images whose tools have passed the channel's self test."""
        self._git_server = SharedServer(self._start_git_server)

    def check(self) -> None:
        """Does Modal answer, and accept the token?"""
        self._connected()

    def prepare(self, task: Task) -> Image:
        """Pull or build the task's image, and make the one without history from it."""
        return self._creation_limit.call(lambda: self._connected().images.provide(task))

    def create_sandbox(
        self,
        image: str,
        timeout: int = 600,
        workdir: str = "/workspace",
        *,
        options: SandboxOptions | None = None,
    ) -> ModalSandbox:
        """`image`: what `prepare` gave, an image id of Modal's, or a name that a registry knows."""
        options = options or SandboxOptions()
        check_network(self.capabilities, options)
        return self._start(
            image,
            workdir,
            min(max(1, timeout), LONGEST_LIFETIME_SECONDS),
            Resources(self.settings.cpu, self.settings.memory_mib, self.settings.gpu),
            _network_for(options, self.settings),
            {**options.labels, "purpose": options.purpose},
        )

    @property
    def git_server(self) -> Callable[[str], GitServer] | None:
        """See `GitServingBackend`."""
        return self._git_server.get if self.settings.git == "server" else None

    def interrupt(self) -> None:
        self._creation_limit.stop()

    def resource_use(self) -> ResourceUse:
        """What the sandboxes of this object have reserved so far."""
        with self._lock:
            return sum((_used_by(sandbox) for sandbox in self._open), self._used)

    def close(self) -> None:
        """End what is still open. The next use connects again."""
        with self._lock:
            still_open = list(self._open)
            session, self._session = self._session, None
        if session is None or session.process != os.getpid():
            return
        # All at once, and without threads, which cannot be started any more when the interpreter ends.
        ended: list[str] = []
        with contextlib.suppress(CooperBenchError):
            ended = remove_session(session.connection, session.name)
        for sandbox in still_open:
            sandbox.end("its backend was closed", already=sandbox.name in ended)
        self._git_server.close()

    @staticmethod
    def clean() -> list[str]:
        """For `cooperbench clean`: end what killed processes left; returns ids of sandboxes."""
        return remove_leftovers(Connection(read_settings().app))

    @property
    def about(self) -> str:
        """For `cooperbench doctor`, after `check`."""
        from importlib.metadata import version

        environment = self._connected().connection.environment
        where = f", environment {environment}" if environment else ""
        return f"client {version('modal')}, the token is good, app {self.settings.app}{where}"

    def _connected(self) -> _Session:
        """Connects when first called, and ends what killed processes left behind."""
        with self._lock:
            session = self._session
            if session is None or session.process != os.getpid():
                connection = Connection(self.settings.app)
                images = ImageStore(connection, self.settings)
                self._session = session = _Session(connection, images, secrets.token_hex(8), os.getpid())
                _close_at_exit(self)
                try:
                    remove_leftovers(connection)
                except InfraError as error:
                    # No reason not to begin: the next start looks again.
                    _log.warning("%s", error)
            return session

    def _start(
        self,
        image: str,
        workdir: str,
        lifetime_seconds: int,
        resources: Resources,
        network: Network,
        labels: Mapping[str, str],
    ) -> ModalSandbox:
        session = self._connected()
        connection, public = session.connection, image == DEFAULT_IMAGE
        spec = SandboxSpec(
            f"cooperbench-{session.name}-{secrets.token_hex(4)}",
            sandbox_tags(session.name, labels),
            lifetime_seconds,
            resources,
            network,
            self.settings.regions,
        )
        content = self._creation_limit.call(lambda: session.images.get(image, public=public))
        remote = self._creation_limit.call(
            lambda: connection.call(
                f"making a sandbox of {image}", create_remote(connection, content, spec), _CREATE_SECONDS
            )
        )
        try:
            sandbox = ModalSandbox(
                connection,
                remote,
                resources=spec.resources,
                lifetime_seconds=spec.lifetime_seconds,
                workdir=workdir,
                trusted=image in self._proven,
                on_end=self._forget,
            )
        except ChannelUnavailable as error:
            raise UserError(f"{image}: {error}; {_NEEDED_TOOLS}") from error
        with self._lock:
            self._open.add(sandbox)
            self._proven.add(image)
        return sandbox

    def _forget(self, sandbox: ModalSandbox) -> None:
        with self._lock:
            self._open.discard(sandbox)
            self._used += _used_by(sandbox)

    def _start_git_server(self, run_name: str) -> GitServer:
        image, labels = self.settings.git_image or DEFAULT_IMAGE, {"run": run_name, "purpose": "git"}
        try:
            sandbox = self._start(image, "/", LONGEST_LIFETIME_SECONDS, _GIT_RESOURCES, _GIT_NETWORK, labels)
        except UserError as error:
            remedy = f"COOPERBENCH_MODAL_GIT_IMAGE sets another image; {_GIT_WITHOUT_SERVER}"
            raise UserError(f"the git server for --git: {error}; {remedy}") from error
        try:
            tunnel = _open_tunnel(self._connected().connection, sandbox)
            reaches = (f"{tunnel.host}:{tunnel.port}",)
            return GitServer(sandbox, tunnel.url, host="0.0.0.0", port=_GIT_PORT, reaches=reaches)  # noqa: S104
        except BaseException:
            sandbox.terminate()
            raise


def _used_by(sandbox: ModalSandbox) -> ResourceUse:
    seconds, resources = sandbox.age_seconds, sandbox.resources
    gib = resources.memory_mib.reserved / 1024
    return ResourceUse(
        1, "sandbox", seconds, seconds * resources.cpu.reserved * _VCPUS_PER_CORE, seconds * gib
    )


def _network_for(options: SandboxOptions, settings: ModalSettings) -> Network:
    """With the policy `none` nothing but what it has to reach, and nothing at all where that is nothing."""
    hosts = tuple(place.rpartition(":")[0] for place in options.reaches)
    if options.network == "none":
        return Network(domains=hosts) if hosts else Network(blocked=True)
    if settings.allow_domains:
        return Network(domains=tuple(dict.fromkeys((*settings.allow_domains, *hosts))))
    return Network()


def _open_tunnel(connection: Connection, sandbox: ModalSandbox) -> Tunnel:
    """To the git server's port; SandboxTimeout where Modal gives no tunnel in time."""
    import modal

    try:
        tunnels = connection.call_with_retries(
            "opening a tunnel to the git server",
            lambda: sandbox.remote.tunnels.aio(timeout=_TUNNEL_SECONDS),
            _TUNNEL_SECONDS + 30.0,
        )
    except SandboxError as error:
        if isinstance(error.__cause__, modal.exception.TimeoutError):
            raise SandboxTimeout(
                f"the git server got no tunnel within {_TUNNEL_SECONDS} s; {_GIT_WITHOUT_SERVER}"
            ) from error
        raise
    if _GIT_PORT not in tunnels:
        raise SandboxError(f"Modal opened no tunnel to port {_GIT_PORT} of the git server")
    return tunnels[_GIT_PORT]


def _close_at_exit(backend: ModalBackend) -> None:
    """Registered after the client's own exit handler, so that it runs before it."""
    if not _backends:
        atexit.register(_close_all)
    _backends.add(backend)


def _close_all() -> None:
    for backend in list(_backends):
        with contextlib.suppress(SandboxError):
            backend.close()
