"""A Batch job as on Google's machines: the task is a container with Python and git, the tests run in its siblings."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench import evaluate
from tests.external.backends.docker.test_run import verdicts
from tests.support.docker.tasks import write_buildable
from tests.support.gcp.batch_cloud import Experiment, cloud

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cooperbench.backends.docker.engine import Engine
    from tests.support.gcp.batch_cloud import Cloud

__all__ = ["cloud"]
_SOCKET = "/var/run/docker.sock"
_SHARED = "/var/tmp/cooperbench"


class Container:
    """A task's container, as the job describes it, in the engine of the tests. Its machine is a folder of the test."""

    def __init__(
        self,
        engine: Engine,
        machine: Path,
        container: dict[str, Any],
        environment: dict[str, str],
        log: Path,
        mounts: dict[str, Path],
    ) -> None:
        self._api = engine.api
        self._log = log
        host = {
            _SOCKET: engine.where.removeprefix("unix://"),
            _SHARED: str(machine),
            **{path: str(folder) for path, folder in mounts.items()},
        }
        volumes = dict(volume.split(":") for volume in container["volumes"])
        assert set(volumes) == set(host)
        assert container["options"] == "--network host"
        self._id = self._api.create_container(
            container["imageUri"],
            container["commands"],
            entrypoint=container["entrypoint"],
            environment={
                name: text
                for name, text in environment.items()
                if name.startswith(("COOPERBENCH_", "BATCH_"))
            },
            host_config=self._api.create_host_config(
                binds=[f"{host[source]}:{target}" for source, target in volumes.items()],
                network_mode="host",
            ),
        )["Id"]
        self._api.start(self._id)

    def wait(self, seconds: float) -> int | None:
        code = int(self._api.wait(self._id, timeout=seconds)["StatusCode"])
        with suppress(Exception):  # the job may be deleted as soon as its results are there
            self._log.write_bytes(self._api.logs(self._id))
        return code

    def kill(self) -> None:
        with suppress(Exception):
            self._api.remove_container(self._id, force=True)


@pytest.fixture
def images(gcp_engine: Engine, gcp_base: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The settings of somebody who builds the tasks' images; they are removed afterwards."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    folder = f"cooperbench-test-batch-{worker}"
    monkeypatch.setenv("COOPERBENCH_IMAGE_TEMPLATE", f"{folder}/{{repo}}:task{{task_id}}")
    monkeypatch.setenv("COOPERBENCH_DOCKER_PULL", "never")
    monkeypatch.setenv("COOPERBENCH_BUILD_ARGS", f"BASE_IMAGE={gcp_base}")
    monkeypatch.setenv("COOPERBENCH_GCP_BATCH_IMAGE", gcp_base)
    yield folder
    for image in gcp_engine.api.images():
        for tag in image["RepoTags"] or []:
            if tag.startswith(f"{folder}/"):
                with suppress(Exception):
                    gcp_engine.api.remove_image(tag, force=True)


def test_a_task_in_a_container_judges_in_containers(
    cloud: Cloud, gcp_engine: Engine, images: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COOPERBENCH_GCP_BATCH_BACKEND")
    machine = tmp_path / "machine"
    machine.mkdir()
    cloud.batch.launch = partial(Container, gcp_engine, machine)
    write_buildable(tmp_path / "data")
    there, here = (
        Experiment(tmp_path / "data", tmp_path / "logs", name) for name in ("there", "here")
    )
    for experiment, backend in ((there, "gcp"), (here, "local")):
        evaluate(
            experiment.paths.run_name, backend=backend, features=[1, 4], concurrency=2,
            dataset_dir=experiment.dataset, logs_dir=experiment.paths.logs_dir,
        )  # fmt: skip
    (record,) = there.evaluations().values()
    assert record["status"] == "completed", [
        log.read_text() for log in cloud.batch.folder.glob("*.log")
    ]
    assert record["image"] == f"{images}/tiny_task:task7"
    assert record["image_digest"].startswith("sha256:")
    assert verdicts(there.paths.root) == verdicts(here.paths.root)
    assert there.files() == here.files()
    made = [
        tag for image in gcp_engine.api.images() for tag in image["RepoTags"] or [] if images in tag
    ]
    # Tests of the docker backend that run beside this one clean up the images of this task.
    assert set(made) <= {record["image"]}
    left = gcp_engine.api.containers(all=True, filters={"label": ["cooperbench.run=there"]})
    assert left == []
