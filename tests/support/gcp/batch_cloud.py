"""Batch and Cloud Storage on loopback together, and experiments whose agents have handed in what a test wants."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.backends.gcp.settings import read_settings
from cooperbench.backends.local import LocalBackend
from cooperbench.dataset.discovery import discover
from cooperbench.models import agent_slots
from cooperbench.storage import ExperimentPaths, read_json, write_json
from tests.support.gcp.batch_server import BatchServer
from tests.support.tiny import golden

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from cooperbench.backends.gcp.settings import GcpSettings
    from cooperbench.models import Pair

WITH_AGENTS = "tests.support.gcp.batch_cloud:LocalAgents"
BUCKET = "cooperbench-tests"
_TIMES = ("started_at", "ended_at", "duration_seconds", "run_name")


class LocalAgents(LocalBackend):
    """A backend whose agents work on this machine, and whose evaluations go to Batch."""

    @property
    def batch_settings(self) -> GcpSettings:
        return read_settings()


class Cloud:
    """Both servers, and the environment in which Google's clients find them."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.batch = BatchServer(folder, cache, self.bucket)
        self._storage = import_module("gcp_storage_emulator.server").create_server(
            "127.0.0.1", 0, in_memory=True
        )
        self._storage.start()
        self.environment = {
            "GOOGLE_CLOUD_PROJECT": "some-project",
            "GCP_BUCKET": BUCKET,
            "GCP_PUBLIC_ADDRESS": "false",
            "GCP_SERVICE_ACCOUNT": "runner@some-project.iam.gserviceaccount.com",
            "COOPERBENCH_GCP_BATCH_ENDPOINT": self.batch.endpoint,
            "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{self._storage._api._httpd.server_port}",
            "COOPERBENCH_GCP_BATCH_BACKEND": "local",
            "COOPERBENCH_GCP_BATCH_POLL_SECONDS": "0.2",
        }

    def bucket(self) -> Any:
        from google.auth.credentials import AnonymousCredentials

        storage = import_module("google.cloud.storage")
        make: Any = AnonymousCredentials
        return storage.Client(project="some-project", credentials=make()).bucket(BUCKET)

    def objects(self) -> list[str]:
        return [blob.name for blob in self.bucket().list_blobs()]

    def stop(self) -> None:
        self.batch.stop()
        self._storage.stop()


@pytest.fixture
def cloud(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cloud]:
    folder = tmp_path / "machines"
    folder.mkdir()
    cloud = Cloud(folder, tmp_path_factory.getbasetemp() / "machines-cache")
    for name, value in cloud.environment.items():
        monkeypatch.setenv(name, value)
    yield cloud
    cloud.stop()


class Experiment:
    """Pairs of a dataset with what agents handed in: the golden patches, unless told otherwise."""

    def __init__(self, dataset: Path, logs: Path, name: str) -> None:
        self.dataset = dataset
        self.paths = ExperimentPaths(logs, name)
        self.pairs = discover(dataset).pairs
        write_json(self.paths.config, {"run_name": name})
        for pair in self.pairs:
            self.hand_in(pair, {})

    def hand_in(self, pair: Pair, patches: Mapping[str, str | None]) -> None:
        place = self.paths.pair(pair, "coop")
        for slot in agent_slots(pair, "coop"):
            patch = patches.get(slot.agent_id, golden(*slot.feature_ids))
            if patch is None:
                with suppress(FileNotFoundError):
                    place.agent(slot.agent_id).patch.unlink()
            else:
                place.agent(slot.agent_id).write_patch(patch.encode())
        result = {"schema": "cooperbench.result/1", "status": "completed", "agents": {}}
        write_json(place.result, result | {"duration_seconds": 0})

    def evaluations(self) -> dict[str, Any]:
        """What lies on disk, without what no two evaluations have in common."""
        found = {
            pair.label: read_json(self.paths.pair(pair, "coop").evaluation) for pair in self.pairs
        }
        return {label: _timeless(record) for label, record in found.items() if record is not None}

    def files(self) -> dict[str, bytes]:
        """What else an evaluation leaves: the merged patches and what tests printed."""
        folders = [self.paths.pair(pair, "coop").folder for pair in self.pairs]
        paths = [
            path
            for folder in folders
            for path in (folder / "merged.patch", *folder.glob("tests/*.txt"))
        ]
        return {
            str(path.relative_to(self.paths.root)): path.read_bytes()
            for path in paths
            if path.is_file()
        }


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(part) for name, part in value.items() if name not in _TIMES}
    return re.sub(r" \(log: .*\)", "", value) if isinstance(value, str) else value


def harness_environment(cloud: Cloud, cache: Path) -> dict[str, str]:
    return {**os.environ, **cloud.environment, "COOPERBENCH_CACHE_DIR": str(cache)}
