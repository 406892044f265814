"""The campaign: `python -m tests.chaos --seconds 3600 --seed 1`. Prints rounds, faults by kind, and violations (exit 1).

In every round a run of six pairs is disturbed at random moments; then the same command continues until it is done, and what
is on disk must equal an undisturbed run, with nothing lost, doubled, unpaid or left behind. The same seed gives the same
faults; moments differ with the machine's speed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.world import (
    HARNESS_SIGNALS,
    LIBFAKETIME,
    PROVIDER_FAULTS,
    Round,
    World,
    processes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Process = subprocess.Popen[str]
Fault = tuple[str, "Callable[[Round, Process, random.Random], None]"]
LONGEST_WAIT_SECONDS = 9.0
INTERRUPTED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}


def signalled(number: signal.Signals) -> Fault:
    def strike(_: Round, process: Process, rng: random.Random) -> None:
        for _again in range(1 if number == signal.SIGKILL else rng.randint(1, 3)):
            process.send_signal(number)
            time.sleep(rng.uniform(0, 0.3))

    return number.name, strike


def stopped(_: Round, process: Process, rng: random.Random) -> None:
    process.send_signal(signal.SIGSTOP)
    time.sleep(rng.uniform(0.5, 3))
    process.send_signal(signal.SIGCONT)


def redis_killed(one: Round, _: Process, rng: random.Random) -> None:
    one.world.redis.kill()
    time.sleep(rng.uniform(0.1, 2))
    one.world.redis.start()


def sandbox_killed(one: Round, process: Process, rng: random.Random) -> None:
    """From outside: nobody's doing, so the pair is run again."""
    if one.world.engine:
        with contextlib.suppress(Exception), one.world.engine.connected() as engine:
            containers = engine.api.containers()
            if containers:
                engine.api.kill(rng.choice(containers)["Id"])
        return
    found = [
        pid for pid, words in processes(one.name, str(one.folder)) if pid != process.pid and "bwrap" in words
    ]
    if found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(found), signal.SIGKILL)


def engine_killed(one: Round, _: Process, rng: random.Random) -> None:
    assert one.world.engine
    one.world.engine.kill()
    time.sleep(rng.uniform(0.1, 1))
    one.world.engine.start()


def shim_killed(one: Round, _: Process, rng: random.Random) -> None:
    assert one.world.engine
    if shims := one.world.engine.shims():
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(shims), signal.SIGKILL)


def disk_full(one: Round, _: Process, rng: random.Random) -> None:
    filler = one.logs / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(65536))
    time.sleep(rng.uniform(0.3, 2))
    filler.unlink(missing_ok=True)


def no_descriptors(_: Round, process: Process, rng: random.Random) -> None:
    with contextlib.suppress(ProcessLookupError):
        before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (8, before[1]))
        time.sleep(rng.uniform(0.3, 1.5))
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)


def clock_jump(one: Round, _: Process, rng: random.Random) -> None:
    one.clock.write_text(rng.choice(("+1d", "-1d", "+40s", "-3h")))


def provider(name: str) -> Fault:
    def strike(one: Round, _: Process, rng: random.Random) -> None:
        one.world.provider.fail_for(rng.uniform(0.5, 4), PROVIDER_FAULTS[name])

    return f"provider: {name}", strike


def faults_of(one: Round) -> list[Fault]:
    found = [signalled(number) for number in HARNESS_SIGNALS]
    found += [
        ("SIGSTOP, SIGCONT", stopped),
        ("Redis killed", redis_killed),
        ("sandbox killed", sandbox_killed),
    ]
    found += [provider(name) for name in PROVIDER_FAULTS]
    found += [("no descriptors", no_descriptors)]
    if one.has_small_disk:
        found.append(("disk full", disk_full))
    if LIBFAKETIME:
        found.append(("clock jump", clock_jump))
    if one.world.engine:
        found += [("engine killed", engine_killed), ("shim killed", shim_killed)]
    return found


def disturb(one: Round, rng: random.Random, counts: Counter[str]) -> list[str]:
    """One start of the command with one to three faults; what was wrong with its end."""
    chosen = rng.sample(faults_of(one), rng.randint(1, 3))
    one.with_clock = any(name == "clock jump" for name, _ in chosen)
    process = one.start()
    try:
        for name, strike in chosen:
            time.sleep(rng.uniform(0.2, LONGEST_WAIT_SECONDS / len(chosen)))
            if process.poll() is not None:
                break
            counts[name] += 1
            strike(one, process, rng)
        code = process.wait(180)
    except subprocess.TimeoutExpired:
        return [f"the run did not end after {[name for name, _ in chosen]}: {one.last_output()}"]
    finally:
        process.kill()
        process.wait()
        one.with_clock = False
    names = [name for name, _ in chosen]
    if code < 0 and "SIGKILL" not in names:
        return [f"ended by signal {-code} after {names}: {one.last_output()}"]
    if "Traceback" in one.last_output():
        return [f"a traceback after {names}: {one.last_output()}"]
    return []


def play(
    world: World, number: int, seed: int, expected: dict[str, object], counts: Counter[str]
) -> list[str]:
    rng = random.Random(f"{seed} {world.backend} {number}")
    one = Round(world, f"round{number}")
    try:
        found = disturb(one, rng, counts)
        for _ in range(rng.choice((0, 0, 1))):
            found += disturb(one, rng, counts)
        if rng.random() < 0.4 and (damaged := one.damage_a_file(rng)):
            counts["file damaged"] += 1
            found = [f"{text} ({damaged} damaged)" for text in found]
        if one.finish() < 0:
            found.append(f"not done: {one.last_output()}")
        return found + one.violations(expected)
    finally:
        one.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=1, help="the first round, to repeat one")
    parser.add_argument("--backends", default="local,docker")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    folder = Path(tempfile.mkdtemp(prefix="cooperbench-chaos-"))
    counts: Counter[str] = Counter()
    violations: list[str] = []
    rounds = 0
    try:
        with contextlib.ExitStack() as stack:
            worlds = []
            for backend in args.backends.split(","):
                world = stack.enter_context(World(folder / backend, backend))
                calm = Round(world, "calm")
                if calm.finish(1) != 1:
                    sys.stdout.write(f"{backend}: the undisturbed run failed: {calm.last_output()}\n")
                    return 1
                worlds.append((world, calm.pairs()))
                calm.close()
            while time.monotonic() < end:
                for world, expected in worlds:
                    number = args.first + rounds // len(worlds)
                    rounds += 1
                    found = play(world, number, args.seed, expected, counts)
                    violations += found
                    mark = "ok" if not found else "VIOLATION\n  " + "\n  ".join(found)
                    sys.stdout.write(f"round {number} {world.backend} (seed {args.seed}): {mark}\n")
                    sys.stdout.flush()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    injected = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    sys.stdout.write(
        f"{rounds} rounds, {sum(counts.values())} faults: {injected}\n{len(violations)} violations\n"
    )
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
