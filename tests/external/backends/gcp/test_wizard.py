"""`cooperbench config gcp` at a real terminal, with a scripted gcloud, and services on loopback for Google's own clients."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.backends.gcp import GCPBatchBackend
from cooperbench.doctor.checks import Status, run_checks
from tests.support.gcp.compute_server import Handler, Refused
from tests.support.paths import SUPPORT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FRESH = {
    "account": "",
    "credentials": False,
    "projects": ["some-project", "other-project"],
    "apis": ["storage.googleapis.com", "logging.googleapis.com"],
}


class Services:
    """Compute Engine, Batch and Cloud Storage, as far as they are asked whether they are there."""

    def __init__(self) -> None:
        self.buckets: dict[str, Any] = {}
        self.batch_is_enabled = True
        services = self

        class Answers(Handler):
            def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Any:
                return services.answer(method, path, body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, path: str, body: Any) -> Any:
        if path.startswith("/compute/v1/projects/some-project/zones/us-east1-"):
            return {"name": path.rpartition("/")[2], "guestCpus": 8, "memoryMb": 32768}
        if path == "/v1/projects/some-project/locations/us-east1/jobs":
            if not self.batch_is_enabled:
                raise Refused(
                    403, "Batch API has not been used in project some-project: batch.googleapis.com"
                )
            return {"jobs": []}
        if path == "/storage/v1/b" and method == "POST":
            self.buckets[body["name"]] = body
            return body
        if path.startswith("/storage/v1/b/") and (name := path.rpartition("/")[2]) in self.buckets:
            return self.buckets[name]
        raise Refused(404, f"not there: {path}")


class Terminal:
    """A user with a fresh machine who starts the wizard."""

    def __init__(self, folder: Path, services: Services) -> None:
        self.folder = folder
        (folder / "state.json").write_text(json.dumps(_FRESH))
        gcloud = folder / "bin" / "gcloud"
        gcloud.parent.mkdir()
        script = SUPPORT / "gcp" / "gcloud_script.py"
        gcloud.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
        gcloud.chmod(0o755)
        self.variables = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("GOOGLE", "GCP"))
            },
            "PATH": f"{gcloud.parent}:{os.environ['PATH']}",
            "GCLOUD_STATE": str(folder),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "COOPERBENCH_GCP_COMPUTE_ENDPOINT": services.url,
            "COOPERBENCH_GCP_BATCH_ENDPOINT": services.url,
            "STORAGE_EMULATOR_HOST": services.url,
        }

    @property
    def settings(self) -> dict[str, str]:
        return dict(json.loads((self.folder / "config/cooperbench/config.json").read_text()))

    @property
    def told(self) -> str:
        return (self.folder / "told.txt").read_text()

    def change(self, **state: Any) -> None:
        path = self.folder / "state.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | state))

    def converse(self, answers: Sequence[tuple[str, str]], *arguments: str) -> tuple[int, str]:
        """Answer each question that comes; the exit code and everything on the screen."""
        ours, theirs = os.openpty()
        command = [sys.executable, "-m", "cooperbench", "config", "gcp", *arguments]
        process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=self.variables,
            start_new_session=True,
        )
        os.close(theirs)
        screen, left, seen = "", list(answers), 0
        with process, contextlib.suppress(OSError):
            while piece := os.read(ours, 4096):
                screen += piece.decode()
                if left and left[0][0] in screen[seen:]:
                    seen = len(screen)
                    os.write(ours, f"{left.pop(0)[1]}\n".encode())
        os.close(ours)
        assert not left, screen
        return process.returncode, screen.replace("\r\n", "\n")


@pytest.fixture
def services() -> Iterator[Services]:
    services = Services()
    yield services
    services.close()


@pytest.fixture
def terminal(tmp_path: Path, services: Services) -> Terminal:
    return Terminal(tmp_path, services)


def test_from_nothing_to_ready_and_once_more(
    terminal: Terminal, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, screen = terminal.converse(
        [
            ("Run gcloud auth login now? [Y/n]", ""),
            ("Run gcloud auth application-default login now? [Y/n]", "y"),
            ("project []:", "some-project"),
            ("batch.googleapis.com. Enable now? [Y/n]", ""),
            ("region [us-central1]:", "us-east1"),
            ("zone [us-east1-b]:", "us-east1-c"),
            ("bucket [cooperbench-eval-some-project]:", ""),
        ]
    )
    assert code == 0, screen
    assert (
        "services enable compute.googleapis.com batch.googleapis.com --project=some-project"
        in terminal.told
    )
    assert terminal.settings == {
        "gcp_project_id": "some-project",
        "gcp_region": "us-east1",
        "gcp_zone": "us-east1-c",
        "gcp_bucket": "cooperbench-eval-some-project",
    }
    bucket = services.buckets["cooperbench-eval-some-project"]
    assert bucket["location"].lower() == "us-east1"
    # What is forgotten there goes by itself, and nothing else does.
    (rule,) = bucket["lifecycle"]["rule"]
    assert (rule["action"]["type"], rule["condition"]) == (
        "Delete",
        {"age": 14, "matchesPrefix": ["cooperbench/"]},
    )
    # What is written is what is used; the environment comes before it.
    monkeypatch.setenv("XDG_CONFIG_HOME", terminal.variables["XDG_CONFIG_HOME"])
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    used = GCPBatchBackend().settings
    assert (used.project, used.region, used.zone, used.bucket) == tuple(terminal.settings.values())
    monkeypatch.setenv("GCP_REGION", "us-west1")
    assert GCPBatchBackend(machine_type="n2-standard-16").settings.zone == "us-west1-b"
    # Again: everything is there, and Enter keeps it.
    code, screen = terminal.converse(
        [
            ("project [some-project]:", ""),
            ("region [us-east1]:", ""),
            ("zone [us-east1-c]:", ""),
            ("bucket [", ""),
        ]
    )
    assert (code, terminal.told.count("services enable")) == (0, 1), screen


def test_without_questions(terminal: Terminal, services: Services) -> None:
    terminal.change(account="me@example.org", credentials=True)
    services.batch_is_enabled = False
    code, screen = terminal.converse(
        [], "--yes", "--project", "some-project", "--region", "us-east1", "--bucket", "mine"
    )
    assert code == 1
    mend = "gcloud services enable batch.googleapis.com --project some-project"
    assert mend in screen
    assert "✓ Compute Engine: zone us-east1-b" in screen
    assert terminal.settings["gcp_bucket"] == "mine"
    code, screen = terminal.converse([], "--yes", "--region", "us-east1", "--skip-tests")
    assert code == 0, screen
    assert terminal.settings["gcp_project_id"] == "some-project"


def test_the_doctor_asks_each_service(
    terminal: Terminal, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "some-project")
    monkeypatch.setenv("GCP_REGION", "us-east1")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(terminal.folder / "credentials.json"))
    found = next(one for one in run_checks() if one.name == "backend gcp")
    assert (found.status, found.fix) == (Status.BROKEN, "gcloud auth application-default login")
    for name, value in terminal.variables.items():
        monkeypatch.setenv(name, value)
    found = next(one for one in run_checks() if one.name == "backend gcp")
    assert found.status is Status.OK
    assert "bucket cooperbench-eval-some-project (the first evaluation creates it)" in found.detail
    services.batch_is_enabled = False
    found = next(one for one in run_checks() if one.name == "backend gcp")
    assert (found.name, found.status) == ("backend gcp", Status.BROKEN)
    assert "Batch" in found.detail
    assert found.fix == "gcloud services enable batch.googleapis.com --project some-project"


@pytest.mark.parametrize(
    ("state", "arguments", "line"),
    [
        ({}, ("--yes",), "Authentication failed: gcloud auth login"),
        (
            {"account": "a", "credentials": False},
            ("--yes",),
            "gcloud auth application-default login",
        ),
        ({"account": "a", "credentials": True}, ("--yes",), "no project was chosen: --project"),
        (
            {"account": "a", "credentials": True},
            (
                "--yes",
                "--project",
                "some-project",
                "--region",
                "us-east1",
                "--zone",
                "us-central1-a",
            ),
            "the zone us-central1-a is not in the region us-east1",
        ),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    terminal: Terminal, state: dict[str, Any], arguments: tuple[str, ...], line: str
) -> None:
    terminal.change(**state)
    code, screen = terminal.converse([], *arguments)
    assert code == 2
    assert line in " ".join(screen.split())
    assert not (terminal.folder / "config").exists()
