"""The `modal` backend: makes tasks' images ready and starts their sandboxes in the user's account at Modal.

What can be set is said in `settings.py`, what isolates a sandbox in `sandbox.py`. Importing this imports no client.
Sandboxes have tags that say whose they are: by them those that killed processes left running are found and ended.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import re
import secrets
import threading
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from cooperbench.backends.modal.connection import Connection, Gone, require_client
from cooperbench.backends.modal.images import ImageStore, snapshot_file, snapshot_files
from cooperbench.backends.modal.sandbox import FIRST_COMMAND, ModalSandbox
from cooperbench.backends.modal.settings import ModalSettings, read_settings
from cooperbench.backends.ownership import HOST_LABEL, is_leftover, locked, this_owner
from cooperbench.errors import CooperBenchError, InfraError, UserError
from cooperbench.sandbox.channel import ChannelUnavailable
from cooperbench.sandbox.contract import PROGRAMS_DIR, Capabilities, ResourceUse, SandboxOptions
from cooperbench.storage import write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import modal

    from cooperbench.models import Image, Task
    from cooperbench.sandbox.contract import Sandbox

__all__ = ["ModalBackend"]
_MAX_LIFETIME_SECONDS = 24 * 3600
"""Modal's limit."""
_CREATE_SECONDS = 25 * 60.0
"""Modal's client itself waits 21 minutes for a machine."""
_SESSION = "cooperbench-session"
_MAX_ENDING = 20
_log = logging.getLogger("cooperbench")


class ModalBackend:
    options: ClassVar = ("gpu", "image_template")
    capabilities = Capabilities(
        streams=True, networks=frozenset({"none", "public"}), snapshots=True, programs=True
    )

    def __init__(self, **settings: object) -> None:
        """UserError where the client is missing. Connects when it is first used."""
        self.settings: ModalSettings = read_settings(**settings)
        require_client()
        self._lock = threading.Lock()
        self._images: ImageStore | None = None
        """Of the connection in use."""
        self._used = ResourceUse()
        """By sandboxes that have ended."""
        self._open: set[ModalSandbox] = set()

    def check(self) -> None:
        """Does Modal answer, and accept the token?"""
        self._connected()

    def prepare(self, task: Task) -> Image:
        """Pull or build the task's image, and make the one without history from it."""
        return self._connected().provide(task)

    def create_sandbox(
        self,
        image: str,
        timeout: int = 600,
        workdir: str = "/workspace",
        *,
        options: SandboxOptions | None = None,
    ) -> ModalSandbox:
        """`image`: what `prepare` gave, an image id of Modal's, or a name that a registry knows."""
        import modal

        options = options or SandboxOptions()
        images, settings = self._connected(), self.settings
        connection, content = images.connection, images.get(image)
        offline = options.network == "none"
        if options.programs is not None:
            # Uploaded once: Modal keeps files by their content.
            content = content.add_local_dir(options.programs, PROGRAMS_DIR)
        lifetime_seconds = min(max(1, timeout), _MAX_LIFETIME_SECONDS)
        name = f"cooperbench-{connection.session}-{secrets.token_hex(4)}"

        async def create() -> modal.Sandbox:
            try:
                return await modal.Sandbox.create.aio(
                    *FIRST_COMMAND,
                    app=connection.app,
                    client=connection.client,
                    name=name,
                    tags=_sandbox_tags(connection.session, options),
                    image=content,
                    timeout=lifetime_seconds,
                    workdir="/",
                    gpu=settings.gpu or None,
                    region=list(settings.region) or None,
                    cpu=settings.cpu,
                    memory=(int(settings.memory.reserved), int(settings.memory.most)),
                    block_network=offline,
                    outbound_domain_allowlist=None
                    if offline
                    else list(settings.allow_domains) or None,
                )
            except modal.exception.AlreadyExistsError:
                # An earlier attempt has made it, and only its answer was lost.
                return await modal.Sandbox.from_name.aio(
                    connection.app_name, name, client=connection.client
                )

        remote = connection.create(f"making a sandbox of {image}", create, _CREATE_SECONDS)
        try:
            sandbox = ModalSandbox(
                connection, remote, settings, lifetime_seconds, workdir, self._forget
            )
        except ChannelUnavailable as error:
            raise UserError(f"{image}: {error}; images need sh, bash, coreutils and git") from error
        with self._lock:
            self._open.add(sandbox)
        if options.snapshot_excludes:
            sandbox.leave_out(options.snapshot_excludes)
        return sandbox

    @contextlib.contextmanager
    def locked_snapshot(self, task: Task, key: str) -> Iterator[str | None]:
        path = snapshot_file(task, key)
        with locked(path.with_suffix(".lock")):
            yield self._connected().find_snapshot(path)

    def take_snapshot(self, sandbox: Sandbox, task: Task, key: str) -> str:
        """Afterwards the sandbox can only be ended."""
        assert isinstance(sandbox, ModalSandbox)
        image = sandbox.snapshot()
        write_json(snapshot_file(task, key), {"task": task.label, "image": image})
        return image

    def remove_snapshots(self, tasks: set[str] | None) -> list[str]:
        """Of these tasks or of all; their ids. For `cooperbench images clean`."""
        from modal.experimental import image_delete

        connection, removed = self._connected().connection, []
        for path, content in snapshot_files(tasks):
            image = str(content.get("image"))
            with contextlib.suppress(Gone):
                delete = partial(image_delete.aio, image, client=connection.client)
                connection.call(f"deleting {image}", delete)
            path.unlink(missing_ok=True)
            removed.append(image)
        return removed

    def interrupt(self) -> None:
        if self._images is not None:
            self._images.connection.stopped.set()

    def resource_use(self) -> ResourceUse:
        """What the sandboxes of this object have reserved so far."""
        with self._lock:
            return sum((sandbox.resource_use for sandbox in self._open), self._used)

    def close(self) -> None:
        """End what is still open. The next use connects again."""
        with self._lock:
            still_open = list(self._open)
            images, self._images = self._images, None
        if images is None or images.connection.process != os.getpid():
            return
        for sandbox in still_open:
            sandbox.end("its backend was closed")
        # Also one that was made while only its answer was lost.
        with contextlib.suppress(CooperBenchError):
            _end_tagged(images.connection, {_SESSION: images.connection.session})

    @staticmethod
    def clean() -> list[str]:
        """For `cooperbench clean`: end what killed processes left; returns ids of sandboxes."""
        return _end_leftovers(Connection(read_settings().app))

    @property
    def about(self) -> str:
        """For `cooperbench doctor`, after `check`."""
        from importlib.metadata import version

        return f"client {version('modal')}, the token is good, app {self.settings.app}"

    def _connected(self) -> ImageStore:
        """Connects when first called, and ends what killed processes left behind."""
        with self._lock:
            if self._images is None or self._images.connection.process != os.getpid():
                connection = Connection(self.settings.app)
                self._images = ImageStore(connection, self.settings)
                atexit.register(
                    self.close
                )  # after the client's own exit handler, so that it runs before it
                try:
                    _end_leftovers(connection)
                except InfraError as error:
                    # No reason not to begin: the next start looks again.
                    _log.warning("%s", error)
            return self._images

    def _forget(self, sandbox: ModalSandbox) -> None:
        with self._lock:
            self._open.discard(sandbox)
            self._used += sandbox.resource_use


