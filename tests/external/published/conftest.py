"""Published images in a real engine, and the package index that they ask."""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from cooperbench.dataset.image_names import ENVIRONMENT_VARIABLE, image_name
from tests.support.docker.engines import skipped_without_engine
from tests.support.published.images import load_image
from tests.support.published.index import PackageIndex
from tests.support.published.packages import provide_packages
from tests.support.published.tasks import write_published

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cooperbench.backends.docker import DockerBackend
    from cooperbench.models import Task

    Load = Callable[[Task], None]


@dataclass(frozen=True)
class Published:
    """Tasks whose images are in the engine."""

    dataset_dir: Path
    tasks: dict[str, Task]
    """By repository."""
    variables: dict[str, str]
    """What a process of the user's would have in its environment; this process has it while the test runs."""
    index: PackageIndex


@pytest.fixture(scope="session")
def index() -> Iterator[PackageIndex]:
    """It counts for the whole session: a test that looks at the counts resets them first."""
    with skipped_without_engine(), PackageIndex(provide_packages()) as index:
        yield index


@pytest.fixture(scope="session")
def image_template(worker_name: str) -> str:
    """Of this process alone, since the images ask its index."""
    return f"cooperbench-test-{worker_name}-{secrets.token_hex(4)}/{{repo}}:task{{task_id}}"


@pytest.fixture(scope="session")
def load(
    docker: DockerBackend, base_image: str, image_template: str, index: PackageIndex
) -> Iterator[Load]:
    """Makes a task's image, once for the session."""
    names: set[str] = set()

    def load(task: Task) -> None:
        name = image_name(task, image_template)
        if name not in names:
            load_image(docker.engine, task, name, base=base_image, index=index)
            names.add(name)

    yield load
    api = docker.engine.api
    for image in api.images():
        with contextlib.suppress(Exception):
            # What was made from them has their variables.
            if f"{index.url}/simple/" in str(api.inspect_image(image["Id"])["Config"]["Env"]):
                api.remove_image(image["Id"], force=True)


@pytest.fixture
def published(
    engine_kind: str,
    engine_variables: dict[str, str],
    load: Load,
    image_template: str,
    index: PackageIndex,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Published]:
    """`published("pip_task", …)`: a dataset of these tasks, with their images.

    All of them on Docker; Podman is a second engine for one of them, since installs, policies and layers are the same.
    """
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, image_template)

    def publish(*repos: str) -> Published:
        if engine_kind != "docker" and repos != ("uv_task",):
            pytest.skip("once is enough: of these tasks only uv_task runs on Podman too")
        dataset_dir = tmp_path / "published"
        tasks = write_published(dataset_dir, provide_packages(), repos)
        for task in tasks.values():
            load(task)
        return Published(
            dataset_dir, tasks, {**engine_variables, ENVIRONMENT_VARIABLE: image_template}, index
        )

    return publish
