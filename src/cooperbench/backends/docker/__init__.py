"""The `docker` backend: makes tasks' images ready and starts their sandboxes in an engine, Docker's or Podman's."""

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
from cooperbench.backends.docker.images import DEPENDENCY_LAYER, ImageStore, Say, layer_name
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
_ATTACHED = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}


class DockerBackend(Backend):
    options: ClassVar = ("image_template", "mounts", "pull")
    capabilities = Capabilities(
        streams=True, networks=frozenset({"none", "public"}), snapshots=True, programs=True
    )

    _sandbox_type: Callable[..., DockerSandbox] = DockerSandbox

    def __init__(self, **settings: object) -> None:
        """Nothing is connected to before it is needed."""
        self.settings: DockerSettings = read_settings(**settings)
        self._cache_dir = (self.settings.cache_dir or default_cache_dir()).absolute()
        self._lock = threading.Lock()
        self._session: EngineSession | None = None
        self._open: set[DockerSandbox] = set()
        self._proven: set[str] = set()
        """Images whose tools have passed the channel's self test."""

    @property
    def session(self) -> EngineSession:
        """Connected when first asked for; what killed processes left behind is then removed."""
        with self._lock:
            if self._session is None or self._session.process != os.getpid():
                self._session = EngineSession(connect(self.settings.executable), self.settings)
                atexit.register(self.close)
                remove_leftovers(self._session.engine)
                remove_abandoned()
            return self._session

    @property
    def engine(self) -> Engine:
        return self.session.engine

    @property
    def images(self) -> ImageStore:
        return self.session.images

    def check(self) -> None:
        """Is there an engine that answers, and are the folders there that are to be mounted?"""
        self.session.check_mounts()

    def prepare(self, task: Task, say: Say = lambda _: None) -> Image:
        """Find, pull or build the task's image, and make those for agents and for test runs from it."""
        with self._alone_with(task.label):
            found = self.images.provide(task, say)
            judged, agents = self.images.derive(task, found, self._make, say)
        return Image(found.name, agents.name, found.digest, evaluation_ref=judged.name)

    def create_sandbox(
        self,
        image: str,
        timeout: int = 600,
        workdir: str = "/workspace",
        *,
        options: SandboxOptions | None = None,
    ) -> DockerSandbox:
        """`image`: any name or id that the engine knows or can pull."""
        return self._make(image, timeout, workdir, options or SandboxOptions())

    @contextlib.contextmanager
    def locked_snapshot(self, task: Task, key: str) -> Iterator[str | None]:
        name = layer_name(DEPENDENCY_LAYER, task, key)
        with self._alone_with(name):
            yield name if self.images.find_layer(name) else None

    def take_snapshot(self, sandbox: Sandbox, task: Task, key: str) -> str:
        assert isinstance(sandbox, DockerSandbox)
        source = self.images.get(sandbox.image)
        return self.images.commit(
            sandbox, layer_name(DEPENDENCY_LAYER, task, key), task, source, DEPENDENCY_LAYER
        ).name

    @staticmethod
    def clean() -> list[str]:
        """For `cooperbench clean`: connect, remove what dead processes left, tell the names."""
        with contextlib.closing(connect(read_settings().executable)) as engine:
            return remove_leftovers(engine)

    def close(self) -> None:
        """End what is still open, and let go of the engine. It is connected to again when used again."""
        for sandbox in list(self._open):
            sandbox.end("its backend was closed")
        with self._lock:
            session, self._session = self._session, None
        atexit.unregister(self.close)
        if session is not None and session.process == os.getpid():
            with contextlib.suppress(CooperBenchError):
                remove_session(session.engine, session.name)
            session.engine.close()

    def _alone_with(self, name: str) -> AbstractContextManager[None]:
        """While one process or thread makes an image ready, others wait for it."""
        return locked(lock_path(self._cache_dir / "docker", f"{self.engine.where} {name}"))

    def _make(
        self, image: str, timeout: int, workdir: str, options: SandboxOptions
    ) -> DockerSandbox:
        session = self.session
        engine, found, name = session.engine, session.images.get(image), session.new_name()
        command = first_command(
            timeout, judged=options.for_test_run, trusted=found.image_id in self._proven
        )
        stream: ContainerStream | None = None
        try:
            with engine.faults(f"making a sandbox of {found.name}"):
                session.create_container(found, name, command, workdir, options)
                stream = ContainerStream(engine.api.attach_socket(name, params=_ATTACHED))
                engine.api.start(name)
            sandbox = self._sandbox_type(
                engine,
                name,
                stream,
                image=found.name,
                lifetime_seconds=timeout,
                workdir=workdir,
                judged=options.for_test_run,
                on_end=self._open.discard,
            )
        except BaseException:
            # By its name: when a request was interrupted, nobody knows what has become of it.
            with contextlib.suppress(CooperBenchError):
                engine.remove_container(name)
            if stream is not None:
                stream.close()
            raise
        if not options.for_test_run:
            self._proven.add(found.image_id)
        self._open.add(sandbox)
        return sandbox
