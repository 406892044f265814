"""A small Hub on loopback that answers what huggingface_hub asks for, and fails when it is told to."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DATASET_ID = "somebody/some-dataset"
_API = re.compile(
    rf"/api/datasets/{DATASET_ID}(?:/revision/(?P<revision>.+)|/tree/(?P<tree>[^/]+))?"
)
_FILE = re.compile(rf"/datasets/{DATASET_ID}/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


@dataclass
class Hub:
    """What it serves, what it was asked, and how it is to fail."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Commit → path → content."""
    branches: dict[str, str] = field(default_factory=dict)
    large_files: set[str] = field(default_factory=set)
    """Paths that are listed with a sha256, as files in large storage are."""
    endpoint: str = ""
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and Range header."""
    status_of_everything: int | None = None
    status_of: dict[str, int] = field(default_factory=dict)
    """Files that are answered with an error."""
    cut_once: dict[str, int] = field(default_factory=dict)
    """Files whose first answer breaks off after so many bytes."""

    def add_commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits[commit] = files
        self.branches[branch] = commit
        return commit

    def downloads(self) -> list[str]:
        """The files asked for, in order."""
        found = (_FILE.fullmatch(path) for method, path, _ in self.requests if method == "GET")
        return [match["path"] for match in found if match]


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    class Handler(_Handler):
        served = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    served: Hub
    protocol_version = "HTTP/1.1"
    # Head and body in one packet: in two, the second waits for the first one's acknowledgement.
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub = self.served
        path = unquote(urlsplit(self.path).path)
        hub.requests.append((self.command, path, self.headers.get("Range", "")))
        if hub.status_of_everything is not None:
            self._send(hub.status_of_everything, b"{}")
        elif match := _API.fullmatch(path):
            self._answer_api(
                match["tree"] or match["revision"] or "main", tree=match["tree"] is not None
            )
        elif match := _FILE.fullmatch(path):
            self._answer_file(match["revision"], match["path"])
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _answer_api(self, revision: str, *, tree: bool) -> None:
        hub = self.served
        commit = hub.branches.get(revision, revision)
        if commit not in hub.commits:
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        if not tree:
            content: object = {
                "id": DATASET_ID,
                "sha": commit,
                "siblings": [],
                "tags": [],
                "private": False,
            }
        else:
            content = [self._entry(path, data) for path, data in hub.commits[commit].items()]
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _entry(self, path: str, data: bytes) -> dict[str, object]:
        size = len(data)
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        entry: dict[str, object] = {"type": "file", "path": path, "size": size, "oid": blob}
        if path in self.served.large_files:
            entry["lfs"] = {
                "oid": hashlib.sha256(data).hexdigest(),
                "size": size,
                "pointerSize": 130,
            }
        return entry

    def _answer_file(self, revision: str, path: str) -> None:
        hub = self.served
        data = hub.commits[hub.branches.get(revision, revision)].get(path)
        if data is None or path in hub.status_of:
            self._send(hub.status_of.get(path, 404), b"")
            return
        etag = f'"{hashlib.sha1(data).hexdigest()}"'
        headers = {"ETag": etag, "X-Repo-Commit": revision, "Accept-Ranges": "bytes"}
        status, start = 200, 0
        if match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            status, start = 206, int(match[1])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        cut = hub.cut_once.pop(path, None) if self.command == "GET" else None
        self._send(status, data[start:], headers, cut)

    def _send(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        cut: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True
