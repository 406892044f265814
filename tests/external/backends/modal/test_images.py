"""Images: pulled by digest, else built from the task's Dockerfile; without history for agents; nothing hidden in them."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.image_digest import parse_image_name, resolve_digest
from cooperbench.backends.modal import ModalBackend, connection
from cooperbench.dataset.discovery import load_tasks
from cooperbench.errors import InfraError, UserError
from tests.support.docker.tasks import write_buildable
from tests.support.modal.plane import digest_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cooperbench.models import Task
    from tests.support.modal.plane import Plane


@pytest.fixture
def task(plane: Plane, tmp_path: Path) -> Task:
    write_buildable(tmp_path / "dataset")
    plane.add_dataset(tmp_path / "dataset")
    (task,) = load_tasks(tmp_path / "dataset")
    return task


@contextmanager
def registry(known: str) -> Iterator[str]:
    """Answers for one name; the server's address."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            name = re.sub(r"^/v2/(.*)/manifests/(.*)$", r"\1:\2", self.path)
            self.send_response(200 if name == known else 404)
            self.send_header("Docker-Content-Digest", digest_of(name))
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Not into the tests' output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def history(backend: ModalBackend, image: str) -> bytes:
    sandbox = backend.create_sandbox(image, timeout=120)
    try:
        return sandbox.run(["git", "log", "--all", "--format=%s"], cwd="/workspace/repo").stdout
    finally:
        sandbox.terminate()


def test_built_from_the_dockerfile(plane: Plane, modal: ModalBackend, task: Task) -> None:
    image = modal.prepare(task)
    layers = plane.layers(image.ref)
    files = {
        file.filename for layer in layers for file in plane.mounts.get(layer.context_mount_id, [])
    }
    assert {"/setup.sh", "/runner.sh"} <= files
    assert not [
        name for name in files if re.search(r"feature\d|combined\.patch|tests\.patch", name)
    ]
    assert plane.commands(image.ref)[-1] == "ENTRYPOINT []"
    assert image.digest == image.ref
    assert history(modal, image.ref) == b"The past\n"
    assert image.agent_ref is not None
    assert history(modal, image.agent_ref) == b"Base\n"
    assert modal.prepare(task) == image


def test_the_layer_for_agents_removes_the_history(
    modal: ModalBackend, task: Task, plane: Plane
) -> None:
    """Run as Modal's builder would run it."""
    image = modal.prepare(task)
    assert image.agent_ref is not None
    command = plane.commands(image.agent_ref)[-1].replace("/cooperbench/base.git", "/tmp/base.git")
    assert command.startswith("RUN ")
    sandbox = modal.create_sandbox(image.ref, timeout=120)
    done = sandbox.run(["sh", "-c", command.removeprefix("RUN ")], cwd="/")
    assert done.returncode == 0, done.stderr
    assert (
        sandbox.run(["git", "log", "--all", "--format=%s"], cwd="/workspace/repo").stdout
        == b"Base\n"
    )
    assert (
        sandbox.run(["git", "--git-dir=/tmp/base.git", "log", "--format=%H"]).stdout == done.stdout
    )


def test_the_layer_for_test_runs_removes_later_commits(
    modal: ModalBackend, task: Task, plane: Plane
) -> None:
    image = modal.prepare(task)
    assert image.evaluation_ref is not None
    command = plane.commands(image.evaluation_ref)[-1]
    sandbox = modal.create_sandbox(image.ref, timeout=120)
    later = "git -c user.name=t -c user.email=t@t.invalid commit -qm later --allow-empty; git reset -q --hard HEAD~1"
    sandbox.run(["bash", "-c", later], cwd="/workspace/repo")
    assert sandbox.run(
        ["git", "log", "--format=%s", "ORIG_HEAD"], cwd="/workspace/repo"
    ).stdout.startswith(b"later")
    done = sandbox.run(["sh", "-c", command.removeprefix("RUN ")], cwd="/")
    assert (done.returncode, done.stdout) == (0, b"dropped\n")
    objects = sandbox.run(
        ["git", "cat-file", "--batch-all-objects", "--batch-check"], cwd="/workspace/repo"
    )
    assert objects.stdout.count(b" commit ") == 1


