"""A control plane of ours for the real Modal client: its gRPC services on loopback, sandboxes as local processes.

What it is not: a builder of images. Definitions are recorded, and stand for a task of a dataset that it knows, told by
its name in a registry or by the files that were uploaded with a Dockerfile.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from grpclib import GRPCError, Status
from grpclib.server import Server
from modal_proto import api_pb2
from modal_proto.api_grpc import ModalClientBase
from modal_proto.task_command_router_grpc import TaskCommandRouterBase

from cooperbench.backends.local import LocalBackend
from cooperbench.dataset.discovery import load_tasks
from cooperbench.dataset.image_names import image_name
from cooperbench.sandbox.contract import SandboxOptions
from tests.support.modal.faulty import Faults
from tests.support.modal.guest import Guest
from tests.support.modal.services import CONTROL, ROUTER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from cooperbench.models import Task

TOKEN_ID, TOKEN_SECRET = "ak-test", "as-test"
HOST_IMAGE = "im-host"
BARE_IMAGE = "im-bare"
"""In which no channel can work."""


class _Server(Server):
    """One that can let go of its clients, who stay for as long as their process does."""

    def __init__(self, services: list[Any]) -> None:
        super().__init__(services)
        self._protocols: list[Any] = []

    def _protocol_factory(self) -> Any:
        self._protocols.append(super()._protocol_factory())
        return self._protocols[-1]

    def drop_clients(self) -> None:
        for protocol in self._protocols:
            if getattr(protocol, "connection", None) is not None:
                protocol.connection.close()


class Plane:
    """Started in a thread of its own; everything that tests look at is here."""

    def __init__(self, cache_dir: Path) -> None:
        self.faults = Faults()
        self.guests: dict[str, Guest] = {}
        self.images: dict[str, api_pb2.Image] = {
            HOST_IMAGE: api_pb2.Image(dockerfile_commands=["FROM host"]),
            BARE_IMAGE: api_pb2.Image(dockerfile_commands=["FROM bare"]),
        }
        self.snapshots: dict[str, bytes] = {}
        self.folders: dict[str, bytes] = {}
        """Files of sandboxes, by the id of the image that they became."""
        self.mounts: dict[str, list[api_pb2.MountFile]] = {}
        self.tasks: list[Task] = []
        self.local = LocalBackend(cache_dir=cache_dir)
        self._count = 0
        self._lock = threading.Lock()
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(ThreadPoolExecutor(256, thread_name_prefix="plane"))
        self._thread = threading.Thread(target=self.loop.run_forever, name="plane", daemon=True)
        self._thread.start()
        self._server: _Server | None = None
        self.url = asyncio.run_coroutine_threadsafe(self._serve(), self.loop).result(30)

    def add_dataset(self, folder: Path) -> None:
        known = {task.path for task in self.tasks}
        self.tasks += [task for task in load_tasks(folder) if task.path not in known]

    def environment(self) -> dict[str, str]:
        """What a process has to have in its environment to use it."""
        return {
            "MODAL_SERVER_URL": self.url,
            "MODAL_TOKEN_ID": TOKEN_ID,
            "MODAL_TOKEN_SECRET": TOKEN_SECRET,
            "MODAL_CONFIG_PATH": "/nonexistent/modal.toml",
            "COOPERBENCH_MODAL_IMAGES": "build",
        }

    def running(self) -> list[Guest]:
        return [guest for guest in list(self.guests.values()) if guest.look() is None]

    def new_guest(
        self, definition: api_pb2.Sandbox, tags: Iterable[api_pb2.SandboxTag], *, old: bool
    ) -> Guest:
        with self._lock:
            if definition.name and any(
                guest.definition.name == definition.name for guest in self.running()
            ):
                raise GRPCError(Status.ALREADY_EXISTS, f"there is a sandbox {definition.name}")
            self._count += 1
            named = {tag.tag_name: tag.tag_value for tag in tags}
            guest = Guest(self._count, definition, named, old=old)
            self.guests[guest.sandbox_id] = guest
        return guest

    def start(self, guest: Guest) -> None:
        """Blocks until the sandbox runs."""
        definition = guest.definition
        access = definition.network_access
        connected = (
            access.network_access_type == api_pb2.NetworkAccess.OPEN or access.allowed_domains
        )
        name = self._local_image(definition.image_id)
        options = SandboxOptions(network="public" if connected else "none")
        image = "host" if name == "bare" else name
        guest.local = self.local.create_sandbox(
            image, timeout=definition.timeout_secs, options=options
        )
        if definition.image_id in self.snapshots:
            guest.fill(self.snapshots[definition.image_id])
        if name == "bare":
            tools = "mkdir /tmp/bare && ln -s $(command -v sh mkdir mv sleep) /tmp/bare"
            assert guest.local.run(["bash", "-c", tools]).returncode == 0
        if guest.result is not None:
            guest.local.terminate()

    def by_task(self, task_id: str) -> Guest:
        for guest in self.guests.values():
            if guest.task_id == task_id:
                if guest.look() is not None:
                    raise GRPCError(Status.NOT_FOUND, "the task has ended")
                return guest
        raise GRPCError(Status.NOT_FOUND, f"no task {task_id}")

    def by_id(self, sandbox_id: str) -> Guest:
        if sandbox_id not in self.guests:
            raise GRPCError(Status.NOT_FOUND, f"no sandbox {sandbox_id}")
        return self.guests[sandbox_id]

    def build(self, definition: api_pb2.Image) -> str:
        """Content-addressed, as at Modal."""
        image_id = f"im-{hashlib.sha256(definition.SerializeToString(deterministic=True)).hexdigest()[:22]}"
        self.images[image_id] = definition
        return image_id

    def take_snapshot(self, guest: Guest) -> str:
        image_id = f"im-snapshot{len(self.images)}"
        self.snapshots[image_id] = guest.files()
        base = api_pb2.BaseImage(image_id=guest.definition.image_id)
        self.images[image_id] = api_pb2.Image(base_images=[base])
        return image_id

    def layers(self, image_id: str) -> list[api_pb2.Image]:
        """From the top to the bottom."""
        definition = self.images[image_id]
        below = [self.layers(base.image_id) for base in definition.base_images]
        return [definition, *(below[0] if below else [])]

    def commands(self, image_id: str) -> list[str]:
        return [
            command
            for layer in reversed(self.layers(image_id))
            for command in layer.dockerfile_commands
        ]

    def reset(self) -> None:
        self.faults.clear()
        self.snapshots.clear()
        for guest in self.running():
            guest.terminate()

    def stop(self) -> None:
        self.reset()
        self.local.close()

        async def close() -> None:
            if self._server is not None:
                self._server.close()
                self._server.drop_clients()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._server.wait_closed(), 5)

        asyncio.run_coroutine_threadsafe(close(), self.loop).result(30)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()

    async def _serve(self) -> str:
        services: list[Any] = [
            _service(ModalClientBase, CONTROL, self),
            _service(TaskCommandRouterBase, ROUTER, self),
        ]
        self._server = _Server(services)
        await self._server.start("127.0.0.1", 0)
        listening: Any = self._server._server
        return f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"

    def _local_image(self, image_id: str) -> str:
        layers = self.layers(image_id)
        agents = any("strip_history" in command for command in self.commands(image_id))
        for layer in layers:
            files = {
                file.filename.lstrip("/"): file.sha256_hex
                for file in self.mounts.get(layer.context_mount_id, [])
            }
            for task in self.tasks:
                scripts = (task.setup_script, task.runner_script)
                if all(files.get(path.name) == _digest(path.read_bytes()) for path in scripts):
                    return self._prepared(task, agents=agents)
        name = str(layers[-1].dockerfile_commands[0]).removeprefix("FROM ")
        for task in self.tasks:
            if digest_of(registry_name(task)) in name or image_name(task) == name:
                return self._prepared(task, agents=agents)
        return name

    def _prepared(self, task: Task, *, agents: bool) -> str:
        image = self.local.prepare(task)
        return (image.agent_ref or "") if agents else image.ref


def registry_name(task: Task) -> str:
    """Of the task's image in the tests' registry, without its server."""
    return f"tasks/{task.repo}:task{task.task_id}"


def digest_of(name: str) -> str:
    return "sha256:" + _digest(name.encode())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_token() -> str:
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, {"exp": time.time() + 3600})]
    return ".".join(
        [*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), "signature"]
    )


def _service(base: type, methods: dict[str, Callable[..., Any]], plane: Plane) -> object:
    """An instance of a generated service: methods of ours, UNIMPLEMENTED for all others."""
    members: dict[str, Any] = {
        name: _unimplemented(name) for name in getattr(base, "__abstractmethods__", ())
    }
    members.update({name: _handler(plane, name, method) for name, method in methods.items()})
    return type(f"Our{base.__name__}", (base,), members)()


def _unimplemented(name: str) -> Callable[[Any, Any], Any]:
    async def answer(self: Any, stream: Any) -> None:
        raise GRPCError(Status.UNIMPLEMENTED, f"{name} is not part of the tests' control plane")

    return answer


def _handler(plane: Plane, name: str, method: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    async def answer(self: Any, stream: Any) -> None:
        known = dict(stream.metadata)
        if known.get("x-modal-token-id", TOKEN_ID) != TOKEN_ID:
            raise GRPCError(Status.UNAUTHENTICATED, "Token validation failed")
        await plane.faults.before(name)
        await method(plane, stream)

    return answer
