"""Machines for the tests of the gcp backend's sandboxes: an engine, an image with sshd, and Compute Engine on loopback.

Where there is no engine or no sshd they are skipped with the reason; with COOPERBENCH_TEST_STRICT=1 that is a failure.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.backends.docker.engine import Engine, connect
from cooperbench.backends.gcp import GCPBatchBackend, machines
from tests.support.docker.engines import (
    NoEngine,
    cache_folder,
    docker_host,
    locked,
    provide_base,
    skipped_without_engine,
)
from tests.support.gcp.compute_server import METADATA, ComputeServer
from tests.support.paths import SUPPORT

if TYPE_CHECKING:
    from collections.abc import Iterator

PROJECT = "some-project"
_VM_IMAGE = "cooperbench-test-vm:3"
_FIRST_TIME_SECONDS = 900
_PROGRAMS = ("sshd", "ssh-keygen", "curl", "iptables")
_NEVER = re.compile(r"/(ld-linux|libc\.so|libm\.so)")
_DOCKERFILE = """FROM {base}
COPY root/ /
RUN useradd -r -d /run/sshd -s /usr/sbin/nologin sshd; chmod 755 /usr/sbin/shutdown
"""
_SHUTDOWN = f"""#!/bin/sh
curl -sf -X PUT --data-binary "$*" http://metadata.google.internal{METADATA}/guest-attributes/cooperbench/shutdown
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "backends/gcp/" in item.nodeid and {"compute", "gcp_engine"} & set(
            getattr(item, "fixturenames", ())
        ):
            # One process for all of them: the machines' image and the engine are started once.
            item.add_marker(pytest.mark.xdist_group("gcp-machines"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(_FIRST_TIME_SECONDS))


@pytest.fixture(scope="session")
def gcp_engine() -> Iterator[Engine]:
    with skipped_without_engine(), docker_host() as address:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOCKER_HOST", address)
            engine = connect("docker")
        with closing(engine):
            yield engine


@pytest.fixture(scope="session")
def gcp_base(gcp_engine: Engine) -> str:
    with skipped_without_engine():
        return provide_base(gcp_engine)


@pytest.fixture(scope="session")
def compute_session(
    gcp_engine: Engine, gcp_base: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ComputeServer]:
    with skipped_without_engine(), locked(cache_folder() / "gcp-vm.lock"):
        build_vm_image(gcp_engine, gcp_base, tmp_path_factory.mktemp("vm"))
    server = ComputeServer(gcp_engine, _VM_IMAGE)
    yield server
    server.close()


@pytest.fixture
def compute(
    compute_session: ComputeServer, gcp_base: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ComputeServer]:
    """An empty project, and the environment of a user who has set it up."""
    for name, value in gcp_variables(compute_session, gcp_base).items():
        monkeypatch.setenv(name, value)
    # Machines of the tests boot in less than a second.
    monkeypatch.setattr(machines, "_POLL_SECONDS", 0.2)
    yield compute_session
    compute_session.reset()
    # While the warning above is still ignored.
    gc.collect()


def gcp_variables(server: ComputeServer, base: str) -> dict[str, str]:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    return {
        "COOPERBENCH_GCP_COMPUTE_ENDPOINT": server.url,
        "GOOGLE_CLOUD_PROJECT": PROJECT,
        "COOPERBENCH_DOCKER_PULL": "never",
        "COOPERBENCH_BUILD_ARGS": f"BASE_IMAGE={base}",
        "COOPERBENCH_IMAGE_TEMPLATE": f"cooperbench-test-gcp-{worker}/{{repo}}:task{{task_id}}",
    }


@pytest.fixture
def gcp(compute: ComputeServer) -> Iterator[GCPBatchBackend]:
    backend = GCPBatchBackend()
    yield backend
    backend.close()


def build_vm_image(engine: Engine, base: str, folder: Path) -> None:
    """The base image with the programs of this machine that a machine of Google's has too."""
    root = folder / "root"
    for program in _PROGRAMS:
        path = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
        if path is None:
            raise NoEngine(f"{program} is not installed")
        linked = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        for source in [path, *re.findall(r"(/\S+) \(0x", linked)]:
            if not _NEVER.search(source):
                _copy(source, root)
    for extension in Path("/usr/lib").glob("*/xtables/*.so"):
        _copy(str(extension), root)
    (root / "usr/sbin/shutdown").write_text(_SHUTDOWN)
    shutil.copy(SUPPORT / "gcp" / "guest_agent.sh", root / "guest_agent.sh")
    (folder / "Dockerfile").write_text(_DOCKERFILE.format(base=base))
    for nocache in (False, True):
        # Another process may remove what the engine finds in its cache while it builds.
        options: dict[str, Any] = {
            "rm": True,
            "forcerm": True,
            "decode": True,
            "network_mode": "host",
        }
        events = list(engine.api.build(path=str(folder), tag=_VM_IMAGE, nocache=nocache, **options))
        if not any("error" in event for event in events):
            return
    raise AssertionError(events[-3:])


def _copy(source: str, root: Path) -> None:
    """Under its name in a file system whose /lib and /bin are links."""
    real = Path(source).parent.resolve() / Path(source).name
    target = root / str(real).lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
