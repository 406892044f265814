"""Google Batch: evaluations as tasks of one job. Orders and events are objects in a bucket.

A driver that is killed leaves its job running, and the next call finds it. Batch itself retries
tasks; a pair without an outcome after that is an infrastructure error.
"""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.backends.gcp.batch import TOP_FOLDER, BatchJob, batch_client, open_bucket
from cooperbench.backends.gcp.google_clients import OURS, PURPOSE, RUN, resource_labels
from cooperbench.dataset.image_names import ENVIRONMENT_VARIABLE
from cooperbench.errors import CooperBenchError, InfraError
from cooperbench.eval.patch_tester import SPARE_SECONDS
from cooperbench.runner.budget import Budget
from cooperbench.runner.config import RunConfig
from cooperbench.runner.display import Display
from cooperbench.runner.executors.batch_task import (
    EVENTS,
    FOLDER_VARIABLE,
    JOB_VARIABLE,
    ORDERS,
    pack_orders,
)
from cooperbench.runner.executors.cluster import batch_ids
from cooperbench.runner.executors.driver import Driver
from cooperbench.runner.executors.job import Event, JobOrder
from cooperbench.runner.plan import Plan, plan_pairs
from cooperbench.text import plural

if TYPE_CHECKING:
    from google.cloud.batch_v1 import Job

    from cooperbench.backends.gcp.settings import GcpSettings

_BUNDLE = "bundle.zip"
_BUNDLED_PACKAGES = (
    "cooperbench",
    "docker",
    "requests",
    "urllib3",
    "charset_normalizer",
    "idna",
    "certifi",
    "msgspec",
)
"""Our package, and the packages that evaluations in containers need."""
_COMPILED_PACKAGES = ("msgspec",)
"""Packages that do not work without their compiled modules."""
_EXCLUDED_FOLDERS = {"__pycache__", "demo"}
_COMPILED_SUFFIXES = (".pyc", ".so", ".pyd")
_RETRIES = 3
_SPOT_RETRIES = 8
"""Retries on spot machines, which may be taken away at any time."""
_PREPARE_SECONDS = 1800
"""Time to pull or build a task's image."""
_MAX_RUNS_PER_FEATURE = 8
"""Test runs per feature: golden patch, each patch alone, the merge, repetitions and canaries."""
_TIMEOUT_EXIT_CODE = 50005
"""Exit code that Batch gives a task that exceeded its time. A retry would exceed it too."""
_ENDED_STATES = ("succeeded", "failed", "cancelled", "deletion_in_progress", "gone")
_DOCKER_SOCKET = "/var/run/docker.sock"
_MOUNTED_FOLDER = "/mnt/disks/cooperbench"
"""The job's folder of the bucket, on the machines and in our containers on them."""
_SHARED_FOLDER = "/var/tmp/cooperbench"  # noqa: S108  # on machines that run only our tasks
"""Folder that the tasks on one machine share: locks let one of them prepare an image."""
_BLOCK_METADATA_SERVER = """PATH=$PATH:/usr/sbin:/sbin
rule='PREROUTING -d 169.254.169.254 -p tcp ! --dport 53 -j DROP'
iptables -w -t mangle -C $rule 2>/dev/null || iptables -w -t mangle -I $rule
"""
"""Script that keeps sandboxes from the metadata server, which hands out the machine's identity."""
_UNPACK_AND_RUN = """
import runpy, subprocess, sys, tempfile, zipfile
folder = tempfile.mkdtemp()
zipfile.ZipFile(sys.argv[1]).extractall(folder)
sys.path.insert(0, folder)
try:
    import msgspec
except ImportError:  # the bundle has it for the Python version of the driver
    sys.modules.pop("msgspec", None)
    other = tempfile.mkdtemp()
    pip = [sys.executable, "-m", "pip", "install", "-q", "-t", other, "msgspec"]
    subprocess.run(pip, check=True)
    sys.path.insert(0, other)
runpy.run_module("cooperbench.runner.executors.batch_task", run_name="__main__", alter_sys=True)
"""
_FORWARDED_VARIABLES = (
    "COOPERBENCH_BUILD_ARGS",
    "COOPERBENCH_DOCKER_CPUS",
    "COOPERBENCH_DOCKER_MEMORY",
    "COOPERBENCH_DOCKER_PIDS_LIMIT",
    "COOPERBENCH_DOCKER_PULL",
)
"""Settings of this machine that apply to the containers on the machines of a job too."""


