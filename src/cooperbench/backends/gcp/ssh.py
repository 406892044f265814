"""One SSH connection to a machine, which carries everything: its engine's socket appears as a socket of ours.

The system's `ssh` does it. Each connection to the local socket becomes a channel of the one connection. The remote
command only reads what we hold: when this process ends, however it does, so does `ssh`, and with it the sandboxes.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.errors import InfraError, SandboxTimeout, UserError
from cooperbench.temporary import owned_prefix, remove_tree
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.backends.gcp.settings import GcpSettings

ENGINE_SOCKET = "/var/run/docker.sock"
_LONGEST_SOCKET_PATH = 100
_CONNECT_SECONDS = 120.0
_LOOK_SECONDS = 0.05
_PAUSE_SECONDS = 1.0


class Keys:
    """A key made for one run, in a folder that goes with it."""

    def __init__(self) -> None:
        if shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
            raise UserError(
                "machines are reached with ssh, which is not installed: sudo apt-get install openssh-client"
            )
        self.folder = _short_folder()
        self.private = self.folder / "key"
        options = ["-q", "-t", "ed25519", "-N", "", "-C", "cooperbench", "-f", str(self.private)]
        command = ["ssh-keygen", *options]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise InfraError(f"ssh-keygen failed: {printable(done.stderr.strip())[:200]}")
        algorithm, key, *_ = self.private.with_suffix(".pub").read_text("utf-8").split()
        self.public = f"{algorithm} {key}"

    def remove(self) -> None:
        remove_tree(self.folder)


class Tunnel:
    """Open from the start; `socket` is where the engine answers."""

    def __init__(
        self,
        settings: GcpSettings,
        keys: Keys,
        name: str,
        address: str,
        host_key: str,
        user: str,
        give_up: Callable[[], bool],
    ) -> None:
        self._name = name
        self.socket = keys.folder / f"{name}.sock"
        known_hosts = keys.folder / f"{name}.hosts"
        known_hosts.write_text(f"{name} {host_key}\n", "utf-8")
        self._errors = keys.folder / f"{name}.log"
        self._command = ssh_command(settings, keys.private, known_hosts, name, address, self.socket, user)
        self._process: subprocess.Popen[bytes] | None = None
        self._connect(give_up)

    @property
    def open(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = self._errors.read_text("utf-8", "replace").strip().splitlines()
            return printable(lines[-1])[:300] if lines else ""
        return ""

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()

    def _connect(self, give_up: Callable[[], bool]) -> None:
        """A machine that has just booted may refuse the first times."""
        deadline = time.monotonic() + _CONNECT_SECONDS
        while True:
            with self._errors.open("wb") as errors:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    # A Ctrl-C is for the harness, which then ends this in its own time.
                    start_new_session=True,
                )
            while self.open:
                if answers(self.socket):
                    return
                if give_up() or time.monotonic() >= deadline:
                    self.close()
                    raise SandboxTimeout(
                        f"no SSH connection to {self._name} in time: {self.last_words or 'no answer'}"
                    )
                time.sleep(_LOOK_SECONDS)
            self.close()
            words = self.last_words
            if "Host key verification failed" in words or "HOST IDENTIFICATION HAS CHANGED" in words:
                raise InfraError(f"{self._name} is not the machine that we made: {words}")
            if give_up() or time.monotonic() >= deadline:
                raise InfraError(f"no SSH connection to {self._name}: {words or 'ssh ended'}")
            time.sleep(_PAUSE_SECONDS)


def ssh_command(
    settings: GcpSettings, key: Path, known_hosts: Path, name: str, address: str, local: Path, user: str
) -> list[str]:
    """Nothing of the user's own configuration has a say; the host key is the one that the machine told Google."""
    options = {
        "IdentityFile": str(key),
        "IdentitiesOnly": "yes",
        "BatchMode": "yes",
        "UserKnownHostsFile": str(known_hosts),
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlias": name,
        "StrictHostKeyChecking": "yes",
        "HostKeyAlgorithms": "ssh-ed25519",
        "ExitOnForwardFailure": "yes",
        "StreamLocalBindUnlink": "yes",
        "ConnectTimeout": "20",
        "ServerAliveInterval": "15",
        "ServerAliveCountMax": "8",
        "LogLevel": "ERROR",
    }
    if settings.reach == "iap":
        gcloud = "gcloud compute start-iap-tunnel"
        where = f"--project={settings.project} --zone={settings.zone}"
        options["ProxyCommand"] = f"{gcloud} {name} 22 --listen-on-stdin {where} --verbosity=error"
    words = [word for option, value in options.items() for word in ("-o", f"{option}={value}")]
    forward = ["-L", f"{local}:{ENGINE_SOCKET}"]
    return ["ssh", "-F", "/dev/null", "-T", *words, *forward, f"{user}@{address}", "cat >/dev/null"]


def answers(path: Path) -> bool:
    """Does an engine answer at this socket?"""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(10)
        try:
            probe.connect(str(path))
            probe.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in probe.recv(100)
        except OSError:
            return False


def _short_folder() -> Path:
    """The path of a socket may not be long."""
    folder = Path(tempfile.mkdtemp(prefix=owned_prefix("gcp")))
    if len(str(folder)) < _LONGEST_SOCKET_PATH - 30:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix=owned_prefix("gcp"), dir="/tmp"))  # a folder of its own, 0700
