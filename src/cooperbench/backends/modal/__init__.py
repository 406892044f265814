"""The `modal` backend: prepares task images and starts sandboxes in the user's Modal account.

`settings.py` declares the settings and `sandbox.py` describes the isolation. Importing this package
does not import Modal's client. Sandboxes are tagged with their owner, so that those of killed
processes can be found and ended.
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
from cooperbench.sandbox.backend import Backend
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
"""Maximum lifetime of a sandbox at Modal."""
_CREATE_SECONDS = 25 * 60.0
"""Longer than the 21 minutes that Modal's client waits for a machine."""
_SESSION = "cooperbench-session"
_MAX_TERMINATIONS = 20
"""Maximum number of sandboxes that are terminated at once."""
_MAX_TAG_CHARACTERS = 63
"""Modal's limit for the value of a tag."""
_log = logging.getLogger("cooperbench")


class ModalBackend(Backend):
    """Sandboxes at Modal. It connects with the first use."""

    options: ClassVar = ("gpu", "image_template")
    capabilities = Capabilities(
        streams=True, networks=frozenset({"none", "public"}), snapshots=True, programs=True
    )

    def __init__(self, **settings: object) -> None:
        """Read the settings; UserError if Modal's client is not installed."""
        self.settings: ModalSettings = read_settings(**settings)
        require_client()
        self._lock = threading.Lock()
        self._images: ImageStore | None = None
        """The images of the current connection."""
        self._used = ResourceUse()
        """Resources used by sandboxes that have ended."""
        self._open: set[ModalSandbox] = set()

    def check(self) -> None:
        """Connect; raises UserError or InfraError if Modal does not answer or rejects the token."""
        self._connected()

    def prepare(self, task: Task) -> Image:
        """Pull or build the task's image, and derive the image without history."""
        return self._connected().provide(task)

    def create_sandbox(
        self,
        image: str,
        timeout: int = 600,
        workdir: str = "/workspace",
        *,
        options: SandboxOptions | None = None,
    ) -> ModalSandbox:
        """Start a sandbox from an image of `prepare`, an image id of Modal, or a registry name."""
        import modal

        options = options or SandboxOptions()
        images = self._connected()
        settings = self.settings
        connection = images.connection
        content = images.get(image)
        is_offline = options.network == "none"
        allowed_domains = None
        if settings.allow_domains and not is_offline:
            allowed_domains = list(settings.allow_domains)
        if options.programs is not None:
            # Modal stores files by content, so this uploads them only once.
            content = content.add_local_dir(options.programs, PROGRAMS_DIR)
        lifetime_seconds = min(max(1, timeout), _MAX_LIFETIME_SECONDS)
        name = f"cooperbench-{connection.session}-{secrets.token_hex(4)}"

        async def _create() -> modal.Sandbox:
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
                    memory=(int(settings.memory.reserved), int(settings.memory.limit)),
                    block_network=is_offline,
                    outbound_domain_allowlist=allowed_domains,
                )
            except modal.exception.AlreadyExistsError:
                # An earlier attempt created it, and only the answer was lost.
                return await modal.Sandbox.from_name.aio(
                    connection.app_name, name, client=connection.client
                )

        remote = connection.create(f"starting a sandbox of {image}", _create, _CREATE_SECONDS)
        try:
            sandbox = ModalSandbox(
                connection, remote, settings, lifetime_seconds, workdir, self._forget
            )
        except ChannelUnavailable as error:
            raise UserError(f"{image}: {error}; images need sh, bash, coreutils and git") from error
        with self._lock:
            self._open.add(sandbox)
        if options.snapshot_excludes:
            sandbox.exclude_from_snapshot(options.snapshot_excludes)
        return sandbox

    @contextlib.contextmanager
    def locked_snapshot(self, task: Task, key: str) -> Iterator[str | None]:
        """Lock a snapshot and yield its image id, or None if it does not exist."""
        path = snapshot_file(task, key)
        with locked(path.with_suffix(".lock")):
            yield self._connected().find_snapshot(path)

    def take_snapshot(self, sandbox: Sandbox, task: Task, key: str) -> str:
        """Store a sandbox's files as a snapshot. Afterwards the sandbox can only be ended."""
        assert isinstance(sandbox, ModalSandbox)
        image = sandbox.snapshot()
        write_json(snapshot_file(task, key), {"task": task.label, "image": image})
        return image

    def remove_snapshots(self, tasks: set[str] | None) -> list[str]:
        """Delete the snapshots of these tasks (None: of all) and return their image ids."""
        # Modal has no other function that deletes an image.
        from modal.experimental import image_delete

        connection = self._connected().connection
        removed = []
        for path, _, image in snapshot_files(tasks):
            with contextlib.suppress(Gone):
                delete = partial(image_delete.aio, image, client=connection.client)
                connection.call(f"deleting {image}", delete)
            path.unlink(missing_ok=True)
            removed.append(image)
        return removed

    def interrupt(self) -> None:
        """Make the creation of images and sandboxes fail from now on."""
        if self._images is not None:
            self._images.connection.stopped.set()

    def resource_use(self) -> ResourceUse:
        """Return the resources that the sandboxes of this object have reserved so far."""
        with self._lock:
            return sum((sandbox.resource_use for sandbox in self._open), self._used)

    def close(self) -> None:
        """End all open sandboxes. The next use connects again."""
        with self._lock:
            still_open = list(self._open)
            images, self._images = self._images, None
        if images is None or images.connection.process != os.getpid():
            return
        for sandbox in still_open:
            sandbox.end("its backend was closed")
        # This also ends a sandbox whose creation succeeded although the answer was lost.
        with contextlib.suppress(CooperBenchError):
            _end_tagged(images.connection, {_SESSION: images.connection.session})

    @staticmethod
    def clean() -> list[str]:
        """End sandboxes of killed processes (`cooperbench clean`) and return their ids."""
        return _end_leftovers(Connection(read_settings().app))

    @property
    def about(self) -> str:
        """Description for `cooperbench doctor`, after a successful `check`."""
        from importlib.metadata import version

        return f"client {version('modal')}, the token is good, app {self.settings.app}"

    def _connected(self) -> ImageStore:
        """Return the images of the connection. The first call connects and ends leftovers."""
        with self._lock:
            if self._images is None or self._images.connection.process != os.getpid():
                connection = Connection(self.settings.app)
                self._images = ImageStore(connection, self.settings)
                # Registered after the client's own exit handler, so that it runs before it.
                atexit.register(self.close)
                try:
                    _end_leftovers(connection)
                except InfraError as error:
                    # The run can start anyway; the next start tries again.
                    _log.warning("%s", error)
            return self._images

    def _forget(self, sandbox: ModalSandbox) -> None:
        with self._lock:
            self._open.discard(sandbox)
            self._used += sandbox.resource_use


