"""The control plane of ours, one for all tests of a process, and backends that talk to it through Modal's client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from modal import Client

from cooperbench.backends.modal import ModalBackend
from tests.support.modal.plane import Plane

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "backends/modal/" in item.nodeid:
            # The client is connected once a process: one plane for it.
            item.add_marker(pytest.mark.xdist_group("modal"))


@pytest.fixture(scope="session")
def plane_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    plane = Plane(tmp_path_factory.mktemp("plane"))
    yield plane
    plane.stop()


@pytest.fixture
def plane(plane_of_session: Plane, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plane]:
    """Without faults and without sandboxes. Only the tests that ask for it find a Modal."""
    for name, value in plane_of_session.environment().items():
        monkeypatch.setenv(name, value)
    yield plane_of_session
    plane_of_session.reset()
    _forget_client()


def _forget_client() -> None:
    """The first one, with its token, would be that of every later test in this process."""
    Client._set_env_client(None)


@pytest.fixture(scope="class")
def modal_of_class(plane_of_session: Plane) -> Iterator[ModalBackend]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in plane_of_session.environment().items():
            patch.setenv(name, value)
        backend = ModalBackend()
        backend.check()
    _forget_client()
    yield backend
    backend.close()


@pytest.fixture
def modal(plane: Plane) -> Iterator[ModalBackend]:
    backend = ModalBackend()
    yield backend
    backend.close()
