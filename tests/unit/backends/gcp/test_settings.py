"""What is set is what is used, and what cannot be is said; labels find their owner again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cooperbench.backends.gcp.compute import describe_machine
from cooperbench.backends.gcp.google_clients import resource_labels
from cooperbench.backends.gcp.machine_engine import google_hosts
from cooperbench.backends.gcp.settings import KEYS, VARIABLES, read_settings
from cooperbench.backends.ownership import OWNER_LABEL, is_leftover, read_owner, this_owner
from cooperbench.errors import UserError
from cooperbench.settings import config_file


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in VARIABLES.values():
        monkeypatch.delenv(name, raising=False)


def write_file(**content: Any) -> None:
    config_file().parent.mkdir(parents=True, exist_ok=True)
    config_file().write_text(json.dumps(content))


def test_every_key_of_the_file_is_used_and_overridden(monkeypatch: pytest.MonkeyPatch) -> None:
    filed = {
        "project": "filed-project",
        "region": "us-east1",
        "zone": "us-east1-c",
        "bucket": "filed-bucket",
        "machine_type": "n2-standard-4",
        "disk_gb": "50",
        "disk_type": "pd-ssd",
        "network": "vpc",
        "subnetwork": "sub",
        "public_address": "false",
        "service_account": "a@b.c",
        "spot": "true",
        "idle_minutes": "1.5",
        "image_template": "registry.example/{repo}:task{task_id}",
    }
    assert set(filed) == set(VARIABLES)
    write_file(**{KEYS[name]: value for name, value in filed.items()})
    found = read_settings()
    assert {
        name: str(getattr(found, name)).lower().removesuffix(".0") for name in VARIABLES
    } == filed
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "variable-project")
    monkeypatch.setenv("GCP_MACHINE_TYPE", "e2-standard-2")
    assert (read_settings().project, read_settings().machine_type) == (
        "variable-project",
        "e2-standard-2",
    )
    assert read_settings(machine_type="e2-highmem-8").machine_type == "e2-highmem-8"
    made = describe_machine(found, "session", "run", 60, "key")
    assert not made.network_interfaces[0].access_configs
    assert made.disks[0].initialize_params.disk_type == "zones/us-east1-c/diskTypes/pd-ssd"


def test_region_and_zone_belong_together(monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(gcp_project_id="some-project", gcp_region="us-east1", gcp_zone="us-east1-c")
    assert read_settings(region="europe-west4").zone == "europe-west4-b"
    monkeypatch.setenv("GCP_ZONE", "asia-east1-a")
    assert read_settings().region == "asia-east1"
    monkeypatch.setenv("GCP_REGION", "us-west1")
    with pytest.raises(UserError, match="the zone asia-east1-a is not in the region us-west1"):
        read_settings()


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        (
            "GOOGLE_CLOUD_PROJECT",
            "Bad Name",
            "project: 'Bad Name' is not valid; it is like my-project-123",
        ),
        ("GCP_DISK_GB", "much", "disk_gb: 'much' is not a whole number above 0"),
        ("GCP_SPOT", "perhaps", "spot: 'perhaps' is not true or false"),
        ("GCP_IDLE_MINUTES", "-1", "idle_minutes: '-1' is not a number above 0"),
        ("GCP_SUBNETWORK", "inner", "GCP_SUBNETWORK is set without GCP_NETWORK"),
        ("COOPERBENCH_GCP_BATCH_CPUS", "few", "batch_cpus: 'few' is not a number above 0"),
    ],
)
def test_what_cannot_be_is_said(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, line: str
) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "some-project")
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=line):
        read_settings()


def test_without_a_project() -> None:
    with pytest.raises(UserError, match="no Google Cloud project is set: cooperbench config gcp"):
        read_settings()


@given(st.text(max_size=200), st.text(max_size=80))
def test_labels_are_such_that_google_takes_them(run_name: str, purpose: str) -> None:
    labels = resource_labels(run_name, purpose)
    for name, value in labels.items():
        assert len(value) <= 63
        assert all(
            character in "abcdefghijklmnopqrstuvwxyz0123456789-_" for character in name + value
        )
    assert read_owner(labels[OWNER_LABEL]) == this_owner()
    assert not is_leftover(labels)


def test_whose_registries_are_signed_in_to() -> None:
    names = [
        "us-central1-docker.pkg.dev/p/r/i:1",
        "gcr.io/p/i",
        "eu.gcr.io/p/i",
        "docker.io/x/y",
        "evil.dev/pkg.dev/x",
    ]
    assert google_hosts(names) == ["eu.gcr.io", "gcr.io", "us-central1-docker.pkg.dev"]