def _sandbox_tags(session: str, options: SandboxOptions) -> dict[str, str]:
    """Return the tags of a sandbox: labels, purpose, session and owner."""
    labels = {**options.labels, "purpose": options.purpose, "session": session}
    tags = {}
    for name, value in labels.items():
        cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", value)
        tags[f"cooperbench-{name}"] = cleaned[:_MAX_TAG_CHARACTERS] or "-"
    return {**tags, **this_owner().labels}


def _end_leftovers(connection: Connection) -> list[str]:
    """End the sandboxes of this user's and machine's dead processes; return their ids."""
    return _end_tagged(connection, {HOST_LABEL: this_owner().labels[HOST_LABEL]}, is_leftover)


def _end_tagged(
    connection: Connection,
    tags: dict[str, str],
    predicate: Callable[[dict[str, str]], bool] | None = None,
) -> list[str]:
    """End the sandboxes with these tags, filtered by a predicate on all their tags; return ids."""
    import modal

    slots = asyncio.Semaphore(_MAX_TERMINATIONS)

    async def _end(sandbox: modal.Sandbox) -> str:
        async with slots:
            try:
                if predicate is not None and not predicate(await sandbox.get_tags.aio()):
                    return ""
                await sandbox.terminate.aio()
            except modal.exception.NotFoundError:
                return ""
            return sandbox.object_id

    async def _end_all() -> list[str]:
        listed = modal.Sandbox.list.aio(
            app_id=connection.app.app_id, tags=tags, client=connection.client
        )
        ended = await asyncio.gather(*[_end(sandbox) async for sandbox in listed])
        return [name for name in ended if name]

    return connection.call("ending leftover sandboxes", _end_all)
