"""What it costs to track the changes of a shared workspace: the snapshot after each command.

Usage: python benchmarks/workspace.py [FILES]
A repository with 5,000 files (or FILES) in a local sandbox. Commands run with and without a snapshot, alternately; the
difference is what tracking adds. On a busy machine that is mostly waiting for a processor, so the processor time of the
snapshot is measured too. Prints a table. The limit: 30 ms per command.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from cooperbench.agents.base import REPO_DIR
from cooperbench.backends.local import LocalBackend
from cooperbench.dataset.discovery import load_tasks, resolve_dataset_dir
from cooperbench.runner.repository import PREPARED_GIT_DIR
from cooperbench.runner.workspace_tracker import WorkspaceTracker

if TYPE_CHECKING:
    from cooperbench.sandbox.base_sandbox import Sandbox

LIMIT_MS = 30
TIMES = 25
MANY_FILES = """
set -e
for number in $(seq 1 "$1"); do
    folder=src/part$((number / 50))
    [ -d "$folder" ] || mkdir -p "$folder"
    printf 'def function_%d():\\n    return %d\\n' "$number" "$number" >"$folder/module_$number.py"
done
"""
MEASURE = """
TIMEFORMAT='%3U %3S'
time "$@" >/dev/null
"""
COMMANDS = {
    "true": "nothing changes",
    "echo 'x = 1' >>src/part1/module_60.py": "one file changes",
    "for n in $(seq 100 119); do echo y >>src/part2/module_$n.py; done": "20 files change",
}


def seconds(sandbox: Sandbox, tracker: WorkspaceTracker | None, command: str) -> float:
    argv = ["bash", "-c", command]
    started = time.perf_counter()
    if tracker is None:
        sandbox.run(argv, cwd=REPO_DIR)
    else:
        with tracker.command("agent1", 1):
            sandbox.run(argv, cwd=REPO_DIR)
    return time.perf_counter() - started


def processor_ms(sandbox: Sandbox, tracker: WorkspaceTracker, command: str) -> float:
    """The median processor time of a snapshot after a command, with all of its processes."""
    times = []
    for _ in range(TIMES):
        sandbox.run(["bash", "-c", command], cwd=REPO_DIR)
        argv = ["bash", "-c", MEASURE, "measure", *tracker.snapshot_command()]
        user, system = sandbox.run(argv).stderr_read().split()[-2:]
        times.append(float(user) + float(system))
        tracker.finish()
    return statistics.median(times) * 1000


def compare(sandbox: Sandbox, tracker: WorkspaceTracker, command: str) -> tuple[float, float]:
    """The median and the smallest time that tracking adds, in milliseconds."""
    alone, tracked = [], []
    for _ in range(TIMES):
        tracked.append(seconds(sandbox, tracker, command))
        alone.append(seconds(sandbox, None, command))
        # What has changed meanwhile is not part of the next snapshot.
        tracker.finish()
    median = statistics.median(tracked) - statistics.median(alone)
    return median * 1000, (min(tracked) - min(alone)) * 1000


def main() -> None:
    files = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    with tempfile.TemporaryDirectory() as cache_dir:
        backend = LocalBackend(cache_dir=cache_dir)
        task = load_tasks(resolve_dataset_dir("demo"))[0]
        sandbox = backend.create_sandbox(backend.prepare(task).agent_ref or "", 3600)
        argv = ["bash", "-c", MANY_FILES, "many", str(files)]
        sandbox.run_checked(argv, "no files", 600, cwd=REPO_DIR)
        tracker = WorkspaceTracker(sandbox, PREPARED_GIT_DIR)
        started = time.perf_counter()
        tracker.start()
        print(f"first snapshot of {files:,} new files: {time.perf_counter() - started:.2f} s")
        print(f"added to a command, of {TIMES} each; load {os.getloadavg()[0]:.0f}")
        for command, name in COMMANDS.items():
            median, best = compare(sandbox, tracker, command)
            processor = processor_ms(sandbox, tracker, command)
            print(
                f"{name:<20} {median:7.1f} ms (best: {best:.1f}), processor time {processor:.1f} ms"
                f"  limit {LIMIT_MS}"
            )
        record = tracker.record()
        print(f"{record.snapshots} snapshots, {record.failed_snapshots} failed")
        sandbox.terminate()
        backend.close()


if __name__ == "__main__":
    main()
