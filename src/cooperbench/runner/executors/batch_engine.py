"""Evaluations as tasks of one Google Batch job; orders, and what tasks tell, are objects in its folder of a bucket.

A harness that is killed leaves its job running, and the same command finds it again. Batch itself tries tasks again:
a pair that has no outcome then is an infrastructure error.
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
from typing import TYPE_CHECKING, Any

from cooperbench.backends.gcp.batch import TOP_FOLDER, BatchJob, batch_client, open_bucket
from cooperbench.backends.gcp.google_clients import OURS, PURPOSE, RUN, resource_labels
from cooperbench.dataset.image_names import ENVIRONMENT_VARIABLE
from cooperbench.errors import CooperBenchError, InfraError
from cooperbench.eval.patch_tester import SPARE_SECONDS
from cooperbench.runner.config import RunConfig
from cooperbench.runner.display import Display
from cooperbench.runner.executors.batch_task import (
    EVENTS,
    FOLDER_VARIABLE,
    JOB_VARIABLE,
    ORDERS,
    pack_orders,
)
from cooperbench.runner.executors.driver import Driver, batches_of
from cooperbench.runner.executors.job import Event, JobOrder
from cooperbench.runner.experiment import Arm, Budget
from cooperbench.text import plural

if TYPE_CHECKING:
    from google.cloud.batch_v1 import Job

    from cooperbench.backends.gcp.settings import GcpSettings

_BUNDLE = "bundle.zip"
_BUNDLED = ("cooperbench", "docker", "requests", "urllib3", "charset_normalizer", "idna", "certifi")
"""Our package, and the client of container engines with what it needs, all of which works without compiled parts."""
_LEFT_OUT = {"__pycache__", "demo"}
_COMPILED = (".pyc", ".so", ".pyd")
_RETRIES = 3
_SPOT_RETRIES = 8
"""Machines that may be taken away at any time are."""
_PREPARE_SECONDS = 1800
"""For pulling or building a task's image."""
_RUNS_PER_FEATURE = 8
"""At most: golden patch, each patch alone, the merge, and those that are run again or confirm."""
_RAN_TOO_LONG = 50005
"""Batch's own exit code for a task that ran over its time; it would again."""
_ENDED = ("succeeded", "failed", "cancelled", "deletion_in_progress", "gone")
_SOCKET = "/var/run/docker.sock"
_MOUNTED = "/mnt/disks/cooperbench"
"""The job's folder of the bucket, on the machines and in our containers on them."""
_SHARED = "/var/tmp/cooperbench"  # noqa: S108  # a folder of the machine's, for its tasks alone
"""What tasks on one machine share: the locks that let one of them prepare an image, and the others wait."""
_KEEP_FROM_METADATA = """PATH=$PATH:/usr/sbin:/sbin
rule='PREROUTING -d 169.254.169.254 -p tcp ! --dport 53 -j DROP'
iptables -w -t mangle -C $rule 2>/dev/null || iptables -w -t mangle -I $rule
"""
"""Whoever reaches the metadata server has the machine's identity, and with it the bucket. Sandboxes must not."""
_UNPACK_AND_RUN = (
    "import runpy, sys, tempfile, zipfile; folder = tempfile.mkdtemp();"
    " zipfile.ZipFile(sys.argv[1]).extractall(folder); sys.path.insert(0, folder);"
    " runpy.run_module('cooperbench.runner.executors.batch_task', run_name='__main__', alter_sys=True)"
)
_PASSED_ON = (
    "COOPERBENCH_BUILD_ARGS",
    *(f"COOPERBENCH_DOCKER_{name}" for name in ("CPUS", "MEMORY", "PIDS_LIMIT", "PULL")),
)
"""Settings of the harness that hold for the containers on the machines of a job too."""
_JUDGED_BY = (
    *("run_name", "dataset_dir", "logs_dir", "setting"),
    *("eval_network", "test_timeout_seconds", "canary"),
)
"""Of a configuration; the rest of it (agents, a Redis with its password) stays here."""


def evaluate_by_batch(settings: GcpSettings, arms: Sequence[Arm], display: Display) -> None:
    """All that these arms have to evaluate by now, as one job."""
    judged = [_judged(arm, settings) for arm in arms]
    if any(arm.to_evaluate for arm in judged):
        config = arms[0].config
        engine = BatchEngine(settings, config.run_name, config.eval_concurrency)
        # --max-cost is about agents, whose work is done.
        Driver(engine, judged, display, Budget(None)).work_off()


