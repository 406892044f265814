"""That the campaign would notice: each thing that must not happen is made to happen once. `make chaos` is the campaign."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.backends.local import LocalBackend
from cooperbench.errors import SandboxDead, SandboxDestroyed
from tests.external.chaos import checker
from tests.external.chaos.__main__ import order_of, tell
from tests.external.chaos.faults import faults_of, sandbox_killed
from tests.external.chaos.rounds import UNMADE_LOOP, Round
from tests.external.chaos.world import DockerEngine, World
from tests.support.docker.engines import NoEngine, skipped_without_engine
from tests.support.requirements import require_root, skip_without

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cooperbench.backends.docker.engine import Engine

pytestmark = [pytest.mark.xdist_group("litellm"), pytest.mark.timeout(600)]
PAIR = "coop/tiny_task/7/f1_f2"


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Round]:
    """A run that nothing has disturbed."""
    with World(tmp_path_factory.mktemp("chaos") / "local", "local") as world:
        one = Round(world, "calm")
        assert one.finish(1) == 1, one.last_output()
        yield one
        one.close()


def test_an_undisturbed_run_has_no_violations(calm: Round) -> None:
    pairs = checker.read_pairs(calm.run)
    assert len(pairs) == checker.PAIRS
    assert checker.lost_messages(pairs) == []
    assert calm.violations(pairs) == []


def edited(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def messages(change: Callable[[list[dict[str, Any]]], object]) -> Callable[[Path], None]:
    return lambda run: edited(
        run / PAIR / "conversation.json", lambda content: change(content["messages"])
    )


def swap(told: list[dict[str, Any]]) -> None:
    first, second = (one for one in told if one["from"] == "agent1")
    first["message"], second["message"] = second["message"], first["message"]


def verdict(**fields: object) -> Callable[[Path], None]:
    return lambda run: edited(run / PAIR / "eval.json", lambda content: content.update(fields))


def result(**fields: object) -> Callable[[Path], None]:
    return lambda run: edited(run / PAIR / "result.json", lambda content: content.update(fields))


@pytest.mark.parametrize(
    ("plant", "named"),
    [
        pytest.param(lambda run: shutil.rmtree(run / PAIR), "None instead of", id="a pair lost"),
        pytest.param(
            lambda run: shutil.copytree(run / PAIR, run / PAIR.replace("f1_f2", "f1_f9")),
            "f1_f9",
            id="a pair too many",
        ),
        pytest.param(
            lambda run: (run / PAIR / "result.json").write_text("{"), "broken", id="half a result"
        ),
        pytest.param(lambda run: (run / PAIR / "eval.json").unlink(), "broken", id="no verdict"),
        pytest.param(verdict(overall_success=False), "overall_success", id="another verdict"),
        pytest.param(verdict(status="error"), "status", id="an evaluation that failed"),
        pytest.param(result(status="error"), "status", id="a fault that was scored"),
        pytest.param(
            lambda run: (run / PAIR / "agent1.patch").write_text(""), "patches", id="another patch"
        ),
        pytest.param(messages(list.pop), "sent", id="a message lost"),
        pytest.param(messages(lambda told: told.append(told[-1])), "sent", id="a message doubled"),
        pytest.param(messages(swap), "sent", id="messages out of order"),
        pytest.param(
            messages(lambda told: told[0].update(delivered_at=None)), "shown", id="never shown"
        ),
        pytest.param(
            messages(
                lambda told: [one.update(delivered_step=9 - one["delivered_step"]) for one in told]
            ),
            "shown",
            id="shown out of order",
        ),
    ],
)
def test_a_pair_that_differs_is_found(
    calm: Round, tmp_path: Path, plant: Callable[[Path], None], named: str
) -> None:
    expected = checker.read_pairs(calm.run)
    shutil.copytree(calm.run, run := tmp_path / "r", symlinks=True)
    assert checker.different_pairs(run, expected) == []
    plant(run)
    (found,) = checker.different_pairs(run, expected)
    assert named in found


def test_messages_that_even_the_undisturbed_run_lost_are_found(calm: Round) -> None:
    pairs = checker.read_pairs(calm.run)
    pairs["f1_f2"]["shown"]["agent2"].pop()
    (found,) = checker.lost_messages(pairs)
    assert found.startswith("f1_f2")


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        ({}, 0),
        ({"cost": 59}, 1),
        ({"spent": 59}, 1),
        # Answered, but not accounted for; more than was answered.
        ({"answered": 61}, 1),
        ({"spent": 61}, 1),
        # Broken off in the middle, or under way when connections were cut.
        ({"spent": 61, "begun": 1}, 0),
        ({"answered": 61, "lost": 1}, 0),
        ({"answered": 62, "lost": 1}, 1),
    ],
)
def test_money_is_accounted(tmp_path: Path, calls: dict[str, int], found: int) -> None:
    due = checker.PAIRS * 2 * checker.CALLS_PER_AGENT
    assert due == 60
    counted = {name: calls.get(name, due) * checker.DOLLARS_PER_CALL for name in ("cost", "spent")}
    (tmp_path / "summary.json").write_text(json.dumps(counted))
    answered, begun, lost = calls.get("answered", due), calls.get("begun", 0), calls.get("lost", 0)
    assert len(checker.wrong_money(tmp_path, answered, begun, lost)) == found


def test_interrupted_attempt_may_lose_one_call_per_agent(tmp_path: Path) -> None:
    counted = dict.fromkeys(("cost", "spent"), 60 * checker.DOLLARS_PER_CALL)
    (tmp_path / "summary.json").write_text(json.dumps(counted))
    (tmp_path / "attempts/coop/tiny_task/7/f1_f2/1").mkdir(parents=True)
    assert checker.wrong_money(tmp_path, 62, 0, 0) == []
    assert len(checker.wrong_money(tmp_path, 63, 0, 0)) == 1


@contextmanager
def running(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        try:
            yield process
        finally:
            os.kill(process.pid, signal.SIGKILL)


SLEEP = ["sh", "-c", "echo there; exec sleep 600"]


def test_what_is_left_is_found(calm: Round) -> None:
    assert calm.leftovers() == []
    for path, named in (
        (calm.temporary / "something", "temporary file something"),
        (calm.run / PAIR / ".writing-1", f"temporary file r/{PAIR}/.writing-1"),
        (calm.world.cache / "sandboxes/1/2", "in the cache: sandboxes/1/2"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        assert calm.leftovers() == [named]
        path.unlink()
    with running(SLEEP, env={**os.environ, "TMPDIR": str(calm.temporary)}):
        assert [text.split()[0] for text in calm.leftovers()] == ["process"]
    with running(SLEEP, cwd=calm.temporary):
        assert [text.split()[0] for text in calm.leftovers()] == ["process"]
    (calm.world.cache / "sandboxes/1").rmdir()
    assert calm.leftovers() == []


def test_mounts_that_are_left_are_found(calm: Round) -> None:
    require_root()
    place = calm.world.cache / "mounted"
    place.mkdir()
    bind = ["mount", "--bind", str(calm.folder), str(place)]
    # One that only a process in a namespace of its own has.
    with running(
        ["unshare", "--mount", "sh", "-c", f"{' '.join(bind)}; echo there; exec sleep 600"], env={}
    ):
        assert [text.split()[0] for text in calm.leftovers()] == ["process"]
    subprocess.run(bind, check=True)
    try:
        assert f"mount {place}" in calm.leftovers()
    finally:
        subprocess.run(["umount", str(place)], check=True)
    place.rmdir()


def sleeping_image() -> bytes:
    """A root file system that has its programs from a mount of /usr."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("bin", "lib", "lib64"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(link)
    return packed.getvalue()


