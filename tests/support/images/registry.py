"""A real registry for tests: Debian's docker-registry on a port of its own."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from tests.support.requirements import require_program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

USER, PASSWORD = "reader", "secret word"
_BCRYPT = "$2b$04$dR7zKhJOA9FQuLh7Krasvu0KaL74kozRlYsPxWfYT6IHEedhkgN3C"
_CONFIG = """
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}/storage}}}}
http: {{addr: "{address}", secret: test}}
"""
_AUTH = """
auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}
"""


class RealRegistry:
    """A running registry."""

    def __init__(self, address: str, *, with_auth: bool) -> None:
        self.address = address
        self._with_auth = with_auth

    def push(self, layout: Path, name: str, target: str, *options: str) -> str:
        """Push an image (or an index) of an OCI layout; return its name in the registry."""
        skopeo = require_program("skopeo")
        command = [skopeo, "copy", "--quiet", "--all", "--dest-tls-verify=false", *options]
        if self._with_auth:
            command.append(f"--dest-creds={USER}:{PASSWORD}")
        command += [f"oci:{layout}:{name}", f"docker://{self.address}/{target}"]
        subprocess.run(command, check=True, capture_output=True)
        return f"{self.address}/{target}"

    def digest(self, repository: str, tag: str) -> str:
        """Return the digest of the manifest or index that a tag stands for."""
        request = urllib.request.Request(
            f"http://{self.address}/v2/{repository}/manifests/{tag}",
            headers={"Accept": "application/vnd.oci.image.index.v1+json"},
        )
        with urllib.request.urlopen(request, timeout=30) as reply:
            return f"sha256:{hashlib.sha256(reply.read()).hexdigest()}"


@contextmanager
def running_registry(folder: Path, *, with_auth: bool = False) -> Iterator[RealRegistry]:
    program = require_program("docker-registry")
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    config = _CONFIG + (_AUTH if with_auth else "")
    (folder / "config.yml").write_text(config.format(folder=folder, address=address))
    (folder / "htpasswd").write_text(f"{USER}:{_BCRYPT}\n")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "serve", str(folder / "config.yml")], stdout=log, stderr=log
        )
    try:
        _wait(address)
        yield RealRegistry(address, with_auth=with_auth)
    finally:
        process.terminate()
        process.wait()


def _wait(address: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            urllib.request.urlopen(f"http://{address}/v2/", timeout=5).close()
        except urllib.error.HTTPError as error:
            error.close()
            return
        except OSError:
            assert time.monotonic() < deadline, "the registry did not start"
            time.sleep(0.05)
        else:
            return
