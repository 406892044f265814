"""What messages cost: `python benchmarks/messages.py`.

Three tables. Load: many pairs exchange messages over one kind of mailbox, as fast as they can and at a steady pace;
every message must arrive once and in its sender's order. Sandbox: from `send_message` returning in a real sandbox,
local and Docker, until the partner's next step would see it (target: below 50 ms). Sharing: a push to the remote of the
pair, which is in the partner's sandbox when it returns, beside one to a plain folder. A busy machine makes all of it
worse; `nothing` is what two looks at the clock alone take there.
"""

from __future__ import annotations

import argparse
import os
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
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.docker.engines import NoEngine, docker_host, provide_base

from cooperbench.backends.docker.engine import connect
from cooperbench.errors import CooperBenchError
from cooperbench.eval.backends import get_backend
from cooperbench.sandbox.backend import capabilities_of
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.sandbox.manager import open_sandbox
from cooperbench.team.git_remote import GitRemote
from cooperbench.team.inbox import Inbox
from cooperbench.team.mailbox import Mailbox, RedisMailbox, ensure_redis, unique_run_id
from cooperbench.team.sandbox_rpc import SandboxRpc
from cooperbench.team.team import Team

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cooperbench.models import Message
    from cooperbench.sandbox.contract import EvalBackend, Sandbox

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
    """Every agent of every pair sends `count` messages."""
    together = threading.Barrier(2 * len(mailboxes) + 1)
    sent: dict[tuple[int, str, int], float] = {}
    results: list[tuple[list[int], list[float]]] = []

    def write(place: int, me: str, other: str) -> None:
        chance = random.Random(f"{place}{me}")
        together.wait()
        for number in range(count):
            if pace_seconds:
                time.sleep(chance.uniform(0.5, 1.5) * pace_seconds)
            sent[place, me, number] = time.perf_counter()
            mailboxes[place].post(me, other, str(number))

    def read(place: int, me: str, other: str) -> None:
        numbers, latencies = list[int](), list[float]()
        results.append((numbers, latencies))

        def note(message: Message) -> None:
            numbers.append(int(message.text))
            latencies.append(1000 * (time.perf_counter() - sent[place, other, int(message.text)]))

        mailboxes[place].subscribe(me, note, lambda _: None)

    with ThreadPoolExecutor(2 * len(mailboxes)) as pool:
        for place in range(len(mailboxes)):
            for me, other in (AGENTS, AGENTS[::-1]):
                read(place, me, other)
                pool.submit(write, place, me, other)
        together.wait()
        started = time.perf_counter()
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


@dataclass(frozen=True)
class Journey:
    """Milliseconds, round by round."""

    nothing: list[float]
    """Between two looks at the clock in the sandbox."""
    sending: list[float]
    """`send_message` itself."""
    seen: list[float]
    """From its return until `Inbox.incoming` of the partner has it. Below zero: earlier."""


def journey(backend: EvalBackend, image: str, mailbox: Mailbox, rounds: int) -> Journey:
    measured = Journey([], [], [])
    with ExitStack() as stack:
        inboxes = []
        sandboxes: list[Sandbox] = []
        stack.callback(mailbox.close)
        for me, other in (AGENTS, AGENTS[::-1]):
            options = SandboxOptions("agent", "none", {"run": "benchmark"})
            sandbox = open_sandbox(backend, image, timeout_seconds=600, options=options)
            stack.callback(sandbox.terminate)
            rpc = SandboxRpc(me, [other])
            inbox = Inbox(rpc, mailbox)
            rpc.start(sandbox, streams=capabilities_of(backend).streams)
            stack.callback(rpc.close)
            stack.callback(inbox.close)
            inboxes.append(inbox)
            sandboxes.append(sandbox)
        command = "date +%s%N; date +%s%N; send_message agent2 hello; date +%s%N"

        def seen() -> float:
            inboxes[1].wait(30)
            inboxes[1].incoming()
            return time.time_ns() / 1e6

        with ThreadPoolExecutor(1) as pool:
            for _ in range(rounds):
                waiting = pool.submit(seen)
                lines = sandboxes[0].run(["bash", "-c", command]).stdout_read().split("\n")
                first, began, returned = (int(lines[place]) / 1e6 for place in (0, 1, 3))
                measured.nothing.append(began - first)
                measured.sending.append(returned - began)
                measured.seen.append(waiting.result() - returned)
    return measured


