"""Docker on a machine: `ssh` forwards the engine's socket to a local one.

The remote command of `ssh` reads stdin until it is closed. When this process ends, `ssh` ends too,
and with it the sandboxes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from cooperbench.backends.docker.engine import Engine, EngineGone, open_api, translate
from cooperbench.backends.docker.sandbox import DockerSandbox
from cooperbench.backends.gcp.compute import SSH_USER
from cooperbench.backends.gcp.google_clients import translated_errors
from cooperbench.errors import CooperBenchError, InfraError, SandboxDead, UserError
from cooperbench.temporary import owned_prefix
from cooperbench.text import printable

_ENGINE_SOCKET = "/var/run/docker.sock"
_MAX_FOLDER = 40
_CONNECT_SECONDS = 120.0
_GOOGLE_REGISTRY = re.compile(r"[a-z0-9-]+-docker\.pkg\.dev|(?:[a-z]+\.)?gcr\.io")


class Keys:
    """A temporary SSH key in a temporary folder."""

    def __init__(self) -> None:
        """Create the key; UserError if ssh is not installed."""
        if shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
            raise UserError(
                "the gcp backend needs ssh, which is not installed:"
                " sudo apt-get install openssh-client"
            )
        parent = tempfile.gettempdir()
        if len(parent) >= _MAX_FOLDER:
            # Paths of sockets must be short.
            parent = "/tmp"  # noqa: S108  # mkdtemp makes a private folder in it
        self.folder = Path(tempfile.mkdtemp(prefix=owned_prefix("gcp"), dir=parent))
        self.private = self.folder / "key"
        options = ["-q", "-t", "ed25519", "-N", "", "-C", SSH_USER, "-f", str(self.private)]
        subprocess.run(["ssh-keygen", *options], stdin=subprocess.DEVNULL, check=True)
        self.public = self.private.with_suffix(".pub").read_text("utf-8").strip()


class MachineEngine(Engine):
    """The Docker engine of a machine, through one SSH connection."""

    def __init__(
        self, keys: Keys, machine: str, address: str, host_key: str, stop: threading.Event
    ) -> None:
        # Names of machines in one fleet differ only at the end.
        socket = keys.folder / machine[-8:]
        self._errors = keys.folder / f"{machine}.log"
        known_hosts = keys.folder / f"{machine}.hosts"
        known_hosts.write_text(f"{machine} {host_key}\n", "utf-8")
        options = {
            "IdentityFile": keys.private,
            "IdentitiesOnly": "yes",
            "BatchMode": "yes",
            # The machine reported its host key to Google; a server with another key is rejected.
            "UserKnownHostsFile": known_hosts,
            "GlobalKnownHostsFile": "/dev/null",
            "HostKeyAlias": machine,
            "StrictHostKeyChecking": "yes",
            "HostKeyAlgorithms": "ssh-ed25519",
            "ExitOnForwardFailure": "yes",
            "StreamLocalBindUnlink": "yes",
            "ConnectTimeout": "20",
            "ServerAliveInterval": "15",
            "ServerAliveCountMax": "8",
            "LogLevel": "ERROR",
        }
        option_argv = []
        for option, value in options.items():
            option_argv += ["-o", f"{option}={value}"]
        forward = ["-L", f"{socket}:{_ENGINE_SOCKET}", f"{SSH_USER}@{address}", "cat >/dev/null"]
        self._command = ["ssh", "-F", "/dev/null", "-T", *option_argv, *forward]
        docker_address = f"unix://{socket}"
        self._start_ssh()
        try:
            self._wait_for(socket, machine, stop)
            api, _ = open_api(import_module("docker"), docker_address, {})
        except BaseException as error:
            self._end_ssh()
            if isinstance(error, CooperBenchError) or not isinstance(error, Exception):
                raise
            raise translate(error, f"connecting to the engine of {machine}") from error
        super().__init__(api, f"machine {machine}", podman=False, address=docker_address)

    @property
    def connected(self) -> bool:
        """Whether the SSH connection is open."""
        return self._ssh.poll() is None

    @contextmanager
    def faults(self, doing: str) -> Iterator[None]:
        """Translate errors, and fail at once if the SSH connection is lost."""
        # docker-py would leave the socket of a refused connection open.
        if not self.connected:
            raise EngineGone(
                f"{doing}: the connection to the {self.where} was lost: {self._last_error()}"
            )
        with super().faults(doing):
            yield

    def close(self) -> None:
        """End the SSH connection and close the client."""
        self._end_ssh()
        super().close()

    def _wait_for(self, socket: Path, machine: str, stop: threading.Event) -> None:
        """Wait until ssh has created the socket. A new machine may reject the first attempts."""
        deadline = time.monotonic() + _CONNECT_SECONDS
        while not socket.exists():
            error = self._last_error()
            if stop.is_set() or time.monotonic() >= deadline or "host key" in error.lower():
                raise InfraError(f"no SSH connection to {machine}: {error or 'no answer'}")
            if not self.connected:
                self._end_ssh()
                stop.wait(1.0)
                self._start_ssh()
            stop.wait(0.05)

    def _start_ssh(self) -> None:
        with self._errors.open("wb") as errors:
            self._ssh = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                # Ctrl-C must reach only the harness, which then ends ssh.
                start_new_session=True,
            )

    def _end_ssh(self) -> None:
        self._ssh.kill()
        self._ssh.communicate()

    def _last_error(self) -> str:
        """Return the last line that ssh wrote to stderr."""
        lines = self._errors.read_text("utf-8", "replace").strip().splitlines()
        return printable(lines[-1])[:300] if lines else ""


class MachineSandbox(DockerSandbox):
    """A container on a machine."""

    def __init__(self, is_running: Callable[[], bool], *args: Any, **options: Any) -> None:
        self._machine_is_running = is_running
        super().__init__(*args, **options)

    def death(self) -> SandboxDead:
        """Return why the sandbox died; a machine that shut down is not the agent's doing."""
        if self._destroyed and not self._machine_is_running():
            self._destroyed = False
            self._end_reason = "its machine was shut down"
        return super().death()


def google_hosts(names: Iterable[str]) -> list[str]:
    """Return the registries of Google among the registries of these images."""
    hosts = {name.partition("/")[0] for name in names}
    return sorted(host for host in hosts if _GOOGLE_REGISTRY.fullmatch(host))


def sign_in(api: Any, names: Iterable[str]) -> None:
    """Log a docker-py client in to Google's registries of these images."""
    for host in google_hosts(names):
        with translated_errors("requesting a token for the registry"):
            import google.auth
            from google.auth.transport.requests import Request

            scope = "https://www.googleapis.com/auth/cloud-platform"
            credentials: Any = google.auth.default(scopes=[scope])[0]
            credentials.refresh(Request())
        api.login(
            "oauth2accesstoken", str(credentials.token), registry=f"https://{host}", reauth=True
        )
