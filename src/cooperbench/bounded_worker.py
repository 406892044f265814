"""The program of a worker process: calls functions with limits; see `bounded`.

It is started as `python -m cooperbench.bounded_worker LIFELINE`. Requests arrive on stdin, answers
leave on what was stdout.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import pickle
import resource
import sys
import traceback
from pathlib import Path

import msgspec

from cooperbench.bounded import ANSWER_HEADER, REQUEST_HEADER
from cooperbench.text import describe_error

MAX_MEMORY_BYTES = 3 * 1024**3
"""Address space of a worker."""


def main() -> None:
    """Answer requests until stdin is closed."""
    _die_with_parent(int(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit(resource.RLIMIT_AS, MAX_MEMORY_BYTES)
    requests = os.fdopen(0, "rb")
    answers = os.fdopen(os.dup(1), "wb")
    # Nothing that a function prints gets between the answers.
    os.dup2(2, 1)
    while header := requests.read(REQUEST_HEADER.size):
        size, seconds = REQUEST_HEADER.unpack(header)
        used = resource.getrusage(resource.RUSAGE_SELF)
        # When this is exceeded the kernel sends SIGXCPU, which ends the process.
        _limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime) + seconds)
        answer = _answer(requests.read(size))
        answers.write(ANSWER_HEADER.pack(len(answer)) + answer)
        answers.flush()


def _die_with_parent(lifeline: int) -> None:
    """Let the kernel send SIGIO, which ends this process, when the other end of a pipe is closed.

    It needs neither this interpreter, which may be busy, nor the thread that started the process.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)


def _limit(kind: int, value: int) -> None:
    """Set the soft limit of a resource, which the hard limit may not allow fully."""
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, hard))


def _answer(request: bytes) -> bytes:
    """Call the function of a request; return its result, or why there is none, as JSON."""
    try:
        function, args, kwargs = pickle.loads(request)  # noqa: S301  # our parent process made it
        result = {"result": msgspec.to_builtins(function(*args, **kwargs), str_keys=True)}
        # Not msgspec: paths and lines may have unpaired surrogates.
        return json.dumps(result).encode()
    except MemoryError:
        error = f"it takes more than {MAX_MEMORY_BYTES // 1024**3} GiB of memory to read"
    except Exception as exception:
        frame = traceback.extract_tb(exception.__traceback__)[-1]
        location = f"{Path(frame.filename).name}:{frame.lineno}"
        error = f"its reader failed at {location}: {describe_error(exception)}"
    return json.dumps({"error": error}).encode()


if __name__ == "__main__":
    main()
