"""Pairs on Slurm and on Ray, two nodes of one core each, against one process. Prints a table; run it by hand.

.venv/bin/python benchmarks/cluster.py [PAIRS]    (a multiple of 6; default: 204)
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.cluster.slurm import Slurm
from tests.support.dataset.factory import write_public_shape

from cooperbench.dataset.discovery import demo_dir

PAIRS_PER_TASK = 6


def dataset(folder: Path, pairs: int) -> Path:
    """A task of the demo, many times: the same files under other numbers."""
    for number in range(pairs // PAIRS_PER_TASK):
        shutil.copytree(demo_dir() / "stencil_task/task0", folder / f"stencil_task/task{number}")
    return folder


def timed(words: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Seconds, and the peak memory of the process itself in MB."""
    started = time.monotonic()
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
    peak = 0.0

    def watch() -> None:
        nonlocal peak
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            found = re.search(r"VmHWM:\s+(\d+)", status.read_text())
            peak = max(peak, int(found[1]) / 1024 if found else 0)
            time.sleep(0.2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert process.wait() == 0
    watcher.join()
    return time.monotonic() - started, peak


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 204
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        data = dataset(folder / "data", pairs)
        slurm = Slurm(folder / "slurm")
        slurm.folder.mkdir()
        environment = {
            **os.environ, "COOPERBENCH_CACHE_DIR": str(folder / "cache"), "SLURM_CONF": str(slurm.config),
            "RAY_USAGE_STATS_ENABLED": "0",
        }  # fmt: skip
        common = [
            sys.executable,
            "-m",
            "cooperbench",
            "run",
            "--backend",
            "local",
            "--dataset-dir",
            str(data),
        ]
        common += ["--log-dir", str(folder / "logs"), "-a", "oracle"]
        # Templates of tasks, and references: once on a machine, for all three.
        timed([*common, "-n", "warm", "-c", "2"], environment)
        per_job = str(max(1, pairs // 4))
        print(
            "| what | seconds | against one process | MB of the driver |\n| --- | --- | --- | --- |"
        )
        here, memory = timed([*common, "-n", "here", "-c", "2"], environment)
        print(f"| {pairs} pairs, one process, concurrency 2 | {here:.1f} | 1 | {memory:.0f} |")
        jobs = ["--workers", "2", "--pairs-per-job", per_job]
        slurm.start()
        try:
            took, memory = timed(
                [*common, "-n", "slurm", "--executor", "slurm", *jobs], environment
            )
            print(
                f"| Slurm, {per_job} pairs a job | {took:.1f} | {took / here:.2f} | {memory:.0f} |"
            )
            print(f"| 652 pairs submitted to Slurm | {submitting(folder, environment):.1f} | | |")
        finally:
            slurm.stop()
        took, memory = on_ray([*common, "-n", "ray", "--executor", "ray", *jobs], environment)
        print(f"| Ray, {per_job} pairs a job | {took:.1f} | {took / here:.2f} | {memory:.0f} |")


def submitting(folder: Path, environment: dict[str, str]) -> float:
    """From the start of the command until Slurm has all jobs of 652 pairs; they are ended then."""
    data = write_public_shape(folder / "shape")
    words = ["run", "-n", "many", "-a", "nop", "--backend", "local", "--dataset-dir", str(data)]
    words += ["--log-dir", str(folder / "logs"), "--executor", "slurm", "--workers", "1"]
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "cooperbench", *words], env=environment)
    while subprocess.check_output(["squeue", "-h", "-r"], env=environment).count(b"\n") < 600:
        assert process.poll() is None
        time.sleep(0.2)
    took = time.monotonic() - started
    process.terminate()
    process.wait()
    return took


def on_ray(words: list[str], environment: dict[str, str]) -> tuple[float, float]:
    from ray.cluster_utils import Cluster

    os.environ |= environment
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        return timed([*words, "--ray-address", cluster.address], environment)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
