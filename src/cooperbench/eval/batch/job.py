"""The Batch job of an evaluation, as Batch wants to have it described.

A task is one entry. Batch takes one group of tasks a job, so images do not have groups of their own; tasks of one
image stand side by side, and each gets the name of its entry in its own environment: its index decides about nothing.
What runs is a container with Python and git that begins with the text of `store` and reaches the machine's
engine through its socket; the task's image is started from there, without network.
"""

from __future__ import annotations

import base64
from datetime import timedelta
from importlib import resources
from typing import TYPE_CHECKING

from cooperbench.backends.gcp.labels import OURS, PURPOSE, RUN, resource_labels
from cooperbench.eval.batch import store, task
from cooperbench.eval.batch.clients import storage_endpoint
from cooperbench.eval.executor import SPARE_SECONDS

if TYPE_CHECKING:
    from google.cloud.batch_v1 import AllocationPolicy, Job

    from cooperbench.backends.gcp.settings import GcpSettings
    from cooperbench.eval.batch.job_record import JobRecord
    from cooperbench.eval.batch.remote import Order
    from cooperbench.eval.batch.settings import BatchSettings

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
