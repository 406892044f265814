"""What is Slurm's alone: queueing again, runs in the background, disks that are not shared, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.cluster.agents import GATED

if TYPE_CHECKING:
    from tests.support.cluster.harness import Harness

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.timeout(180)]


def test_a_run_in_the_background_is_seen_and_followed(slurm_harness: Harness) -> None:
    harness = slurm_harness
    code, output = harness.call("run", "-a", GATED, "-f", "1,2", "--workers", "1", "--detach")
    assert code == 0, output
    assert "is running in the background" in output
    try:
        harness.wait(harness.begun)
        code, output = harness.tool("status", "r")
        assert code == 0, output
        assert "is running" in output
        assert "jobs: 1 running" in output
        code, output = harness.call("run", "-a", GATED, "-f", "1,2", "--workers", "1", "--detach")
        assert code == 2
        assert "in use by process" in output
    finally:
        harness.open()
    code, output = harness.tool("attach", "r")
    assert code == 0, output
    assert "✓ passed" in output
    assert "coop: 1 pair, 1 evaluated" in output
    status = json.loads(harness.tool("status", "r", "--json")[1])
    assert status["driver"] is None
    assert status["pairs"] == {"coop": {"passed": 1}}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("why", ["preempted", "out of time"])
def test_a_job_that_slurm_queues_again_goes_on_where_it_was(
    slurm_harness: Harness, why: str
) -> None:
    harness, slurm = slurm_harness, slurm_harness.cluster.slurm
    # Within the last minutes of its time, here from its first one on, Slurm tells the job that this will be up.
    limit = ("--slurm", "time=1") if why == "out of time" else ()
    process = harness.start("run", "-a", GATED, "-f", "1,2", "--workers", "1", *limit)
    harness.wait(harness.begun, process)
    number = slurm.ask("squeue", "-h", "-o", "%A").strip()
    if why == "preempted":
        slurm.ask("sbatch", "-p", "urgent", "-N", "2", "-o", "/dev/null", "--wrap", "sleep 1")

    def begins_again() -> bool:
        # Slurm lets it wait for two minutes, unless it is told otherwise once it is in the queue again.
        slurm.ask("scontrol", "update", f"jobid={number}", "StartTime=now", "TimeLimit=60")
        time.sleep(1)
        return harness.begun().total() == 2

    harness.wait(lambda: "PENDING" in slurm.ask("squeue", "-h", "-j", number, "-o", "%T"), process)
    harness.wait(begins_again, process)
    harness.open()
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    assert "another job" not in output
    assert harness.results()["f1_f2"]["eval.json"]["overall_success"]


def test_a_verdict_that_is_asked_for_again_is_not_that_of_before(slurm_harness: Harness) -> None:
    harness = slurm_harness
    code, output = harness.call("run", "-a", "oracle", "-f", "1,2", here=True)
    assert code == 0, output
    (verdict,) = harness.logs.rglob("eval.json")
    before = json.loads(verdict.read_text())["started_at"]
    process = harness.start("eval", "--force", "-f", "1,2")
    harness.wait(
        lambda: "RUNNING" in harness.cluster.slurm.ask("squeue", "-h", "-o", "%T"), process
    )
    harness.cluster.slurm.ask("scancel", "--signal=KILL", "--full", "--me")
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    assert "it goes to another job" in output
    assert json.loads(verdict.read_text())["started_at"] > before


def test_relative_dataset_with_a_folder_for_jobs(slurm_harness: Harness) -> None:
    harness = slurm_harness
    harness.logs = Path(tempfile.mkdtemp(dir="/dev/shm"))
    (harness.root / "shared").mkdir()
    try:
        harness.dataset = Path(
            os.path.relpath(shutil.copytree(harness.dataset, harness.logs / "d"), harness.root)
        )
        words = ("-a", "oracle", "-f", "1,2", "--slurm", "folder=shared", "--workers", "1")
        code, output = harness.call("run", *words)
        assert code == 0, output
        assert harness.results()["f1_f2"]["eval.json"]["overall_success"]
    finally:
        shutil.rmtree(harness.logs)


def test_files_are_carried_where_the_logs_are_on_another_disk(slurm_harness: Harness) -> None:
    harness = slurm_harness
    harness.logs = Path(tempfile.mkdtemp(dir="/dev/shm"))
    shared = harness.root / "shared"
    shared.mkdir()
    try:
        assert harness.logs.stat().st_dev != shared.stat().st_dev
        words = (*harness.script(), "--slurm", f"folder={shared},mem=100M")
        # The dataset and the script cannot be seen from the nodes either.
        harness.dataset = Path(shutil.copytree(harness.dataset, harness.logs / "data"))
        code, output = harness.call("run", *words, "--workers", "1", "--pairs-per-job", "3")
        assert code == 0, output
        assert set(harness.results()) == {"f1_f2", "f1_f3", "f2_f3"}
        assert (harness.logs / "r/coop/tiny_task/7/f1_f2/tests/merged-f1.txt").exists()
        assert not list(shared.glob("r/*"))
        expected = harness.results()
        code, output = harness.call("eval", "--force", "-f", "1,2", "--slurm", f"folder={shared}")
        assert code == 0, output
        assert harness.results() == expected
    finally:
        shutil.rmtree(harness.logs)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--slurm", "partition=nowhere"), "invalid partition specified: nowhere"),
        (("--slurm", "mem=9999G"), "Slurm rejects the job"),
        (("--slurm", "time=soon"), "Invalid --time specification"),
        (("--slurm", "array=0-3"), "--slurm array=… is set by CooperBench itself"),
        (("--slurm", "cpu"), "is not a list of key=value"),
        (("--ray-address", "auto"), "--ray-address is not for --executor slurm"),
    ],
)
def test_what_slurm_refuses_is_one_line_and_nothing_is_written(
    slurm_harness: Harness, words: tuple[str, ...], said: str
) -> None:
    code, output = slurm_harness.call("run", "-a", "oracle", *words)
    assert code == 2, output
    assert said in output
    assert len(output.splitlines()) == 1
    assert not slurm_harness.logs.exists()
