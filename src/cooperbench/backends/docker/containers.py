"""What we make in an engine besides images: containers, networks and volumes, and their removal.

Everything has labels and is found by them alone: nothing that is not ours is touched.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cooperbench.backends.docker.engine import Engine
from cooperbench.backends.docker.images import OWNER, PURPOSE, SESSION, EngineImage, ImageStore
from cooperbench.backends.docker.sandbox import SCRATCH_DIR
from cooperbench.backends.docker.settings import DockerSettings
from cooperbench.backends.ownership import is_leftover, this_owner
from cooperbench.errors import InfraError, UserError
from cooperbench.sandbox.contract import PROGRAMS_DIR, SandboxOptions

_FILE_CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID"]
"""Package managers change owners, modes and users; test suites kill and bind. Gone are making devices, raw sockets,
changing the root, and writing to the audit log, which engines grant by default."""
_PROCESS_CAPABILITIES = ["KILL", "NET_BIND_SERVICE", "SETGID", "SETUID"]
_BIN_DIR = "/cooperbench/bin"
_NO_TALK = {"com.docker.network.bridge.enable_icc": "false"}
"""Containers on a bridge of Docker's cannot reach each other."""


class EngineSession:
    """One engine, as one backend object uses it. What is made there is labelled with the session and goes with it."""

    def __init__(self, engine: Engine, settings: DockerSettings, name: str = "") -> None:
        self.engine = engine
        self.name = name or secrets.token_hex(8)
        self.process = os.getpid()
        self.images = ImageStore(engine, settings)
        self._settings = settings
        self._labels = {OWNER: str(this_owner()), SESSION: self.name}
        self._lock = threading.Lock()
        self._bridge = ""
        """The network that all containers of the session share, made when first asked for."""
        self._volumes: dict[Path, str] = {}

    def new_name(self) -> str:
        """For a container, network or volume."""
        return f"cooperbench-{self.name}-{secrets.token_hex(4)}"

    def check_mounts(self) -> None:
        """Podman makes a folder that is not there; a wrong path should not pass for an empty one."""
        for mount in self._settings.mounts:
            if self.engine.where.startswith("unix://") and not Path(mount.source).exists():
                raise UserError(
                    f"mount {mount.source}:{mount.target}: {mount.source} does not exist; check the mount's source"
                )

    def create_container(
        self,
        image: EngineImage,
        name: str,
        command: list[str],
        workdir: str,
        options: SandboxOptions,
    ) -> None:
        """Made, not started. Its entrypoint is cleared, its stdin open."""
        self.check_mounts()
        network = self._network(options)
        mounts = [
            {
                "Type": "bind",
                "Source": mount.source,
                "Target": mount.target,
                "ReadOnly": not mount.writable,
            }
            for mount in self._settings.mounts
        ]
        # Volumes begin with what the image has there, and are part of no image that is made of the container.
        mounts += [{"Type": "volume", "Target": path} for path in options.snapshot_excludes]
        if options.programs is not None:
            mounts.append(self._mount_programs(image, options.programs))
        # Not on the container's disk: a channel must answer when that is full, and leave nothing in images.
        tmpfs = {SCRATCH_DIR: "rw,nosuid,nodev,mode=1777,size=1g"}
        if str(image.config.get("User") or "").partition(":")[0] not in ("", "0", "root"):
            # The supervisor could not make these folders.
            tmpfs |= dict.fromkeys((_BIN_DIR, "/patches"), "rw,exec,nosuid,nodev,mode=1777")
        host_config: dict[str, Any] = {
            "NetworkMode": network,
            # The supervisor is process 1: nothing inside can kill it.
            "Init": False,
            "CapDrop": ["ALL"],
            "CapAdd": _FILE_CAPABILITIES + _PROCESS_CAPABILITIES,
            "SecurityOpt": ["no-new-privileges"],
            # The output of a channel is no log, and would be kept on disk.
            "LogConfig": {"Type": "none"},
            "Tmpfs": tmpfs,
            "Mounts": mounts,
            **self._limits(),
        }
        labels = {f"cooperbench.{label}": value for label, value in options.labels.items()}
        config: dict[str, Any] = {
            "Image": image.image_id,
            "Entrypoint": [],
            "Cmd": command,
            "WorkingDir": workdir,
            "Env": [f"PATH={_BIN_DIR}:{image.path}"],
            "Labels": {**labels, **self._labels, PURPOSE: options.purpose},
            "OpenStdin": True,
            "StdinOnce": True,
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": False,
            # The same as NetworkMode none, with a loopback from the runtime, but 100 ms sooner. The supervisor sees to
            # /etc/hosts, which the engine then leaves alone.
            "NetworkDisabled": network == "none" and not self.engine.podman,
            "Healthcheck": {"Test": ["NONE"]},
            "StopSignal": "SIGKILL",
            "HostConfig": host_config,
        }
        self.engine.api.create_container_from_config(config, name)

    def _network(self, options: SandboxOptions) -> str:
        """A container's NetworkMode, as its policy wants it."""
        if options.network == "none":
            return "none"
        if self.engine.podman:
            # Podman cannot forbid neighbours to talk, so nobody has neighbours.
            return self._create_bridge({"isolate": "true"})
        with self._lock:
            self._bridge = self._bridge or self._create_bridge(_NO_TALK)
            return self._bridge

    def _create_bridge(self, driver_options: dict[str, str]) -> str:
        name = self.new_name()
        with self.engine.faults("making a network for sandboxes"):
            self.engine.api.create_network(name, "bridge", driver_options, labels=self._labels)
        return name

    def _limits(self) -> dict[str, Any]:
        """Those that are set, as far as the engine's machine reaches; what it cannot enforce it refuses by itself."""
        settings, limits = self._settings, dict[str, Any]()
        if settings.cpus:
            there_are = float(self.engine.info.get("NCPU") or settings.cpus)
            limits["NanoCpus"] = round(min(settings.cpus, there_are) * 1e9)
        if settings.memory:
            limits["Memory"] = limits["MemorySwap"] = settings.memory
        if settings.pids_limit:
            limits["PidsLimit"] = settings.pids_limit
        return limits

    def _mount_programs(self, image: EngineImage, folder: Path) -> dict[str, Any]:
        """A folder of this machine, read-only. To an engine elsewhere it is copied once, into a volume."""
        common = {"Target": PROGRAMS_DIR, "ReadOnly": True}
        if self.engine.where.startswith("unix://"):
            return {"Type": "bind", "Source": str(folder), **common}
        with self._lock:
            if folder not in self._volumes:
                self._volumes[folder] = self._copy_to_volume(image, folder)
            return {"Type": "volume", "Source": self._volumes[folder], **common}

    def _copy_to_volume(self, image: EngineImage, folder: Path) -> str:
        """Through a container that is never started."""
        name, api = self.new_name(), self.engine.api
        mounts = [{"Type": "volume", "Source": name, "Target": PROGRAMS_DIR}]
        config = {"Image": image.image_id, "Cmd": ["true"], "HostConfig": {"Mounts": mounts}}
        api.create_volume(name, labels=self._labels)
        api.create_container_from_config({**config, "Labels": self._labels}, name)
        with subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE) as tar:
            api.put_archive(name, PROGRAMS_DIR, tar.stdout)
        self.engine.remove_container(name)
        return name


