"""What messages cost: `python benchmarks/messages.py`.

Three tables. Load: many pairs exchange messages over one kind of mailbox, as fast as they can and at a steady pace;
every message must arrive once and in its sender's order. Idle: what waiting agents cost. Sandbox: from `send_message`
returning in a real local sandbox until the partner's next step would see the message (target: below 50 ms).
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.tiny import write_tiny

from cooperbench.dataset.discovery import load_tasks
from cooperbench.errors import CooperBenchError
from cooperbench.eval.backends import get_backend
from cooperbench.eval.backends.access import open_sandbox
from cooperbench.eval.backends.base import SandboxOptions, capabilities_of
from cooperbench.team.link import TeamLink
from cooperbench.team.mailbox import MemoryMailbox
from cooperbench.team.postbox import PostBox
from cooperbench.team.redis_link import RedisLink
from cooperbench.team.redis_mailbox import RedisMailbox, unique_run_id
from cooperbench.team.redis_server import ensure_redis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cooperbench.eval.backends.base import EvalBackend, PreparingBackend, RichSandbox
    from cooperbench.models import Image, Task
    from cooperbench.team.mailbox import Mailbox

AGENTS = ("agent1", "agent2")


@dataclass(frozen=True)
class Load:
    """What came of one load."""

    seconds: float
    latencies_ms: list[float]
    lost: int
    doubled: int
    disordered: int


def exchange(mailboxes: Sequence[Mailbox], count: int, pace_seconds: float) -> Load:
    """Every agent of every pair sends `count` messages and reads until it has its partner's."""
    together = threading.Barrier(4 * len(mailboxes) + 1)
    sent: dict[tuple[int, str, int], float] = {}

    def write(place: int, me: str, other: str) -> None:
        chance = random.Random(f"{place}{me}")
        together.wait()
        for number in range(count):
            if pace_seconds:
                time.sleep(chance.uniform(0.5, 1.5) * pace_seconds)
            sent[place, me, number] = time.perf_counter()
            mailboxes[place].post(me, other, str(number))

    def read(place: int, me: str, other: str) -> tuple[list[int], list[float]]:
        together.wait()
        seen, numbers, latencies = 0, list[int](), list[float]()
        deadline = time.monotonic() + 120
        while len(numbers) < count and time.monotonic() < deadline:
            for message in mailboxes[place].receive(me, seen, 1):
                now = time.perf_counter()
                seen = message.sequence
                numbers.append(int(message.text))
                latencies.append(1000 * (now - sent[place, other, int(message.text)]))
        return numbers, latencies

    with ThreadPoolExecutor(4 * len(mailboxes)) as pool:
        readers = []
        for place in range(len(mailboxes)):
            for me, other in (AGENTS, AGENTS[::-1]):
                readers.append(pool.submit(read, place, me, other))
                pool.submit(write, place, me, other)
        together.wait()
        started = time.perf_counter()
        results = [reader.result() for reader in readers]
        seconds = time.perf_counter() - started
    everything = [message for mailbox in mailboxes for message in mailbox.messages()]
    return Load(
        seconds,
        [latency for _, latencies in results for latency in latencies],
        lost=sum(count - len(set(numbers)) for numbers, _ in results),
        doubled=sum(len(numbers) - len(set(numbers)) for numbers, _ in results)
        + len(everything)
        - len(results) * count,
        disordered=sum(numbers != sorted(numbers) for numbers, _ in results),
    )


def idle_cpu_percent(mailboxes: Sequence[Mailbox], seconds: float) -> float:
    """Of one core, with every agent waiting the way a PostBox does."""
    ending = threading.Event()

    def wait(mailbox: Mailbox, me: str, other: str) -> None:
        while not ending.is_set():
            mailbox.receive(me, 0, 0.5)
            mailbox.is_finished(other)

    with ThreadPoolExecutor(2 * len(mailboxes)) as pool:
        for mailbox in mailboxes:
            pool.submit(wait, mailbox, *AGENTS)
            pool.submit(wait, mailbox, *AGENTS[::-1])
        time.sleep(1)
        before = time.process_time()
        time.sleep(seconds)
        used = time.process_time() - before
        ending.set()
    return 100 * used / seconds


