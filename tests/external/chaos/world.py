"""What a campaign works on: a dataset, a scripted provider, a Redis, an engine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from cooperbench.backends.docker.engine import Engine, connect
from tests.external.chaos.checker import contained, processes
from tests.support.agents.mini_swe import SUBMIT, TOOLS, act, patching, write_config
from tests.support.docker.engines import provide_base
from tests.support.docker.tasks import write_buildable
from tests.support.modelserver import Answer, ModelServer, Request
from tests.support.modelserver.replies import Broken, Failure, Reply
from tests.support.requirements import is_strict
from tests.support.tiny import golden, write_tiny

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

PROVIDER_FAULTS: dict[str, Callable[[Request, Answer], Reply | None]] = {
    "429": lambda _, __: Failure(
        429, "slow down", "rate_limit_error", headers={"retry-after": "0.5"}
    ),
    "500": lambda _, __: Failure(500, "oh no", "server_error"),
    "garbage": lambda _, __: Broken(b"\xff<html>not json"),
    "half an answer": lambda asked, _: (
        None if asked.body.get("stream") else Broken(b'{"id": "x", "choices": [{"mess')
    ),
    "half a stream": lambda asked, answer: (
        replace(answer, break_after=4) if asked.body.get("stream") else None
    ),
    "nothing": lambda _, __: Broken(None, hold=2.0),
}
UNTIL_THE_OTHER_ENDS = (
    "until read_messages --all | grep -q ' ends' || [ $SECONDS -gt 280 ]; do sleep 0.1; done"
)
"""So that every message is shown to somebody, on a slow machine too: a command has 300 seconds."""


START_SECONDS = 180.0
"""Of an engine, or of the first request, on a busy machine."""


class Provider:
    """A model that does the same in the same conversation, however often it is asked, and fails when told to."""

    def __init__(self) -> None:
        self.server = ModelServer()
        self.server.script("", self._reply)
        self.answered = 0
        self.begun = 0
        """Answers that broke off in the middle; whether they are paid nobody can say."""
        self._lock = threading.Lock()
        self._fault: Callable[[Request, Answer], Reply | None] | None = None
        self._failing_until: float | None = None
        self._seconds = 0.0

    def fail_for(self, seconds: float, fault: str, ended: Callable[[], bool]) -> bool:
        """From the next request on that the fault can hit; whether there was one."""
        with self._lock:
            self._fault, self._seconds, self._failing_until = PROVIDER_FAULTS[fault], seconds, None
        deadline = time.monotonic() + START_SECONDS
        while self._failing_until is None and time.monotonic() < deadline and not ended():
            time.sleep(0.02)
        with self._lock:
            if self._failing_until is None:
                self._fault = None
            return self._failing_until is not None

    def _reply(self, request: Request) -> Reply:
        found = re.search(r"Add a line `feature (\d)`", request.opening)
        me = re.search(r"You are agent(\d)", request.opening)
        if not found or not me:
            return Failure(400, "no such conversation", "invalid_request_error")
        feature, number = int(found[1]), int(me[1])
        other = f"agent{3 - number}"
        commands = [
            patching(golden(feature)),
            f"send_message {other} 'feature {feature} begins'",
            f"git add -A; git commit -qm work; git push -q team HEAD:agent{number}",
            f"send_message {other} 'feature {feature} ends'; {UNTIL_THE_OTHER_ENDS}",
            SUBMIT,
        ]
        done = len([message for message in request.messages if message.get("role") == "assistant"])
        answer = act(TOOLS, commands[min(done, len(commands) - 1)])
        with self._lock:
            failure = self._failure(request, answer)
            if failure is None:
                self.answered += 1
                return answer
            self.begun += isinstance(failure, Answer)
            return failure

    def _failure(self, request: Request, answer: Answer) -> Reply | None:
        if self._fault is None or (failure := self._fault(request, answer)) is None:
            return None
        if self._failing_until is None:
            self._failing_until = time.monotonic() + self._seconds
        if time.monotonic() > self._failing_until:
            self._fault = None
            return None
        return failure

    def close(self) -> None:
        self.server.close()


class Redis:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.start()

    def start(self) -> None:
        words = [
            "redis-server",
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
            str(self._folder),
        ]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class DockerEngine:
    """One of the campaign's own, since it is going to be killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.was_killed = False
        folder.mkdir()
        self.address = f"unix://{folder}/docker.sock"
        self.start()

    def start(self) -> None:
        words = [
            "dockerd",
            "--iptables=false",
            "--ip6tables=false",
            "--bridge=none",
            "-H",
            self.address,
        ]
        for option, name in (("--data-root", "data"), ("--exec-root", "exec"), ("-p", "pid")):
            words += [option, str(self.folder / name)]
        # Of an engine that was killed: it would wait for a containerd that has died with it.
        for name in ("pid", "exec/containerd/containerd.pid"):
            (self.folder / name).unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                with self.connected():
                    return
            except Exception:
                if time.monotonic() > deadline:
                    self.kill()
                    raise
                time.sleep(0.2)

    def connected(self) -> AbstractContextManager[Engine]:
        before = os.environ.get("DOCKER_HOST")
        os.environ["DOCKER_HOST"] = self.address
        try:
            engine = connect()
        finally:
            os.environ.pop("DOCKER_HOST") if before is None else os.environ.update(
                DOCKER_HOST=before
            )
        return closing(engine)

    def kill(self) -> None:
        self.was_killed = True
        self.process.kill()
        self.process.wait()

    def shims(self) -> list[int]:
        return [pid for pid, words in processes(str(self.folder)) if "containerd-shim" in words]

    def end_forgotten(self) -> None:
        """What it had begun to make when it was killed, and has forgotten: nobody else could name it, so nobody could end it.

        That is a process that waits to become a container's first one, where there is no such container, and the mount of
        an `-init` layer, which is there while a container is made.
        """
        with self.connected() as engine:
            known = {str(one["Id"]) for one in engine.api.containers(all=True)}
        for pid, _ in contained(self.folder):
            if (container := _waits_to_begin(pid)) and container not in known:
                _end(pid)
        for place in _mounts_under(self.folder / "data/overlay2"):
            if Path(place).parent.name.endswith("-init"):
                subprocess.run(["umount", "--lazy", place], check=False)
        self.was_killed = False

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(START_SECONDS)
        for pid in self.shims():
            _end(pid)
        for place in _mounts_under(self.folder):
            subprocess.run(["umount", "--lazy", place], check=False)