def remove_leftovers(engine: Engine) -> list[str]:
    """Remove the containers, networks and volumes of processes that are gone; returns their names."""
    return _remove(engine, lambda labels, running: is_leftover(labels, OWNER, running=running))


def remove_session(engine: Engine, session: str) -> list[str]:
    """Remove everything that one backend object has made and not removed itself."""
    return _remove(engine, lambda labels, _: labels.get(SESSION) == session)


def _remove(engine: Engine, wanted: Callable[[dict[str, str], bool], bool]) -> list[str]:
    api, filters, removed = engine.api, {"label": [OWNER]}, []
    with engine.faults("listing what is left over"):
        containers: list[dict[str, Any]] = api.containers(all=True, filters=filters)
        networks: list[dict[str, Any]] = api.networks(filters=filters)
        volumes: list[dict[str, Any]] = api.volumes(filters=filters)["Volumes"] or []
    for found in containers:
        if wanted(found["Labels"] or {}, found["State"] in ("running", "paused", "restarting")):
            engine.remove_container(found["Id"])
            removed.append((found["Names"] or [found["Id"]])[0].lstrip("/"))
    others = [(network, api.remove_network) for network in networks]
    others += [(volume, api.remove_volume) for volume in volumes]
    for found, remove in others:
        if wanted(found["Labels"] or {}, False):
            # One that is gone, or still in use by somebody: the next start tries again.
            with suppress(InfraError), engine.faults(f"removing {found['Name']}"):
                remove(found["Name"])
                removed.append(found["Name"])
    return removed
