"""What a campaign works on: a dataset, a scripted provider, a Redis, an engine, and runs of the harness as processes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cooperbench.backends.docker.engine import Engine, connect
from cooperbench.storage import read_json
from tests.agents.mini_swe.helpers import SUBMIT, TOOLS, act, patching, write_config
from tests.backends.docker.engines import provide_base
from tests.backends.docker.tasks import write_buildable
from tests.modelserver import Answer, ModelServer, Request
from tests.modelserver.replies import Broken, Failure, Reply
from tests.tiny import golden, write_tiny

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from types import TracebackType

MODEL = "openai/gpt-4o-mini"
PAIRS = 6
CALLS_PER_AGENT = 5
DOLLARS_PER_CALL = 100 * 0.15e-6 + 10 * 0.6e-6
LIBFAKETIME = next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)
MARK = "COOPERBENCH_CHAOS"
"""A variable in every process of a round."""
RUN_SECONDS = 240.0
DISK_BYTES = 24 * 1024 * 1024


class Provider:
    """A model that does the same in the same conversation, however often it is asked, and fails when told to."""

    def __init__(self) -> None:
        self.server = ModelServer()
        self.server.script("", self._reply)
        self.answered = 0
        self._lock = threading.Lock()
        self._failing: tuple[float, Callable[[], Reply]] = (0.0, lambda: Answer(""))

    def fail_for(self, seconds: float, make: Callable[[], Reply]) -> None:
        self._failing = (time.monotonic() + seconds, make)

    def _reply(self, request: Request) -> Reply:
        until, failure = self._failing
        if time.monotonic() < until:
            return failure()
        found = re.search(r"Add a line `feature (\d)`", request.opening)
        me = re.search(r"You are agent(\d)", request.opening)
        if not found or not me:
            return Failure(400, "no such conversation", "invalid_request_error")
        feature, number = int(found[1]), int(me[1])
        other = f"agent{3 - number}"
        commands = [
            patching(golden(feature)),
            f"send_message {other} 'feature {feature} begins'",
            "sleep 0.3; git add -A; git commit -qm work; git push -q team HEAD || true",
            f"send_message {other} 'feature {feature} ends'",
            SUBMIT,
        ]
        done = len([message for message in request.messages if message.get("role") == "assistant"])
        with self._lock:
            self.answered += 1
        return act(TOOLS, commands[min(done, len(commands) - 1)])

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
        self._folder = folder
        folder.mkdir()
        self.address = f"unix://{folder}/docker.sock"
        self.start()
        with self.connected() as engine:
            provide_base(engine)

    def start(self) -> None:
        words = ["dockerd", "--iptables=false", "--ip6tables=false", "--bridge=none", "-H", self.address]
        for option, name in (("--data-root", "data"), ("--exec-root", "exec"), ("-p", "pid")):
            words += [option, str(self._folder / name)]
        # Of an engine that was killed: it would wait for a containerd that has died with it.
        for name in ("pid", "exec/containerd/containerd.pid"):
            (self._folder / name).unlink(missing_ok=True)
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while True:
            try:
                with self.connected():
                    return
            except Exception:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def connected(self) -> Any:
        from contextlib import closing

        before = os.environ.get("DOCKER_HOST")
        os.environ["DOCKER_HOST"] = self.address
        try:
            engine: Engine = connect()
        finally:
            os.environ.pop("DOCKER_HOST") if before is None else os.environ.update(DOCKER_HOST=before)
        return closing(engine)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def shims(self) -> list[int]:
        return [
            pid for pid, words in processes() if "containerd-shim" in words and str(self._folder) in words
        ]

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            if (place := line.split()[1]).startswith(f"{self._folder}/"):
                subprocess.run(["umount", "--lazy", place], check=False)


class World:
    """One backend; rounds share its cache, as runs on one machine do."""

    def __init__(self, root: Path, backend: str) -> None:
        self.root = root
        self.backend = backend
        root.mkdir()
        self.provider = Provider()
        self.redis = Redis(root)
        self.engine = DockerEngine(root / "engine") if backend == "docker" else None
        self.config = write_config(root / "agent.yaml", self.provider.server.openai_url)
        if self.engine:
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
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Round:
    """One experiment, started as often as it takes."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.folder = world.root / name
        self.logs = self.folder / "logs"
        self.temporary = self.folder / "tmp"
        for path in (self.logs, self.temporary):
            path.mkdir(parents=True)
        self._disk = os.geteuid() == 0
        if self._disk:
            words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self.logs)]
            self._disk = subprocess.run(words, check=False, capture_output=True).returncode == 0
        self.clock = self.folder / "clock"
        self.answered_before = world.provider.answered
        self.with_clock = False
        self.outputs: list[str] = []

    @property
    def has_small_disk(self) -> bool:
        return self._disk

    def start(self) -> subprocess.Popen[str]:
        world = self.world
        environment = {
            **os.environ,
            MARK: self.name,
            "COOPERBENCH_CACHE_DIR": str(world.root / "cache"),
            "COOPERBENCH_MODEL_PATIENCE": "20",
            "COOPERBENCH_BUILD_ARGS": "BASE_IMAGE=cooperbench-test-base:bookworm-1",
            "TMPDIR": str(self.temporary),
        }
        if world.engine:
            environment["DOCKER_HOST"] = world.engine.address
        if self.with_clock and LIBFAKETIME:
            self.clock.write_text("+0")
            environment |= {
                "LD_PRELOAD": str(LIBFAKETIME),
                "FAKETIME_TIMESTAMP_FILE": str(self.clock),
                "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "DONT_FAKE_MONOTONIC": "1",
            }
        words = [
            sys.executable, "-m", "cooperbench", "run", "-n", "r", "-a", TOOLS, "-m", MODEL, "--git", "-c", "3",
            "--agent-config", str(world.config), "--backend", world.backend, "--dataset-dir", str(world.root / "data"),
            "--log-dir", str(self.logs), "--redis", f"redis://127.0.0.1:{world.redis.port}",
        ]  # fmt: skip
        output = (self.folder / f"output-{len(self.outputs)}").open("w")
        self.outputs.append(output.name)
        with output:
            return subprocess.Popen(
                words,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def finish(self, most: int = 5) -> int:
        """The same command until it is done; how often it took. -1 where it is not done even then."""
        for attempt in range(1, most + 1):
            process = self.start()
            try:
                code = process.wait(RUN_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                return -1
            if code == 0:
                return attempt
        return -1

    def last_output(self) -> str:
        return Path(self.outputs[-1]).read_text(errors="replace")[-600:] if self.outputs else ""

    def damage_a_file(self, rng: random.Random) -> str:
        """Cut short or overwritten. Not config.json, which is refused then, nor what is for reading only."""
        names = ("result.json", "eval.json", "summary.json", "*.patch")
        files = sorted(path for name in names for path in self.logs.glob(f"r/**/{name}"))
        if not files:
            return ""
        path = rng.choice(files)
        data = path.read_bytes()
        path.write_bytes(
            data[: len(data) // 2] if rng.random() < 0.5 else bytes(rng.randbytes(len(data) or 9))
        )
        return str(path.relative_to(self.logs))

    def pairs(self) -> dict[str, Any]:
        """What every undisturbed run says of every pair."""
        found: dict[str, Any] = {}
        for folder in sorted(self.logs.glob("r/coop/*/*/*")):
            result, verdict = read_json(folder / "result.json"), read_json(folder / "eval.json")
            if result is None or verdict is None or not isinstance(result.get("agents"), dict):
                found[folder.name] = {"broken": f"{result is None} {verdict is None}"}
                continue
            told = json.loads((folder / "conversation.json").read_text())
            messages = told["messages"] if isinstance(told, dict) else told
            found[folder.name] = {
                "status": (result["status"], verdict["status"]),
                "agents": {name: (one["status"], one["steps"]) for name, one in result["agents"].items()},
                "patches": {name: (folder / f"{name}.patch").read_text() for name in result["agents"]},
                "verdict": {
                    name: verdict[name]
                    for name in (
                        "individual_success",
                        "merge_success",
                        "overall_success",
                        "overall_success_strict",
                    )
                },
                "merge": verdict["merged"]["merge_status"],
                "sent": sorted((one["from"], one["to"], one["message"]) for one in messages),
            }
        return found

    def violations(self, expected: dict[str, Any]) -> list[str]:
        pairs = self.pairs()
        found = [
            f"{name} differs: {_difference(expected.get(name), pairs.get(name))}"
            for name in sorted({*expected, *pairs})
            if pairs.get(name) != expected.get(name)
        ]
        found += self._money()
        deadline = time.monotonic() + 20
        while (left := self.leftovers()) and time.monotonic() < deadline:
            time.sleep(0.3)
        return found + left

    def _money(self) -> list[str]:
        summary = read_json(self.logs / "r/summary.json") or {}
        cost, spent = summary.get("cost", -1), summary.get("spent", -1)
        due = PAIRS * 2 * CALLS_PER_AGENT * DOLLARS_PER_CALL
        most = (self.world.provider.answered - self.answered_before) * DOLLARS_PER_CALL
        if abs(cost - due) > 1e-9:
            return [f"the summary says ${cost}, not ${due}"]
        return (
            []
            if due - 1e-9 <= spent <= most + 1e-9
            else [f"${spent} spent, of ${most} that the provider answered"]
        )

    def leftovers(self) -> list[str]:
        found = [f"process {pid}: {words[:120]}" for pid, words in processes(self.name, str(self.folder))]
        found += [f"temporary file {path.name}" for path in self.temporary.iterdir()]
        found += [f"sandbox {path}" for path in (self.world.root / "cache/sandboxes").glob("*/*")]
        mounts = Path("/proc/self/mounts").read_text()
        cache = str(self.world.root / "cache")
        found += [f"mount {line.split()[1]}" for line in mounts.splitlines() if f" {cache}" in line]
        if self.world.engine:
            with self.world.engine.connected() as engine:
                found += [f"container {one['Names']}" for one in engine.api.containers(all=True)]
                usual = {"bridge", "host", "none"}
                found += [
                    f"network {one['Name']}" for one in engine.api.networks() if one["Name"] not in usual
                ]
        return found

    def close(self) -> None:
        if self._disk:
            subprocess.run(["umount", "--lazy", str(self.logs)], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def processes(mark: str = "", folder: str = "") -> list[tuple[int, str]]:
    """All, or those of a round."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if mark:
                variables = (entry / "environ").read_bytes().split(b"\0")
                if f"{MARK}={mark}".encode() not in variables and folder not in words:
                    continue
        except OSError:
            continue
        found.append((int(entry.name), words))
    return found


def _difference(expected: Any, found: Any) -> str:
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = [key for key in {**expected, **found} if expected.get(key) != found.get(key)]
        return "; ".join(
            f"{key}: {str(found.get(key))[:200]} instead of {str(expected.get(key))[:200]}" for key in keys
        )
    return f"{str(found)[:200]} instead of {str(expected)[:200]}"


PROVIDER_FAULTS: dict[str, Callable[[], Reply]] = {
    "429": lambda: Failure(429, "slow down", "rate_limit_error", headers={"retry-after": "0.5"}),
    "500": lambda: Failure(500, "oh no", "server_error"),
    "garbage": lambda: Broken(b"\xff<html>not json"),
    "half an answer": lambda: Broken(b'{"id": "x", "choices": [{"mess'),
    "nothing": lambda: Broken(None, hold=2.0),
}
HARNESS_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
