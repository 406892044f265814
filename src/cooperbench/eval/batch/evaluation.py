"""All evaluations of an experiment as one Batch job: sent, followed, taken in as they arrive, cleaned up.

The job's record is written before the job is made and removed after its end: a harness that is killed leaves its job
running, and the same command finds it again. One that is interrupted (Ctrl-C) takes in what is there and ends the job.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cooperbench.backends.gcp.api import OURS, PURPOSE, RUN, resource_labels
from cooperbench.backends.gcp.batch import TOP_FOLDER, BatchJob, batch_client, open_bucket
from cooperbench.dataset.images import ENVIRONMENT_VARIABLE
from cooperbench.errors import CooperBenchError, InfraError, Interrupted, UserError
from cooperbench.eval.batch.entry import (
    ENTRY_VARIABLE,
    FOLDER_VARIABLE,
    make_bundle,
    make_entry,
    pack_folder,
    sha256,
    take_in,
)
from cooperbench.eval.evaluator import write_failure
from cooperbench.eval.executor import SPARE_SECONDS
from cooperbench.eval.reference import ReferenceStore, file_name
from cooperbench.processes import finished
from cooperbench.storage import read_json, write_json
from cooperbench.text import plural

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from google.cloud.batch_v1 import Job

    from cooperbench.backends.gcp.settings import GcpSettings
    from cooperbench.eval.batch import Listener, Order
    from cooperbench.eval.batch.entry import Entry
    from cooperbench.models import Pair

_SCHEMA = "cooperbench.batch/2"
_FILE = "batch.json"
_BUNDLE = "bundle.zip"
_RESULT = "result-"
_RETRIES = 3
_SPOT_RETRIES = 8
"""Machines that may be taken away at any time are."""
_PREPARE_SECONDS = 1800
"""For pulling or building a task's image."""
_RUNS_PER_FEATURE = 8
"""At most: golden patch, each patch alone, the merge, and those that are run again or confirm."""
_RAN_TOO_LONG = 50005
"""Batch's own exit code for a task that ran over its time; it would again."""
_ENDED = ("SUCCEEDED", "FAILED", "CANCELLED", "DELETION_IN_PROGRESS")
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
    " runpy.run_module('cooperbench.eval.batch.entry', run_name='__main__', alter_sys=True)"
)
_PASSED_ON = (
    "COOPERBENCH_BUILD_ARGS",
    "COOPERBENCH_DOCKER_CPUS",
    "COOPERBENCH_DOCKER_MEMORY",
    "COOPERBENCH_DOCKER_PIDS_LIMIT",
    "COOPERBENCH_DOCKER_PULL",
)
"""Settings of the harness that hold for the containers on the machines of a job too."""


@dataclass(frozen=True)
class JobRecord:
    """One job, and the bucket with its inputs and results. Kept as batch.json."""

    job: str
    """Its whole name, as Batch knows it."""
    bucket: str
    entries: list[str]
    """By index of the task that judges it."""
    schema: str = _SCHEMA


