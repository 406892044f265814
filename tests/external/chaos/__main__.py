"""The campaign: `python -m tests.external.chaos --seconds 3600 --seed 1`. Prints rounds, faults by kind, and violations (exit 1).

In every round a run of six pairs is disturbed at random moments; then the same command continues until it is done, and what
is on disk must equal an undisturbed run, with nothing lost, doubled, unpaid or left behind. The same seed gives the same
faults; moments differ with the machine's speed. Every kind has its turn: a round begins with the next one of a shuffled list.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from tests.external.chaos import checker
from tests.external.chaos.faults import INTERRUPTS, Strike, faults_of
from tests.external.chaos.rounds import RUN_SECONDS, Round
from tests.external.chaos.world import World

CLOCK = "clock jump"
EARLIEST_SECONDS = 0.3
"""Before that there is an interpreter, and nothing of ours that could do anything about a signal."""


class Calm(NamedTuple):
    """A backend, and what an undisturbed run on it said and took."""

    world: World
    pairs: dict[str, Any]
    seconds: float
    shift: int
    """Where in the list of faults its first round begins."""


def order_of(names: list[str], seed: int, shift: int) -> list[str]:
    """Shuffled, but for those of an engine, which come first."""
    own = [name for name in names if name in ("engine killed", "shim killed")]
    others = [name for name in names if name not in own]
    random.Random(seed).shuffle(others)
    shift = shift * len(others) // 2
    return own + others[shift:] + others[:shift]


def disturb(
    one: Round, chosen: dict[str, Strike], seconds: float, rng: random.Random, counts: Counter[str]
) -> list[str]:
    """One start of the command; what was wrong with its end."""
    one.with_clock = CLOCK in chosen
    process = one.start()
    struck = []
    try:
        for name, strike in chosen.items():
            time.sleep(rng.uniform(EARLIEST_SECONDS, 0.6 * seconds / len(chosen)))
            if process.poll() is not None:
                break
            if strike(one, process, rng):
                counts[name] += 1
                struck.append(name)
        code = process.wait(RUN_SECONDS)
    except subprocess.TimeoutExpired:
        return [f"the run did not end after {struck}: {one.last_output()}"]
    finally:
        process.kill()
        process.wait()
        one.with_clock = False
    if code < 0 and "SIGKILL" not in struck:
        return [f"ended by signal {-code} after {struck}: {one.last_output()}"]
    if "Traceback" in one.last_output():
        return [f"a traceback after {struck}: {one.last_output()}"]
    only_interrupts = struck and {*struck} <= {number.name for number in INTERRUPTS}
    if only_interrupts and code not in (0, 130):
        return [f"exit code {code} after {struck}: {one.last_output()}"]
    return []


def play(calm: Calm, number: int, seed: int, counts: Counter[str]) -> list[str]:
    rng = random.Random(f"{seed} {calm.world.backend} {number}")
    one = Round(calm.world, f"round{number}")
    faults = faults_of(one)
    order = order_of(list(faults), seed, calm.shift)
    first = order[(number - 1) % len(order)]
    found: list[str] = []
    try:
        for start in range(rng.choice((1, 1, 2))):
            names = [first] if start == 0 else []
            names += rng.sample(
                [name for name in faults if name not in names], rng.randint(1, 3) - len(names)
            )
            rng.shuffle(names)
            found += disturb(one, {name: faults[name] for name in names}, calm.seconds, rng, counts)
        if rng.random() < 0.4 and (damaged := one.damage_a_file(rng)):
            counts["file damaged"] += 1
            found = [f"{text} ({damaged} damaged)" for text in found]
        if one.finish() < 0:
            found.append(f"not done: {one.last_output()}")
        return found + one.violations(calm.pairs)
    finally:
        one.close()


def undisturbed(world: World, shift: int, counts: Counter[str]) -> Calm | str:
    """Or what is wrong with it."""
    one = Round(world, "calm")
    counts.update(dict.fromkeys(faults_of(one), 0))
    started = time.monotonic()
    if one.finish(1) != 1:
        return f"the undisturbed run failed: {one.last_output()}"
    seconds, pairs = time.monotonic() - started, checker.read_pairs(one.run)
    wrong = checker.lost_messages(pairs) + one.violations(pairs)
    if wrong or len(pairs) != checker.PAIRS:
        return f"the undisturbed run has {len(pairs)} pairs, and: {wrong}"
    one.close()
    return Calm(world, pairs, seconds, shift)


def tell(rounds: int, counts: Counter[str], violations: list[str]) -> int:
    """The exit code."""
    injected = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    sys.stdout.write(
        f"{rounds} rounds, {sum(counts.values())} faults: {injected}\n{len(violations)} violations\n"
    )
    return 1 if violations else 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=1, help="the first round, to repeat one")
    parser.add_argument("--backends", default="local,docker")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    end = time.monotonic() + args.seconds
    folder = Path(tempfile.mkdtemp(prefix="cooperbench-chaos-"))
    counts: Counter[str] = Counter({"file damaged": 0})
    violations: list[str] = []
    rounds = 0
    try:
        with contextlib.ExitStack() as stack:
            calms: list[Calm] = []
            for backend in args.backends.split(","):
                world = stack.enter_context(World(folder / backend, backend))
                calm = undisturbed(world, len(calms), counts)
                if isinstance(calm, str):
                    sys.stdout.write(f"{backend}: {calm}\n")
                    return 1
                calms.append(calm)
            while time.monotonic() < end:
                for calm in calms:
                    number = args.first + rounds // len(calms)
                    rounds += 1
                    before = counts.copy()
                    found = play(calm, number, args.seed, counts)
                    violations += found
                    mark = "ok" if not found else "VIOLATION\n  " + "\n  ".join(found)
                    struck = ", ".join((counts - before).elements()) or "nothing"
                    place = f"round {number} {calm.world.backend} (seed {args.seed})"
                    sys.stdout.write(f"{place}, {struck}: {mark}\n")
                    sys.stdout.flush()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return tell(rounds, counts, violations)


if __name__ == "__main__":
    sys.exit(main())
