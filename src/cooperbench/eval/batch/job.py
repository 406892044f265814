"""The Batch job of an evaluation: its settings, the record of it on disk, and the job as Batch wants it described.

A task is one entry. Batch takes one group of tasks a job, so images do not have groups of their own; tasks of one
image stand side by side, and each gets the name of its entry in its own environment: its index decides about nothing.
What runs is a container with Python and git that begins with the text of `store` and reaches the machine's
engine through its socket; the task's image is started from there, without network.

The record is written before the job is made and removed after its end: so a harness that was killed at any moment finds
the job again by the same command. Nothing here talks to the cloud.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import secrets
from dataclasses import asdict, dataclass
from datetime import timedelta
from importlib import resources
from typing import TYPE_CHECKING, Any

from cooperbench.backends.gcp.batch import TOP_FOLDER, storage_endpoint
from cooperbench.backends.gcp.compute import OURS, PURPOSE, RUN, resource_labels
from cooperbench.errors import UserError
from cooperbench.eval.batch import store, task
from cooperbench.eval.batch.entry import identity
from cooperbench.eval.executor import SPARE_SECONDS
from cooperbench.storage import read_json, utc_now, write_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from google.cloud.batch_v1 import AllocationPolicy, Job

    from cooperbench.backends.gcp.settings import GcpSettings
    from cooperbench.eval.batch.entry import Entry
    from cooperbench.eval.batch.remote import Order
    from cooperbench.storage import ExperimentPaths

SCHEMA = "cooperbench.batch/1"
FILE = "batch.json"
RETRIES = 3
SPOT_RETRIES = 8
"""Machines that may be taken away at any time are."""
RETRIES_AFTER_ERROR = 1
"""A task that has found an error has tried several times already; another machine may do better, once."""
PREPARE_SECONDS = 1800
"""For pulling or building a task's image."""
RAN_TOO_LONG = 50005
"""Batch's own exit code for a task that ran over its time; it would again."""
_SOCKET = "/var/run/docker.sock"
_SHARED = "/var/tmp/cooperbench"  # noqa: S108  # a folder of the machine's, for its tasks alone
"""What tasks on one machine share: the locks that let one of them prepare an image, and the others wait."""
_LONGEST_SLUG = 24
_PASSED_ON = (
    "COOPERBENCH_IMAGE_TEMPLATE",
    "COOPERBENCH_BUILD_ARGS",
    "COOPERBENCH_DOCKER_CPUS",
    "COOPERBENCH_DOCKER_MEMORY",
    "COOPERBENCH_DOCKER_PIDS_LIMIT",
    "COOPERBENCH_DOCKER_PULL",
)
"""Settings of the harness that hold for the containers on the machines of a job too."""


@dataclass(frozen=True)
class BatchSettings:
    """What can be set about evaluations on Batch beyond what all of `gcp` shares, by environment variable."""

    image: str = "python:3.12-bookworm"
    """In which our package runs on each machine: any image with Python 3.11 or later and git."""
    cpus: float = 2.0
    """What one evaluation needs: it decides how many share a machine."""
    memory_gb: float = 6.0
    backend: str = "docker"
    """Which backend evaluates there."""
    poll_seconds: float = 5.0

    @property
    def environment(self) -> dict[str, str]:
        """What the tasks find in their environment of that of the harness."""
        return {name: os.environ[name] for name in _PASSED_ON if os.environ.get(name)}


def read_batch_settings() -> BatchSettings:
    default = BatchSettings()
    return BatchSettings(
        image=os.environ.get("COOPERBENCH_GCP_BATCH_IMAGE") or default.image,
        cpus=_number("COOPERBENCH_GCP_BATCH_CPUS", default.cpus),
        memory_gb=_number("COOPERBENCH_GCP_BATCH_MEMORY_GB", default.memory_gb),
        backend=os.environ.get("COOPERBENCH_GCP_BATCH_BACKEND") or default.backend,
        poll_seconds=_number("COOPERBENCH_GCP_BATCH_POLL_SECONDS", default.poll_seconds),
    )