def evaluate_by_batch(settings: GcpSettings, plans: Sequence[Plan], display: Display) -> None:
    """Evaluate everything that these plans have to evaluate by now, as one job."""
    evaluation_plans = [_plan_evaluation(plan, settings) for plan in plans]
    if not any(plan.to_evaluate for plan in evaluation_plans):
        return
    config = plans[0].config
    cluster = BatchCluster(settings, config.run_name, config.eval_concurrency)
    # --max-cost limits the costs of agents, whose work is done.
    Driver(cluster, evaluation_plans, display, Budget(None)).run()


def _plan_evaluation(plan: Plan, settings: GcpSettings) -> Plan:
    """Read from disk which results of a plan need evaluation now that its agents are done.

    Pairs stay in the order of the dataset, so that a machine can reuse the image of a task.
    """
    config = plan.config
    force = config.force and config.evaluate_only
    remaining = plan_pairs(replace(config, force=force), plan.pairs)
    job_config = RunConfig(
        run_name=config.run_name,
        dataset_dir=config.dataset_dir,
        logs_dir=config.logs_dir,
        setting=config.setting,
        eval_network=config.eval_network,
        test_timeout_seconds=config.test_timeout_seconds,
        canary=config.canary,
        # The other options (agents, a Redis URL with its password) stay on this machine.
        agent="nop",
        backend=settings.batch_backend,
        evaluate_only=True,
        force=force,
        # The driver submits the next job only after this one has ended.
        concurrency=1,
    )
    return replace(remaining, config=job_config, to_run=())