def sandbox_latencies_ms(
    backend: EvalBackend, image: Image, task: Task, mailbox: Mailbox, rounds: int
) -> tuple[list[float], list[float]]:
    """From `send_message` returning until `PostBox.incoming` has it; and how long `send_message` itself takes."""
    late, took = [], []
    with ExitStack() as stack:
        boxes = []
        sandboxes: list[RichSandbox] = []
        for me, other in (AGENTS, AGENTS[::-1]):
            sandbox = open_sandbox(
                backend,
                image.agent_reference or image.reference,
                timeout_seconds=600,
                options=SandboxOptions("agent", "none", {"task": task.label}),
            )
            stack.callback(sandbox.terminate)
            link = TeamLink(me, [other])
            box = PostBox(link, mailbox)
            link.start(sandbox, streams=capabilities_of(backend).streams)
            stack.callback(link.close)
            box.start()
            stack.callback(box.close)
            boxes.append(box)
            sandboxes.append(sandbox)
        command = "date +%s%N; send_message agent2 hello; date +%s%N"
        with ThreadPoolExecutor(1) as pool:
            for _ in range(rounds):

                def seen() -> float:
                    boxes[1].wait(30)
                    boxes[1].incoming()
                    return time.time_ns() / 1e6

                waiting = pool.submit(seen)
                lines = sandboxes[0].run(["bash", "-c", command]).stdout_read().split("\n")
                began, returned = int(lines[0]) / 1e6, int(lines[2]) / 1e6
                late.append(waiting.result() - returned)
                took.append(returned - began)
        mailbox.close()
    return late, took


def spread(values: Sequence[float]) -> str:
    quantiles = statistics.quantiles(values, n=20)
    return f"{statistics.median(values):>10.2f}{quantiles[18]:>10.2f}{max(values):>10.2f}"


@contextmanager
def kinds(url: str) -> Iterator[dict[str, Callable[[], Mailbox]]]:
    with ensure_redis(url) as redis:
        link = RedisLink(redis.url)
        print(f"Redis: {redis.kind}\n")
        try:
            yield {
                "memory": lambda: MemoryMailbox(AGENTS),
                "redis": lambda: RedisMailbox(link, unique_run_id("benchmark"), AGENTS),
            }
        finally:
            link.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100, help="pairs at once (default: 100)")
    parser.add_argument("--messages", type=int, default=50, help="of each agent (default: 50)")
    parser.add_argument(
        "--pace", type=float, default=0.2, help="seconds between an agent's messages (default: 0.2)"
    )
    parser.add_argument("--rounds", type=int, default=50, help="messages between sandboxes (default: 50)")
    parser.add_argument("--redis", default="redis://localhost:6379", help="(default: %(default)s)")
    args = parser.parse_args()
    with kinds(args.redis) as makers:
        total = 2 * args.pairs * args.messages
        print(
            f"{args.pairs} pairs, {args.messages} messages each way, {total} in all; ms from post to receive"
        )
        print(
            f"{'':<24}{'msg/s':>8}{'median':>10}{'95 %':>10}{'max':>10}{'lost':>7}{'doubled':>9}{'disordered':>12}"
        )
        for pace, how in ((0.0, "at once"), (args.pace, f"every {args.pace:g} s")):
            for kind, make in makers.items():
                mailboxes = [make() for _ in range(args.pairs)]
                load = exchange(mailboxes, args.messages, pace)
                print(
                    f"{f'{kind}, {how}':<24}{total / load.seconds:>8.0f}{spread(load.latencies_ms)}"
                    f"{load.lost:>7}{load.doubled:>9}{load.disordered:>12}"
                )
                for mailbox in mailboxes:
                    mailbox.close()
        print(f"\n{2 * args.pairs} agents waiting: % of one core in the harness")
        for kind, make in makers.items():
            mailboxes = [make() for _ in range(args.pairs)]
            print(f"{kind:<24}{idle_cpu_percent(mailboxes, 5):>8.1f}")
            for mailbox in mailboxes:
                mailbox.close()
        sandbox_table(makers, args.rounds)


def sandbox_table(makers: dict[str, Callable[[], Mailbox]], rounds: int) -> None:
    print(f"\nlocal sandboxes, {rounds} messages, ms{'':<5}{'median':>10}{'95 %':>10}{'max':>10}")
    with TemporaryDirectory(prefix="cooperbench-bench-") as folder:
        (task,) = load_tasks(write_tiny(Path(folder)))
        try:
            backend = get_backend("local")
            assert capabilities_of(backend).prepares
            preparing = cast("PreparingBackend", backend)
            image = preparing.prepare(task)
        except CooperBenchError as error:
            print(f"not measured: {error}")
            return
        try:
            for kind, make in makers.items():
                late, took = sandbox_latencies_ms(backend, image, task, make(), rounds)
                print(f"{f'{kind}: sent → seen':<36}{spread(late)}")
                print(f"{f'{kind}: send_message itself':<36}{spread(took)}")
        finally:
            getattr(backend, "close", lambda: None)()


if __name__ == "__main__":
    main()