REPOSITORY = """set -e
export GIT_AUTHOR_DATE=2026-01-01T00:00:00Z GIT_COMMITTER_DATE=2026-01-01T00:00:00Z
git init -q /tmp/repo
cd /tmp/repo
seq 1000 >file
git add file
git -c user.name=b -c user.email=b@b.invalid commit -qm base
git init -q --bare /tmp/plain.git
git rev-parse HEAD"""
PUSH = """cd /tmp/repo
date >>file
git commit -qam more
date +%s%N
git push -q team HEAD:agent1
date +%s%N
git push -q /tmp/plain.git HEAD:refs/heads/agent1
date +%s%N"""


def pushes_ms(backend: EvalBackend, image: str, rounds: int) -> tuple[list[float], list[float]]:
    """One new commit each: to the remote of the pair, and to a folder."""
    shared, plain = [], []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="cooperbench-bench-"))) / "hub"
        team = Team(AGENTS, None, GitRemote(folder, AGENTS), lambda _: None)
        stack.callback(team.close)
        sandboxes = []
        for me in AGENTS:
            options = SandboxOptions("agent", "none", {"run": "benchmark"})
            sandbox = open_sandbox(backend, image, timeout_seconds=600, options=options)
            stack.callback(sandbox.terminate)
            base = sandbox.run(["bash", "-c", REPOSITORY]).stdout_read().strip()
            streams = capabilities_of(backend).streams
            team.join(
                me,
                sandbox,
                streams=streams,
                repo_dir="/tmp/repo",
                base_commit=base,
                base_git_dir="/tmp/repo/.git",
            )
            sandboxes.append(sandbox)
        # The first one brings the base commit too.
        for _ in range(rounds + 1):
            said = sandboxes[0].run(["bash", "-c", PUSH])
            began, between, ended = (int(line) / 1e6 for line in said.stdout_read().split())
            shared.append(between - began)
            plain.append(ended - between)
    return shared[1:], plain[1:]


def spread(values: Sequence[float]) -> str:
    quantiles = statistics.quantiles(values, n=20)
    return f"{statistics.median(values):>10.2f}{quantiles[18]:>10.2f}{max(values):>10.2f}"


@contextmanager
def kinds(url: str) -> Iterator[dict[str, Callable[[], Mailbox]]]:
    with ensure_redis(url) as redis:
        print(f"Redis: {redis.description}\n")
        yield {
            "memory": lambda: Mailbox(AGENTS),
            "redis": lambda: RedisMailbox(redis, unique_run_id("benchmark"), AGENTS),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100, help="pairs at once (default: 100)")
    parser.add_argument("--messages", type=int, default=50, help="of each agent (default: 50)")
    parser.add_argument(
        "--pace", type=float, default=0.2, help="seconds between an agent's messages (default: 0.2)"
    )
    parser.add_argument(
        "--rounds", type=int, default=50, help="messages between sandboxes (default: 50)"
    )
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
        print(
            f"\n{f'between sandboxes, {args.rounds} messages, ms':<36}{'median':>10}{'95 %':>10}{'max':>10}"
        )
        sandbox_table("local", "host", makers, args.rounds)
        with ExitStack() as stack:
            try:
                os.environ["DOCKER_HOST"] = stack.enter_context(docker_host())
                engine = connect("docker")
                stack.callback(engine.close)
                image = provide_base(engine)
            except (NoEngine, CooperBenchError) as error:
                print(f"docker: not measured: {error}")
            else:
                sandbox_table("docker", image, makers, args.rounds)


def sandbox_table(
    name: str, image: str, makers: dict[str, Callable[[], Mailbox]], rounds: int
) -> None:
    try:
        backend = get_backend(name)
    except CooperBenchError as error:
        print(f"{name}: not measured: {error}")
        return
    try:
        for kind, make in makers.items():
            measured = journey(backend, image, make(), rounds)
            print(f"{f'{name}, {kind}: returned → seen':<36}{spread(measured.seen)}")
            print(f"{f'{name}, {kind}: send_message itself':<36}{spread(measured.sending)}")
        print(f"{f'{name}: nothing':<36}{spread(measured.nothing)}")
        shared, plain = pushes_ms(backend, image, rounds)
        print(f"{f'{name}: git push team':<36}{spread(shared)}")
        print(f"{f'{name}: git push to a folder':<36}{spread(plain)}")
    finally:
        getattr(backend, "close", lambda: None)()


if __name__ == "__main__":
    main()
