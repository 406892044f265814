"""Containers, networks and volumes in an engine: their creation and removal.

Everything that we create has labels. Nothing without our labels is ever touched.
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
"""Capabilities for package managers, which change owners, modes and users.

Engines also grant devices, raw sockets, chroot and the audit log by default; we drop these.
"""
_PROCESS_CAPABILITIES = ["KILL", "NET_BIND_SERVICE", "SETGID", "SETUID"]
_BIN_DIR = "/cooperbench/bin"
_ISOLATED_BRIDGE = {"com.docker.network.bridge.enable_icc": "false"}
"""Options of a Docker bridge whose containers cannot reach each other."""


class EngineSession:
    """The resources of one backend object in an engine, labeled with the session's name."""

    def __init__(self, engine: Engine, settings: DockerSettings, name: str = "") -> None:
        self.engine = engine
        self.name = name or secrets.token_hex(8)
        self.process = os.getpid()
        self.images = ImageStore(engine, settings)
        self._settings = settings
        self._labels = {OWNER: str(this_owner()), SESSION: self.name}
        self._lock = threading.Lock()
        self._bridge = ""
        """The network that all containers of the session share; created at first use."""
        self._volumes: dict[Path, str] = {}

    def new_name(self) -> str:
        """Return a name for a new container, network or volume."""
        return f"cooperbench-{self.name}-{secrets.token_hex(4)}"

    def check_mounts(self) -> None:
        """Raise UserError if a mounted folder does not exist: Podman would create an empty one."""
        if not self.engine.where.startswith("unix://"):
            return
        for mount in self._settings.mounts:
            if not Path(mount.source).exists():
                raise UserError(
                    f"mount {mount.source}:{mount.target}: {mount.source} does not exist;"
                    " check the mount's source"
                )

    def create_container(
        self,
        image: EngineImage,
        name: str,
        command: list[str],
        workdir: str,
        options: SandboxOptions,
    ) -> None:
        """Create a container with an open stdin and no entrypoint; it is not started yet."""
        self.check_mounts()
        network = self._network(options)
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
            # Like NetworkMode none, with a loopback from the runtime, but 100 ms faster. The
            # supervisor writes /etc/hosts, which the engine then leaves alone.
            "NetworkDisabled": network == "none" and not self.engine.podman,
            "Healthcheck": {"Test": ["NONE"]},
            "StopSignal": "SIGKILL",
            "HostConfig": self._host_config(image, network, options),
        }
        self.engine.api.create_container_from_config(config, name)

    def _host_config(
        self, image: EngineImage, network: str, options: SandboxOptions
    ) -> dict[str, Any]:
        """Return the isolation, limits and mounts of a container, in the engine's format."""
        # On a tmpfs, so that channels work if the disk is full and leave nothing in snapshots.
        tmpfs = {SCRATCH_DIR: "rw,nosuid,nodev,mode=1777,size=1g"}
        user = str(image.config.get("User") or "").partition(":")[0]
        if user not in ("", "0", "root"):
            # The supervisor, which runs as this user, could not create these folders.
            for folder in (_BIN_DIR, "/patches"):
                tmpfs[folder] = "rw,exec,nosuid,nodev,mode=1777"
        return {
            "NetworkMode": network,
            # The supervisor is process 1: nothing inside can kill it.
            "Init": False,
            "CapDrop": ["ALL"],
            "CapAdd": _FILE_CAPABILITIES + _PROCESS_CAPABILITIES,
            "SecurityOpt": ["no-new-privileges"],
            # The output of a channel must not be logged to disk.
            "LogConfig": {"Type": "none"},
            "Tmpfs": tmpfs,
            "Mounts": self._mounts(image, options),
            **self._limits(),
        }

    def _mounts(self, image: EngineImage, options: SandboxOptions) -> list[dict[str, Any]]:
        """Return the mounts of a container, in the engine's format."""
        mounts: list[dict[str, Any]] = [
            {
                "Type": "bind",
                "Source": mount.source,
                "Target": mount.target,
                "ReadOnly": not mount.writable,
            }
            for mount in self._settings.mounts
        ]
        # A volume starts with the image's content and is not part of a snapshot.
        mounts += [{"Type": "volume", "Target": path} for path in options.snapshot_excludes]
        if options.programs is not None:
            mounts.append(self._mount_programs(image, options.programs))
        return mounts

    def _network(self, options: SandboxOptions) -> str:
        """Return a container's NetworkMode for its network policy."""
        if options.network == "none":
            return "none"
        if self.engine.podman:
            # Podman cannot isolate containers on one bridge, so each gets its own bridge.
            return self._create_bridge({"isolate": "true"})
        with self._lock:
            if not self._bridge:
                self._bridge = self._create_bridge(_ISOLATED_BRIDGE)
            return self._bridge

    def _create_bridge(self, driver_options: dict[str, str]) -> str:
        name = self.new_name()
        with self.engine.faults("creating a network for sandboxes"):
            self.engine.api.create_network(name, "bridge", driver_options, labels=self._labels)
        return name

    def _limits(self) -> dict[str, Any]:
        """Return the limits in the engine's format. The engine rejects what it cannot enforce."""
        settings = self._settings
        limits: dict[str, Any] = {}
        if settings.cpus:
            available = float(self.engine.info.get("NCPU") or settings.cpus)
            limits["NanoCpus"] = round(min(settings.cpus, available) * 1e9)
        if settings.memory:
            limits["Memory"] = limits["MemorySwap"] = settings.memory
        if settings.pids_limit:
            limits["PidsLimit"] = settings.pids_limit
        return limits

    def _mount_programs(self, image: EngineImage, folder: Path) -> dict[str, Any]:
        """Mount a local folder read-only; for a remote engine, copy it to a volume once."""
        common = {"Target": PROGRAMS_DIR, "ReadOnly": True}
        if self.engine.where.startswith("unix://"):
            return {"Type": "bind", "Source": str(folder), **common}
        with self._lock:
            if folder not in self._volumes:
                self._volumes[folder] = self._copy_to_volume(image, folder)
            return {"Type": "volume", "Source": self._volumes[folder], **common}

    def _copy_to_volume(self, image: EngineImage, folder: Path) -> str:
        """Copy a folder to a new volume, through a container that is never started."""
        name = self.new_name()
        api = self.engine.api
        mounts = [{"Type": "volume", "Source": name, "Target": PROGRAMS_DIR}]
        config = {"Image": image.image_id, "Cmd": ["true"], "HostConfig": {"Mounts": mounts}}
        api.create_volume(name, labels=self._labels)
        api.create_container_from_config({**config, "Labels": self._labels}, name)
        with subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE) as tar:
            api.put_archive(name, PROGRAMS_DIR, tar.stdout)
        self.engine.remove_container(name)
        return name