class BatchEvaluation:
    def __init__(
        self, settings: GcpSettings, order: Order, listener: Listener, stop: threading.Event
    ) -> None:
        self._settings = settings
        self._order = order
        self._listener = listener
        self._stop = stop
        self._client = batch_client()
        self._bucket = open_bucket(settings)
        self._archives = {pair.task: pack_folder(pair.task.path.resolve()) for pair, _ in order.work}
        self._waiting = {entry.entry_id: (entry, pair) for entry, pair in self._entries()}

    def run(self) -> None:
        """Until each pair of the order has an eval.json. Stopped by the event it raises `Interrupted`."""
        record = read_json(self._order.paths.root / _FILE) or {}
        if record.get("schema") == _SCHEMA:
            earlier = JobRecord(**record)
            self._listener.note(f"Found the Batch job {earlier.job.rpartition('/')[2]} of an earlier start")
            self._carry_through(earlier, submit=False)
        if self._waiting:
            self._carry_through(self._new_record(), submit=True)
        for entry_id in list(self._waiting):
            self._fail(entry_id, "the Batch job ended without judging it")

    def _entries(self) -> Iterator[tuple[Entry, Pair]]:
        """Those of one image side by side: a machine that has it can go on with it."""
        environment = {name: os.environ[name] for name in _PASSED_ON if os.environ.get(name)}
        if template := self._settings.image_template:
            environment[ENVIRONMENT_VARIABLE] = template
        digests = {task: sha256(archive) for task, archive in self._archives.items()}
        work = sorted(self._order.work, key=lambda item: (item[0].task.label, item[1], item[0].feature_ids))
        for pair, setting in work:
            backend, digest = self._settings.batch_backend, digests[pair.task]
            yield make_entry(self._order, pair, setting, digest, backend, environment), pair

    def _new_record(self) -> JobRecord:
        settings = self._settings
        slug = re.sub(r"[^a-z0-9]+", "-", self._order.paths.run_name.lower())[:24].strip("-") or "run"
        job_id = f"cb-{slug}-{secrets.token_hex(6)}"
        name = f"projects/{settings.project}/locations/{settings.region}/jobs/{job_id}"
        return JobRecord(name, settings.bucket, list(self._waiting))

    def _carry_through(self, record: JobRecord, *, submit: bool) -> None:
        """One job to its end."""
        job = BatchJob(self._client, self._bucket.client.bucket(record.bucket), record.job)
        try:
            if submit:
                self._submit(job, record)
            self._follow(job, record)
        except (KeyboardInterrupt, Interrupted):
            # What is there is taken in, nothing goes on, and a second Ctrl-C changes nothing about that.
            finished(lambda: self._clean_up(job))
            raise
        try:
            self._clean_up(job)
        except InfraError as error:
            # The results are here; what is left over there is removed at the next start, or by the bucket's rule.
            self._listener.note(f"{error}; cooperbench clean --backend gcp removes what is left")

    def _submit(self, job: BatchJob, record: JobRecord) -> None:
        """The record first: whatever happens from now on, it says where to look."""
        write_json(self._order.paths.root / _FILE, asdict(record))
        objects = {
            f"entry-{entry_id}.json": entry.description for entry_id, (entry, _) in self._waiting.items()
        }
        objects |= {f"task-{sha256(archive)}": archive for archive in self._archives.values()}
        for known in ReferenceStore().known(self._archives):
            name = file_name(known.question, known.image_digest, known.conditions)
            objects[name] = json.dumps(known.to_json()).encode()
        objects[_BUNDLE] = make_bundle()
        spec = job_spec(self._order, record, self._settings)
        try:
            job.put(objects)
            job.create(spec)
        except UserError:
            # Refused, so there is no job.
            with suppress(CooperBenchError):
                self._clean_up(job)
            raise
        at_once = plural(spec.task_groups[0].parallelism, "task")
        self._listener.note(
            f"Batch job {job.job_id}: {plural(len(record.entries), 'pair')}, {at_once} at once,"
            f" on {self._settings.machine_type}{' spot' if self._settings.spot else ''} machines"
        )

    def _follow(self, job: BatchJob, record: JobRecord) -> None:
        """Take results in until all are there or the job has ended."""
        told = ""
        while left := sum(entry_id in self._waiting for entry_id in record.entries):
            try:
                found = job.get()
                # In this order: what had ended when we looked has left its result.
                self._take_in(job)
                if found is None or found.status.state.name in _ENDED:
                    see = f"gcloud logging read 'labels.job_uid=\"{found.uid}\"'" if found else ""
                    for index, words in job.failures().items():
                        if (entry_id := record.entries[index]) in self._waiting:
                            self._fail(entry_id, f"the Batch task failed: {words} See it with: {see}")
                    return
            except CooperBenchError as error:
                words = f"{error}; the same command finds the Batch job {job.job_id} again"
                raise type(error)(words) from error
            state = found.status.state.name.lower()
            if state != told:
                total = plural(len(record.entries), "pair")
                self._listener.note(f"Batch job {job.job_id}: {state}, {left} of {total} left")
                told = state
            if self._stop.wait(self._settings.batch_poll_seconds):
                raise Interrupted("stopped")

    def _take_in(self, job: BatchJob) -> None:
        there = [name for name in job.objects(_RESULT) if name.removeprefix(_RESULT) in self._waiting]
        for name, packed in job.fetch(there).items():
            entry, pair = self._waiting.pop(name.removeprefix(_RESULT))
            try:
                evaluation = take_in(entry, pair, packed, self._order.paths)
            except CooperBenchError as error:
                evaluation = write_failure(self._order.paths, pair, entry.setting, error)
            self._listener.evaluated(pair, evaluation)

    def _fail(self, entry_id: str, words: str) -> None:
        entry, pair = self._waiting.pop(entry_id)
        failure = write_failure(self._order.paths, pair, entry.setting, InfraError(words))
        self._listener.evaluated(pair, failure)

    def _clean_up(self, job: BatchJob) -> None:
        with suppress(CooperBenchError):
            self._take_in(job)
        job.remove()
        (self._order.paths.root / _FILE).unlink(missing_ok=True)


def job_spec(order: Order, record: JobRecord, settings: GcpSettings) -> Job:
    """As Batch wants to have it described."""
    from google.cloud import batch_v1

    labels = resource_labels(order.paths.run_name, "evaluation")
    most_features = max(len(pair.features) for pair, _ in order.work)
    test_seconds = order.test_timeout_seconds + SPARE_SECONDS
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
                "gcs": {"remote_path": f"{record.bucket}/{TOP_FOLDER}/{record.job.rpartition('/')[2]}"},
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
        "max_run_duration": {"seconds": _PREPARE_SECONDS + _RUNS_PER_FEATURE * most_features * test_seconds},
        "lifecycle_policies": [{"action": "FAIL_TASK", "action_condition": {"exit_codes": [_RAN_TOO_LONG]}}],
    }
    group = {
        "task_spec": task_spec,
        "parallelism": min(order.concurrency, len(record.entries)),
        "task_environments": [{"variables": {ENTRY_VARIABLE: entry_id}} for entry_id in record.entries],
    }
    policy = {
        "machine_type": settings.machine_type,
        "provisioning_model": "SPOT" if settings.spot else "STANDARD",
        "boot_disk": {"type_": settings.disk_type, "size_gb": settings.disk_gb, "image": "batch-cos"},
    }
    machines: dict[str, Any] = {
        "instances": [{"policy": policy}],
        "location": {"allowed_locations": [f"regions/{settings.region}"]},
        # They name no owner: machines are the job's, and end with it, whatever becomes of the harness.
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
