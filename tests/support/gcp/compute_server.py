"""Compute Engine on loopback: REST for Google's own client, machines that are containers with a real sshd.

A machine has a network of its own (`namespaces`): an address for SSH, a packet filter of the kernel, and the metadata server
at its real address. What Google's guest agent does is done by `guest_agent.sh`; our start-up script is then run as it is. The
engine that the machine finds at its socket is that of the tests, so that what runs "on" a machine is removed here when the
machine is deleted; a container is on the machine's bridge once a test has called `Vm.connect`.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from cooperbench.backends.docker.containers import remove_session
from tests.support.gcp.namespaces import METADATA_SERVER, Site

if TYPE_CHECKING:
    from cooperbench.backends.docker.engine import Engine

METADATA = "/computeMetadata/v1/instance"
_ZONE = "/compute/v1/projects/[^/]+/zones/([^/]+)"


class Refused(Exception):
    """Answered with a status and words of Google's."""

    def __init__(self, status: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "error": {
                "code": status,
                "message": message,
                "errors": [{"reason": reason, "message": message}],
            }
        }


class Vm:
    """One machine, booting from the start."""

    def __init__(
        self,
        engine: Engine,
        image: str,
        zone: str,
        resource: dict[str, Any],
        metadata: dict[str, str],
        *,
        filters: bool,
    ) -> None:
        self.name = str(resource["name"])
        self.zone = zone
        self.resource = resource
        self.status = "RUNNING"
        self.attributes: dict[str, str] = {}
        self.asked: Counter[str] = Counter()
        """How often the machine has asked for which metadata."""
        self._engine = engine
        items = resource["metadata"]["items"]
        self.metadata = {item["key"]: item["value"] for item in items} | metadata
        self.site = Site()
        self._server = _serve_metadata(self)
        socket = engine.where.removeprefix("unix://")
        container = f"cooperbench-test-vm-{self.name}"
        made = engine.api.create_container_from_config(
            {
                "Image": image,
                "Cmd": ["bash", "/guest_agent.sh", self.site.address],
                "HostConfig": {
                    "NetworkMode": "none",
                    "CapAdd": ["NET_ADMIN"],
                    "Binds": [f"{socket}:/var/run/docker.sock"],
                    "ExtraHosts": [f"metadata.google.internal:{METADATA_SERVER}"],
                },
            },
            container,
        )
        self.container = str(made["Id"])
        engine.api.start(self.container)
        self.site.add_machine(self._process(self.container), filters=filters)

    def described(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "status": self.status,
            "labels": self.resource.get("labels", {}),
            "networkInterfaces": [
                {
                    "networkIP": "10.0.0.2",
                    "accessConfigs": [{"natIP": self.site.address, "type": "ONE_TO_ONE_NAT"}],
                }
            ],
        }

    def connect(self, container: str) -> None:
        """Give a container of the engine a network as the machine's own Docker would."""
        self.site.add_container(self._process(container))

    def _process(self, container: str) -> int:
        return int(self._engine.api.inspect_container(container)["State"]["Pid"])

    def end(self) -> None:
        with contextlib.suppress(Exception):
            self._engine.api.remove_container(self.container, force=True)
        self._server.shutdown()
        self._server.server_close()
        self.site.close()
        remove_session(self._engine, self.name.removeprefix("cooperbench-"))