def remove_leftovers(engine: Engine) -> list[str]:
    """Remove the containers, networks and volumes of dead processes; return their names."""
    return _remove(engine, lambda labels, running: is_leftover(labels, OWNER, running=running))


def remove_session(engine: Engine, session: str) -> list[str]:
    """Remove everything that one backend object has created and not removed itself."""
    return _remove(engine, lambda labels, _: labels.get(SESSION) == session)


def _remove(engine: Engine, predicate: Callable[[dict[str, str], bool], bool]) -> list[str]:
    """Remove our resources for which `predicate(labels, is_running)` holds; return their names."""
    api = engine.api
    filters = {"label": [OWNER]}
    removed = []
    with engine.faults("listing leftovers"):
        containers: list[dict[str, Any]] = api.containers(all=True, filters=filters)
        networks: list[dict[str, Any]] = api.networks(filters=filters)
        volumes: list[dict[str, Any]] = api.volumes(filters=filters)["Volumes"] or []
    for container in containers:
        is_running = container["State"] in ("running", "paused", "restarting")
        if predicate(container["Labels"] or {}, is_running):
            engine.remove_container(container["Id"])
            names = container["Names"] or [container["Id"]]
            removed.append(names[0].lstrip("/"))
    others = [(network, api.remove_network) for network in networks]
    others += [(volume, api.remove_volume) for volume in volumes]
    for resource, remove in others:
        if predicate(resource["Labels"] or {}, False):
            # It may be gone or still in use; the next start tries again.
            with suppress(InfraError), engine.faults(f"removing {resource['Name']}"):
                remove(resource["Name"])
                removed.append(resource["Name"])
    return removed
