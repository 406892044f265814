"""What we make in an engine besides images: containers and networks, how they are labelled, and their removal.

Everything carries labels, by which it is found again, and only by which: nothing that is not ours is touched.
"""

from __future__ import annotations

import io
import re
import secrets
import subprocess
import tarfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cooperbench.errors import InfraError, UserError
from cooperbench.sandbox.contract import PROGRAMS_DIR
from cooperbench.sandbox.ownership import is_dead, read_owner, this_owner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cooperbench.backends.docker.engine import Engine
    from cooperbench.backends.docker.images import EngineImage
    from cooperbench.backends.docker.settings import DockerSettings
    from cooperbench.sandbox.contract import SandboxOptions

OWNER = "cooperbench.owner"
SESSION = "cooperbench.session"
PURPOSE = "cooperbench.purpose"
EXPIRES = "cooperbench.expires"
CONTAINER_LABELS = (OWNER, SESSION, PURPOSE, EXPIRES)
_LABEL_NAME = re.compile(r"[a-z0-9_.-]+", re.IGNORECASE)

_KEPT_CAPABILITIES = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETGID",
    "SETUID",
]
"""Package managers change owners, modes and users; test suites kill and bind. Gone are making devices, raw sockets,
changing the root, and writing to the audit log, which engines grant by default."""
SCRATCH_DIR = "/cooperbench/scratch"
_BIN_DIR = "/cooperbench/bin"
NO_TALK = {"com.docker.network.bridge.enable_icc": "false"}


def _ownership(session: str) -> dict[str, str]:
    return {OWNER: str(this_owner()), SESSION: session}


def container_labels(session: str, options: SandboxOptions, lifetime_seconds: float) -> dict[str, str]:
    others = {
        f"cooperbench.{name}": value for name, value in options.labels.items() if _LABEL_NAME.fullmatch(name)
    }
    expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + lifetime_seconds))
    return {**others, **_ownership(session), PURPOSE: options.purpose, EXPIRES: expires}


