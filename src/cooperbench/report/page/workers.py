"""The details of many pairs, packed by several processes: reading and packing them is work for the processor.

The processes are our own interpreter with one function, fed through a pipe. Nothing of the caller's script is imported
again, as a pool of multiprocessing would, so that `build_page` can be called from anywhere. They end with their pipe,
whatever becomes of us, and hear no Ctrl-C: that is for the one who started them. What a process did not do, is done
here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pickle import PickleError
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from cooperbench.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from typing import Any

    from cooperbench.report.coordination.pair import Coordination
    from cooperbench.report.loading import PairData

MOST_PROCESSES = 4
FEWEST_PAIRS = 48
"""With fewer, starting processes takes longer than they save."""
_COMMAND = "import sys; from cooperbench.report.page.workers import serve; serve(int(sys.argv[1]))"


class Packed(NamedTuple):
    """One pair as the page unpacks it, and what was found in it."""

    data: bytes
    found: Coordination | None


def process_count(pairs: int) -> int:
    """0: not worth it."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 0 if pairs < FEWEST_PAIRS or usable < 2 else min(MOST_PROCESSES, usable)


def pack_all(
    pairs: Sequence[PairData], pack: Callable[[PairData], Packed], processes: int | None = None
) -> Generator[Packed]:
    """In the order of the pairs, whichever is ready first. `pack` is for those that no process does.

    Closed before its end, it ends the processes.
    """
    count = process_count(len(pairs)) if processes is None else processes
    if not count:
        yield from map(pack, pairs)
        return
    with _Workers(count, pack) as workers:
        yield from workers.pack_all(pairs)


class _Workers:
    """Processes, and as many threads that wait for their answers."""

    def __init__(self, count: int, pack: Callable[[PairData], Packed]) -> None:
        self._count = count
        self._pack = pack
        self._closing = False
        self._all = [_Worker() for _ in range(count)]
        self._free: SimpleQueue[_Worker] = SimpleQueue()
        for worker in self._all:
            self._free.put(worker)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="report")

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        for worker in self._all:
            worker.end()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._all:
            worker.close()

    def pack_all(self, pairs: Sequence[PairData]) -> Iterator[Packed]:
        """A few ahead of the one that is asked for: what is packed and not yet written takes memory."""
        ahead = 3 * self._count
        waiting = [self._threads.submit(self._one, pair) for pair in pairs[:ahead]]
        for place in range(len(pairs)):
            yield waiting.pop(0).result()
            if place + ahead < len(pairs):
                waiting.append(self._threads.submit(self._one, pairs[place + ahead]))

    def _one(self, pair: PairData) -> Packed:
        worker = self._free.get()
        try:
            answer = worker.ask(pair)
        finally:
            self._free.put(worker)
        if answer is None and self._closing:
            raise Interrupted("stopped")
        return answer or self._pack(pair)


class _Worker:
    """One process. One that cannot be started, or has died, answers None to everything."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process: subprocess.Popen[bytes] | None = None
        with theirs:
            try:
                self._process = subprocess.Popen(
                    # Without the current folder among the places to import from: it may be anybody's.
                    [sys.executable, "-P", "-c", _COMMAND, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=environment,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except (OSError, ValueError, TypeError):
                # E.g. in a program that has Python built in and no interpreter beside it.
                self._pipe.close()

    def ask(self, pair: PairData) -> Packed | None:
        try:
            self._pipe.send(pair)
            answer = self._pipe.recv()
        except (OSError, EOFError, PickleError):
            return None
        return answer if isinstance(answer, Packed) else None

    def end(self) -> None:
        """Whoever waits at the pipe hears of it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        self._pipe.close()


def serve(descriptor: int) -> None:
    """In such a process: a pair in, its details out, until there are no more."""
    from cooperbench.report.page.build import pack_pair

    pipe: Connection[Any, Any] = Connection(descriptor)
    with pipe:
        while True:
            try:
                pair = pipe.recv()
            except EOFError:
                return
            pipe.send(pack_pair(pair))