class BatchCluster:
    """Google Batch; each batch of orders is one job, each order a task of it."""

    name = "batch"
    attempts = 1
    max_jobs = 10_000
    """Maximum number of tasks in one Batch job."""

    def __init__(self, settings: GcpSettings, run_name: str, parallelism: int) -> None:
        self.poll_seconds = settings.batch_poll_seconds
        self._settings = settings
        self._run_name = run_name
        self._parallelism = parallelism
        self._client = batch_client()
        self._bucket = open_bucket(settings)
        self._jobs: dict[str, BatchJob] = {}
        """Batch jobs that may have left something behind, by batch."""

    def check(self, paths: Sequence[Path]) -> None:
        """Check nothing: problems are known when a job is submitted."""

    def sees(self, path: Path) -> bool:
        """Return False: the machines share no disk with this one."""
        del path
        return False

    def submit(self, batch: str, orders: Sequence[JobOrder]) -> None:
        """Upload the orders and our package, and create the Batch job."""
        job = self._job(batch)
        environment = {
            name: os.environ[name] for name in _FORWARDED_VARIABLES if os.environ.get(name)
        }
        if self._settings.image_template:
            environment[ENVIRONMENT_VARIABLE] = self._settings.image_template
        packed = pack_orders(replace(order, environment=environment) for order in orders)
        job.put({ORDERS: packed, _BUNDLE: make_bundle()})
        parallelism = min(self._parallelism, len(orders))
        job.create(make_job_spec(self._settings, job.job_id, self._run_name, orders, parallelism))

    def events(self, jobs: Collection[str]) -> Iterator[tuple[str, Event]]:
        """Yield the events of tasks that have ended."""
        for batch in batch_ids(jobs):
            batch_jobs = [job for job in jobs if job.startswith(f"{batch}.")]
            try:
                yield from self._batch_events(self._job(batch), batch_jobs)
            except InfraError as error:
                # The job continues without us.
                yield batch_jobs[0], {"kind": "note", "text": str(error)}

    def _batch_events(self, job: BatchJob, names: Sequence[str]) -> Iterator[tuple[str, Event]]:
        description = job.get()
        # After the state: a task that had ended by then has written its events.
        available = set(job.objects(EVENTS)).intersection(EVENTS + name for name in names)
        state = description.status.state.name.lower() if description else "gone"
        details = _describe_job(description) if description else ""
        text = f"Batch job {job.job_id}: {details}{state}"
        yield names[0], {"kind": "note", "text": text}
        for object_name, content in job.fetch(available).items():
            for event in json.loads(content):
                yield object_name.removeprefix(EVENTS), event
        if state in _ENDED_STATES:
            lost = [name for name in names if EVENTS + name not in available]
            yield from _lost_tasks(job, description, state, lost)

    def hold(self, jobs: Collection[str]) -> None:
        """Do nothing: evaluations do not spend the budget."""

    def cancel(self, jobs: Collection[str]) -> None:
        """Delete Batch jobs."""
        for batch in batch_ids(jobs):
            self._remove(batch, "the next call of the same command finds it")

    def close(self, *, keep_files: bool) -> None:
        """Delete Batch jobs and their objects. Cloud Logging keeps the output of tasks."""
        del keep_files
        for batch in list(self._jobs):
            self._remove(batch, "cooperbench clean --backend gcp removes the rest")

    def _remove(self, batch: str, advice: str) -> None:
        try:
            self._job(batch).remove()
        except CooperBenchError as error:
            raise type(error)(f"{error}; {advice}") from error
        del self._jobs[batch]

    def _job(self, batch: str) -> BatchJob:
        """Return the Batch job of a batch. Its name is the same in a later call."""
        if batch not in self._jobs:
            slug = re.sub(r"[^a-z0-9]+", "-", self._run_name.lower())[:24].strip("-") or "run"
            parent = f"projects/{self._settings.project}/locations/{self._settings.region}"
            name = f"{parent}/jobs/cb-{slug}-{batch}"
            self._jobs[batch] = BatchJob(self._client, self._bucket, name)
        return self._jobs[batch]


def _lost_tasks(
    job: BatchJob, description: Job | None, state: str, names: Sequence[str]
) -> Iterator[tuple[str, Event]]:
    """Yield the tasks that ended without events, with the reason that Batch gives."""
    if not names:
        return
    failures = job.failures()
    advice = ""
    if description is not None:
        command = f"gcloud logging read 'labels.job_uid=\"{description.uid}\"'"
        advice = f" See it with: {command}"
    for name in names:
        task_index = int(name.partition(".")[2])
        reason = failures.get(task_index, f"the job is {state}.")
        yield name, {"kind": "lost", "error": f"the Batch task failed: {reason}{advice}"}


def _describe_job(job: Job) -> str:
    """Return a description of a Batch job for people; its state is appended to it."""
    (group,) = job.task_groups
    policy = job.allocation_policy.instances[0].policy
    spot = " spot" if policy.provisioning_model.name == "SPOT" else ""
    pairs = plural(len(group.task_environments), "pair")
    tasks = plural(group.parallelism, "task")
    return f"{pairs}, {tasks} at once, on {policy.machine_type}{spot} machines: "