@pytest.fixture(scope="module")
def private() -> Iterator[DockerEngine]:
    with skipped_without_engine():
        if (
            os.geteuid() != 0
            or shutil.which("dockerd", path=f"{os.environ['PATH']}:/usr/sbin") is None
        ):
            raise NoEngine("no dockerd could be started here")
    # Not a folder of the test: names of sockets must be short.
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    engine = DockerEngine(folder / "engine")
    try:
        yield engine
    finally:
        engine.close()
        shutil.rmtree(folder)


def new_container(engine: Engine) -> str:
    engine.api.import_image_from_data(sleeping_image(), "sleeping")
    config = {
        "Image": "sleeping",
        "Cmd": ["/usr/bin/sleep", "600"],
        "HostConfig": {"Binds": ["/usr:/usr:ro"], "NetworkMode": "none"},
    }
    return str(engine.api.create_container_from_config(config, "left")["Id"])


def test_what_is_left_in_an_engine_is_found(private: DockerEngine) -> None:
    with private.connected() as engine:
        assert checker.engine_leftovers(engine, private.folder) == []
        network = engine.api.create_network("left", "bridge")["Id"]
        assert checker.engine_leftovers(engine, private.folder) == ["network left"]
        engine.api.remove_network(network)
        container = new_container(engine)
        assert checker.engine_leftovers(engine, private.folder) == ["container ['/left']"]
        engine.api.start(container)
        kinds = [text.split()[0] for text in checker.engine_leftovers(engine, private.folder)]
        assert kinds == ["container", "process", "mount"]
        # It has begun, and the engine knows it: whoever had it started has to end it.
        private.end_forgotten()
        assert [
            text.split()[0] for text in checker.engine_leftovers(engine, private.folder)
        ] == kinds
        engine.api.remove_container(container, force=True)
        assert checker.engine_leftovers(engine, private.folder) == []


