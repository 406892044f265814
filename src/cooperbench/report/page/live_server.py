"""The page while runs go on: served on this machine only, read-only, made again when files change.

Anyone who can connect to the port can read the runs, so it listens on 127.0.0.1, and answers only requests whose Host
says so too: another site that lets its name point here (DNS rebinding) gets nothing. No path is taken from a request.
"""

from __future__ import annotations

import hashlib
import re
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from cooperbench.errors import UserError
from cooperbench.models import SETTINGS
from cooperbench.report.loading import load_folder
from cooperbench.report.page.build import document, json_bytes, policy
from cooperbench.report.page.content import make_overview, numbered_pairs, pair_detail, title_of
from cooperbench.report.pairs import PairData

ADDRESS = "127.0.0.1"
_FILES = ("config.json", "summary.json")
_PAIR_FILES = (".", "result.json", "eval.json")


class Shown(NamedTuple):
    """The runs as they were at one time."""

    tag: str
    title: str
    overview: dict[str, Any]
    pairs: tuple[PairData, ...]


class LiveServer(ThreadingHTTPServer):
    """`serve_forever` until `shutdown`."""

    daemon_threads = True

    def __init__(self, roots: Callable[[], Sequence[Path]], port: int) -> None:
        """`roots`: the folders of the runs. Asked each time: a run may be started while the page is open."""
        self._roots = roots
        self._shown: Shown | None = None
        self._lock = threading.Lock()
        super().__init__((ADDRESS, port), _Handler)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"

    def now(self) -> Shown:
        """Reads runs again when their files have changed."""
        with self._lock:
            roots = list(self._roots())
            paths = [root / name for root in roots for name in _FILES]
            for folder in (root / setting for root in roots for setting in SETTINGS):
                paths += [
                    pair / name for pair in sorted(folder.glob("*/*/f*")) for name in _PAIR_FILES
                ]
            tag = _tag(paths)
            if self._shown is None or self._shown.tag != tag:
                runs = [load_folder(root) for root in roots]
                overview = make_overview(runs) | {"tag": tag, "mode": "live"}
                self._shown = Shown(tag, title_of(runs), overview, tuple(numbered_pairs(runs)))
            return self._shown

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Silent for a browser that goes away in the middle of an answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _tag(paths: Iterable[Path]) -> str:
    """Changes when one of the files does; in the form of an ETag."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            state = path.stat()
        except OSError:
            continue
        digest.update(
            f"{path}\0{state.st_mtime_ns}\0{state.st_size}\0".encode("utf-8", "surrogateescape")
        )
    return f'"{digest.hexdigest()[:24]}"'


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version = "CooperBench"
    sys_version = ""

    def do_GET(self) -> None:
        port = self.server.server_port
        if self.headers.get("Host") not in (f"{ADDRESS}:{port}", f"localhost:{port}"):
            return self._refuse(HTTPStatus.FORBIDDEN)
        try:
            return self._answer(urlsplit(self.path).path)
        except (UserError, FileNotFoundError):
            # A run or a file was moved away while it was being read; the page asks again.
            return self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)

    def _answer(self, path: str) -> None:
        shown = self.server.now()
        if path == "/":
            page = document(shown.title, shown.overview, "live")
            return self._send(page.encode(), "text/html; charset=utf-8")
        if path == "/overview":
            return self._json(shown.tag, lambda: shown.overview)
        number = path.removeprefix("/detail/")
        if not re.fullmatch("[0-9]{1,9}", number) or int(number) >= len(shown.pairs):
            return self._refuse(HTTPStatus.NOT_FOUND)
        pair = shown.pairs[int(number)]
        return self._json(_tag(sorted(pair.paths.folder.rglob("*"))), lambda: pair_detail(pair)[0])

    def _json(self, tag: str, make: Callable[[], dict[str, Any]]) -> None:
        if self.headers.get("If-None-Match") != tag:
            return self._send(json_bytes(make()), "application/json", tag)
        return self._send(b"", "application/json", tag, HTTPStatus.NOT_MODIFIED)

    def _send(
        self, data: bytes, kind: str, tag: str = "", status: HTTPStatus = HTTPStatus.OK
    ) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(data)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Content-Security-Policy": f"{policy('live')}; frame-ancestors 'none'",
            **({"ETag": tag} if tag else {}),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self, status: HTTPStatus) -> None:
        self.close_connection = True
        self.send_error(status)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's names
        """Requests are not logged; errors reach the browser."""
