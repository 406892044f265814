"""The page while runs go on: served on this machine only, read-only, made again when files change.

Anyone who can connect to the port can read the runs. The server therefore listens on 127.0.0.1 and
answers only requests whose Host header says so: a web site whose name points here (DNS rebinding)
gets nothing. No file path is taken from a request.
"""

from __future__ import annotations

import hashlib
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from cooperbench.errors import UserError
from cooperbench.models import SETTINGS
from cooperbench.report.loading import load_folder
from cooperbench.report.page.build import (
    content_security_policy,
    detail_json,
    document,
    json_bytes,
)
from cooperbench.report.page.overview import Overview, make_overview, numbered_pairs, page_title
from cooperbench.report.pairs import PairData

ADDRESS = "127.0.0.1"
_RUN_FILES = ("config.json", "summary.json", "history.jsonl")
_PAIR_FILES = (".", "result.json", "eval.json")
_TAG_CHARACTERS = 24


class Snapshot(NamedTuple):
    """The runs as they were at one time."""

    tag: str
    title: str
    overview: Overview
    pairs: tuple[PairData, ...]


class LiveServer(ThreadingHTTPServer):
    """The server of the page. Call `serve_forever`, and `shutdown` to end it."""

    daemon_threads = True

    def __init__(self, roots: Callable[[], Sequence[Path]], port: int) -> None:
        """Listen on a port.

        Args:
            roots: Returns the folders of the runs. It is called for every request, because a run
                may be started while the page is open.
            port: The port; 0 for any free one.
        """
        self._roots = roots
        self._snapshot: Snapshot | None = None
        self._lock = threading.Lock()
        super().__init__((ADDRESS, port), _Handler)

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def snapshot(self) -> Snapshot:
        """Return the runs as they are now. They are read again only if files have changed."""
        with self._lock:
            roots = list(self._roots())
            tag = _entity_tag(_watched_files(roots))
            if self._snapshot is None or self._snapshot.tag != tag:
                runs = [load_folder(root) for root in roots]
                overview = replace(make_overview(runs), tag=tag, mode="live")
                pairs = tuple(numbered_pairs(runs))
                self._snapshot = Snapshot(tag, page_title(runs), overview, pairs)
            return self._snapshot

    def handle_error(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        """Report an error, unless the browser has closed the connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _watched_files(roots: Sequence[Path]) -> Iterator[Path]:
    """Yield the files that the overview is made from."""
    for root in roots:
        for name in _RUN_FILES:
            yield root / name
        for setting in SETTINGS:
            for folder in sorted((root / setting).glob("*/*/f*")):
                for name in _PAIR_FILES:
                    yield folder / name


def _entity_tag(paths: Iterable[Path]) -> str:
    """Return an ETag that changes if one of the files does."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        state = f"{path}\0{status.st_mtime_ns}\0{status.st_size}\0"
        digest.update(state.encode("utf-8", "surrogateescape"))
    return f'"{digest.hexdigest()[:_TAG_CHARACTERS]}"'


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version = "CooperBench"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a request: `/`, `/overview` or `/detail/NUMBER`."""
        port = self.server.server_port
        if self.headers.get("Host") not in (f"{ADDRESS}:{port}", f"localhost:{port}"):
            self._refuse(HTTPStatus.FORBIDDEN)
            return
        try:
            self._answer(urlsplit(self.path).path)
        except (UserError, FileNotFoundError):
            # A run or a file was moved away while it was read; the page asks again.
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)

    def _answer(self, path: str) -> None:
        snapshot = self.server.snapshot()
        if path == "/":
            page = document(snapshot.title, snapshot.overview, "live")
            self._send(page.encode(), "text/html; charset=utf-8")
        elif path == "/overview":
            self._send_json(snapshot.tag, lambda: json_bytes(snapshot.overview))
        else:
            self._answer_detail(path, snapshot.pairs)

    def _answer_detail(self, path: str, pairs: Sequence[PairData]) -> None:
        number = re.fullmatch("/detail/([0-9]{1,9})", path)
        if number is None or int(number[1]) >= len(pairs):
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        pair = pairs[int(number[1])]
        tag = _entity_tag(sorted(pair.paths.folder.rglob("*")))
        self._send_json(tag, lambda: detail_json(pair))

    def _send_json(self, tag: str, make_json: Callable[[], bytes]) -> None:
        """Send JSON, unless the browser already has it."""
        if self.headers.get("If-None-Match") == tag:
            self._send(b"", "application/json", tag, HTTPStatus.NOT_MODIFIED)
        else:
            self._send(make_json(), "application/json", tag)

    def _send(
        self, data: bytes, content_type: str, tag: str = "", status: HTTPStatus = HTTPStatus.OK
    ) -> None:
        headers = {
            "Content-Type": content_type,
            "Content-Length": str(len(data)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Content-Security-Policy": f"{content_security_policy('live')}; frame-ancestors 'none'",
        }
        if tag:
            headers["ETag"] = tag
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self, status: HTTPStatus) -> None:
        self.close_connection = True
        self.send_error(status)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # base class
        """Log nothing: errors reach the browser."""
