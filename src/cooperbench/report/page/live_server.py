"""The page while runs go on: served on this machine only, read-only, made anew when files change.

Anyone who can connect to the port can read the runs, so it listens on 127.0.0.1, and answers only requests whose Host
says so too: another site that lets its name point here (DNS rebinding) gets nothing. No path is taken from a request.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from cooperbench.errors import UserError
from cooperbench.report.loading import load_folder
from cooperbench.report.page.build import document, policy
from cooperbench.report.page.content import make_overview, numbered_pairs, pair_detail, title_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from cooperbench.report.loading import Run
    from cooperbench.report.pairs import PairData

ADDRESS = "127.0.0.1"
_SMALL_FILES = ("config.json", "summary.json")
_PAIR_FILES = ("result.json", "eval.json")


class Shown(NamedTuple):
    """The runs as they were at one time."""

    tag: str
    runs: tuple[Run, ...]
    overview: dict[str, Any]
    pairs: tuple[PairData, ...]
    """By their number on the page."""


class LiveRuns:
    """Reads runs again when their files have changed. Shared by the threads of the server."""

    def __init__(self, roots: Callable[[], Sequence[Path]]) -> None:
        self._roots = roots
        """The folders of the runs. Asked each time: a run may be started while the page is open."""
        self._shown: Shown | None = None
        self._lock = threading.Lock()

    def now(self) -> Shown:
        with self._lock:
            roots = list(self._roots())
            tag = _tag(path for root in roots for path in _overview_files(root))
            if self._shown is None or self._shown.tag != tag:
                runs = tuple(load_folder(root) for root in roots)
                overview = make_overview(runs) | {"tag": tag, "mode": "live"}
                self._shown = Shown(tag, runs, overview, tuple(numbered_pairs(runs)))
            return self._shown


def _overview_files(root: Path) -> Iterable[Path]:
    yield from (root / name for name in _SMALL_FILES)
    for folder in sorted(root.glob("*/*/*/f*")):
        if folder.relative_to(root).parts[0] != "attempts":
            yield folder
            yield from (folder / name for name in _PAIR_FILES)


def _tag(paths: Iterable[Path]) -> str:
    """Changes when one of the files does; in the form of an ETag."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            state = path.stat()
        except OSError:
            continue
        digest.update(f"{path}\0{state.st_mtime_ns}\0{state.st_size}\0".encode("utf-8", "surrogateescape"))
    return f'"{digest.hexdigest()[:24]}"'


class LiveServer(ThreadingHTTPServer):
    """`serve_forever` until `shutdown`."""

    daemon_threads = True

    def __init__(self, runs: LiveRuns, port: int) -> None:
        self.runs = runs
        super().__init__((ADDRESS, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is nothing to report."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"


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
        shown = self.server.runs.now()
        if path == "/":
            page = document(title_of(shown.runs), shown.overview, "live")
            return self._send(page.encode(), "text/html; charset=utf-8")
        if path == "/overview":
            return self._json(shown.tag, lambda: shown.overview)
        number = path.removeprefix("/detail/")
        if not re.fullmatch("[0-9]{1,9}", number) or int(number) >= len(shown.pairs):
            return self._refuse(HTTPStatus.NOT_FOUND)
        pair = shown.pairs[int(number)]
        return self._json(_tag(sorted(pair.paths.folder.rglob("*"))), lambda: pair_detail(pair)[0])

    def _json(self, tag: str, make: Callable[[], dict[str, Any]]) -> None:
        if self.headers.get("If-None-Match") == tag:
            self.send_response(HTTPStatus.NOT_MODIFIED)
            self.send_header("ETag", tag)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        text = json.dumps(make(), ensure_ascii=False, separators=(",", ":"))
        self._send(text.encode("utf-8", "replace"), "application/json", tag)

    def _send(self, data: bytes, kind: str, tag: str = "") -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Content-Security-Policy", f"{policy('live')}; frame-ancestors 'none'")
        if tag:
            self.send_header("ETag", tag)
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self, status: HTTPStatus) -> None:
        self.close_connection = True
        self.send_error(status)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's names
        """Requests are nobody's business; errors reach the browser."""
