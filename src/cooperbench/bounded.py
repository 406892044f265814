"""Calls with limits: functions that read what agents have written run in a worker process.

A regular expression or a parser that needs exponential time for some input holds Python's
interpreter lock: no thread runs, no timeout fires and no signal is handled. So these functions run
in another process, whose processor time and memory the kernel limits. Workers live long and are
reused, so that a call costs a fraction of a millisecond.

`bounded_worker` is the program of a worker. It gets pickled functions and arguments, which come
from this process. It answers with JSON, which is converted to the return type of the function:
nothing that a worker sends can run code here.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import typing
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, ParamSpec, TypeVar

from cooperbench import conversion
from cooperbench.errors import CooperBenchError, Interrupted

DEFAULT_SECONDS = 20
"""Processor time that one call may take."""
REQUEST_HEADER = struct.Struct("<QI")
"""Size of the request that follows, and seconds of processor time for it."""
ANSWER_HEADER = struct.Struct("<Q")
"""Size of the answer that follows."""
LIMIT_ATTRIBUTE = "limit_seconds"
"""Attribute of a function with its own limit, see `limit_seconds`."""
_WALL_SECONDS_PER_SECOND = 15
"""Seconds that a call may last for each second of processor time: the machine may be busy."""
_MAX_ANSWER_BYTES = 256 * 1024**2
_MAX_BYTES_OF_WORKER = 64 * 1024**2
"""Requests after which a worker is replaced, because its memory is fragmented."""
_MAX_WORKERS = max(2, os.cpu_count() or 1)
_MAX_ATTEMPTS = 3
_SECONDS_TO_END = 5
_CHUNK_BYTES = 1024**2

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
_Function = TypeVar("_Function", bound=Callable[..., Any])


class UnreadableInput(CooperBenchError):
    """An agent's input that cannot be read within the limits. The message is one clear line."""


class _NoAnswer(Exception):
    """The worker has ended, or did not answer in time."""


def limit_seconds(seconds: int) -> Callable[[_Function], _Function]:
    """Declare how many seconds of processor time a function may take in a worker."""

    def declare(function: _Function) -> _Function:
        setattr(function, LIMIT_ATTRIBUTE, seconds)
        return function

    return declare


def call_bounded(
    function: Callable[Parameters, Result],
    /,
    *args: Parameters.args,
    **kwargs: Parameters.kwargs,
) -> Result:
    """Return `function(*args, **kwargs)`, computed in a worker process with limits.

    The function has to be importable by its name, and msgspec has to support its return type. It
    may take `DEFAULT_SECONDS` of processor time, or as many as `limit_seconds` declares.

    Raises:
        UnreadableInput: The call takes too much time or memory, or raises an exception.
        Interrupted: The run is being stopped.
    """
    seconds = getattr(function, LIMIT_ATTRIBUTE, DEFAULT_SECONDS)
    request = pickle.dumps((function, args, kwargs), protocol=pickle.HIGHEST_PROTOCOL)
    answer = _ask_worker(request, seconds)
    try:
        content = json.loads(answer)
        if "error" not in content:
            result_type = _return_type(function)
            result = conversion.convert(content["result"], result_type, str_keys=True)
            return typing.cast("Result", result)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UnreadableInput(f"its reader sent an invalid answer: {error}") from error
    raise UnreadableInput(str(content["error"]))


def kill_running_calls() -> None:
    """Kill the workers that compute something, because the run is being stopped."""
    _pool.stop_running()


@cache
def _return_type(function: Callable[..., Any]) -> Any:
    return typing.get_type_hints(function)["return"]


def _ask_worker(request: bytes, seconds: int) -> bytes:
    """Return a worker's answer; ask another one if the first is killed, for example by a person."""
    for _ in range(_MAX_ATTEMPTS):
        with _pool.slots:
            worker = _pool.take()
            answer = None
            try:
                answer = worker.ask(request, seconds)
                return answer
            except _NoAnswer:
                problem = worker.wait_for_end(seconds)
            finally:
                _pool.put_back(worker, is_usable=answer is not None)
        if problem:
            raise UnreadableInput(problem)
    raise UnreadableInput("the process that reads it was killed repeatedly")


