"""Keeps an engine for as long as a test process wants it: watcher.py USERS_LOCK LOG FOLDER COMMAND...

Everybody who uses the engine holds a shared lock on USERS_LOCK, which the kernel lets go of however they end. Once the
exclusive lock can be had, nobody is left: the engine is ended by its pid, and FOLDER removed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path


def main(users_lock: str, log: str, folder: str, *command: str) -> None:
    if os.fork():
        return  # whoever started us does not wait for the end
    os.setsid()
    with Path(log).open("wb") as output:
        engine = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    fd = os.open(users_lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    engine.terminate()
    try:
        engine.wait(30)
    except subprocess.TimeoutExpired:
        engine.kill()
        engine.wait()
    for place in _mounted_in(folder):
        subprocess.run(["umount", "--lazy", place], check=False)
    shutil.rmtree(folder, ignore_errors=True)


def _mounted_in(folder: str) -> list[str]:
    """What an engine that has ended leaves there, such as its network namespace; the innermost first."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return [
        place for line in reversed(mounts) if (place := line.split()[1]).startswith(f"{folder}/")
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
