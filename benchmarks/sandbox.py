"""What a local sandbox costs: creating and removing it, running a command in it, moving files.

Usage: python benchmarks/sandbox.py
Prints a table. The limits: 150 ms for a sandbox, 10 ms over a command's own time.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from functools import partial
from typing import TYPE_CHECKING

from cooperbench.backends.local import LocalBackend
from cooperbench.dataset.discovery import load_tasks, resolve_dataset_dir
from cooperbench.sandbox.plain_sandbox import PlainSandbox

if TYPE_CHECKING:
    from collections.abc import Callable


def median_ms(action: Callable[[], object], times: int) -> float:
    durations = []
    for _ in range(times):
        started = time.perf_counter()
        action()
        durations.append((time.perf_counter() - started) * 1000)
    return statistics.median(durations)


def show(name: str, milliseconds: float, note: str = "") -> None:
    print(f"{name:<58} {milliseconds:9.1f} ms  {note}")


def create_and_remove(backend: LocalBackend, image: str) -> None:
    backend.create_sandbox(image).terminate()


def main() -> None:
    with tempfile.TemporaryDirectory() as cache_dir:
        backend = LocalBackend(cache_dir=cache_dir)
        task = load_tasks(resolve_dataset_dir("demo"))[0]
        show(
            "first sandbox of a process, empty",
            median_ms(lambda: backend.create_sandbox("host").terminate(), 1),
        )
        show(f"prepare {task.label}", median_ms(lambda: backend.prepare(task), 1))
        image = backend.prepare(task)
        for name, reference in (
            ("evaluation", image.ref),
            ("agent", image.agent_ref or ""),
        ):
            make = partial(create_and_remove, backend, reference)
            show(f"create and remove, {name} (median of 20)", median_ms(make, 20), "limit 150")

        sandbox = backend.create_sandbox(image.ref)
        command = ["bash", "-c", "true"]
        # One after the other, so that whatever else the machine does meets both.
        pairs = [
            (
                median_ms(lambda: subprocess.run(command, capture_output=True, check=True), 1),
                median_ms(lambda: sandbox.run(command), 1),
            )
            for _ in range(200)
        ]
        on_host, in_channel = (
            statistics.median(durations) for durations in zip(*pairs, strict=True)
        )
        show("bash -c true on the host (median of 200)", on_host)
        show("bash -c true through the channel (median of 200)", in_channel)
        show("  over the command's own time", in_channel - on_host, "limit 10")
        plain = PlainSandbox(sandbox, lifetime_seconds=600, workdir="/workspace")
        show(
            "bash -c true through plain exec (median of 20)",
            median_ms(lambda: plain.run(command), 20),
        )

        for size in (1, 50):
            data = os.urandom(size << 20)
            show(f"{size} MB file in", median_ms(partial(sandbox.write_file, "/tmp/file", data), 5))
            show(f"{size} MB file out", median_ms(lambda: sandbox.read_file("/tmp/file"), 5))
        backend.close()


if __name__ == "__main__":
    main()
