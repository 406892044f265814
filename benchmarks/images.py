"""Images without a container engine: pulling, unpacking and opening. Prints a table; run it by hand.

Needs docker-registry, skopeo and umoci, and docker for its row.

.venv/bin/python benchmarks/images.py
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.images.built import Layout, base_layer
from tests.support.images.registry import running_registry
from tests.support.images.tarballs import Tarball

from cooperbench.backends.images.pull import NoProgress, pull_image
from cooperbench.backends.images.settings import read_settings
from cooperbench.backends.images.store import ImageStore
from cooperbench.backends.local import LocalBackend

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 3
OPENINGS = 20
LAYERS_OF_MB = (200, 200, 200)
"""Besides a Debian of 400 MB: 1 GB in all."""


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def run(*words: str | Path) -> None:
    subprocess.run(words, check=True, capture_output=True)


def large_layer(number: int, megabytes: int) -> bytes:
    """Return a layer of files of 100 kB, half of which compresses well."""
    tarball = Tarball()
    for index in range(megabytes * 10):
        tarball.add(f"data-{number}/{index}", os.urandom(50_000) + bytes(50_000))
    return tarball.data


def measure_pull(name: str, folder: Path) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {"cooperbench": [], "skopeo copy + umoci unpack": []}

    def pull() -> None:
        store = ImageStore(folder / "cache/images", 10**11)
        pull_image(store, name, read_settings(), NoProgress())

    def skopeo() -> None:
        source = f"docker://{name}"
        run("skopeo", "copy", "--src-tls-verify=false", source, f"oci:{folder}/oci:a")
        run("umoci", "unpack", "--image", f"{folder}/oci:a", folder / "bundle")

    for _ in range(ROUNDS):
        for label, work in (("cooperbench", pull), ("skopeo copy + umoci unpack", skopeo)):
            for leftover in ("cache", "oci", "bundle"):
                shutil.rmtree(folder / leftover, ignore_errors=True)
            os.sync()
            times[label].append(seconds(work))
    return times


def measure_docker(name: str) -> list[float]:
    """Pull with Docker, if one answers here."""
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        return []
    times = []
    for _ in range(ROUNDS):
        subprocess.run(["docker", "rmi", name], capture_output=True, check=False)
        times.append(seconds(lambda: run("docker", "pull", name)))
    return times


def measure_opening(name: str, folder: Path) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {"open: this system": [], "open: image": []}
    backend = LocalBackend(cache_dir=folder / "cache")
    pull_image(backend.images.store, name, read_settings(), NoProgress())
    for label, image in (("open: this system", "host"), ("open: image", name)):
        backend.create_sandbox(image).terminate()
        for _ in range(OPENINGS):
            started = time.perf_counter()
            sandbox = backend.create_sandbox(image)
            times[label].append(time.perf_counter() - started)
            sandbox.terminate()
        sandbox = backend.create_sandbox(image)
        command = partial(sandbox.run, ["true"])
        times[label.replace("open", "command")] = [seconds(command) for _ in range(100)]
        sandbox.terminate()
    backend.close()
    return times


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "registry").mkdir()
        with running_registry(folder / "registry") as registry:
            layout = Layout(folder / "layout")
            base = base_layer()
            layers = [large_layer(number, size) for number, size in enumerate(LAYERS_OF_MB)]
            layout.add_image("a", [base, *layers])
            layout.add_image("b", [base, *layers, Tarball().add("more", b"1").data])
            name = registry.push(layout.folder, "a", "bench/a:1")
            other = registry.push(layout.folder, "b", "bench/b:1")
            times = measure_pull(name, folder)
            if docker := measure_docker(name):
                times["docker pull"] = docker
            times |= measure_opening(name, folder)
            store = ImageStore(folder / "cache/images", 10**11)
            times["a second image with the same layers and one more"] = [
                seconds(lambda: pull_image(store, other, read_settings(), NoProgress()))
            ]
    print("| what | median | best |\n| --- | --- | --- |")
    for label, values in times.items():
        median = statistics.median(values)
        print(f"| {label} | {1000 * median:,.0f} ms | {1000 * min(values):,.0f} ms |")


if __name__ == "__main__":
    main()