def test_pulled_by_digest(plane: Plane, task: Task) -> None:
    name = f"tasks/{task.repo}:task{task.task_id}"
    with registry(name) as server:
        backend = ModalBackend(
            images="auto", image_template=f"{server}/tasks/{{repo}}:task{{task_id}}"
        )
        image = backend.prepare(task)
        assert image.digest == digest_of(name)
        assert plane.commands(image.ref) == [
            f"FROM {server}/tasks/{task.repo}@{image.digest}",
            "ENTRYPOINT []",
        ]
        assert history(backend, image.ref) == b"The past\n"
        by_name = backend.create_sandbox(f"{server}/{name}")
        assert by_name.run(["ls", "/workspace"]).stdout == b"repo\n"
        backend.close()


@pytest.mark.parametrize("part", ["missing", "nobody"])
def test_what_cannot_be_pulled_is_built(plane: Plane, task: Task, part: str) -> None:
    template = f"127.0.0.1:1/{part}/{{repo}}:task{{task_id}}"
    backend = ModalBackend(images="auto", image_template=template)
    image = backend.prepare(task)
    assert history(backend, image.ref) == b"The past\n"
    backend.close()
    only = ModalBackend(images="registry", image_template=template)
    with pytest.raises(
        UserError, match=r"(manifest unknown|not exist).*modal image logs im-"
    ) as error:
        only.prepare(task)
    assert "\n" not in str(error.value)
    task.dockerfile.unlink()
    with pytest.raises(UserError, match="no Dockerfile to build one from"):
        backend.prepare(task)
    backend.close()
    only.close()


@pytest.mark.parametrize(
    ("part", "kind", "words"),
    [
        (
            "private",
            UserError,
            r"requires other credentials: set COOPERBENCH_MODAL_REGISTRY_SECRET.*unauthorized",
        ),
        ("busy", InfraError, r"rate limit is reached: try later.*toomanyrequests"),
        ("ended", InfraError, "external shut-down"),
        ("there/missing", UserError, "cannot be built: .*modal image logs im-"),
    ],
)
def test_a_pull_that_is_refused_is_not_replaced_by_a_build(
    plane: Plane,
    task: Task,
    part: str,
    kind: type[Exception],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "CREATE_RETRY_SECONDS", 0.0)
    with registry("there/missing/tiny_task:task7") as server:
        backend = ModalBackend(
            images="auto", image_template=f"{server}/{part}/{{repo}}:task{{task_id}}"
        )
        with pytest.raises(kind, match=words) as error:
            backend.prepare(task)
    assert "\n" not in str(error.value)
    assert plane.faults.requests["MountGetOrCreate"] == 0
    backend.close()


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("python:3.11", ("registry-1.docker.io", "library/python", "3.11")),
        ("akhatua/cooperbench-x:task1", ("registry-1.docker.io", "akhatua/cooperbench-x", "task1")),
        ("docker.io/a/b", ("registry-1.docker.io", "a/b", "latest")),
        ("ghcr.io/a/b/c:d", ("ghcr.io", "a/b/c", "d")),
        ("localhost:5000/a:b", ("localhost:5000", "a", "b")),
    ],
)
def test_parts_of_an_image_name(name: str, parsed: tuple[str, str, str]) -> None:
    assert parse_image_name(name) == parsed


def test_a_registry_that_does_not_know_the_name() -> None:
    with registry("a/b:c") as server:
        assert resolve_digest(f"{server}/a/b:c") == digest_of("a/b:c")
        with pytest.raises(InfraError, match="404"):
            resolve_digest(f"{server}/a/b:other")
    with pytest.raises(InfraError):
        resolve_digest(f"{server}/a/b:c")
