"""A git server for pairs of agents: `python3 serve.py ROOT HOST PORT`. Needs git and Python 3.8, and nothing of ours.

ROOT has a folder per pair, made by the harness: `repo.git`, and `access.json` with the agents' ids and tokens. Smart
HTTP is git's own `http-backend`; this program says who asks (Basic authentication), takes one push of a pair at a time,
and bounds what a request may send and how long it may take. What an agent may push is decided by the hooks.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from http.client import parse_headers
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

PATH = re.compile(r"/([0-9a-f]{32})\.git/(info/refs|git-upload-pack|git-receive-pack)")
SERVICES = ("git-upload-pack", "git-receive-pack")
LARGEST_QUESTION_BYTES = 16_000_000
SLOWEST_SECONDS = 120
CALL_SECONDS = 300
AT_ONCE = 32
BLOCK = 65536


class Refused(Exception):
    """Answered with a status."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class GitServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, root: Path, address: tuple[str, int]) -> None:
        self.root = root
        self.calls = threading.BoundedSemaphore(AT_ONCE)
        self.push_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        super().__init__(address, GitRequest)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients come and go."""


class GitRequest(BaseHTTPRequestHandler):
    """One request a connection: its end is the end of the answer."""

    timeout = SLOWEST_SECONDS
    server: GitServer
    server_version = "cooperbench-git"
    sys_version = ""

    def do_GET(self) -> None:
        try:
            self._serve()
        except Refused as refusal:
            self.send_response(refusal.status)
            if refusal.status == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="the team"')
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write(f"{refusal}\n".encode())

    do_POST = do_GET  # noqa: N815  # the name that `http.server` calls

    def log_message(self, *_: object) -> None:
        """Quiet: what counts is in the pairs' logs."""

    def _serve(self) -> None:
        """All of a request and of its answer is stored: nobody holds a lock while somebody is slow."""
        parts = urlsplit(self.path)
        found = PATH.fullmatch(parts.path)
        if not found:
            raise Refused(404, "there is nothing here")
        pair, what = found.groups()
        try:
            access = json.loads((self.server.root / pair / "access.json").read_text("utf-8"))
        except (OSError, ValueError):
            raise Refused(404, "there is nothing here") from None
        agent = self._agent(access["tokens"])
        service = parse_qs(parts.query).get("service", [""])[0] if what == "info/refs" else what
        if service not in SERVICES or (self.command == "GET") != (what == "info/refs"):
            raise Refused(403, "only git's smart protocol is served")
        pushing = what == "git-receive-pack"
        with tempfile.TemporaryFile() as body, tempfile.TemporaryFile() as answer:
            self._store(body, access["quota_bytes"] + BLOCK if pushing else LARGEST_QUESTION_BYTES)
            environment = {
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": "/nonexistent",
                "LC_ALL": "C",
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_CONFIG_GLOBAL": "/dev/null",
                "GIT_ALLOC_LIMIT": "512m",
                "GIT_PROJECT_ROOT": str(self.server.root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "REQUEST_METHOD": self.command,
                "PATH_INFO": f"/{pair}/repo.git/{what}",
                "QUERY_STRING": "service=" + service if what == "info/refs" else "",
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(body.tell()),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "HTTP_GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "REMOTE_USER": agent,
                "REMOTE_ADDR": self.client_address[0],
            }
            body.seek(0)
            # `timeout` ends everything that git has started.
            command = ["timeout", "-s", "KILL", str(CALL_SECONDS), "git", "http-backend"]
            with self.server.push_locks[pair] if pushing else contextlib.nullcontext(), self.server.calls:
                subprocess.run(
                    command,
                    stdin=body,
                    stdout=answer,
                    stderr=subprocess.DEVNULL,
                    env=environment,
                    check=False,
                )
            answer.seek(0)
            self._pass_on(answer)

    def _agent(self, tokens: dict[str, str]) -> str:
        kind, _, encoded = self.headers.get("Authorization", "").partition(" ")
        agent, token = "", ""
        with contextlib.suppress(ValueError):
            agent, _, token = base64.b64decode(encoded, validate=True).decode().partition(":")
        known = tokens.get(agent, "")
        if kind.lower() != "basic" or not known or not hmac.compare_digest(known.encode(), token.encode()):
            raise Refused(401, "who are you?")
        return agent

    def _store(self, body: IO[bytes], limit_bytes: int) -> None:
        """What was sent with the request."""
        for size in self._sizes():
            end = body.tell() + size
            if end > limit_bytes:
                raise Refused(413, "too large")
            while body.tell() < end:
                part = self.rfile.read(min(end - body.tell(), BLOCK))
                if not part:
                    raise Refused(400, "the request ended early")
                body.write(part)

    def _sizes(self) -> Iterator[int]:
        """Of the pieces that follow, each of which is read before the next is asked for."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            yield int(self.headers.get("Content-Length") or 0)
            return
        while True:
            try:
                size = int(self.rfile.readline(100).split(b";")[0], 16)
            except ValueError:
                raise Refused(400, "that is no chunk") from None
            if size <= 0:
                return
            yield size
            self.rfile.readline(2)

    def _pass_on(self, answer: Any) -> None:
        """What git answers: headers, among them a status, and the rest."""
        headers = parse_headers(answer)
        if not headers:
            raise Refused(502, "git did not answer")
        self.send_response(int(headers.get("Status", "200").split()[0]))
        for name, value in headers.items():
            if name != "Status":
                self.send_header(name, value)
        self.end_headers()
        shutil.copyfileobj(answer, self.wfile)


if __name__ == "__main__":
    served = GitServer(Path(sys.argv[1]).absolute(), (sys.argv[2], int(sys.argv[3])))
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    served.serve_forever()