def _sandbox_tags(session: str, options: SandboxOptions) -> dict[str, str]:
    """Modal takes 63 characters at most."""
    tags = {**options.labels, "purpose": options.purpose, "session": session}
    fitting = {
        f"cooperbench-{name}": re.sub(r"[^A-Za-z0-9._-]+", "-", value)[:63] or "-"
        for name, value in tags.items()
    }
    return fitting | this_owner().labels


def _end_leftovers(connection: Connection) -> list[str]:
    """End the sandboxes of processes of this user and machine that are gone; returns their ids."""
    return _end_tagged(connection, {HOST_LABEL: this_owner().labels[HOST_LABEL]}, is_leftover)


def _end_tagged(
    connection: Connection,
    tags: dict[str, str],
    wanted: Callable[[dict[str, str]], bool] | None = None,
) -> list[str]:
    """End the sandboxes with these tags, or those among them whose tags are `wanted`; returns their ids."""
    import modal

    slots = asyncio.Semaphore(_MAX_ENDING)

    async def end(sandbox: modal.Sandbox) -> str:
        async with slots:
            try:
                if wanted is not None and not wanted(await sandbox.get_tags.aio()):
                    return ""
                await sandbox.terminate.aio()
            except modal.exception.NotFoundError:
                return ""
            return sandbox.object_id

    async def end_all() -> list[str]:
        listed = modal.Sandbox.list.aio(
            app_id=connection.app.app_id, tags=tags, client=connection.client
        )
        ended = await asyncio.gather(*[end(sandbox) async for sandbox in listed])
        return [name for name in ended if name]

    return connection.call("ending sandboxes that are left", end_all)
