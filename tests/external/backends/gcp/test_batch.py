"""A whole experiment as one Batch job: the verdicts of the local backend, whatever happens to tasks and harness."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace as replace_fields

from cooperbench import evaluate, run
from cooperbench.backends.gcp.batch import remove_leftover_jobs
from cooperbench.backends.gcp.settings import read_settings
from cooperbench.backends.ownership import is_leftover
from cooperbench.errors import UserError
from cooperbench.eval.reference_store import ReferenceStore
from cooperbench.runner.executors.batch_cluster import make_job_spec
from cooperbench.runner.executors.job import JobOrder
from cooperbench.runner.schedule import Work
from cooperbench.storage import read_json
from tests.support.gcp.batch_cloud import (
    WITH_AGENTS,
    Experiment,
    cloud,
    harness_environment,
)
from tests.support.gcp.batch_server import PREEMPTED, RAN_TOO_LONG, Refused
from tests.support.gcp.namespaces import ALLOWED_PLACES, PLACES, Site
from tests.support.paths import ROOT
from tests.support.requirements import require_program, require_root
from tests.support.tiny import golden, write_tiny
from tests.unit.runner.test_config import make_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.gcp.batch_cloud import Cloud
    from tests.support.gcp.batch_server import Task

__all__ = ["cloud"]
pytestmark = pytest.mark.timeout(240)


def make_both(
    tmp_path: Path, task_ids: tuple[int, ...] = (7,), features: tuple[int, ...] = (1, 2, 4)
) -> tuple[Experiment, Experiment]:
    """The same experiment twice: for Batch, and for the local backend. Task 7 has all pairs, the others one."""
    dataset = write_tiny(tmp_path / "data", feature_ids=features, task_ids=task_ids)
    for task_id in task_ids[1:]:
        shutil.rmtree(dataset / f"tiny_task/task{task_id}/feature4")
    there, here = (Experiment(dataset, tmp_path / "logs", name) for name in ("there", "here"))
    return there, here


def judge(experiment: Experiment, backend: str = "gcp") -> None:
    evaluate(
        experiment.paths.run_name, backend=backend, concurrency=3,
        dataset_dir=experiment.dataset, logs_dir=experiment.paths.logs_dir,
    )  # fmt: skip


def test_relative_paths_mean_the_working_directory_of_the_call(
    tmp_path: Path, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, _ = make_both(tmp_path, features=(1, 2))
    monkeypatch.chdir(tmp_path)
    evaluate("there", backend="gcp", dataset_dir="data", logs_dir="logs")
    (verdict,) = there.evaluations().values()
    assert verdict["overall_success"]


def start_harness(experiment: Experiment, cloud: Cloud, cache: Path) -> subprocess.Popen[str]:
    words = [
        sys.executable, "-m", "cooperbench", "eval", "-n", experiment.paths.run_name, "--backend", "gcp", "-c", "3",
        "--dataset-dir", str(experiment.dataset), "--log-dir", str(experiment.paths.logs_dir),
    ]  # fmt: skip
    return subprocess.Popen(
        words, cwd=ROOT, env=harness_environment(cloud, cache),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def wait_for(met: Callable[[], bool], harness: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 90
    while not met():
        assert harness.poll() is None, harness.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def assert_nothing_left(cloud: Cloud, experiment: Experiment) -> None:
    assert cloud.batch.jobs == {}
    assert cloud.objects() == []
    assert not (experiment.paths.root / "batch.json").exists()


def test_batch_and_local_verdicts_agree(cloud: Cloud, tmp_path: Path) -> None:
    there, here = make_both(tmp_path, (7, 8, 9))
    (tmp_path / "data/tiny_task/task8/setup.sh").write_text("echo no luck; exit 3\n")
    for experiment in (there, here):
        experiment.hand_in(experiment.pairs[0], {"agent2": None})
        experiment.hand_in(experiment.pairs[2], {"agent1": golden(1)})
    cloud.batch.fate = lambda task, attempt: "preempt" if (task.index, attempt) == (4, 0) else "run"
    judge(there)
    judge(here, "local")
    assert there.evaluations() == here.evaluations()
    assert there.files() == here.files()
    found = there.evaluations()
    assert [record["status"] for record in found.values()] == ["completed"] * 3 + [
        "error",
        "completed",
    ]
    assert [record.get("overall_success") for record in found.values()] == [
        False,
        True,
        False,
        None,
        True,
    ]
    (job,) = cloud.batch.created
    assert [task.exit_codes for task in job.tasks] == [[0], [0], [0], [0], [PREEMPTED, 0]]
    assert 1 < job.most_at_once <= 3
    (machines,) = job.spec["allocationPolicy"]["instances"]
    assert machines["policy"]["machineType"] == "e2-standard-8"
    assert (job.spec["labels"]["cooperbench"], job.spec["labels"]["cooperbench-run"]) == (
        "1",
        "there",
    )
    assert_nothing_left(cloud, there)


def test_references_go_along_and_come_back(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOPERBENCH_CACHE_DIR", str(tmp_path / "cache"))
    there, again = make_both(tmp_path, features=(1, 2))
    store, (pair,) = ReferenceStore(), there.pairs
    judge(there)
    known = store.known([pair.task])
    assert [(one.feature_id, one.golden.success, one.network) for one in known] == [
        (1, True, "none"),
        (2, True, "none"),
    ]
    for reference in known:
        store.save(replace_fields(reference, flaky_tests=["marked"]))
    judge(again)
    (record,) = again.evaluations().values()
    assert record["overall_success"] is True
    marks = [one["flaky_tests"] for one in record["references"].values()]
    assert marks == [["marked"], ["marked"]], "not run again over there"


def test_a_golden_patch_that_fails_there_is_no_error(cloud: Cloud, tmp_path: Path) -> None:
    there, here = make_both(tmp_path, features=(1, 2))
    (tmp_path / "data/tiny_task/task7/feature2/feature.patch").write_text(golden(1))
    judge(there)
    judge(here, "local")
    assert there.evaluations() == here.evaluations()
    (record,) = there.evaluations().values()
    assert record["status"] == "no_reference"
    assert len(cloud.batch.created) == 1, "and is not tried again"


def test_a_killed_harness_finds_its_job_again(
    cloud: Cloud, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there, here = make_both(tmp_path)
    gate = threading.Event()

    def hold_back_the_last(task: Task, attempt: int) -> str:
        if task.index == 2:
            gate.wait(120)
        return "run"

    cloud.batch.fate = hold_back_the_last
    harness = start_harness(there, cloud, tmp_path / "cache")
    wait_for(lambda: len(there.evaluations()) == 2, harness)
    first = there.evaluations()
    harness.send_signal(signal.SIGKILL)
    harness.communicate()
    (job,) = cloud.batch.created
    record = read_json(there.paths.root / "batch.json")
    assert record is not None
    assert [task.environment["COOPERBENCH_JOB"] for task in job.tasks] == list(record["jobs"])
    assert list(record["jobs"].values()) == [[f"coop {pair.label}"] for pair in there.pairs]
    gate.set()
    judge(there)
    output = capsys.readouterr().out
    assert "Found 1 job of an earlier call" in output
    assert (
        f"Batch job {job.name.rpartition('/')[2]}: 3 pairs, 3 tasks at once, on e2-standard-8"
        in output
    )
    assert cloud.batch.created == [job]
    judge(here, "local")
    assert there.evaluations() == here.evaluations()
    assert {label: there.evaluations()[label] for label in first} == first
    assert_nothing_left(cloud, there)


def test_verdicts_on_other_patches_are_discarded(cloud: Cloud, tmp_path: Path) -> None:
    there, here = make_both(tmp_path, features=(1, 2))
    gate = threading.Event()
    cloud.batch.fate = lambda task, attempt: "run" if gate.wait(120) else "never"
    harness = start_harness(there, cloud, tmp_path / "cache")
    wait_for(lambda: bool(cloud.batch.jobs), harness)
    harness.send_signal(signal.SIGKILL)
    harness.communicate()
    for experiment in (there, here):
        experiment.hand_in(experiment.pairs[0], {"agent2": golden(1)})
    gate.set()
    judge(there)
    judge(here, "local")
    assert there.evaluations() == here.evaluations()
    assert len(cloud.batch.created) == 2
    assert_nothing_left(cloud, there)


def test_all_settings_of_a_run_are_one_job(cloud: Cloud, tmp_path: Path) -> None:
    there, here = make_both(tmp_path, features=(1, 2))
    for experiment in (there, here):
        shutil.copytree(experiment.paths.root / "coop", experiment.paths.root / "team")
    judge(there)
    judge(here, "local")
    (job,) = cloud.batch.created
    assert len(job.tasks) == 2
    assert there.evaluations() == here.evaluations()
    records = [read_json(one.paths.pair(one.pairs[0], "team").evaluation) for one in (there, here)]
    verdicts = [
        record and (record["overall_success"], record["integrated_by_lead"]) for record in records
    ]
    assert verdicts == [(True, False)] * 2
    assert_nothing_left(cloud, there)


def test_interrupt_keeps_verdicts_and_ends_the_job(cloud: Cloud, tmp_path: Path) -> None:
    there, _ = make_both(tmp_path)
    cloud.batch.fate = lambda task, attempt: "run" if task.index == 0 else "never"
    harness = start_harness(there, cloud, tmp_path / "cache")
    wait_for(lambda: len(there.evaluations()) == 1, harness)
    harness.send_signal(signal.SIGINT)
    output, _ = harness.communicate(timeout=60)
    assert harness.returncode == 130, output
    assert "Rerun the same command to resume" in output
    assert len(there.evaluations()) == 1
    assert len(cloud.batch.deleted) == 1
    assert_nothing_left(cloud, there)


def test_vanished_job_is_evaluated_again(cloud: Cloud, tmp_path: Path) -> None:
    there, here = make_both(tmp_path)
    cloud.batch.fate = lambda task, attempt: "never" if task.index else "run"

    def delete_the_job() -> None:
        while not there.evaluations():
            time.sleep(0.05)
        cloud.batch.delete(cloud.batch.created[0].name)

    somebody = threading.Thread(target=delete_the_job)
    somebody.start()
    judge(there)
    somebody.join()
    statuses = [record["status"] for record in there.evaluations().values()]
    assert statuses == ["completed", "error", "error"]
    assert_nothing_left(cloud, there)
    judged = there.paths.pair(there.pairs[0], "coop").evaluation
    first_verdict = judged.read_bytes()
    cloud.batch.fate = lambda task, attempt: "run"
    judge(there)
    judge(here, "local")
    assert there.evaluations() == here.evaluations()
    first, second = cloud.batch.created
    assert (len(first.tasks), len(second.tasks)) == (3, 2)
    assert judged.read_bytes() == first_verdict, "not judged again"
    assert_nothing_left(cloud, there)


def test_timed_out_task_is_evaluated_again(cloud: Cloud, tmp_path: Path) -> None:
    there, _ = make_both(tmp_path, features=(1, 2))
    cloud.batch.fate = lambda task, attempt: "overrun"
    judge(there)
    (record,) = there.evaluations().values()
    assert (record["status"], record["infrastructure"]) == ("error", True)
    assert f"exit code {RAN_TOO_LONG}" in record["error"]
    assert "gcloud logging read" in record["error"]
    assert cloud.batch.created[0].tasks[0].exit_codes == [RAN_TOO_LONG]
    cloud.batch.fate = lambda task, attempt: "run"
    judge(there)
    (record,) = there.evaluations().values()
    assert record["overall_success"] is True
    assert_nothing_left(cloud, there)


def test_a_run_sends_its_evaluations_as_one_job_at_the_end(cloud: Cloud, tmp_path: Path) -> None:
    cloud.batch.outages = 2
    dataset = write_tiny(tmp_path / "data", feature_ids=(1, 2, 3))
    sent: dict[str, bytes] = {}

    def look_at_orders(task: Task, attempt: int) -> str:
        sent.update({blob.name: blob.download_as_bytes() for blob in cloud.bucket().list_blobs()})
        return "run"

    cloud.batch.fate = look_at_orders
    run(
        "r", agent="oracle", backend=WITH_AGENTS, dataset_dir=dataset, logs_dir=tmp_path / "logs",
        messaging_enabled=False, eval_concurrency=2, redis_url="redis://:password@host",
    )  # fmt: skip
    (orders,) = (zlib.decompress(data) for name, data in sent.items() if name.endswith("/orders"))
    assert b"f1_f2" in orders
    assert b"password" not in orders
    (job,) = cloud.batch.created
    assert (len(job.tasks), job.group["parallelism"]) == (3, "2")
    summary = read_json(tmp_path / "logs/r/summary.json")
    assert summary is not None
    assert summary["settings"]["coop"]["rates"]["overall_success"]["rate"] == 1.0
    assert cloud.batch.outages == 0
    assert cloud.objects() == []


def test_clean_removes_the_job_of_a_killed_run(cloud: Cloud, tmp_path: Path) -> None:
    there, here = make_both(tmp_path, features=(1, 2))
    cloud.batch.fate = lambda task, attempt: "never"
    harness = start_harness(there, cloud, tmp_path / "cache")
    wait_for(lambda: bool(cloud.batch.jobs), harness)
    settings = read_settings()
    assert remove_leftover_jobs(settings) == []
    harness.send_signal(signal.SIGKILL)
    harness.communicate()
    (name,) = cloud.batch.jobs
    assert remove_leftover_jobs(settings) == [name.rpartition("/")[2]]
    assert cloud.batch.jobs == {}
    assert cloud.objects() == []
    cloud.batch.fate = lambda task, attempt: "run"
    judge(there)
    judge(here, "local")
    assert there.evaluations() == here.evaluations()
    assert_nothing_left(cloud, there)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "Batch API has not been used in project 1 before or it is disabled. (batch.googleapis.com)",
            "API not enabled .*: gcloud services enable batch.googleapis.com",
        ),
        ("Quota exceeded for CPUS in us-central1", "Insufficient quota"),
    ],
)
def test_a_refusal_is_one_line_and_leaves_nothing(
    cloud: Cloud, tmp_path: Path, words: str, expected: str
) -> None:
    there, _ = make_both(tmp_path)
    cloud.batch.refusal = Refused(403, "PERMISSION_DENIED", words)
    with pytest.raises(UserError, match=expected) as caught:
        judge(there)
    assert "\n" not in str(caught.value)
    assert there.evaluations() == {}
    assert_nothing_left(cloud, there)


def test_the_job_uses_every_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COOPERBENCH_GCP_BATCH_CPUS", "1.5")
    there, _ = make_both(tmp_path)
    settings = read_settings(
        project="some-project", region="europe-west4", machine_type="n2-standard-4", spot=True, disk_gb=70,
        bucket="some-bucket", disk_type="pd-ssd", network="vpc", subnetwork="inner", public_address=False, service_account="a@b.c",
    )  # fmt: skip
    config = replace(make_config(tmp_path), test_timeout_seconds=900)
    orders = [
        JobOrder(f"ab.{index}", (Work(config, pair),)) for index, pair in enumerate(there.pairs)
    ]
    job = make_job_spec(settings, "cb-there-ab", "there", orders, 2)
    (machines,) = job.allocation_policy.instances
    policy, (interface,) = machines.policy, job.allocation_policy.network.network_interfaces
    assert (policy.machine_type, policy.provisioning_model.name) == ("n2-standard-4", "SPOT")
    assert (policy.boot_disk.size_gb, policy.boot_disk.type_) == (70, "pd-ssd")
    assert (interface.network, interface.no_external_ip_address) == ("global/networks/vpc", True)
    assert interface.subnetwork == "regions/europe-west4/subnetworks/inner"
    assert job.allocation_policy.service_account.email == "a@b.c"
    assert list(job.allocation_policy.location.allowed_locations) == ["regions/europe-west4"]
    # Machines must not look like those that a killed harness has left: they are the job's.
    assert not is_leftover(job.allocation_policy.labels)
    assert "cooperbench-host" not in job.allocation_policy.labels
    (group,) = job.task_groups
    assert group.parallelism == 2
    names = [task.variables["COOPERBENCH_JOB"] for task in group.task_environments]
    assert names == ["ab.0", "ab.1", "ab.2"]
    spec = group.task_spec
    assert spec.compute_resource.cpu_milli == 1500
    assert spec.max_run_duration.total_seconds() > 16 * 900
    assert spec.max_retry_count == 8
    (volume,) = spec.volumes
    assert volume.gcs.remote_path == "some-bucket/cooperbench/cb-there-ab"
    assert f"{volume.mount_path}:{volume.mount_path}" in spec.runnables[1].container.volumes


def test_job_sandboxes_cannot_read_the_identity(
    tmp_path: Path,
) -> None:
    """What a task runs first, tried in the kernel; each task of a machine does so."""
    require_root()  # for network namespaces
    require_program("iptables")
    require_program("ip", package="iproute2")
    there, _ = make_both(tmp_path)
    settings = read_settings(project="some-project", region="europe-west4", bucket="some-bucket")
    orders = [JobOrder("ab.0", (Work(make_config(tmp_path), there.pairs[0]),))]
    (group,) = make_job_spec(settings, "cb-there-ab", "there", orders, 1).task_groups
    with Site() as place:
        place.add_machine()
        place.add_container()
        with place.serving("outside", *(f"{address}:{port}" for address, port in PLACES)):
            assert place.reached("container", PLACES) == PLACES
            for _ in range(2):
                script = group.task_spec.runnables[0].script.text
                place.ip(["netns", "exec", "machine", "bash", "-c", script])
            rules = place.ip(
                ["netns", "exec", "machine", "iptables", "-t", "mangle", "-S", "PREROUTING"]
            )
            assert rules.stdout.count("-A PREROUTING") == 1
            assert place.reached("container", PLACES) == ALLOWED_PLACES
            assert place.reached("machine", PLACES) == PLACES