@contextmanager
def waiting_to_begin(private: DockerEngine, container: str) -> Iterator[None]:
    """What an engine that is killed then leaves: a container that runc has made, and that nobody tells to begin."""
    bundle = private.folder / container[:12]
    parts = {name: bundle / name for name in ("lowerdir", "upperdir", "workdir")}
    for folder in (*parts.values(), root := bundle / "rootfs"):
        folder.mkdir(parents=True)
    (program := parts["lowerdir"] / "program").touch(0o755)
    options = ",".join(f"{name}={folder}" for name, folder in parts.items())
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(root)], check=True)
    subprocess.run(["runc", "spec", "--bundle", str(bundle)], check=True)
    started = {"terminal": False, "args": [f"/{program.name}"]}
    edited(bundle / "config.json", lambda content: content["process"].update(started))
    runc = ["runc", "--root", str(private.folder / "exec/runtime-runc/moby")]
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    subprocess.run([*runc, "create", "--bundle", str(bundle), container], check=True, **quiet)
    try:
        yield
    finally:
        subprocess.run([*runc, "delete", "--force", container], check=True)
        subprocess.run(["umount", str(root)], check=True)
        shutil.rmtree(bundle)


def test_leftovers_of_a_killed_engine_are_allowed(private: DockerEngine) -> None:
    layers = [
        private.folder / f"data/overlay2/{name}/merged" for name in ("forgotten-init", "left")
    ]
    for layer in layers:
        layer.mkdir(parents=True)
        subprocess.run(["mount", "--bind", str(layer), str(layer)], check=True)
    with private.connected() as engine:
        known = new_container(engine)
        with waiting_to_begin(private, "f" * 64), waiting_to_begin(private, known):
            kinds = [text.split()[0] for text in checker.engine_leftovers(engine, private.folder)]
            assert kinds == ["container", "process", "process", "mount", "mount"]
            private.end_forgotten()
            left = checker.engine_leftovers(engine, private.folder)
            assert [text.split()[0] for text in left] == ["container", "process", "mount"]
            assert left[-1] == f"mount {layers[1]}"
        engine.api.remove_container(known, force=True)
        subprocess.run(["umount", str(layers[1])], check=True)
        assert checker.engine_leftovers(engine, private.folder) == []


def test_every_kind_of_fault_has_its_turn(calm: Round) -> None:
    """In as many rounds as there are kinds, on whichever backend: half of them on each."""
    names = ["engine killed", "shim killed", *faults_of(calm)]
    half = len(names) // 2 + 1
    local, docker = order_of(names[2:], 7, 0), order_of(names, 7, 1)
    assert {*local[:half], *docker[:half]} == {*names}


def test_a_sandbox_is_killed_from_outside(calm: Round) -> None:
    """What ends it inside would be its agent's doing, and scored."""
    with closing(LocalBackend(cache_dir=calm.world.cache)) as backend, running(SLEEP) as process:
        for _ in range(3):
            sandbox = backend.create_sandbox("host")
            assert sandbox_killed(calm, process, random.Random(1))
            with pytest.raises(SandboxDead) as death:
                sandbox.run(["sleep", "60"])
            assert not isinstance(death.value, SandboxDestroyed)


def test_a_violation_fails_the_campaign(capsys: pytest.CaptureFixture[str]) -> None:
    assert tell(2, Counter({"SIGINT": 3, "disk full": 0}), []) == 0
    assert capsys.readouterr().out == "2 rounds, 3 faults: SIGINT 3, disk full 0\n0 violations\n"
    assert tell(2, Counter(), ["f1_f2 differs"]) == 1


NO_LOOP = """
import asyncio, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
try:
    asyncio.new_event_loop()
except OSError:
    print("there")
"""


def test_event_loop_warnings_are_not_tracebacks() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_LOOP], capture_output=True, text=True, check=True
    )
    assert done.stdout == "there\n"
    assert "Traceback" not in UNMADE_LOOP.sub("", done.stderr)
    assert "Traceback" in UNMADE_LOOP.sub("", f"Traceback\n{done.stderr}Traceback\n")


CLOCKS = """
import datetime, sys, time
print("there", flush=True)
sys.stdin.readline()
started = time.monotonic()
time.sleep(0.1)
assert 0.1 <= time.monotonic() - started < 30
print(time.time(), datetime.datetime.now().timestamp())
"""


def test_a_clock_jumps_and_sleeps_do_not(calm: Round) -> None:
    if calm.world.clock_library is None:
        skip_without("gcc", "apt install gcc libc6-dev")
    calm.move_clock(0)
    variables = {"LD_PRELOAD": str(calm.world.clock_library), "CHAOS_CLOCK": str(calm.clock)}
    words = [sys.executable, "-c", CLOCKS]
    with subprocess.Popen(
        words, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        calm.move_clock(-86_400)
        output, _ = process.communicate("\n", timeout=60)
    assert process.returncode == 0
    for seen in map(float, output.split()):
        assert -86_400 - 60 < seen - time.time() < -86_400 + 60
