"""Faults by name. Each says whether it has hit anything: only then it counts."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.external.chaos.checker import mounted_from, processes
from tests.external.chaos.rounds import Round
from tests.external.chaos.world import PROVIDER_FAULTS

Process = subprocess.Popen[str]
Strike = Callable[[Round, Process, random.Random], bool]
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
CALLS_AT_ONCE = 6
"""Two agents in each of three pairs."""
TARGET_SECONDS = 120.0
"""On a busy machine; a run that ends is not waited for."""


def faults_of(one: Round) -> dict[str, Strike]:
    """Faults that must not change a run. A killed worker does: its agent is scored as crashed."""
    found: dict[str, Strike] = {}
    if one.world.engine:
        found |= {"engine killed": engine_killed, "shim killed": shim_killed}
    found |= {number.name: interrupted(number) for number in INTERRUPTS}
    found |= {
        "SIGKILL": killed,
        "SIGSTOP, SIGCONT": stopped,
        "Redis killed": redis_killed,
        "sandbox killed": sandbox_killed,
        "no descriptors": no_descriptors,
        "provider: connections cut": connections_cut,
    }
    found |= {f"provider: {name}": provider(name) for name in PROVIDER_FAULTS}
    if one.has_small_disk:
        found["disk full"] = disk_full
    if one.world.clock_library:
        found["clock jump"] = clock_jump
    return found


def interrupted(number: signal.Signals) -> Strike:
    """Once, or with one or two others after it."""

    def strike(_: Round, process: Process, rng: random.Random) -> bool:
        process.send_signal(number)
        for _again in range(rng.randint(0, 2)):
            time.sleep(rng.uniform(0, 0.3))
            process.send_signal(rng.choice(INTERRUPTS))
        return True

    return strike


def killed(_: Round, process: Process, __: random.Random) -> bool:
    """The gateway, which is a thread of the harness, dies with it."""
    process.kill()
    return True


def stopped(_: Round, process: Process, rng: random.Random) -> bool:
    process.send_signal(signal.SIGSTOP)
    time.sleep(rng.uniform(0.5, 3))
    process.send_signal(signal.SIGCONT)
    return True


def redis_killed(one: Round, _: Process, rng: random.Random) -> bool:
    one.world.redis.kill()
    time.sleep(rng.uniform(0.1, 2))
    one.world.redis.start()
    return True


def sandbox_killed(one: Round, process: Process, rng: random.Random) -> bool:
    """From outside: nobody's doing, so the pair is run again."""
    if not one.world.engine:
        return _kill_one(lambda: _bubblewraps(one), process, rng)
    with contextlib.suppress(Exception), one.world.engine.connected() as engine:
        deadline = time.monotonic() + TARGET_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            if containers := engine.api.containers():
                engine.api.kill(rng.choice(containers)["Id"])
                return True
            time.sleep(0.1)
    return False


def _bubblewraps(one: Round) -> list[int]:
    """Of local sandboxes, which end with them. A first process that is killed counts as the doing of who works there."""
    found = set()
    for pid, words in processes(str(one.world.cache), mounted_from(one.world.cache)):
        with contextlib.suppress(OSError):
            # Forks of a first process have its arguments, too.
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if (
                "/cooperbench/lib/supervisor.sh" in words
                and Path(f"/proc/{parent}/comm").read_text() == "bwrap\n"
            ):
                found.add(parent)
    return sorted(found)


def engine_killed(one: Round, _: Process, rng: random.Random) -> bool:
    assert one.world.engine
    one.world.engine.kill()
    time.sleep(rng.uniform(0.1, 1))
    one.world.engine.start()
    return True


def shim_killed(one: Round, process: Process, rng: random.Random) -> bool:
    assert one.world.engine
    return _kill_one(one.world.engine.shims, process, rng)


def disk_full(one: Round, _: Process, rng: random.Random) -> bool:
    filler = one.logs / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(65536))
    time.sleep(rng.uniform(0.3, 2))
    filler.unlink(missing_ok=True)
    return True


def no_descriptors(one: Round, process: Process, rng: random.Random) -> bool:
    one.calls_lost += CALLS_AT_ONCE
    with contextlib.suppress(ProcessLookupError):
        before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (8, before[1]))
        time.sleep(rng.uniform(0.3, 1.5))
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)
        return True
    return False


def clock_jump(one: Round, _: Process, rng: random.Random) -> bool:
    one.move_clock(rng.choice((86_400, -86_400, 40, -10_800)))
    return True


def connections_cut(one: Round, process: Process, _: random.Random) -> bool:
    one.calls_lost += CALLS_AT_ONCE
    deadline = time.monotonic() + TARGET_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if one.world.provider.server.cut_connections():
            return True
        time.sleep(0.05)
    return False


def provider(name: str) -> Strike:
    def strike(one: Round, process: Process, rng: random.Random) -> bool:
        return one.world.provider.fail_for(
            rng.uniform(0.5, 4), name, lambda: process.poll() is not None
        )

    return strike


def _kill_one(find: Callable[[], list[int]], process: Process, rng: random.Random) -> bool:
    """As soon as there is one."""
    deadline = time.monotonic() + TARGET_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if found := find():
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(found), signal.SIGKILL)
                return True
        time.sleep(0.05)
    return False
