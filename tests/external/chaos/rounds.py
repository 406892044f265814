"""A round: one experiment of six pairs, started as often as it takes, as a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.external.chaos import checker
from tests.support.agents.mini_swe import TOOLS
from tests.support.paths import ROOT

if TYPE_CHECKING:
    import random

    from tests.external.chaos.world import World

MODEL = "openai/gpt-4o-mini"
AGENTS = f"{TOOLS},tests.external.chaos.agent:StreamingAgent"
"""One in the harness, one that is a program."""
RUN_SECONDS = 600.0
"""A run that hangs is found, one on a busy machine is waited for."""
DISK_BYTES = 24 * 1024 * 1024
UNMADE_LOOP = re.compile(
    r"Exception ignored in: <function BaseEventLoop\.__del__.*?\nAttributeError: .*? '_ssock'\n",
    re.DOTALL,
)
"""What Python itself says of an event loop for which there were no descriptors."""
LEFT_SECONDS = 60.0
"""How long what was killed may take to be gone."""


class Round:
    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.folder = world.root / name
        self.logs = self.folder / "logs"
        self.temporary = self.folder / "tmp"
        for path in (self.logs, self.temporary):
            path.mkdir(parents=True)
        self.has_small_disk = os.geteuid() == 0
        if self.has_small_disk:
            words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self.logs)]
            self.has_small_disk = (
                subprocess.run(words, check=False, capture_output=True).returncode == 0
            )
        self.clock = self.folder / "clock"
        self.with_clock = False
        self.answered_before = (world.provider.answered, world.provider.begun)
        self.calls_lost = 0
        """At most: calls under way when something cut the harness's connections."""
        self.outputs: list[str] = []

    @property
    def run(self) -> Path:
        return self.logs / "r"

    def start(self) -> subprocess.Popen[str]:
        world = self.world
        environment = {
            **os.environ,
            "COOPERBENCH_CACHE_DIR": str(world.cache),
            "COOPERBENCH_MODEL_RETRY_TIMEOUT": "20",
            "COOPERBENCH_BUILD_ARGS": "BASE_IMAGE=cooperbench-test-base:bookworm-1",
            "PYTHONPATH": f"{ROOT}:{ROOT}/src",
            "TMPDIR": str(self.temporary),
        }
        if world.engine:
            environment["DOCKER_HOST"] = world.engine.address
        if self.with_clock and world.clock_library:
            self.move_clock(0)
            environment |= {"LD_PRELOAD": str(world.clock_library), "CHAOS_CLOCK": str(self.clock)}
        words = [
            sys.executable, "-m", "cooperbench", "run", "-n", "r", "-a", AGENTS, "-m", MODEL, "--git", "-c", "3",
            "--agent-config", str(world.config), "--backend", world.backend, "--dataset-dir", str(world.root / "data"),
            "--log-dir", str(self.logs), "--redis", f"redis://127.0.0.1:{world.redis.port}",
        ]  # fmt: skip
        path = self.folder / f"output-{len(self.outputs)}"
        self.outputs.append(str(path))
        with path.open("w") as output:
            return subprocess.Popen(
                words,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def move_clock(self, seconds: int) -> None:
        """Of the harness and what it starts on this machine; in one write, as its processes read it any time."""
        with self.clock.open("r+b" if self.clock.exists() else "wb", buffering=0) as file:
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))

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
        if not self.outputs:
            return ""
        return UNMADE_LOOP.sub("", Path(self.outputs[-1]).read_text(errors="replace"))[-600:]

    def damage_a_file(self, rng: random.Random) -> str:
        """Cut short or overwritten. Not config.json, which is refused then, nor what is for reading only."""
        names = ("result.json", "eval.json", "summary.json", "*.patch")
        files = sorted(path for name in names for path in self.run.glob(f"**/{name}"))
        if not files:
            return ""
        path = rng.choice(files)
        data = path.read_bytes()
        path.write_bytes(
            data[: len(data) // 2] if rng.random() < 0.5 else bytes(rng.randbytes(len(data) or 9))
        )
        return str(path.relative_to(self.logs))

    def violations(self, expected: dict[str, Any]) -> list[str]:
        found = checker.different_pairs(self.run, expected)
        answered, begun = self.world.provider.answered, self.world.provider.begun
        before, begun_before = self.answered_before
        found += checker.wrong_money(
            self.run, answered - before, begun - begun_before, self.calls_lost
        )
        if self.world.engine and self.world.engine.was_killed:
            self.world.engine.end_forgotten()
        deadline = time.monotonic() + LEFT_SECONDS
        while (left := self.leftovers()) and time.monotonic() < deadline:
            time.sleep(0.3)
        return found + left

    def leftovers(self) -> list[str]:
        found = checker.leftovers(f"{self.folder}/", self.temporary, self.logs, self.world.cache)
        if self.world.engine:
            with self.world.engine.connected() as engine:
                found += checker.engine_leftovers(engine, self.world.engine.folder)
        return found

    def close(self) -> None:
        if self.has_small_disk:
            subprocess.run(["umount", "--lazy", str(self.logs)], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
