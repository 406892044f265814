"""Task images: built, recognised, renewed, without history for agents; and what is said when they cannot be had."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.docker.images import OWNER
from cooperbench.dataset.discovery import load_tasks, resolve_dataset_dir
from cooperbench.errors import UserError
from tests.support.docker.tasks import DOCKERFILE, write_buildable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cooperbench.backends.docker import DockerBackend


def test_images_are_found_with_asserts_switched_off(docker: DockerBackend, base_image: str) -> None:
    """`python -O` removes asserts: none may connect to the engine."""
    code = (
        "import sys; from cooperbench.backends.docker import DockerBackend;"
        "assert False, 'asserts are switched off';"
        "print(DockerBackend().images.get(sys.argv[1]).name)"
    )
    argv = [sys.executable, "-O", "-c", code, base_image]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert said.strip() == base_image


def test_an_image_is_built_once_and_agents_find_no_history(
    docker: DockerBackend, tmp_path: Path
) -> None:
    task = write_buildable(tmp_path, DOCKERFILE + "RUN echo once >/once\n")
    said: list[str] = []
    image = docker.prepare(task, said.append)
    assert docker.prepare(task, said.append) == image
    assert [line.partition(" ")[0] for line in said] == ["building", "removing"]
    assert image.digest.startswith("sha256:")
    assert image.agent_ref is not None
    script = """
        cd /workspace/repo
        git log --all --format=%s; git reflog | wc -l; git fsck --unreachable --no-progress | wc -l; git remote
        git status --porcelain; git --git-dir=/cooperbench/base.git rev-parse HEAD; git rev-parse HEAD
    """
    outputs = []
    for _ in range(2):
        sandbox = docker.create_sandbox(image.agent_ref)
        outputs.append(sandbox.run(["bash", "-c", script]).stdout_read().split())
        sandbox.terminate()
    assert outputs[0] == outputs[1]
    subject, reflog, unreachable, base, head = outputs[0]
    assert (subject, reflog, unreachable) == ("Base", "0", "0")
    assert base == head
    evaluating = docker.create_sandbox(image.ref)
    assert b"The past" in evaluating.run(["git", "log"], cwd="repo").stdout
    evaluating.terminate()


def test_what_we_made_is_never_looked_for_in_a_registry(
    docker: DockerBackend, another: Callable[..., DockerBackend], tmp_path: Path
) -> None:
    task = write_buildable(tmp_path)
    sandbox = docker.create_sandbox(docker.prepare(task).ref)
    made = docker.take_snapshot(sandbox, task, "0123456789abcdef")
    sandbox.terminate()
    backend = another(pull="always")
    with backend.locked_snapshot(task, "0123456789abcdef") as found:
        assert found == made
    backend.create_sandbox(made).terminate()
    docker.engine.api.remove_image(made, force=True)


def test_nothing_hidden_gets_into_an_image(docker: DockerBackend, tmp_path: Path) -> None:
    image = docker.prepare(write_buildable(tmp_path))
    sandbox = docker.create_sandbox(image.ref)
    assert set(sandbox.run(["ls", "/opt/task"]).stdout_read().split()) == {
        "Dockerfile",
        "setup.sh",
        "runner.sh",
        "run_tests.sh",
    }
    sandbox.terminate()


def test_many_who_ask_at_once_get_the_same(docker: DockerBackend, tmp_path: Path) -> None:
    task = write_buildable(tmp_path, DOCKERFILE + "RUN echo at once >/at-once\n")
    said: list[str] = []
    with ThreadPoolExecutor(4) as pool:
        images = list(pool.map(lambda _: docker.prepare(task, said.append), range(4)))
    assert len(set(images)) == 1
    assert sorted(line.partition(" ")[0] for line in said) == ["building", "removing"]


def test_a_changed_dockerfile_is_built_again(docker: DockerBackend, tmp_path: Path) -> None:
    task = write_buildable(tmp_path, DOCKERFILE + "RUN echo one >/which\n")
    first = docker.prepare(task)
    task.dockerfile.write_text(DOCKERFILE + "RUN echo two >/which\n")
    second = docker.prepare(task)
    assert first.digest != second.digest
    sandbox = docker.create_sandbox(second.ref)
    assert sandbox.read_file("/which") == b"two\n"
    sandbox.terminate()


def test_clean_keeps_containers_of_the_user(docker: DockerBackend, tmp_path: Path) -> None:
    image = docker.prepare(write_buildable(tmp_path))
    config = docker.engine.api.inspect_image(image.agent_ref)["Config"]
    assert config["Labels"][OWNER] == ""
    assert "supervisor" not in str(config["Cmd"])
    assert "/cooperbench" not in str(config["Env"])


@pytest.mark.parametrize(("tool", "path"), [("git", "/usr/bin/git"), ("bash", "/bin/bash")])
def test_an_image_without_a_tool_that_agents_need(
    docker: DockerBackend, tmp_path: Path, tool: str, path: str
) -> None:
    task = write_buildable(tmp_path, DOCKERFILE + f"RUN rm {path}\n")
    name = docker.images.names_of(task)[0]
    with pytest.raises(
        UserError, match=f"^the image {name} cannot be used: {tool} is missing; tasks need"
    ):
        docker.prepare(task)


def test_a_build_that_fails_says_why(docker: DockerBackend, tmp_path: Path) -> None:
    task = write_buildable(tmp_path, DOCKERFILE + "RUN echo the reason && false\n")
    with pytest.raises(UserError, match=r"tiny_task/task7: building .* failed.*the reason"):
        docker.prepare(task)


def test_a_base_image_that_is_not_there(docker: DockerBackend, tmp_path: Path) -> None:
    lines = "ARG PYTHON=nowhere.invalid/py:1\nFROM --platform=linux/amd64 ${PYTHON} AS b\nFROM nowhere.invalid/a\n"
    with pytest.raises(UserError, match="if no registry can be reached") as caught:
        docker.prepare(write_buildable(tmp_path, lines))
    said, client = str(caught.value), docker.engine.client
    assert (
        f"{client} pull or {client} load the Dockerfile's base images (${{PYTHON}}, nowhere.invalid/a)"
        in said
    )
    assert "COOPERBENCH_BUILD_ARGS=NAME=" in said
    assert "\n" not in said


def test_no_image_and_no_dockerfile(docker: DockerBackend, tmp_path: Path) -> None:
    task = write_buildable(tmp_path)
    docker.engine.api.remove_image(docker.prepare(task).ref, force=True)
    task.dockerfile.unlink()
    with pytest.raises(UserError, match=r"there is no image .*, and no Dockerfile"):
        docker.prepare(task)


def test_an_image_of_ones_own(
    docker: DockerBackend, another: Callable[..., DockerBackend], tmp_path: Path
) -> None:
    """Named by a template; found although its Dockerfile was never built here."""
    task = write_buildable(tmp_path)
    built = docker.prepare(task)
    docker.engine.api.tag(built.ref, "my/own-tiny", "7")
    own = another(image_template="my/own-{short}:{task_id}")
    assert own.prepare(task).ref == "my/own-tiny:7"


def test_a_task_of_the_demo(docker: DockerBackend) -> None:
    (task,) = load_tasks(resolve_dataset_dir("demo"), "coinage_task", 3)
    image = docker.prepare(task)
    sandbox = docker.create_sandbox(image.ref)
    sandbox.write_file("/patches/tests.patch", task.feature(1).tests.read_bytes())
    sandbox.write_file("/patches/feature.patch", task.feature(1).patch.read_bytes())
    assert sandbox.run(["runner.sh", "tests.patch", "feature.patch"]).returncode == 0
    assert sandbox.run(["runner.sh", "tests.patch"]).returncode != 0
    sandbox.terminate()


def test_the_demo_is_never_pulled(docker: DockerBackend) -> None:
    (task,) = load_tasks(resolve_dataset_dir("demo"), "coinage_task", 3)
    with pytest.raises(UserError, match="images build"):
        docker.images.pull_task(task, print)
