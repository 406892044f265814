"""`cooperbench images push` through a real engine into a registry on loopback."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.cli import images
from cooperbench.cli.images import registry_template
from cooperbench.errors import UserError
from tests.support.tiny import write_tiny

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cooperbench.backends.docker.engine import Engine


class Registry:
    """As much of the protocol of registries as a push needs. Layers are counted, not kept."""

    def __init__(self) -> None:
        self.manifests: dict[str, dict[str, Any]] = {}
        self.blobs: set[str] = set()
        registry = self

        class Answers(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _say(self, status: int, **headers: str) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": "0", **headers}.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                pieces = []
                while size := int(self.rfile.readline().strip() or b"0", 16):
                    pieces.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(pieces)

            def do_GET(self) -> None:
                self._say(200 if self.path == "/v2/" else 404)

            def do_HEAD(self) -> None:
                digest = self.path.rpartition("/")[2]
                self._say(200 if digest in registry.blobs else 404, Docker_Content_Digest=digest)

            def do_POST(self) -> None:
                self._body()
                self._say(
                    202, Location=f"{self.path.rstrip('/')}/upload", Docker_Upload_UUID="upload"
                )

            def do_PATCH(self) -> None:
                end = len(self._body()) - 1
                self._say(202, Location=self.path, Docker_Upload_UUID="upload", Range=f"0-{end}")

            def do_PUT(self) -> None:
                body = self._body()
                if "/manifests/" in self.path:
                    registry.manifests[self.path.removeprefix("/v2/")] = json.loads(body)
                    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
                else:
                    digest = self.path.partition("digest=")[2].replace("%3A", ":")
                registry.blobs.add(digest)
                self._say(201, Docker_Content_Digest=digest, Location=self.path)

            def log_message(self, *args: Any) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.host = f"127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def registry() -> Iterator[Registry]:
    registry = Registry()
    yield registry
    registry.close()


@pytest.mark.timeout(120)
def test_an_image_is_sent_under_the_name_that_others_pull(
    gcp_engine: Engine,
    registry: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DOCKER_HOST", gcp_engine.where)
    monkeypatch.setenv("COOPERBENCH_IMAGE_TEMPLATE", "cooperbench-test-push/{repo}:{task_id}")
    write_tiny(tmp_path)
    parser = argparse.ArgumentParser()
    images.add_arguments(parser)
    push = ["push", "--dataset-dir", str(tmp_path), "--registry", f"{registry.host}/mine", "--json"]
    assert images.execute(parser.parse_args(push)) == 1
    assert "cooperbench images build" in json.loads(capsys.readouterr().out)["images"][0]["error"]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("file"))
    gcp_engine.api.import_image_from_data(packed.getvalue(), "cooperbench-test-push/tiny_task", "7")
    try:
        assert images.execute(parser.parse_args(push)) == 0
        sent = json.loads(capsys.readouterr().out)
        assert sent["image_template"] == f"{registry.host}/mine/{{repo}}:task{{task_id}}"
        assert sent["images"][0]["digest"].startswith("sha256:")
        manifest = registry.manifests["mine/tiny_task/manifests/task7"]
        assert {
            manifest["config"]["digest"],
            *(layer["digest"] for layer in manifest["layers"]),
        } <= registry.blobs
    finally:
        for name in ("cooperbench-test-push/tiny_task:7", f"{registry.host}/mine/tiny_task:task7"):
            with contextlib.suppress(Exception):
                gcp_engine.api.remove_image(name, force=True)


def test_where_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    with pytest.raises(UserError, match="--registry HOST/PATH, or cooperbench config gcp"):
        registry_template(None)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "some-project")
    expected = "us-central1-docker.pkg.dev/some-project/cooperbench/{repo}:task{task_id}"
    assert registry_template(None) == expected
    with pytest.raises(UserError, match="is not HOST/PATH"):
        registry_template("https://registry")
