"""Calls with limits: the worker's limits are the kernel's, and nothing stays behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from cooperbench.bounded import UnreadableInput, call_bounded, kill_running_calls, limit_seconds
from cooperbench.errors import Interrupted


class Answer(NamedTuple):
    """A result with types that JSON does not have."""

    text: str
    content: bytes
    by_number: dict[int, tuple[str, ...]]


def make_answer(text: str) -> Answer:
    return Answer(text, text.encode("utf-8", "surrogateescape"), {3: (text,)})


@limit_seconds(1)
def backtrack(text: str) -> bool:
    return re.fullmatch("(a|aa)+b", text) is not None


def fill_memory() -> int:
    return len(bytearray(1 << 40))


def print_and_return(text: str) -> str:
    print(text)
    return text


def fail() -> None:
    raise ValueError("no\nsuch value")


def end_process(number: int) -> None:
    os.kill(os.getpid(), number)


def process_id() -> int:
    return os.getpid()


def test_result_with_types() -> None:
    for text in ("ä", "\udcff \U0001f600", "a" * 3_000_000):
        assert call_bounded(make_answer, text) == make_answer(text)


def test_time_limit() -> None:
    """The regular expression would run for years, and hold the interpreter lock."""
    started = time.monotonic()
    with pytest.raises(UnreadableInput, match="more than 1 s of processor time"):
        call_bounded(backtrack, "a" * 100)
    assert time.monotonic() - started < 20
    assert call_bounded(backtrack, "aab")


def test_memory_limit() -> None:
    with pytest.raises(UnreadableInput, match="3 GiB of memory"):
        call_bounded(fill_memory)


def test_exception() -> None:
    with pytest.raises(UnreadableInput, match=r"test_bounded\.py:\d+: ValueError: no such value"):
        call_bounded(fail)


def test_printed_text() -> None:
    assert call_bounded(print_and_return, "x" * 100) == "x" * 100


def test_worker_is_reused() -> None:
    assert call_bounded(process_id) == call_bounded(process_id) != os.getpid()


@pytest.mark.parametrize(
    ("number", "message"),
    [(signal.SIGKILL, "killed repeatedly"), (signal.SIGSEGV, "ended with status -11")],
)
def test_worker_that_dies(number: int, message: str) -> None:
    with pytest.raises(UnreadableInput, match=message):
        call_bounded(end_process, number)
    assert call_bounded(process_id)


def test_worker_that_somebody_killed() -> None:
    worker = call_bounded(process_id)
    os.kill(worker, signal.SIGKILL)
    assert call_bounded(process_id) != worker


def test_threads() -> None:
    texts = [str(number) * 100_000 for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda text: call_bounded(make_answer, text), texts))
    assert [answer.text for answer in answers] == texts


def test_stop() -> None:
    timer = threading.Timer(0.3, kill_running_calls)
    timer.start()
    with pytest.raises((Interrupted, UnreadableInput)) as raised:
        call_bounded(backtrack, "a" * 100)
    timer.join()
    assert raised.type is Interrupted


_PROGRAM = """
import sys
from cooperbench.bounded import call_bounded
from tests.unit.test_bounded import backtrack, process_id
print(call_bounded(process_id), flush=True)
call_bounded(backtrack, "a" * 100)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_worker_ends_with_its_parent(number: signal.Signals) -> None:
    """Also if it computes something, and if the parent is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as program:
        assert program.stdout
        worker = int(program.stdout.readline())
        program.send_signal(number)
        program.wait(10)
    deadline = time.monotonic() + 0.5
    while _is_running(worker) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _is_running(worker)


def _is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    # An orphan without a process that waits for it stays a zombie.
    return stat.rpartition(")")[2].split()[0] != "Z"
