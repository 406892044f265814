"""The `modal` backend: makes tasks' images ready and starts their sandboxes in the user's account at Modal."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import threading
import weakref
from typing import TYPE_CHECKING

from cooperbench.backends.modal import gitserver
from cooperbench.backends.modal.account import Account, require_client
from cooperbench.backends.modal.images import ImageStore
from cooperbench.backends.modal.labels import sandbox_tags
from cooperbench.backends.modal.leftovers import remove_leftovers, remove_session
from cooperbench.backends.modal.order import Order, create, network_of, resources_of
from cooperbench.backends.modal.prices import Meter
from cooperbench.backends.modal.sandbox import ModalSandbox
from cooperbench.backends.modal.settings import LONGEST_LIFETIME_SECONDS, ModalSettings, read_settings
from cooperbench.backends.modal.throttle import Throttle
from cooperbench.errors import CooperBenchError, InfraError, SandboxError, UserError
from cooperbench.models import Image
from cooperbench.sandbox.contract import Capabilities, Estimate, SandboxOptions, check_network
from cooperbench.sandbox.git_server import DEFAULT_IMAGE, SharedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cooperbench.backends.modal.order import Network, Resources
    from cooperbench.models import Task
    from cooperbench.sandbox.git_server import GitServer

_CREATE_SECONDS = 25 * 60.0
"""Modal's client itself waits 21 minutes for a machine."""
_log = logging.getLogger("cooperbench")
_backends: weakref.WeakSet[ModalBackend] = weakref.WeakSet()


class ModalBackend:
    """Sandboxes at Modal. What isolates them is said in `sandbox.py`, what can be set in `settings.py`."""

    capabilities = Capabilities(
        rich=True,
        streams=True,
        options=True,
        networks=frozenset({"none", "public"}),
        prepares=True,
        closes=True,
        checks=True,
        interrupts=True,
        estimates=True,
    )

    def __init__(self, **settings: object) -> None:
        """UserError where the client or a token is missing; nothing is connected to before it is needed."""
        self.settings: ModalSettings = read_settings(**settings)
        require_client()
        self._lock = threading.Lock()
        self._account: Account | None = None
        self._images: ImageStore | None = None
        self._session = ""
        self._process = 0
        self._throttle = Throttle(self.settings.most_starting)
        self._meter = Meter()
        self._open: set[ModalSandbox] = set()
        self._proven: set[str] = set()
        """Images whose tools have passed the channel's self test."""
        self._told: set[str] = set()
        self._git_server = SharedServer(self._start_git_server)

    @property
    def account(self) -> Account:
        """Connected to when first asked for; what killed processes left behind is then ended."""
        with self._lock:
            if self._account is None or self._process != os.getpid():
                account = Account(self.settings.app)
                self._process, self._session = os.getpid(), secrets.token_hex(8)
                self._images = ImageStore(account, self.settings)
                self._account = account
                _close_at_exit(self)
                try:
                    remove_leftovers(account)
                except InfraError as error:
                    # No reason not to begin: the next start looks again.
                    _log.warning("%s", error)
            return self._account

    @property
    def images(self) -> ImageStore:
        assert self.account
        assert self._images is not None
        return self._images

    def check(self) -> None:
        """Does Modal answer, and take the token?"""
        assert self.account

    def prepare(self, task: Task) -> Image:
        """Pull or build the task's image, and make the one without history from it."""
        made = self._throttle.patiently(lambda: self.images.provide(task))
        notes = (made.note,) if made.note else ()
        return Image(made.source.object_id, made.agents.object_id, made.digest, notes)

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
        lifetime_seconds = min(max(1, timeout), LONGEST_LIFETIME_SECONDS)
        resources, network = resources_of(self.settings), network_of(options, self.settings)
        order = self._order(options.purpose, options.labels, lifetime_seconds, resources, network)
        return self._start(image, order, workdir)

    @property
    def git_server(self) -> Callable[[str], GitServer] | None:
        """See `GitServingBackend`."""
        return self._git_server.get if self.settings.git == "server" else None

    def interrupt(self) -> None:
        self._throttle.stop()

    def estimate(self) -> Estimate:
        """What the sandboxes of this object have cost so far, roughly; see `prices.py`."""
        with self._lock:
            still_open = [(sandbox.rate, sandbox.age_seconds) for sandbox in self._open]
        return self._meter.estimate(still_open)

    def close(self) -> None:
        """End what is still open. Modal is connected to again when it is used again."""
        with self._lock:
            still_open = list(self._open)
            account, self._account = self._account, None
            session, process = self._session, self._process
        if account is None or process != os.getpid():
            return
        # All at once, and without threads, which cannot be had any more when the interpreter ends.
        ended: list[str] = []
        with contextlib.suppress(CooperBenchError):
            ended = remove_session(account, session)
        for sandbox in still_open:
            sandbox.end("its backend was closed", already=sandbox.name in ended)
        self._git_server.close()

    def _order(
        self,
        purpose: str,
        labels: Mapping[str, str],
        lifetime_seconds: int,
        resources: Resources,
        network: Network,
    ) -> Order:
        assert self.account  # its session begins with it
        name = f"cooperbench-{self._session}-{secrets.token_hex(4)}"
        return Order(name, sandbox_tags(self._session, purpose, labels), lifetime_seconds, resources, network)

    def _start_git_server(self, run_name: str) -> GitServer:
        order = self._order(
            gitserver.PURPOSE,
            {"run": run_name},
            LONGEST_LIFETIME_SECONDS,
            gitserver.RESOURCES,
            gitserver.NETWORK,
        )
        try:
            sandbox = self._start(self.settings.git_image or DEFAULT_IMAGE, order, "/")
        except UserError as error:
            mend = f"COOPERBENCH_MODAL_GIT_IMAGE sets another image; {gitserver.WITHOUT}"
            raise UserError(f"the git server for --git: {error}; {mend}") from error
        return gitserver.serve(self.account, sandbox)

    def _start(self, image: str, order: Order, workdir: str) -> ModalSandbox:
        account, store, public = self.account, self.images, image == DEFAULT_IMAGE
        content = self._throttle.patiently(lambda: store.get(image, public=public))
        remote = self._throttle.patiently(
            lambda: account.call(
                f"making a sandbox of {image}",
                create(account, content, order, self.settings.regions),
                _CREATE_SECONDS,
            )
        )
        self._meter.started()
        sandbox = ModalSandbox(
            account,
            remote,
            rate=order.resources.rate,
            lifetime_seconds=order.lifetime_seconds,
            workdir=workdir,
            trusted=image in self._proven,
            on_end=self._forget,
        )
        with self._lock:
            self._open.add(sandbox)
        if sandbox.without_channel and image not in self._told:
            self._told.add(image)
            _log.warning("%s: %s; each command costs a full exec", image, sandbox.without_channel)
        elif not sandbox.without_channel:
            self._proven.add(image)
        return sandbox

    def _forget(self, sandbox: ModalSandbox) -> None:
        self._meter.ended(sandbox.rate, sandbox.seconds)
        with self._lock:
            self._open.discard(sandbox)


def _close_at_exit(backend: ModalBackend) -> None:
    """Registered after the client's own end, so that it comes before it."""
    if not _backends:
        atexit.register(_close_all)
    _backends.add(backend)


def _close_all() -> None:
    for backend in list(_backends):
        with contextlib.suppress(SandboxError):
            backend.close()
