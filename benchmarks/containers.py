"""What containers cost, side by side in one run: python benchmarks/containers.py [IMAGE]

Needs an engine that answers (DOCKER_HOST, MSWEA_DOCKER_EXECUTABLE) and an image with bash, coreutils and git in it.
Prints a table with what was measured and what the aim is; a busy machine makes all of it worse.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.backends.docker import DockerBackend
from cooperbench.errors import UserError
from cooperbench.sandbox.contract import SandboxOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.backends.docker.sandbox import DockerSandbox
    from cooperbench.sandbox.contract import NetworkPolicy

DEFAULT_IMAGE = "cooperbench-test-base:bookworm-1"
POLICIES: tuple[NetworkPolicy, ...] = ("none", "public")
REPEATS = 15
MANY = 50


def seconds_of(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def show(what: str, measured: str, aim: str) -> None:
    print(f"{what:<58} {measured:>12}  {aim}", flush=True)


def commands(backend: DockerBackend, image: str) -> None:
    sandbox = backend.create_sandbox(image)
    client = [
        os.environ.get("MSWEA_DOCKER_EXECUTABLE", "docker"),
        "exec",
        sandbox.container,
        "true",
    ]
    channel, engine = [], []
    for _ in range(REPEATS):
        channel += [seconds_of(lambda: sandbox.run(["true"])) for _ in range(4)]
        engine.append(seconds_of(lambda: subprocess.run(client, check=True)))
    through_channel, through_engine = statistics.median(channel), statistics.median(engine)
    sandbox.terminate()
    show("`true` through the engine's command line", f"{through_engine * 1000:.0f} ms", "")
    show("`true` through the channel", f"{through_channel * 1000:.1f} ms", "at most 15 ms")
    show("  of the engine's", f"{through_channel / through_engine:.3f}", "at most 0.1")


def one_and_two(
    create: Callable[[int], object], remove_all: Callable[[], None]
) -> tuple[float, float]:
    """How long one takes, and two at once; in turns, so that whatever else the machine does meets both."""
    one, two = [], []
    with ThreadPoolExecutor(2) as pool:
        for _ in range(REPEATS):
            one.append(seconds_of(lambda: list(pool.map(create, range(1)))))
            remove_all()
            two.append(seconds_of(lambda: list(pool.map(create, range(2)))))
            remove_all()
    return statistics.median(one), statistics.median(two)


def starts(backend: DockerBackend, image: str, network: NetworkPolicy) -> None:
    options = SandboxOptions("agent", network)
    made: list[DockerSandbox] = []
    removals: list[float] = []

    def create(_: int) -> None:
        made.append(backend.create_sandbox(image, options=options))

    def remove_all() -> None:
        while made:
            removals.append(seconds_of(made.pop().terminate))

    create(0)
    remove_all()
    single, both = one_and_two(create, remove_all)
    show(f"one sandbox, network {network}", f"{single * 1000:.0f} ms", "")
    show("  two of them together", f"{both * 1000:.0f} ms", "")
    show("  of one", f"{both / single:.2f}", "")
    show("  removing one", f"{statistics.median(removals) * 1000:.0f} ms", "well under 1 s")


def machine() -> None:
    """What two processes that share nothing cost each other here: a container's start is work for a processor, too."""
    busy = [sys.executable, "-S", "-c", "for _ in range(3_000_000): pass"]
    single, both = one_and_two(lambda _: subprocess.run(busy, check=True), lambda: None)
    show("two busy processes together, of one", f"{both / single:.2f}", "the machine's own")


def bare_starts(backend: DockerBackend, image: str) -> None:
    """What the engine itself takes for containers with no channel, no limits and no labels: the floor for `starts`."""
    api = backend.engine.api
    made: list[str] = []

    def create(_: int) -> None:
        config = {
            "Image": image,
            "Cmd": ["sleep", "60"],
            "HostConfig": {"NetworkMode": "none", "Init": True},
        }
        made.append(api.create_container_from_config({**config, "NetworkDisabled": True})["Id"])
        api.start(made[-1])

    def remove_all() -> None:
        while made:
            api.remove_container(made.pop(), force=True)

    single, both = one_and_two(create, remove_all)
    show("a bare container of the engine's", f"{single * 1000:.0f} ms", "")
    show("  two of them together, of one", f"{both / single:.2f}", "the engine's own")


def many(backend: DockerBackend, image: str) -> None:
    def create(_: int) -> DockerSandbox:
        sandbox = backend.create_sandbox(image)
        sandbox.run(["true"])
        return sandbox

    with ThreadPoolExecutor(8) as pool:
        started = time.perf_counter()
        sandboxes = list(pool.map(create, range(MANY)))
        took = time.perf_counter() - started
        resident = (
            int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6
        )
        list(pool.map(lambda sandbox: sandbox.terminate(), sandboxes))
    show(f"{MANY} sandboxes in this process, memory", f"{resident:.0f} MB", "under 300 MB")
    show("  started within", f"{took:.1f} s", "")


def main() -> None:
    image = sys.argv[1] if len(sys.argv) > 1 else DEFAULT_IMAGE
    with tempfile.TemporaryDirectory() as cache:
        backend = DockerBackend(cache_dir=cache, build_args={"BASE_IMAGE": image}, pull="never")
        try:
            try:
                backend.create_sandbox(image).terminate()
            except UserError as error:
                print(f"left out: {error}")
                return
            show(f"{backend.engine.client} at {backend.engine.where}", "", "")
            commands(backend, image)
            for network in POLICIES:
                starts(backend, image, network)
            bare_starts(backend, image)
            machine()
            many(backend, image)
        finally:
            backend.close()


if __name__ == "__main__":
    main()
