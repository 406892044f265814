"""What runners install is kept as a snapshot at Modal; the judged command runs where nothing of the harness is left."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from modal_proto import api_pb2

from cooperbench import run
from cooperbench.cli import main
from cooperbench.errors import SandboxDead, SandboxDestroyed
from tests.support.docker.tasks import write_buildable
from tests.support.modal.plane import HOST_IMAGE
from tests.support.runner.helpers import Left

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cooperbench.backends.modal import ModalBackend
    from tests.support.modal.plane import Plane

pytestmark = pytest.mark.timeout(300)
_INSTALL = """
if [ ! -s /opt/tool ]; then
    python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])' URL /opt/tool
    echo installed >.git/by-the-runner
fi
grep -q tool /opt/tool
"""


class Index:
    """Serves one file, and counts who asks."""

    def __init__(self) -> None:
        index = self
        self.asked = 0

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.asked += 1
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"tool\n")

            def log_message(self, *args: object) -> None:
                """Not into the tests' output."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/tool"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Lab:
    """A task whose runner installs, and the experiments with it."""

    def __init__(self, plane: Plane, index: Index, folder: Path) -> None:
        self.plane, self.index, self.folder = plane, index, folder
        task = write_buildable(folder / "dataset")
        begin, end = task.runner_script.read_text().split("trap reset EXIT\n")
        install = _INSTALL.replace("URL", index.url)
        task.runner_script.write_text(f"{begin}trap reset EXIT\n{install}{end}")
        plane.add_dataset(folder / "dataset")

    def run(self, name: str) -> dict[str, Any]:
        run(
            name, agent="oracle", backend="modal", dataset_dir=self.folder / "dataset", logs_dir=self.folder / "logs",
            features=[1, 2], setting="solo",
        )  # fmt: skip
        return Left(self.folder / f"logs/{name}/solo/tiny_task/7/f1_f2").evaluation

    @property
    def snapshots_made(self) -> int:
        return self.plane.faults.requests["TaskSnapshotFilesystem"]

    def images(self, *words: str) -> int:
        return main(
            ["images", *words, "--backend", "modal", "--dataset-dir", str(self.folder / "dataset")]
        )


@pytest.fixture
def lab(plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("COOPERBENCH_CACHE_DIR", str(tmp_path / "cache"))
    index = Index()
    yield Lab(plane, index, tmp_path)
    index.server.shutdown()
    index.server.server_close()


def test_installs_are_kept_so_that_no_network_is_needed(
    lab: Lab, modal: ModalBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = lab.run("first")
    assert evaluation["overall_success"] is True
    assert (evaluation["eval_network"], evaluation["network"]) == ("auto", "none")
    assert evaluation["references"]["1"]["installed"] is True
    assert (lab.index.asked, lab.snapshots_made) == (1, 1)
    assert (
        "its tests run in an image that keeps what its runner installs" in capsys.readouterr().out
    )
    (image,) = lab.plane.snapshots

    assert lab.run("second")["overall_success"] is True
    assert (lab.index.asked, lab.snapshots_made) == (1, 1), "all is in the image"

    # What runs in a sandbox of it cannot alter it, and the repository is the image's own.
    for _ in range(2):
        sandbox = modal.create_sandbox(image, workdir="/workspace/repo")
        shown = sandbox.run(
            ["bash", "-c", "cat /opt/tool; ls .git/by-the-runner; git status --short; ls .."]
        )
        assert shown.stdout == b"tool\nrepo\n"
        sandbox.run(["bash", "-c", "echo other >/opt/tool; touch here"])
        sandbox.terminate()

    capsys.readouterr()
    assert lab.images("list") == 0
    assert f"with what its runner installs: {image}" in capsys.readouterr().out
    assert lab.images("clean", "--json") == 0
    assert json.loads(capsys.readouterr().out)["removed"] == [image]
    assert image not in lab.plane.images
    assert lab.images("list") == 0
    assert "installs" not in capsys.readouterr().out


def test_a_snapshot_that_modal_no_longer_has_is_made_again(lab: Lab) -> None:
    lab.run("first")
    (lost,) = lab.plane.snapshots
    del lab.plane.images[lost]
    assert lab.run("second")["overall_success"] is True
    assert (lab.index.asked, lab.snapshots_made) == (2, 2)
    assert lab.run("third")["overall_success"] is True
    assert lab.snapshots_made == 2


def test_the_last_command_is_run_by_modal_alone(plane: Plane, modal: ModalBackend) -> None:
    sandbox = modal.create_sandbox(HOST_IMAGE)
    sandbox.write_file("file", b"content\n")
    script = "pwd; cat file; cat; echo $A >&2; pgrep -f [c]ooperbench/channels || echo none; ls /cooperbench/ch*; exit 3"
    result = sandbox.run_last(["bash", "-c", script], timeout_seconds=60, env={"A": "b c"})
    assert result.stdout == b"/workspace\ncontent\nnone\n"
    assert (result.returncode, result.stderr, result.timed_out) == (3, b"b c\n", False)
    with pytest.raises(SandboxDead, match="last command"):
        sandbox.run(["true"])


def test_the_last_commands_output_is_cut_in_the_middle(plane: Plane, modal: ModalBackend) -> None:
    sandbox = modal.create_sandbox(HOST_IMAGE)
    result = sandbox.run_last(["seq", "100000"], timeout_seconds=60, output_limit=1000)
    assert result.stdout.startswith(b"1\n2\n")
    assert result.stdout.endswith(b"\n100000\n")
    assert len(result.stdout) + result.stdout_cut == 588895


def test_a_last_command_that_takes_too_long(plane: Plane, modal: ModalBackend) -> None:
    sandbox = modal.create_sandbox(HOST_IMAGE)
    started = time.monotonic()
    result = sandbox.run_last(["bash", "-c", "echo begun; sleep 600"], timeout_seconds=1)
    assert (result.returncode, result.timed_out, result.stdout) == (124, True, b"begun\n")
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("status", "words", "destroyed"),
    [("INTERNAL_FAILURE", "internal failure", False), ("FAILURE", "its first process ended", True)],
)
def test_a_last_command_whose_sandbox_ended_is_not_timed_out(
    plane: Plane, modal: ModalBackend, status: str, words: str, destroyed: bool
) -> None:
    sandbox = modal.create_sandbox(HOST_IMAGE)
    (guest,) = plane.running()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(sandbox.run_last, ["sleep", "600"], timeout_seconds=3)
        while len(guest.execs) < 2:
            assert not waiting.done()
            time.sleep(0.02)
        # The machine is gone: nobody answers, also not that the command has ended.
        guest.finish(api_pb2.GenericResult.GenericStatus.Value(f"GENERIC_STATUS_{status}"), 1)
        with pytest.raises(SandboxDead, match=words) as error:
            waiting.result(60)
    assert isinstance(error.value, SandboxDestroyed) is destroyed


def test_a_last_command_with_a_process_in_the_background_ends(
    plane: Plane, modal: ModalBackend
) -> None:
    result = modal.create_sandbox(HOST_IMAGE).run_last(
        ["bash", "-c", "sleep 600 & echo done"], timeout_seconds=60
    )
    assert (result.returncode, result.timed_out, result.stdout) == (0, False, b"done\n")