def _judged(arm: Arm, settings: GcpSettings) -> Arm:
    """In the order of the dataset: a machine that has the image of a task goes on with it."""
    force = arm.config.force and arm.config.evaluate_only
    left = replace(arm, config=replace(arm.config, force=force)).planned()
    values = {name: getattr(arm.config, name) for name in _JUDGED_BY}
    values |= {
        "agent": "nop",
        "backend": settings.batch_backend,
        "evaluate_only": True,
        "force": force,
    }
    # With a concurrency of 1 the driver does not fill up: what is left over goes into the next job.
    return replace(left, config=RunConfig(**values, concurrency=1), to_run=())


class BatchEngine:
    name = "batch"
    attempts = 1
    max_jobs = 10_000
    """Tasks in one job, as Batch has it."""

    def __init__(self, settings: GcpSettings, run_name: str, at_once: int) -> None:
        self.poll_seconds = settings.batch_poll_seconds
        self._settings = settings
        self._run_name = run_name
        self._at_once = at_once
        self._client = batch_client()
        self._bucket = open_bucket(settings)
        self._jobs: dict[str, BatchJob] = {}
        """Those that there may be something left of, by batch."""

    def check(self, seen: Sequence[Path]) -> None:
        """What is wrong over there is known when a job is submitted."""

    def sees(self, path: Path) -> bool:  # noqa: ARG002
        return False

    def submit(self, batch: str, orders: Sequence[JobOrder]) -> None:
        job = self._job(batch)
        environment = {name: os.environ[name] for name in _PASSED_ON if os.environ.get(name)}
        if template := self._settings.image_template:
            environment[ENVIRONMENT_VARIABLE] = template
        packed = pack_orders(replace(order, environment=environment) for order in orders)
        job.put({ORDERS: packed, _BUNDLE: make_bundle()})
        job.create(job_spec(self._settings, job.job_id, self._run_name, orders, self._at_once))

    def events(self, jobs: Collection[str]) -> Iterator[tuple[str, Event]]:
        for batch in batches_of(jobs):
            ours = [job for job in jobs if job.startswith(f"{batch}.")]
            try:
                yield from self._events_of(self._job(batch), ours)
            except InfraError as error:
                # It goes on without us.
                yield ours[0], {"kind": "note", "text": str(error)}

    def _events_of(self, job: BatchJob, names: Sequence[str]) -> Iterator[tuple[str, Event]]:
        found = job.get()
        # In this order: what had ended when we looked has left its events.
        there = set(job.objects(EVENTS)).intersection(EVENTS + name for name in names)
        state = found.status.state.name.lower() if found else "gone"
        yield (
            names[0],
            {"kind": "note", "text": f"Batch job {job.job_id}: {_described(found)}{state}"},
        )
        for name, told in job.fetch(there).items():
            for event in json.loads(told):
                yield name.removeprefix(EVENTS), event
        failures = job.failures() if state in _ENDED else {}
        for name in names if state in _ENDED else ():
            if EVENTS + name not in there:
                words = failures.get(int(name.partition(".")[2]), f"the job is {state}.")
                see = (
                    f" See it with: gcloud logging read 'labels.job_uid=\"{found.uid}\"'"
                    if found
                    else ""
                )
                yield name, {"kind": "lost", "error": f"the Batch task failed: {words}{see}"}

    def hold(self, jobs: Collection[str]) -> None:
        """Evaluations cost nothing that a budget is for."""

    def cancel(self, jobs: Collection[str]) -> None:
        for batch in batches_of(jobs):
            self._remove(batch, "the same command finds it again")

    def close(self, *, keep_files: bool) -> None:  # noqa: ARG002  # what tasks printed is in Cloud Logging
        for batch in list(self._jobs):
            self._remove(batch, "cooperbench clean --backend gcp removes what is left")

    def _remove(self, batch: str, otherwise: str) -> None:
        try:
            self._job(batch).remove()
        except CooperBenchError as error:
            raise type(error)(f"{error}; {otherwise}") from error
        del self._jobs[batch]

    def _job(self, batch: str) -> BatchJob:
        """By a name that the next call makes again."""
        if batch not in self._jobs:
            slug = re.sub(r"[^a-z0-9]+", "-", self._run_name.lower())[:24].strip("-") or "run"
            place = f"projects/{self._settings.project}/locations/{self._settings.region}"
            self._jobs[batch] = BatchJob(
                self._client, self._bucket, f"{place}/jobs/cb-{slug}-{batch}"
            )
        return self._jobs[batch]