class _Worker:
    """A worker process, and our ends of its pipes."""

    def __init__(self) -> None:
        # The kernel ends the worker when nobody holds the write end of this pipe any more: at the
        # latest when this process ends, however that happens.
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "cooperbench.bounded_worker", str(lifeline)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={
                    "PATH": os.environ.get("PATH", os.defpath),
                    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                    "PYTHONUTF8": "1",
                },
                pass_fds=(lifeline,),
                # Ctrl-C in a terminal does not concern it.
                start_new_session=True,
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(lifeline)
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("both are pipes")
        self._input = self._process.stdin
        self._output = self._process.stdout
        os.set_blocking(self._input.fileno(), False)
        self._is_stopped = False
        self.bytes_received = 0

    def ask(self, request: bytes, seconds: int) -> bytes:
        """Send a request and return the answer.

        Raises:
            _NoAnswer: There is no answer in time.
        """
        self.bytes_received += len(request)
        deadline = time.monotonic() + seconds * _WALL_SECONDS_PER_SECOND
        self._send(REQUEST_HEADER.pack(len(request), seconds), deadline)
        self._send(request, deadline)
        (size,) = ANSWER_HEADER.unpack(self._receive(ANSWER_HEADER.size, deadline))
        if size > _MAX_ANSWER_BYTES:
            raise _NoAnswer
        return self._receive(size, deadline)

    def _send(self, data: bytes, deadline: float) -> None:
        unsent = memoryview(data)
        while unsent:
            _wait_until_ready(self._input.fileno(), select.POLLOUT, deadline)
            try:
                written = os.write(self._input.fileno(), unsent[:_CHUNK_BYTES])
            except BrokenPipeError as error:
                raise _NoAnswer from error
            unsent = unsent[written:]

    def _receive(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            _wait_until_ready(self._output.fileno(), select.POLLIN, deadline)
            chunk = os.read(self._output.fileno(), min(_CHUNK_BYTES, size - len(data)))
            if not chunk:
                raise _NoAnswer
            data += chunk
        return bytes(data)

    def wait_for_end(self, seconds: int) -> str:
        """Return why a worker did not answer.

        The reason is empty if somebody else killed it, so that another attempt makes sense.

        Raises:
            Interrupted: It was killed because the run is being stopped.
        """
        try:
            status = self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            return f"it takes more than {seconds * _WALL_SECONDS_PER_SECOND} s to read"
        if self._is_stopped:
            raise Interrupted("stopped")
        if status in (-signal.SIGKILL, -signal.SIGTERM):
            return ""
        if status == -signal.SIGXCPU:
            return f"it takes more than {seconds} s of processor time to read"
        return f"the process that reads it ended with status {status}"

    def stop(self) -> None:
        """Kill the process; whoever waits for its answer gets Interrupted."""
        self._is_stopped = True
        self._process.kill()

    def close(self) -> None:
        """Kill the process, wait for it and close the pipes."""
        self._process.kill()
        self._process.wait()
        for stream in (self._input, self._output):
            with suppress(OSError):
                stream.close()
        os.close(self._lifeline)


def _wait_until_ready(descriptor: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    milliseconds = max(0, int(1000 * (deadline - time.monotonic())))
    if not poll.poll(milliseconds):
        raise _NoAnswer


class _Pool:
    """Workers of this process. All methods are thread-safe."""

    def __init__(self) -> None:
        self.slots = threading.BoundedSemaphore(_MAX_WORKERS)
        """A caller has one of them while it uses a worker."""
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._running: set[_Worker] = set()

    def take(self) -> _Worker:
        """Return a worker that nobody uses; start one if there is none."""
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        if worker is None:
            worker = _Worker()
        with self._lock:
            self._running.add(worker)
        return worker

    def put_back(self, worker: _Worker, *, is_usable: bool) -> None:
        """Take a worker back; end it unless it can be used again."""
        is_reused = is_usable and worker.bytes_received < _MAX_BYTES_OF_WORKER
        with self._lock:
            self._running.discard(worker)
            if is_reused:
                self._idle.append(worker)
        if not is_reused:
            worker.close()

    def stop_running(self) -> None:
        """Kill the workers that are in use."""
        with self._lock:
            for worker in self._running:
                worker.stop()

    def close(self) -> None:
        """End all workers."""
        self.stop_running()
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()


_pool = _Pool()
atexit.register(lambda: _pool.close())


def _make_new_pool() -> None:
    """Leave the workers to the parent process after a fork."""
    global _pool
    _pool = _Pool()


os.register_at_fork(after_in_child=_make_new_pool)
