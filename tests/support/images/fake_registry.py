"""A registry that misbehaves as none of the real ones can be made to: a small HTTP server."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from tests.support.images.built import ARCHITECTURE, MANIFEST, digest

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "token-of-the-registry"


@dataclass
class FakeRegistry:
    """Blobs and manifests by path, and what goes wrong."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """Path, Range and Authorization of each request."""
    failures: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Status and headers of the next answers."""
    cut_after: int | None = None
    """Bytes after which the connection ends, once."""
    hangs: bool = False
    wants_token: bool = False
    redirects_to: str = ""
    """Address of another server that has the blobs."""
    ranges: bool = True
    stopped: threading.Event = field(default_factory=threading.Event)

    def add_image(self, repository: str, layers: list[bytes], reference: str = "1") -> str:
        """Add an image of uncompressed layers; return its name."""
        document = {
            "architecture": ARCHITECTURE,
            "os": "linux",
            "config": {"Env": ["A=1"]},
            "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
        }
        blobs = [json.dumps(document).encode(), *layers]
        descriptors = [{"mediaType": "", "digest": digest(b), "size": len(b)} for b in blobs]
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptors[0],
            "layers": descriptors[1:],
        }
        for blob in blobs:
            self.files[f"/v2/{repository}/blobs/{digest(blob)}"] = blob
        self.files[f"/v2/{repository}/manifests/{reference}"] = json.dumps(manifest).encode()
        return f"{self.address}/{repository}:{reference}"


class _Handler(BaseHTTPRequestHandler):
    registry: FakeRegistry
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        registry = self.registry
        authorization = self.headers.get("Authorization", "")
        registry.requests.append((self.path, self.headers.get("Range", ""), authorization))
        if self.path.startswith("/token"):
            self._answer(200, json.dumps({"token": TOKEN}).encode())
        elif registry.hangs:
            registry.stopped.wait(30)
        elif registry.wants_token and authorization != f"Bearer {TOKEN}":
            realm = f'Bearer realm="http://{registry.address}/token",service="fake"'
            self._answer(401, b"", {"WWW-Authenticate": realm})
        elif registry.failures:
            status, headers = registry.failures.pop(0)
            self._answer(status, b"", headers)
        elif registry.redirects_to and "/blobs/" in self.path:
            self._answer(307, b"", {"Location": f"http://{registry.redirects_to}{self.path}"})
        elif self.path not in registry.files:
            self._answer(404, b"{}")
        else:
            self._send_file(registry.files[self.path])

    def _send_file(self, data: bytes) -> None:
        start = self.headers.get("Range", "").removeprefix("bytes=").rstrip("-")
        if start and self.registry.ranges:
            self._answer(206, data[int(start) :])
        else:
            self._answer(200, data)

    def _answer(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        limit = self.registry.cut_after
        if limit is not None and len(data) > limit:
            self.registry.cut_after = None
            data = data[:limit]
            self.close_connection = True
        self.wfile.write(data)


@contextmanager
def fake_registry() -> Iterator[FakeRegistry]:
    registry = FakeRegistry()
    handler = type("Handler", (_Handler,), {"registry": registry})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    registry.address = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    try:
        yield registry
    finally:
        registry.stopped.set()
        server.shutdown()
        thread.join()
        server.server_close()