class ComputeServer:
    """`url` is the endpoint; what a test wants to go wrong is set from outside."""

    def __init__(self, engine: Engine, image: str) -> None:
        self._engine = engine
        self._image = image
        self.vms: dict[str, Vm] = {}
        self.made: list[dict[str, Any]] = []
        """All that were ever asked for, as they were."""
        self.foreign: dict[str, dict[str, Any]] = {}
        """Machines that are only listed."""
        self.deleted: list[str] = []
        self.most_machines = 100
        self.refusal: Refused | None = None
        self.spoil_host_key = False
        self.metadata: dict[str, str] = {}
        """For new machines, beside what the harness gives them."""
        self.filters = True
        """Whether Docker on new machines filters packets, and has a chain for rules of others."""
        self.too_many_questions = 0
        """How many of the next questions for guest attributes are too many."""
        self._operations: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        server = self

        class Answers(Handler):
            def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Any:
                return server.answer(method, path, query, body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        for name in list(self.vms):
            self.vms.pop(name).end()
        self._server.shutdown()
        self._server.server_close()

    def reset(self) -> None:
        for name in list(self.vms):
            self.vms.pop(name).end()
        self.made.clear()
        self.foreign.clear()
        self.deleted.clear()
        self.metadata.clear()
        self.most_machines, self.refusal, self.spoil_host_key, self.filters = 100, None, False, True

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Any:
        if self.refusal is not None:
            raise self.refusal
        if found := re.fullmatch(f"{_ZONE}/machineTypes/(.*)", path):
            vcpus = int(found[2].rpartition("-")[2]) if found[2][-1].isdecimal() else 2
            return {"name": found[2], "guestCpus": vcpus, "memoryMb": vcpus * 4096}
        if re.fullmatch("/v1/projects/[^/]+/locations/[^/]+/jobs", path):
            return {"jobs": []}  # for those who ask Batch too
        if path.endswith("/aggregated/instances"):
            return {"items": self._listed(query.get("filter", ""))}
        if found := re.fullmatch(f"{_ZONE}/instances", path):
            return self._insert(found[1], body)
        if found := re.fullmatch(f"{_ZONE}/operations/([^/]+)(/wait)?", path):
            return {**self._operations[found[2]], "status": "DONE"}
        if found := re.fullmatch(f"{_ZONE}/instances/([^/]+)(/getGuestAttributes)?", path):
            return self._one(method, found[2], guest=bool(found[3]))
        raise Refused(404, f"no such method: {method} {path}")

    def _insert(self, zone: str, resource: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self.made.append(resource)
            operation: dict[str, Any] = {"name": f"op-{len(self._operations)}", "status": "RUNNING"}
            if len(self.vms) >= self.most_machines:
                message = "Quota 'CPUS' exceeded. Limit: 8.0 in region us-central1."
                operation["error"] = {"errors": [{"code": "QUOTA_EXCEEDED", "message": message}]}
            else:
                self.vms[resource["name"]] = Vm(
                    self._engine, self._image, zone, resource, self.metadata, filters=self.filters
                )
            self._operations[operation["name"]] = operation
        return operation

    def _one(self, method: str, name: str, *, guest: bool) -> dict[str, Any]:
        if method == "DELETE" and name in self.foreign:
            del self.foreign[name]
            self.deleted.append(name)
            return {"name": "op-delete", "status": "RUNNING"}
        vm = self.vms.get(name)
        if vm is None:
            raise Refused(
                404, f"The resource 'projects/p/zones/z/instances/{name}' was not found", "notFound"
            )
        if method == "DELETE":
            self.deleted.append(name)
            self.vms.pop(name).end()
            return {"name": "op-delete", "status": "RUNNING"}
        if not guest:
            return vm.described()
        if self.too_many_questions:
            self.too_many_questions -= 1
            raise Refused(403, "Rate Limit Exceeded", "rateLimitExceeded")
        if not vm.attributes:
            raise Refused(
                404,
                "The resource 'cooperbench/' of type 'Guest Attribute' was not found.",
                "notFound",
            )
        told = dict(vm.attributes)
        if self.spoil_host_key and "host-key" in told:
            told["host-key"] = (
                "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJK3Q4hPLuF0hFpVv0vBqGcQ0a3tTqHk0uZyW3mDqXyZ"
            )
        items = [
            {"namespace": "cooperbench", "key": key, "value": value} for key, value in told.items()
        ]
        return {"queryPath": "cooperbench/", "queryValue": {"items": items}}

    def _listed(self, wanted: str) -> dict[str, Any]:
        conditions = dict(re.findall(r'labels\.([a-z-]+)="([^"]*)"', wanted))
        everything = [vm.described() for vm in self.vms.values()] + list(self.foreign.values())
        chosen = [
            found
            for found in everything
            if all(found["labels"].get(name) == value for name, value in conditions.items())
        ]
        return {"zones/us-central1-b": {"instances": chosen}, "zones/us-central1-c": {}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Any:
        raise NotImplementedError

    def _do(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        sent = self.rfile.read(length)
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        try:
            body = json.loads(sent) if sent else None
            status, content = 200, self.answer(self.command, unquote(parts.path), query, body)
        except Refused as error:
            status, content = error.status, error.body
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self._do()

    def do_POST(self) -> None:
        self._do()

    def do_DELETE(self) -> None:
        self._do()

    def log_message(self, *args: Any) -> None:
        """Quiet."""


def _serve_metadata(vm: Vm) -> ThreadingHTTPServer:

    class Metadata(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.removeprefix(f"{METADATA}/attributes/")
            vm.asked[name] += 1
            found = (
                vm.metadata.get(name) if self.headers.get("Metadata-Flavor") == "Google" else None
            )
            data = (found or "").encode()
            self.send_response(200 if found is not None else 404)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_PUT(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"])).decode()
            vm.attributes[self.path.removeprefix(f"{METADATA}/guest-attributes/cooperbench/")] = (
                data
            )
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer((METADATA_SERVER, 80), Metadata, bind_and_activate=False)
    server.socket.close()
    server.socket = vm.site.listen("outside", METADATA_SERVER, 80)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
