"""Several harnesses with a service of Podman each, on one storage."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.backends.docker.engines import ENGINES, podman_storage, skipped_without_engine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM = """
import sys
from cooperbench.backends.docker.engine import connect

def tell(words):
    print(words, flush=True)
    with open("told", "a") as told:
        told.write(f"{sys.argv[1]} {words}\\n")

def change():
    tell("begins")
    sys.stdin.readline()
    tell("is done")

engine = connect("podman")
print(engine.where, flush=True)
engine.changing_images(change)
engine.close()
"""


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[dict[str, str]]:
    if "podman" not in ENGINES:
        pytest.skip("not an engine that was asked for")
    with skipped_without_engine(), podman_storage(tmp_path) as variables:
        yield variables


def test_one_process_at_a_time_changes_images(tmp_path: Path, storage: dict[str, str]) -> None:
    others = {"DOCKER_HOST", "CONTAINER_HOST"}
    environment = {name: value for name, value in os.environ.items() if name not in others}
    environment |= storage | {"XDG_RUNTIME_DIR": str(tmp_path)}

    def start(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, name]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environment, cwd=tmp_path, stdin=pipe, stdout=pipe, text=True)

    first = start("first")
    second = None
    try:
        assert first.stdout is not None
        assert first.stdout.readline()
        assert first.stdout.readline() == "begins\n"
        second = start("second")
        assert second.stdout is not None
        assert second.stdout.readline()
        # Long enough to begin, if nothing held it.
        time.sleep(0.5)
        first.communicate("\n", timeout=60)
        second.communicate("\n", timeout=60)
    finally:
        for process in filter(None, (first, second)):
            process.kill()
            process.communicate()
    told = (tmp_path / "told").read_text().splitlines()
    assert told == ["first begins", "first is done", "second begins", "second is done"]
