"""Runs a worker so that nothing of it stays: supervisor.py CONTROL_FD PROGRAM [ARGUMENT …], without our package.

When the pipe CONTROL_FD closes, the harness is gone or done with it: the worker and all its descendants are killed, as
they are when the worker ends by itself. As a "subreaper" this process inherits every orphan among them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import threading

_PR_SET_CHILD_SUBREAPER = 36
_COULD_NOT_START = 127


def main(control: int, argv: list[str]) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.set_inheritable(control, False)
    try:
        worker = subprocess.Popen(argv)
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
        return _COULD_NOT_START
    # Only the worker's ends of these may keep them open: the harness has to see when the worker is gone.
    for descriptor in (0, 1):
        os.close(descriptor)
    ended, ended_writer = os.pipe()

    def wait() -> None:
        worker.wait()
        os.close(ended_writer)

    waiter = threading.Thread(target=wait)
    waiter.start()
    select.select([control, ended], [], [])
    while found := children_of(os.getpid()):
        # Their own children fall to us when they go, and are found in the next round.
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        waiter.join()
        for pid in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
    code = worker.wait()
    return code if code >= 0 else 128 - code


def children_of(parent: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208  # no pathlib: this script has to start fast
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                if int(file.read().rpartition(b")")[2].split()[1]) == parent:
                    found.append(int(name))
    return found


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