def _described(job: Job | None) -> str:
    """For people; ends where its state follows."""
    if job is None:
        return ""
    (group,), policy = job.task_groups, job.allocation_policy.instances[0].policy
    spot = " spot" if policy.provisioning_model.name == "SPOT" else ""
    at_once = f"{plural(group.parallelism, 'task')} at once"
    return f"{plural(len(group.task_environments), 'pair')}, {at_once}, on {policy.machine_type}{spot} machines: "


def make_bundle() -> bytes:
    """As a zip, so that nothing has to be downloaded over there. The demo's tasks stay here."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for name in _BUNDLED:
            package = Path(str(import_module(name).__file__)).parent
            for path in package.rglob("*"):
                parts = path.relative_to(package.parent).parts
                if (
                    path.is_file()
                    and path.suffix not in _COMPILED
                    and not _LEFT_OUT.intersection(parts)
                ):
                    archive.write(path, "/".join(parts))
    return buffer.getvalue()


def job_spec(
    settings: GcpSettings, job_id: str, run_name: str, orders: Sequence[JobOrder], at_once: int
) -> Job:
    """As Batch wants to have it described."""
    from google.cloud import batch_v1

    labels = resource_labels(run_name, "evaluation")
    seconds = max(
        len(pair.features) * (config.test_timeout_seconds + SPARE_SECONDS)
        for order in orders
        for config, pair in order.work
    )
    container = {
        "image_uri": settings.batch_image,
        "entrypoint": "python3",
        "commands": ["-c", _UNPACK_AND_RUN, f"{_MOUNTED}/{_BUNDLE}"],
        "volumes": [f"{path}:{path}" for path in (_SOCKET, _SHARED, _MOUNTED)],
        # The metadata server is reached as the machine reaches it, for the project's own registry.
        "options": "--network host",
    }
    task_spec = {
        "runnables": [{"script": {"text": _KEEP_FROM_METADATA}}, {"container": container}],
        "volumes": [
            {
                "gcs": {"remote_path": f"{settings.bucket}/{TOP_FOLDER}/{job_id}"},
                "mount_path": _MOUNTED,
                "mount_options": ["-implicit-dirs"],
            }
        ],
        "environment": {"variables": {FOLDER_VARIABLE: _MOUNTED, "COOPERBENCH_CACHE_DIR": _SHARED}},
        "compute_resource": {
            "cpu_milli": round(settings.batch_cpus * 1000),
            "memory_mib": round(settings.batch_memory_gb * 1024),
        },
        "max_retry_count": _SPOT_RETRIES if settings.spot else _RETRIES,
        "max_run_duration": {"seconds": _PREPARE_SECONDS + _RUNS_PER_FEATURE * seconds},
        "lifecycle_policies": [
            {"action": "FAIL_TASK", "action_condition": {"exit_codes": [_RAN_TOO_LONG]}}
        ],
    }
    group = {
        "task_spec": task_spec,
        "parallelism": min(at_once, len(orders)),
        "task_environments": [{"variables": {JOB_VARIABLE: order.job}} for order in orders],
    }
    policy = {
        "machine_type": settings.machine_type,
        "provisioning_model": "SPOT" if settings.spot else "STANDARD",
        "boot_disk": {
            "type_": settings.disk_type,
            "size_gb": settings.disk_gb,
            "image": "batch-cos",
        },
    }
    machines: dict[str, Any] = {
        "instances": [{"policy": policy}],
        "location": {"allowed_locations": [f"regions/{settings.region}"]},
        # Without an owner: machines belong to the job and end with it, even if the harness is gone.
        "labels": {name: labels[name] for name in (OURS, RUN, PURPOSE)},
    }
    if settings.service_account:
        machines["service_account"] = {"email": settings.service_account}
    interface = settings.network_interface if settings.network else {}
    if interface or not settings.public_address:
        interface["no_external_ip_address"] = not settings.public_address
        machines["network"] = {"network_interfaces": [interface]}
    return batch_v1.Job(
        {
            "task_groups": [group],
            "allocation_policy": machines,
            "labels": labels,
            "logs_policy": {"destination": "CLOUD_LOGGING"},
        }
    )
