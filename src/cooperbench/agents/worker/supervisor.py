"""Run a worker, and kill everything that it started: supervisor.py CONTROL_FD PROGRAM [ARGUMENT …].

When the pipe CONTROL_FD closes, the harness has ended or no longer needs the worker. Then, or when
the worker ends by itself, all its descendants are killed. This process is a "subreaper": it becomes
the parent of every orphan among them. It must not import our package.
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
    """Run the worker and return its exit code."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.set_inheritable(control, False)
    try:
        worker = subprocess.Popen(argv)
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
        return _COULD_NOT_START
    # Close our copies of stdin and stdout, so that the harness sees when the worker has ended.
    for descriptor in (0, 1):
        os.close(descriptor)
    ended, ended_writer = os.pipe()

    def wait_for_worker() -> None:
        worker.wait()
        os.close(ended_writer)

    waiter = threading.Thread(target=wait_for_worker)
    waiter.start()
    select.select([control, ended], [], [])
    while children := children_of(os.getpid()):
        # Their own children become ours when they end, and are killed in the next round.
        for pid in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        waiter.join()
        for pid in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
    code = worker.wait()
    return code if code >= 0 else 128 - code


def children_of(parent: int) -> list[int]:
    """Return the process ids of all children, zombies included."""
    children = []
    for name in os.listdir("/proc"):  # noqa: PTH208  # pathlib would make this script start slower
        if not name.isdigit():
            continue
        path = f"/proc/{name}/stat"
        with contextlib.suppress(OSError), open(path, "rb") as file:  # noqa: PTH123  # see above
            fields = file.read().rpartition(b")")[2].split()
            if int(fields[1]) == parent:
                children.append(int(name))
    return children


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
