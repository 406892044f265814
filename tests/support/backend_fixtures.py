"""Backends for tests: a local one, and real engines with a base image.

Where there is none they are skipped with the reason; with COOPERBENCH_TEST_STRICT=1 that is a failure.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.docker import DockerBackend
from cooperbench.backends.docker.engine import connect
from cooperbench.backends.local import LocalBackend
from tests.support.docker.engines import (
    ENGINES,
    docker_host,
    podman_host,
    provide_base,
    skipped_without_engine,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FIRST_TIME_SECONDS = 900
"""The base image may have to be made."""
_FIRST_INSTALL_SECONDS = 1800
"""Some hundred MB may have to be installed."""
_INSTALLING_TESTS = ("tests/external/agents/", "tests/external/published/")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist then finds the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        installs = item.nodeid.startswith(_INSTALLING_TESTS)
        if installs and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_FIRST_INSTALL_SECONDS))
        if "external/backends/docker/" not in item.nodeid and "engine_kind" not in getattr(
            item, "fixturenames", ()
        ):
            continue
        # One process for all tests of an engine: starting one takes longer than most of them. Those of published images
        # have another: they take as long as the rest.
        engine = (
            item.callspec.params.get("engine_kind", "docker")
            if hasattr(item, "callspec")
            else "docker"
        )
        apart = engine == "docker" and "published/" in item.nodeid
        item.add_marker(pytest.mark.xdist_group("published" if apart else engine))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_FIRST_TIME_SECONDS))


@pytest.fixture(scope="session")
def docker_address() -> Iterator[str]:
    with skipped_without_engine(), docker_host() as address:
        yield address


@pytest.fixture(scope="session")
def podman_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with skipped_without_engine(), podman_host(tmp_path_factory.mktemp("podman")) as address:
        yield address


@pytest.fixture(scope="session", params=ENGINES)
def engine_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def engine_variables(
    engine_kind: str, request: pytest.FixtureRequest, worker_name: str
) -> dict[str, str]:
    """What a process of the user's would have in its environment."""
    address = str(request.getfixturevalue(f"{engine_kind}_address"))
    name = "CONTAINER_HOST" if engine_kind == "podman" else "DOCKER_HOST"
    return {
        "MSWEA_DOCKER_EXECUTABLE": engine_kind,
        name: address,
        "COOPERBENCH_IMAGE_TEMPLATE": f"cooperbench-test-{worker_name}/{{repo}}:task{{task_id}}",
        "COOPERBENCH_DOCKER_PULL": "never",
    }


@pytest.fixture(scope="session")
def worker_name() -> str:
    return os.environ.get("PYTEST_XDIST_WORKER", "main")


@pytest.fixture(scope="session")
def _engine_environment(engine_variables: dict[str, str]) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    for name in ("DOCKER_HOST", "CONTAINER_HOST", "DOCKER_CONTEXT"):
        patch.delenv(name, raising=False)
    for name, value in engine_variables.items():
        patch.setenv(name, value)
    yield
    patch.undo()


@pytest.fixture(scope="session")
def base_image(_engine_environment: None, engine_kind: str) -> str:
    with skipped_without_engine(), contextlib.closing(connect(engine_kind)) as engine:
        return provide_base(engine)


@pytest.fixture(scope="session")
def docker(base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerBackend]:
    """A backend on each engine."""
    backend = DockerBackend(
        cache_dir=tmp_path_factory.mktemp("cache"), build_args={"BASE_IMAGE": base_image}
    )
    yield backend
    for name in list(backend.images._known):
        if "/tiny_task:" in name or "/coinage_task:" in name:
            with contextlib.suppress(Exception):
                backend.engine.api.remove_image(name, force=True)
    backend.close()


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def local(cache_dir: Path) -> Iterator[LocalBackend]:
    backend = LocalBackend(cache_dir=cache_dir)
    yield backend
    backend.close()