def _mounts_under(folder: Path) -> list[str]:
    """The last one first."""
    lines = reversed(Path("/proc/self/mounts").read_text().splitlines())
    return [place for line in lines if (place := line.split()[1]).startswith(f"{folder}/")]


def _waits_to_begin(pid: int) -> str:
    """The container that a `runc init` is going to be: it holds its fifo until it is told to begin. Else empty."""
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if (target := link.readlink()).name == "exec.fifo":
                return target.parent.name
    return ""


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def build_clock(library: Path) -> Path | None:
    """Build the library that lets the clock of a process jump; None without a C compiler, which CI has to have."""
    if shutil.which("gcc") is None and not is_strict():
        return None
    source = Path(__file__).with_name("clock.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True)
    return library


class World:
    """One backend; rounds share its cache, as runs on one machine do."""

    def __init__(self, root: Path, backend: str) -> None:
        self.root = root
        self.backend = backend
        root.mkdir()
        self.cache = root / "cache"
        self.provider = Provider()
        self.redis = Redis(root)
        self.clock_library = build_clock(root / "clock.so")
        self.engine = DockerEngine(root / "engine") if backend == "docker" else None
        self.config = write_config(root / "agent.yaml", self.provider.server.openai_url)
        if self.engine:
            with self.engine.connected() as engine:
                provide_base(engine)
            write_buildable(root / "data")
        else:
            write_tiny(root / "data")

    def close(self) -> None:
        if self.engine:
            self.engine.close()
        self.redis.kill()
        self.provider.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
