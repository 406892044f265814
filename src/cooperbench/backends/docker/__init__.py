"""The `docker` backend: prepares task images and starts sandboxes, in Docker or Podman."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import ClassVar

from cooperbench.backends.docker.containers import EngineSession, remove_leftovers, remove_session
from cooperbench.backends.docker.engine import Engine, connect
from cooperbench.backends.docker.images import DEPENDENCY_LAYER, ImageStore, OnProgress, layer_name
from cooperbench.backends.docker.sandbox import ContainerStream, DockerSandbox, first_command
from cooperbench.backends.docker.settings import DockerSettings, read_settings
from cooperbench.backends.ownership import lock_path, locked
from cooperbench.errors import CooperBenchError
from cooperbench.models import Image, Task
from cooperbench.sandbox.backend import Backend
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.contract import Capabilities, SandboxOptions
from cooperbench.settings import default_cache_dir
from cooperbench.temporary import remove_abandoned

__all__ = ["DockerBackend"]


class DockerBackend(Backend):
    """Sandboxes in containers of Docker or Podman. It connects with the first use."""

    options: ClassVar = ("image_template", "mounts", "pull")
    capabilities = Capabilities(
        streams=True, networks=frozenset({"none", "public"}), snapshots=True, programs=True
    )

    _sandbox_type: Callable[..., DockerSandbox] = DockerSandbox

    def __init__(self, **settings: object) -> None:
        """Read the settings. The first use connects."""
        self.settings: DockerSettings = read_settings(**settings)
        self._cache_dir = (self.settings.cache_dir or default_cache_dir()).absolute()
        self._lock = threading.Lock()
        self._session: EngineSession | None = None
        self._open: set[DockerSandbox] = set()
        self._proven: set[str] = set()
        """Images whose tools have passed the channel's self-test."""

    @property
    def session(self) -> EngineSession:
        """The session in the engine. The first use connects and removes leftovers."""
        with self._lock:
            if self._session is None or self._session.process != os.getpid():
                self._session = EngineSession(connect(self.settings.executable), self.settings)
                atexit.register(self.close)
                remove_leftovers(self._session.engine)
                remove_abandoned()
            return self._session

    @property
    def engine(self) -> Engine:
        """The connected engine."""
        return self.session.engine

    @property
    def images(self) -> ImageStore:
        """The images of the connected engine."""
        return self.session.images

    def check(self) -> None:
        """Connect and check the mounts; UserError if no engine answers or a folder is missing."""
        self.session.check_mounts()

    def prepare(self, task: Task, on_progress: OnProgress = lambda _: None) -> Image:
        """Find, pull or build the task's image, and derive those for agents and test runs."""
        with self._locked(task.label):
            source = self.images.provide(task, on_progress)
            derived = self.images.derive(task, source, self._start_sandbox, on_progress)
        return Image(
            source.name,
            derived.for_agents.name,
            source.digest,
            evaluation_ref=derived.for_tests.name,
        )

    def create_sandbox(
        self,
        image: str,
        timeout: int = 600,
        workdir: str = "/workspace",
        *,
        options: SandboxOptions | None = None,
    ) -> DockerSandbox:
        """Start a sandbox from an image that the engine has or can pull, by name or id."""
        return self._start_sandbox(image, timeout, workdir, options or SandboxOptions())

    @contextlib.contextmanager
    def locked_snapshot(self, task: Task, key: str) -> Iterator[str | None]:
        """Lock a snapshot and yield its image name, or None if it does not exist."""
        name = layer_name(DEPENDENCY_LAYER, task, key)
        with self._locked(name):
            yield name if self.images.find_layer(name) else None

    def take_snapshot(self, sandbox: Sandbox, task: Task, key: str) -> str:
        """Store a sandbox's files as a snapshot and return its image name."""
        assert isinstance(sandbox, DockerSandbox)
        source = self.images.get(sandbox.image)
        name = layer_name(DEPENDENCY_LAYER, task, key)
        return self.images.commit(sandbox, name, task, source, DEPENDENCY_LAYER).name

    @staticmethod
    def clean() -> list[str]:
        """Remove what dead processes left (`cooperbench clean`) and return the names."""
        with contextlib.closing(connect(read_settings().executable)) as engine:
            return remove_leftovers(engine)

    def close(self) -> None:
        """End all open sandboxes and disconnect. The next use connects again."""
        for sandbox in list(self._open):
            sandbox.end("its backend was closed")
        with self._lock:
            session, self._session = self._session, None
        atexit.unregister(self.close)
        if session is not None and session.process == os.getpid():
            with contextlib.suppress(CooperBenchError):
                remove_session(session.engine, session.name)
            session.engine.close()

    def _locked(self, name: str) -> AbstractContextManager[None]:
        """Lock an image, so that only one process or thread prepares it."""
        return locked(lock_path(self._cache_dir / "docker", f"{self.engine.where} {name}"))

    def _start_sandbox(
        self, image: str, timeout: int, workdir: str, options: SandboxOptions
    ) -> DockerSandbox:
        session = self.session
        engine = session.engine
        engine_image = session.images.get(image)
        name = session.new_name()
        command = first_command(
            timeout,
            for_test_run=options.for_test_run,
            trusted=engine_image.image_id in self._proven,
        )
        stream: ContainerStream | None = None
        try:
            with engine.faults(f"starting a sandbox of {engine_image.name}"):
                session.create_container(engine_image, name, command, workdir, options)
                stream = ContainerStream(engine.attach_to(name))
                engine.api.start(name)
            sandbox = self._sandbox_type(
                engine,
                name,
                stream,
                image=engine_image.name,
                lifetime_seconds=timeout,
                workdir=workdir,
                for_test_run=options.for_test_run,
                on_end=self._open.discard,
            )
        except BaseException:
            # Removed by name, because an interrupted request may or may not have created it.
            with contextlib.suppress(CooperBenchError):
                engine.remove_container(name)
            if stream is not None:
                stream.close()
            raise
        if not options.for_test_run:
            self._proven.add(engine_image.image_id)
        self._open.add(sandbox)
        return sandbox