def _number(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = 0
    if not 0 < number < 10_000:
        raise UserError(f"{name} is {text!r}; it is a number above 0")
    return number


@dataclass(frozen=True)
class JobRecord:
    """One job, and whose inputs and results are in which folder of the bucket."""

    project: str
    region: str
    bucket: str
    job: str
    folder: str
    created_at: str
    tasks: tuple[dict[str, Any], ...]
    """By index in the job: the entry, and which pair it is for people who read this."""

    @property
    def name(self) -> str:
        """The job's, as Batch knows it."""
        return f"projects/{self.project}/locations/{self.region}/jobs/{self.job}"

    @property
    def entry_ids(self) -> tuple[str, ...]:
        return tuple(task["entry"] for task in self.tasks)


def new_record(run_name: str, settings: GcpSettings, entries: Sequence[Entry]) -> JobRecord:
    """A job's name says which run it is of, and is nobody else's."""
    content = hashlib.sha256("".join(entry.entry_id for entry in entries).encode()).hexdigest()
    job = f"cb-{slug(run_name)}-{content[:8]}-{secrets.token_hex(4)}"
    tasks = tuple({"entry": entry.entry_id, **identity(entry.pair, entry.setting)} for entry in entries)
    folder = f"{TOP_FOLDER}/{job}"
    return JobRecord(settings.project, settings.region, settings.bucket, job, folder, utc_now(), tasks)


def slug(text: str) -> str:
    """For names and labels: small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:_LONGEST_SLUG].strip("-") or "run"


def record_path(paths: ExperimentPaths) -> Path:
    return paths.root / FILE


def save_record(paths: ExperimentPaths, record: JobRecord) -> None:
    write_json(record_path(paths), {"schema": SCHEMA, **asdict(record)})


def load_record(paths: ExperimentPaths) -> JobRecord | None:
    """None where there is none, or none that this version understands."""
    content = read_json(record_path(paths))
    if content is None or content.pop("schema", None) != SCHEMA:
        return None
    try:
        tasks = tuple({**task, "entry": str(task["entry"])} for task in content.pop("tasks"))
        return JobRecord(tasks=tasks, **{name: str(value) for name, value in content.items()})
    except (KeyError, TypeError):
        return None


def forget_record(paths: ExperimentPaths) -> None:
    record_path(paths).unlink(missing_ok=True)


def job_spec(
    order: Order, record: JobRecord, bundle: str, settings: GcpSettings, batch: BatchSettings
) -> Job:
    from google.cloud import batch_v1

    variables = {
        store.BUCKET_VARIABLE: record.bucket,
        store.PREFIX_VARIABLE: record.folder,
        store.BUNDLE_VARIABLE: bundle,
        task.RETRIES_VARIABLE: str(RETRIES_AFTER_ERROR),
    }
    if endpoint := storage_endpoint():
        variables[store.ENDPOINT_VARIABLE] = endpoint
    if batch.backend == "docker":
        variables["COOPERBENCH_CACHE_DIR"] = _SHARED
    container = batch_v1.Runnable.Container(
        image_uri=batch.image,
        entrypoint="python3",
        commands=["-c", _first_program()],
        volumes=[f"{_SOCKET}:{_SOCKET}", f"{_SHARED}:{_SHARED}"],
        # The metadata server and the bucket are reached as the machine reaches them.
        options="--network host",
    )
    spec = batch_v1.TaskSpec(
        runnables=[batch_v1.Runnable(container=container)],
        environment=batch_v1.Environment(variables=variables),
        compute_resource=batch_v1.ComputeResource(
            cpu_milli=round(batch.cpus * 1000), memory_mib=round(batch.memory_gb * 1024)
        ),
        max_retry_count=SPOT_RETRIES if settings.spot else RETRIES,
        max_run_duration=timedelta(seconds=task_seconds(order)),
        lifecycle_policies=[
            batch_v1.LifecyclePolicy(
                action=batch_v1.LifecyclePolicy.Action.FAIL_TASK,
                action_condition=batch_v1.LifecyclePolicy.ActionCondition(exit_codes=[RAN_TOO_LONG]),
            )
        ],
    )
    group = batch_v1.TaskGroup(
        task_spec=spec,
        parallelism=min(order.concurrency, len(record.tasks)),
        task_environments=[
            batch_v1.Environment(variables={task.ENTRY_VARIABLE: entry_id}) for entry_id in record.entry_ids
        ],
    )
    labels = resource_labels(order.paths.run_name, "evaluation")
    return batch_v1.Job(
        task_groups=[group],
        allocation_policy=_machines(settings, {name: labels[name] for name in (OURS, RUN, PURPOSE)}),
        labels=labels,
        logs_policy=batch_v1.LogsPolicy(destination=batch_v1.LogsPolicy.Destination.CLOUD_LOGGING),
    )


def _first_program() -> str:
    """`store`, in one word: whoever hands it on has nothing to quote and nothing to expand."""
    text = resources.files(__package__).joinpath("store.py").read_bytes()
    return f"exec(__import__('base64').b64decode('{base64.b64encode(text).decode('ascii')}'))"


def task_seconds(order: Order) -> int:
    """Each patch alone and the merge, against each feature's tests, each with its sandbox."""
    most_features = max((len(pair.feature_ids) for pair, _ in order.work), default=2)
    return PREPARE_SECONDS + 2 * most_features * (order.test_timeout_seconds + SPARE_SECONDS)


def _machines(settings: GcpSettings, labels: dict[str, str]) -> AllocationPolicy:
    """Their labels name no owner: they are the job's, and end with it, whatever becomes of the harness."""
    from google.cloud.batch_v1 import AllocationPolicy

    model = AllocationPolicy.ProvisioningModel
    policy = AllocationPolicy.InstancePolicy(
        machine_type=settings.machine_type,
        provisioning_model=model.SPOT if settings.spot else model.STANDARD,
        boot_disk=AllocationPolicy.Disk(
            type_=settings.disk_type, size_gb=settings.disk_gb, image="batch-cos"
        ),
    )
    machines = AllocationPolicy(
        instances=[AllocationPolicy.InstancePolicyOrTemplate(policy=policy)],
        location=AllocationPolicy.LocationPolicy(allowed_locations=[f"regions/{settings.region}"]),
        labels=labels,
    )
    if settings.service_account not in ("", "default"):
        from google.cloud.batch_v1 import ServiceAccount

        machines.service_account = ServiceAccount(email=settings.service_account)
    if settings.network or settings.subnetwork or not settings.public_address:
        interface = AllocationPolicy.NetworkInterface(no_external_ip_address=not settings.public_address)
        if settings.network:
            interface.network = settings.network_path
        if settings.subnetwork:
            interface.subnetwork = settings.subnetwork_path
        machines.network = AllocationPolicy.NetworkPolicy(network_interfaces=[interface])
    return machines