def make_bundle() -> bytes:
    """Return a zip archive of our package and its dependencies, without the demo's tasks."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for name in _BUNDLED_PACKAGES:
            package = Path(str(import_module(name).__file__)).parent
            for path in _bundled_files(package):
                archive.write(path, path.relative_to(package.parent).as_posix())
    return buffer.getvalue()


def _bundled_files(package: Path) -> Iterator[Path]:
    excluded_suffixes = set(_COMPILED_SUFFIXES)
    if package.name in _COMPILED_PACKAGES:
        excluded_suffixes = {".pyc"}
    for path in package.rglob("*"):
        parts = path.relative_to(package).parts
        if path.is_dir() or path.suffix in excluded_suffixes:
            continue
        if _EXCLUDED_FOLDERS.isdisjoint(parts):
            yield path


def make_job_spec(
    settings: GcpSettings,
    job_id: str,
    run_name: str,
    orders: Sequence[JobOrder],
    parallelism: int,
) -> Job:
    """Return the specification of a Batch job."""
    from google.cloud import batch_v1

    labels = resource_labels(run_name, "evaluation")
    group = {
        "task_spec": _task_spec(settings, job_id, orders),
        "parallelism": parallelism,
        "task_environments": [{"variables": {JOB_VARIABLE: order.job}} for order in orders],
    }
    # Machines belong to the job and end with it, even if the driver is gone: no owner's label.
    machine_labels = {name: labels[name] for name in (OURS, RUN, PURPOSE)}
    return batch_v1.Job(
        {
            "task_groups": [group],
            "allocation_policy": _allocation_policy(settings, machine_labels),
            "labels": labels,
            "logs_policy": {"destination": "CLOUD_LOGGING"},
        }
    )


def _task_spec(settings: GcpSettings, job_id: str, orders: Sequence[JobOrder]) -> dict[str, object]:
    container = {
        "image_uri": settings.batch_image,
        "entrypoint": "python3",
        "commands": ["-c", _UNPACK_AND_RUN, f"{_MOUNTED_FOLDER}/{_BUNDLE}"],
        "volumes": [f"{path}:{path}" for path in (_DOCKER_SOCKET, _SHARED_FOLDER, _MOUNTED_FOLDER)],
        # The metadata server gives the credentials for the project's own registry.
        "options": "--network host",
    }
    bucket_folder = {
        "gcs": {"remote_path": f"{settings.bucket}/{TOP_FOLDER}/{job_id}"},
        "mount_path": _MOUNTED_FOLDER,
        "mount_options": ["-implicit-dirs"],
    }
    variables = {FOLDER_VARIABLE: _MOUNTED_FOLDER, "COOPERBENCH_CACHE_DIR": _SHARED_FOLDER}
    return {
        "runnables": [{"script": {"text": _BLOCK_METADATA_SERVER}}, {"container": container}],
        "volumes": [bucket_folder],
        "environment": {"variables": variables},
        "compute_resource": {
            "cpu_milli": round(settings.batch_cpus * 1000),
            "memory_mib": round(settings.batch_memory_gb * 1024),
        },
        "max_retry_count": _SPOT_RETRIES if settings.spot else _RETRIES,
        "max_run_duration": {"seconds": _task_seconds(orders)},
        "lifecycle_policies": [
            {"action": "FAIL_TASK", "action_condition": {"exit_codes": [_TIMEOUT_EXIT_CODE]}}
        ],
    }


def _task_seconds(orders: Sequence[JobOrder]) -> int:
    """Return the time that the largest pair may need."""
    longest = 0
    for order in orders:
        for config, pair in order.work:
            seconds_per_run = config.test_timeout_seconds + SPARE_SECONDS
            longest = max(longest, len(pair.features) * seconds_per_run)
    return _PREPARE_SECONDS + _MAX_RUNS_PER_FEATURE * longest


def _allocation_policy(settings: GcpSettings, labels: dict[str, str]) -> dict[str, object]:
    machine = {
        "machine_type": settings.machine_type,
        "provisioning_model": "SPOT" if settings.spot else "STANDARD",
        "boot_disk": {
            "type_": settings.disk_type,
            "size_gb": settings.disk_gb,
            "image": "batch-cos",
        },
    }
    policy: dict[str, object] = {
        "instances": [{"policy": machine}],
        "location": {"allowed_locations": [f"regions/{settings.region}"]},
        "labels": labels,
    }
    if settings.service_account:
        policy["service_account"] = {"email": settings.service_account}
    interface = settings.network_interface if settings.network else {}
    if interface or not settings.public_address:
        interface["no_external_ip_address"] = not settings.public_address
        policy["network"] = {"network_interfaces": [interface]}
    return policy
