"""`Backend`, the base class of backends, and the adapter for backends that do not use it.

The defaults of `Backend` are right for a backend that can only create sandboxes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from cooperbench.dataset.image_names import image_name
from cooperbench.models import Image
from cooperbench.sandbox.contract import (
    Capabilities,
    EvalBackend,
    ResourceUse,
    SandboxOptions,
    SandboxProtocol,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from cooperbench.models import Task
    from cooperbench.sandbox.base_sandbox import Sandbox


class Backend(ABC):
    """A backend with everything that CooperBench can use.

    All methods may be called from several threads.

    Errors that may be raised are listed in `contract.py`.
    """

    capabilities: Capabilities = Capabilities()

    @property
    def about(self) -> str:
        """One line for `cooperbench doctor` after `check` has succeeded."""
        return "usable"

    @abstractmethod
    def create_sandbox(
        self,
        image: str,
        timeout: int = 600,
        workdir: str = "/workspace",
        *,
        options: SandboxOptions | None = None,
    ) -> SandboxProtocol:
        """Create a sandbox; see `EvalBackend.create_sandbox`.

        No options mean `SandboxOptions()`.
        """

    def prepare(self, task: Task) -> Image:
        """Make a task's image ready, once for all its sandboxes.

        By default the image is the task's image name, and CooperBench strips history and future
        commits in each sandbox.
        """
        return Image(image_name(task))

    def check(self) -> None:  # noqa: B027  # optional, does nothing by default
        """Raise UserError if no sandbox can be created at all.

        Called once, before anything is created.
        """

    def interrupt(self) -> None:  # noqa: B027  # optional, does nothing by default
        """Make calls return that wait for a sandbox to be created: the run is being stopped."""

    def close(self) -> None:  # noqa: B027  # optional, does nothing by default
        """Release everything: the run is over."""

    def resource_use(self) -> ResourceUse | None:
        """Return what was used so far, also after `close`; None if nothing is counted."""
        return None

    def locked_snapshot(self, task: Task, key: str) -> AbstractContextManager[str | None]:
        """Lock a snapshot's key for other processes.

        Yield the snapshot's image ref, or None if it does not exist.

        Called only with the capability `snapshots`, as is `take_snapshot`.
        """
        raise NotImplementedError

    def take_snapshot(self, sandbox: Sandbox, task: Task, key: str) -> str:
        """Keep a sandbox's files, except `SandboxOptions.snapshot_excludes`, as an image.

        Return its ref.
        """
        raise NotImplementedError


@runtime_checkable
class _HasCapabilities(Protocol):
    capabilities: Capabilities


@runtime_checkable
class _HasAbout(Protocol):
    about: str


@runtime_checkable
class _HasPrepare(Protocol):
    def prepare(self, task: Task) -> Image: ...


@runtime_checkable
class _HasCheck(Protocol):
    def check(self) -> None: ...


@runtime_checkable
class _HasInterrupt(Protocol):
    def interrupt(self) -> None: ...


@runtime_checkable
class _HasClose(Protocol):
    def close(self) -> None: ...


@runtime_checkable
class _HasResourceUse(Protocol):
    def resource_use(self) -> ResourceUse: ...


@runtime_checkable
class _HasSnapshots(Protocol):
    def locked_snapshot(self, task: Task, key: str) -> AbstractContextManager[str | None]: ...

    def take_snapshot(self, sandbox: Sandbox, task: Task, key: str) -> str: ...


class AdaptedBackend(Backend):
    """A third-party backend as a `Backend`.

    Uses the optional methods that it has, else the defaults.
    """

    def __init__(self, backend: EvalBackend) -> None:
        self._backend = backend
        if isinstance(backend, _HasCapabilities) and isinstance(backend.capabilities, Capabilities):
            self.capabilities = backend.capabilities

    @property
    def about(self) -> str:
        """One line for `cooperbench doctor`."""
        if isinstance(self._backend, _HasAbout):
            return self._backend.about
        return super().about

    def create_sandbox(
        self,
        image: str,
        timeout: int = 600,
        workdir: str = "/workspace",
        *,
        options: SandboxOptions | None = None,
    ) -> SandboxProtocol:
        """Create a sandbox.

        Options are passed on only to a backend that declares network policies.
        """
        if self.capabilities.networks:
            backend = cast("Backend", self._backend)
            return backend.create_sandbox(image, timeout, workdir, options=options)
        return self._backend.create_sandbox(image, timeout=timeout, workdir=workdir)

    def prepare(self, task: Task) -> Image:
        """Make a task's image ready."""
        if isinstance(self._backend, _HasPrepare):
            return self._backend.prepare(task)
        return super().prepare(task)

    def check(self) -> None:
        """Raise UserError if no sandbox can be created at all."""
        if isinstance(self._backend, _HasCheck):
            self._backend.check()

    def interrupt(self) -> None:
        """Make calls return that wait for a sandbox to be created."""
        if isinstance(self._backend, _HasInterrupt):
            self._backend.interrupt()

    def close(self) -> None:
        """Release everything."""
        if isinstance(self._backend, _HasClose):
            self._backend.close()

    def resource_use(self) -> ResourceUse | None:
        """Return what was used so far; None if nothing is counted."""
        if isinstance(self._backend, _HasResourceUse):
            return self._backend.resource_use()
        return None

    def locked_snapshot(self, task: Task, key: str) -> AbstractContextManager[str | None]:
        """Lock a snapshot's key; yield its image ref, or None."""
        if isinstance(self._backend, _HasSnapshots):
            return self._backend.locked_snapshot(task, key)
        return super().locked_snapshot(task, key)

    def take_snapshot(self, sandbox: Sandbox, task: Task, key: str) -> str:
        """Keep a sandbox's files as an image; return its ref."""
        if isinstance(self._backend, _HasSnapshots):
            return self._backend.take_snapshot(sandbox, task, key)
        return super().take_snapshot(sandbox, task, key)


def adapted_backend(backend: EvalBackend) -> Backend:
    """Return the backend itself if it is a `Backend`, else an adapter."""
    if isinstance(backend, Backend):
        return backend
    return AdaptedBackend(backend)


def capabilities_of(backend: EvalBackend) -> Capabilities:
    """Return what a backend declares, or no capabilities at all."""
    return adapted_backend(backend).capabilities
