"""A package index on this machine: wheels as in PEP 503 and packages of npm, with counts of what was fetched.

It listens on this machine's own address, which sandboxes with the network policy `public` reach through their gateway and
those with `none` do not. Answers may be cached for as long as those of the public indexes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import tarfile
import threading
import zipfile
from collections import defaultdict
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.support.docker.engines import NoEngine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Self

_PAGE, _FILE = "max-age=600, public", "max-age=365000000, immutable, public"


class Traffic(NamedTuple):
    """What was fetched."""

    requests: int
    bytes: int
    """Of the answers' bodies."""


class _Answer(NamedTuple):
    kind: str
    keep: str
    body: bytes


class PackageIndex:
    """Serves the wheels and npm packages (`*.tgz`) of a folder while it is open.

    Paths: `/simple/<name>/` and `/files/<wheel>`, `/npm/<name>` and `/npm/<name>/-/<tarball>`.
    """

    def __init__(self, folder: Path) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, Traffic] = {}
        self.address = _own_address()
        self._start(port=0)
        self.url = f"http://{self.address}:{self._server.server_port}"
        self._answers = {**_wheels(folder), **_npm_packages(folder, self.url)}

    def _start(self, port: int) -> None:
        self._server = ThreadingHTTPServer((self.address, port), _handler(self))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self._thread.start()

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Refuse connections for the length of a `with` block."""
        port = self._server.server_port
        self.close()
        try:
            yield
        finally:
            self._start(port)

    def traffic(self, prefix: str = "/") -> Traffic:
        """Since the start or the last reset, of paths that begin so."""
        with self._lock:
            counted = [count for path, count in self._counts.items() if path.startswith(prefix)]
        return Traffic(
            sum(count.requests for count in counted), sum(count.bytes for count in counted)
        )

    def reset(self) -> None:
        """Count from zero."""
        with self._lock:
            self._counts.clear()

    def find(self, path: str) -> _Answer | None:
        return self._answers.get(path)

    def count(self, path: str, size: int) -> None:
        with self._lock:
            before = self._counts.get(path, Traffic(0, 0))
            self._counts[path] = Traffic(before.requests + 1, before.bytes + size)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _handler(index: PackageIndex) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0].replace("%2f", "/")
            found = index.find(path)
            kind, keep, body = found or _Answer("text/plain", "no-store", b"not here\n")
            tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            status = 404 if found is None else 304 if self.headers["If-None-Match"] == tag else 200
            body = b"" if status == 304 else body
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", keep)
            self.send_header("ETag", tag)
            self.end_headers()
            sent = b"" if self.command == "HEAD" else body
            index.count(path, len(sent))
            self.wfile.write(sent)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *args: Any) -> None:
            """Quiet."""

    return Handler


def _own_address() -> str:
    """The one that this machine has on its default route; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError as error:
            raise NoEngine(f"this machine has no address for a package index ({error})") from error
        return str(probe.getsockname()[0])


def _wheels(folder: Path) -> dict[str, _Answer]:
    """Files, their metadata by themselves (PEP 658), and a page for each name."""
    answers: dict[str, _Answer] = {}
    links: dict[str, list[str]] = defaultdict(list)
    for path in sorted(folder.glob("*.whl")):
        data = path.read_bytes()
        distribution, version = path.name.split("-")[:2]
        with zipfile.ZipFile(path) as archive:
            metadata = archive.read(f"{distribution}-{version}.dist-info/METADATA")
        answers[f"/files/{path.name}"] = _Answer("application/octet-stream", _FILE, data)
        answers[f"/files/{path.name}.metadata"] = _Answer(
            "application/octet-stream", _FILE, metadata
        )
        links[distribution.lower().replace("_", "-")].append(
            f'<a href="/files/{path.name}#sha256={hashlib.sha256(data).hexdigest()}"'
            f' data-core-metadata="sha256={hashlib.sha256(metadata).hexdigest()}">{path.name}</a>'
        )
    for name, found in links.items():
        page = f"<!DOCTYPE html><html><body>{''.join(found)}</body></html>"
        answers[f"/simple/{name}/"] = _Answer("text/html", _PAGE, page.encode())
    return answers


def _npm_packages(folder: Path, url: str) -> dict[str, _Answer]:
    """Tarballs, and for each name a document with its versions."""
    answers: dict[str, _Answer] = {}
    documents: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.tgz")):
        data = path.read_bytes()
        with tarfile.open(path) as archive:
            file = archive.extractfile("package/package.json")
            assert file is not None
            package = json.load(file)
        name, version = package["name"], package["version"]
        place = f"/npm/{name}/-/{path.name}"
        answers[place] = _Answer("application/octet-stream", _FILE, data)
        dist = {
            "tarball": url + place,
            "integrity": integrity(data),
            "shasum": hashlib.sha1(data).hexdigest(),
        }
        document = documents.setdefault(name, {"name": name, "dist-tags": {}, "versions": {}})
        document["versions"][version] = {**package, "dist": dist}
        document["dist-tags"]["latest"] = version
    for name, document in documents.items():
        text = json.dumps(document).encode()
        answers[f"/npm/{name}"] = _Answer("application/json", "public, max-age=300", text)
    return answers


def integrity(data: bytes) -> str:
    """As npm and its lock files write it."""
    return f"sha512-{base64.b64encode(hashlib.sha512(data).digest()).decode()}"