def create_container(
    engine: Engine,
    settings: DockerSettings,
    image: EngineImage,
    *,
    name: str,
    command: list[str],
    workdir: str,
    network: Attachment,
    labels: Mapping[str, str],
    volumes: Sequence[str] = (),
    programs: Mapping[str, Any] | None = None,
) -> None:
    """Made, not started. Its entrypoint is cleared, its stdin open.

    `volumes`: folders that lie on volumes of their own, which begin with what the image has there, are part of no image
    that is made of the container, and go with it. `programs`: what `Programs.mount` gave.
    """
    check_mounts(engine, settings)
    host_config: dict[str, Any] = {
        "NetworkMode": network.mode,
        **({"Dns": list(network.name_servers)} if network.name_servers else {}),
        # The supervisor is process 1: nothing inside can kill it.
        "Init": False,
        "CapDrop": ["ALL"],
        "CapAdd": _KEPT_CAPABILITIES,
        "SecurityOpt": ["no-new-privileges"],
        # The output of a channel is no log, and would be kept on disk.
        "LogConfig": {"Type": "none"},
        # Not on the container's disk: a channel must answer when that is full, and leave nothing in images.
        "Tmpfs": {SCRATCH_DIR: "rw,nosuid,nodev,mode=1777,size=1g"},
        "Mounts": [
            {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": not mount.writable}
            for mount in settings.mounts
        ]
        + [{"Type": "volume", "Target": path} for path in volumes]
        + ([programs] if programs else []),
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
        # The same as NetworkMode none, with a loopback from the runtime, but 100 ms sooner. The supervisor sees to
        # /etc/hosts, which the engine then leaves alone.
        "NetworkDisabled": network.mode == "none" and not engine.podman,
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGKILL",
        "HostConfig": host_config,
    }
    engine.api.create_container_from_config(config, name)
    if image.user.partition(":")[0] not in ("", "0", "root"):
        _make_folders(engine, name)


def _make_folders(engine: Engine, container: str) -> None:
    """Where the image's user is not root, the supervisor could not make the folders that it needs."""
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


class Attachment(NamedTuple):
    """How a container is on the network."""

    mode: str
    """Its NetworkMode."""
    name_servers: tuple[str, ...] = ()
    """Those of the engine unless there are any here."""


class Networks:
    """Of one session of one engine; what it makes is labelled and goes with the session."""

    def __init__(self, engine: Engine, session: str) -> None:
        self._engine = engine
        self._session = session
        self._lock = threading.Lock()
        self._public = ""

    def attachment(self, options: SandboxOptions) -> Attachment:
        """As a sandbox's network policy wants it."""
        if options.network == "none":
            return Attachment("none")
        if self._engine.podman:
            # Podman cannot forbid neighbours to talk, so nobody has neighbours.
            return Attachment(self.create({"isolate": "true"}))
        with self._lock:
            if not self._public:
                self._public = self.create(NO_TALK)
            return Attachment(self._public)

    def create(self, options: dict[str, str]) -> str:
        """A bridge with options of its driver; its name."""
        name = f"cooperbench-{self._session}-{secrets.token_hex(4)}"
        with self._engine.faults("making a network for sandboxes"):
            self._engine.api.create_network(name, "bridge", options, labels=_ownership(self._session))
        return name


class Programs:
    """Folders of this machine that sandboxes see. To an engine elsewhere each is copied once, into a volume."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._volumes: dict[tuple[str, Path], str] = {}

    def mount(self, engine: Engine, session: str, image: EngineImage, folder: Path) -> dict[str, Any]:
        common = {"Target": PROGRAMS_DIR, "ReadOnly": True}
        if engine.where.startswith("unix://"):
            return {"Type": "bind", "Source": str(folder), **common}
        with self._lock:
            volume = self._volumes.get((session, folder))
            if volume is None:
                volume = self._volumes[session, folder] = _copy_to_volume(engine, session, image, folder)
        return {"Type": "volume", "Source": volume, **common}


def _copy_to_volume(engine: Engine, session: str, image: EngineImage, folder: Path) -> str:
    """Through a container that is never started; both go with the session."""
    name = f"cooperbench-{session}-{secrets.token_hex(4)}"
    mounts = [{"Type": "volume", "Source": name, "Target": PROGRAMS_DIR}]
    config = {"Image": image.image_id, "Labels": _ownership(session), "HostConfig": {"Mounts": mounts}}
    engine.api.create_volume(name, labels=_ownership(session))
    engine.api.create_container_from_config({**config, "Cmd": ["true"]}, name)
    with subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE) as tar:
        engine.api.put_archive(name, PROGRAMS_DIR, tar.stdout)
    engine.remove_container(name)
    return name


def remove_leftovers(engine: Engine) -> list[str]:
    """Remove the containers, networks and volumes of processes that are gone; returns their names."""

    def is_leftover(labels: dict[str, str], running: bool) -> bool:
        owner = read_owner(labels.get(OWNER, ""))
        return owner is not None and is_dead(owner, running=running)

    return _remove(engine, OWNER, is_leftover)


def remove_session(engine: Engine, session: str) -> list[str]:
    """Remove whatever one backend object has made and not removed itself."""
    return _remove(engine, f"{SESSION}={session}", lambda labels, _: labels.get(SESSION) == session)


def _remove(engine: Engine, label: str, wanted: Callable[[dict[str, str], bool], bool]) -> list[str]:
    removed = []
    filters = {"label": [label]}
    with engine.faults("listing what is left over"):
        containers: list[dict[str, Any]] = engine.api.containers(all=True, filters=filters)
        networks: list[dict[str, Any]] = engine.api.networks(filters=filters)
        volumes: list[dict[str, Any]] = engine.api.volumes(filters=filters)["Volumes"] or []
    for found in containers:
        if wanted(found["Labels"] or {}, found["State"] in ("running", "paused", "restarting")):
            engine.remove_container(found["Id"])
            removed.append((found["Names"] or [found["Id"]])[0].lstrip("/"))
    for found, remove in [
        *((network, engine.api.remove_network) for network in networks),
        *((volume, engine.api.remove_volume) for volume in volumes),
    ]:
        # The label filter of old Podman matches by prefix, so the label itself is looked at too.
        labels = found["Labels"] or {}
        if label.partition("=")[0] in labels and wanted(labels, False):
            # One that is gone, or still in use by somebody: the next start tries again.
            with suppress(InfraError), engine.faults(f"removing {found['Name']}"):
                remove(found["Name"])
                removed.append(found["Name"])
    return removed
