"""How a sandbox's container is made: limits, privileges, mounts and network."""

from __future__ import annotations

import io
import re
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cooperbench.backends.docker.faults import faults
from cooperbench.errors import SandboxError, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.backends.docker.engine import Engine
    from cooperbench.backends.docker.images import Found
    from cooperbench.backends.docker.networks import Attachment
    from cooperbench.backends.docker.settings import DockerSettings

KEPT_CAPABILITIES = (
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETGID",
    "SETUID",
)
"""Package managers change owners, modes and users; test suites kill and bind. Gone are making devices, raw sockets,
changing the root, and writing to the audit log, which engines grant by default."""
_NO_INIT = r"(?i)init binary not found|container-init|docker-init.*not found"
SCRATCH_DIR = "/cooperbench/scratch"
_BIN_DIR = "/cooperbench/bin"


def create_container(
    engine: Engine,
    settings: DockerSettings,
    image: Found,
    *,
    name: str,
    command: list[str],
    workdir: str,
    network: Attachment,
    labels: Mapping[str, str],
    volumes: Sequence[str] = (),
) -> None:
    """Made, not started. Its entrypoint is cleared, its stdin open.

    `volumes`: folders that lie on volumes of their own, which begin with what the image has there, are part of no image
    that is made of the container, and go with it.
    """
    check_mounts(engine, settings)
    host_config: dict[str, Any] = {
        "NetworkMode": network.mode,
        **({"Dns": list(network.name_servers)} if network.name_servers else {}),
        "Init": engine.has_init,
        "CapDrop": ["ALL"],
        "CapAdd": list(KEPT_CAPABILITIES),
        "SecurityOpt": ["no-new-privileges"],
        # The output of a channel is no log, and would be kept on disk.
        "LogConfig": {"Type": "none"},
        # Not on the container's disk: a channel must answer when that is full, and leave nothing in images.
        "Tmpfs": {SCRATCH_DIR: "rw,nosuid,nodev,mode=1777,size=1g"},
        "Mounts": [
            {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": not mount.writable}
            for mount in settings.mounts
        ]
        + [{"Type": "volume", "Target": path} for path in volumes],
        **_limits(engine, settings),
    }
    config: dict[str, Any] = {
        "Image": image.image_id,
        "Entrypoint": [],
        "Cmd": command,
        "WorkingDir": workdir,
        "Env": [f"PATH={_BIN_DIR}:{image.path}"],
        "Labels": dict(labels),
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        # The same as NetworkMode none, with a loopback from the runtime, but 100 ms sooner. The guardian sees to
        # /etc/hosts, which the engine then leaves alone.
        "NetworkDisabled": network.mode == "none" and not engine.podman,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": host_config,
    }
    doing = f"making a sandbox of {image.name}"
    try:
        with faults(doing, engine.client):
            engine.api.create_container_from_config(config, name)
    except SandboxError as error:
        if not host_config["Init"] or not re.search(_NO_INIT, str(error)):
            raise
        # The guardian then is process 1 itself, which it can be; it is only slower to end.
        engine.has_init = host_config["Init"] = False
        with faults(doing, engine.client):
            engine.api.create_container_from_config(config, name)


def make_folders(engine: Engine, container: str, image: Found) -> None:
    """Where the image's user is not root, the guardian could not make the folders that it needs."""
    if image.user.partition(":")[0] in ("", "0", "root"):
        return
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in ("cooperbench", "cooperbench/bin", "patches"):
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o777, int(time.time())
            archive.addfile(entry)
    engine.api.put_archive(container, "/", packed.getvalue())


def check_mounts(engine: Engine, settings: DockerSettings) -> None:
    """Podman makes a folder that is not there; a wrong path should not pass for an empty one."""
    for mount in settings.mounts:
        if engine.where.startswith("unix://") and not Path(mount.source).exists():
            raise UserError(
                f"mount {mount.source}:{mount.target}: {mount.source} does not exist; check the mount's source"
            )


def _limits(engine: Engine, settings: DockerSettings) -> dict[str, Any]:
    """Those that are set, as far as the engine's machine reaches; what it cannot enforce it refuses by itself."""
    limits: dict[str, Any] = {}
    if settings.cpus:
        limits["NanoCpus"] = round(min(settings.cpus, float(engine.info.get("NCPU") or settings.cpus)) * 1e9)
    if settings.memory_bytes:
        limits["Memory"] = limits["MemorySwap"] = settings.memory_bytes
    if settings.pids_limit:
        limits["PidsLimit"] = settings.pids_limit
    return limits
