"""A real engine for the tests: one that answers here, else a private one; and a base image, made once without a registry.

Everything lives in $COOPERBENCH_TEST_CACHE or ~/.cache/cooperbench-tests and is shared by all test processes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.backends.docker.engine import Engine, PodmanService, connect
from cooperbench.errors import UserError
from tests.support.requirements import skip_without

if TYPE_CHECKING:
    from collections.abc import Iterator

ENGINES = tuple((os.environ.get("COOPERBENCH_TEST_ENGINES") or "docker,podman").split(","))
PACKAGES = "git,python3,nodejs"
BASE = "cooperbench-test-base:bookworm-1"
START_SECONDS = 60.0


class NoEngine(Exception):
    """There is none here, for this reason."""


@contextmanager
def skipped_without_engine() -> Iterator[None]:
    """Skip the running test where there is no engine."""
    try:
        yield
    except NoEngine as error:
        remedy = "apt install docker.io podman debootstrap, as root"
        skip_without("a container engine", remedy, detail=str(error))


def cache_folder() -> Path:
    """Return the folder of what tests keep; a temporary one where the home directory is read-only."""
    named = os.environ.get("COOPERBENCH_TEST_CACHE")
    path = Path(named or "~/.cache/cooperbench-tests").expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        if named:
            raise
        path = Path(tempfile.gettempdir()) / f"cooperbench-tests-{os.getuid()}"
        path.mkdir(mode=0o700, exist_ok=True)
    return path


@contextmanager
def locked(path: Path, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, kind)
        yield
    finally:
        os.close(fd)


@contextmanager
def docker_host() -> Iterator[str]:
    """The address of an engine of Docker."""
    try:
        engine = connect("docker")
    except UserError as error:
        with _private_docker(str(error)) as address:
            yield address
    else:
        engine.close()
        yield engine.where


@contextmanager
def _private_docker(reason: str) -> Iterator[str]:
    dockerd = shutil.which("dockerd", path=f"{os.environ['PATH']}:/usr/sbin")
    if dockerd is None or os.geteuid() != 0:
        raise NoEngine(f"{reason}; and no dockerd could be started here")
    cache = cache_folder()
    users = cache / "docker-users.lock"
    with locked(cache / "docker-start.lock"):
        fd = os.open(users, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # Waits while a watcher is ending the engine.
        fcntl.flock(fd, fcntl.LOCK_SH)
        address = _running_docker(cache) or _start_docker(dockerd, cache, users)
    try:
        yield address
    finally:
        os.close(fd)


def _running_docker(cache: Path) -> str | None:
    try:
        address = str(json.loads((cache / "docker.json").read_text())["address"])
    except (OSError, ValueError):
        return None
    return address if _answers(address) else None


def _answers(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        try:
            probe.connect(address.removeprefix("unix://"))
            probe.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in probe.recv(100)
        except OSError:
            return False


def _start_docker(dockerd: str, cache: Path, users: Path) -> str:
    folder = Path(tempfile.mkdtemp(prefix="cooperbench-dockerd-"))
    address = f"unix://{folder}/docker.sock"
    log = cache / "dockerd.log"
    command = [dockerd, "--iptables=false", "--ip6tables=false", "--bridge=none", "-H", address]
    command += [
        "--data-root",
        str(cache / "docker"),
        "--exec-root",
        str(folder / "exec"),
        "-p",
        str(folder / "pid"),
    ]
    watcher = [
        sys.executable,
        str(Path(__file__).with_name("watcher.py")),
        str(users),
        str(log),
        str(folder),
    ]
    subprocess.run(
        [*watcher, *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True
    )
    deadline = time.monotonic() + START_SECONDS
    while not _answers(address):
        if time.monotonic() > deadline:
            raise NoEngine(f"dockerd did not start: {log.read_text(errors='replace')[-500:]}")
        time.sleep(0.1)
    (cache / "docker.json").write_text(json.dumps({"address": address}))
    return address


@contextmanager
def podman_host(folder: Path) -> Iterator[str]:
    """The address of a service of Podman with a storage that nobody else uses meanwhile."""
    with podman_storage(folder) as settings:
        before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        try:
            service = PodmanService("podman")
        except UserError as error:
            raise NoEngine(str(error)) from error
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        try:
            yield service.url
        finally:
            service.close()


@contextmanager
def podman_storage(folder: Path) -> Iterator[dict[str, str]]:
    """The variables that lead Podman to a storage that nobody else uses meanwhile."""
    if shutil.which("podman") is None or os.geteuid() != 0:
        raise NoEngine("Podman is not installed, or this is not root")
    for number in count(1):
        with ExitStack() as stack:
            try:
                stack.enter_context(
                    locked(cache_folder() / f"podman-{number}.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
                )
            except BlockingIOError:
                continue
            yield _podman_settings(cache_folder() / f"podman-{number}", folder)
            return


def _podman_settings(cache: Path, folder: Path) -> dict[str, str]:
    init = next(filter(None, map(shutil.which, ("catatonit", "tini"))), None)
    lines = [
        "[containers]",
        'default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]',
        "[engine]",
    ]
    # What must not outlive a restart of the machine, apart from that of other Podmans here, locks included.
    passing = Path("/run/cooperbench-tests") / hashlib.sha256(str(cache).encode()).hexdigest()[:12]
    lines += [
        'cgroup_manager = "cgroupfs"',
        'events_logger = "file"',
        'lock_type = "file"',
        # Each command that was started in a container is watched for this long after its end, by a process of its own.
        "exit_command_delay = 30",
        f'tmp_dir = "{passing}/tmp"',
    ]
    lines += ['runtime = "runc"'] if shutil.which("runc") else []
    lines += [f'init_path = "{init}"'] if init else []
    (folder / "containers.conf").write_text("\n".join(lines) + "\n")
    storage = (
        f'[storage]\ndriver = "overlay"\ngraphroot = "{cache}/root"\nrunroot = "{passing}/run"\n'
    )
    (folder / "storage.conf").write_text(storage)
    return {
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }


def provide_base(engine: Engine) -> str:
    """The base image in an engine: Debian with bash, coreutils, git, python3 and node."""
    with locked(cache_folder() / f"base-{engine.client}.lock"):
        names = {tag for image in engine.api.images() for tag in image["RepoTags"] or []}
        if not names & {BASE, f"localhost/{BASE}", f"docker.io/library/{BASE}"}:
            repository, _, tag = BASE.partition(":")
            # Podman 4.3 ignores the tag.
            engine.api.import_image_from_file(str(root_file_system()), repository, "latest")
            engine.api.tag(f"{repository}:latest", repository, tag)
    return BASE


def root_file_system() -> Path:
    """As a tar file, made by debootstrap: about 100 s, once."""
    cache = cache_folder()
    packed = cache / "bookworm-1.tar"
    with locked(cache / "debootstrap.lock"):
        if packed.exists():
            return packed
        if shutil.which("debootstrap", path=f"{os.environ['PATH']}:/usr/sbin") is None:
            raise NoEngine("no base image can be made: debootstrap is not installed")
        root = Path(tempfile.mkdtemp(prefix="debootstrap-", dir=cache))
        try:
            command = [
                "debootstrap",
                "--variant=minbase",
                f"--include={PACKAGES}",
                "bookworm",
                str(root),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise NoEngine(f"debootstrap failed: {done.stdout[-300:]}")
            half = packed.with_suffix(".half")
            subprocess.run(
                ["tar", "-C", str(root), "--exclude=./var/cache/apt/*", "-cf", str(half), "."],
                check=True,
            )
            half.rename(packed)
        finally:
            shutil.rmtree(root, ignore_errors=True)
    return packed
