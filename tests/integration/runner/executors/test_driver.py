"""What travels to a machine that shares no disk with the driver, and back: whole, of the right pair, or refused."""

from __future__ import annotations

import base64
import io
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace as replace_fields

from cooperbench import evaluate
from cooperbench.errors import InfraError
from cooperbench.eval.evaluation_files import is_evaluated, read_patches
from cooperbench.eval.reference_store import ReferenceStore
from cooperbench.records.reference import ReferencesFile
from cooperbench.records.result import is_finished
from cooperbench.runner.budget import Budget
from cooperbench.runner.config import RunConfig
from cooperbench.runner.display import Display
from cooperbench.runner.executors.batch_cluster import make_bundle
from cooperbench.runner.executors.batch_task import ORDERS, pack_orders, read_order
from cooperbench.runner.executors.driver import Driver
from cooperbench.runner.executors.job import (
    Event,
    JobOrder,
    pack_folder,
    run_job,
    unpack_folder,
    unpack_order,
)
from cooperbench.runner.plan import Plan
from cooperbench.storage import write_json
from tests.support.gcp.batch_cloud import Experiment
from tests.support.tiny import golden, write_tiny

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from cooperbench.models import Pair


class ApartEngine:
    """Jobs in this process, with nothing but their orders; or events that a test has made up."""

    name = "apart"
    poll_seconds = 0.0
    attempts = 1
    max_jobs = 100

    def __init__(self, made_up: Sequence[Event] = ()) -> None:
        self.orders: list[JobOrder] = []
        self.told: list[tuple[str, Event]] = []
        self._made_up = made_up

    def check(self, seen: Sequence[Path]) -> None: ...

    def sees(self, path: Path) -> bool:
        return False

    def submit(self, batch: str, orders: Sequence[JobOrder]) -> None:
        self.orders += orders
        for order in orders:
            if self._made_up:
                self.told += [(order.job, event) for event in self._made_up]
            else:
                run_job(order, _Link(order.job, self.told))

    def events(self, jobs: Collection[str]) -> Iterator[tuple[str, Event]]:
        yield from self.told

    def hold(self, jobs: Collection[str]) -> None: ...

    def cancel(self, jobs: Collection[str]) -> None: ...

    def close(self, *, keep_files: bool) -> None: ...


class _Link:
    owner = "a job of a test"

    def __init__(self, job: str, told: list[tuple[str, Event]]) -> None:
        self._job = job
        self._told = told

    def send(self, event: Event) -> None:
        self._told.append((self._job, event))

    def may_start(self) -> bool:
        return True


def judge(experiment: Experiment, pair: Pair, engine: ApartEngine, **options: Any) -> Event:
    """By jobs that share no disk; the event with the verdict."""
    config = RunConfig(
        run_name="r", dataset_dir=experiment.dataset, logs_dir=experiment.paths.logs_dir, agent="nop",
        backend="local", evaluate_only=True, **options,
    )  # fmt: skip
    Driver(engine, [Plan(config, [pair], to_evaluate=(pair,))], Display(), Budget(None)).run()
    return next(event for _, event in engine.told if event["kind"] == "evaluated")


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    monkeypatch.setenv("COOPERBENCH_CACHE_DIR", str(tmp_path / "cache"))
    return Experiment(write_tiny(tmp_path / "data", feature_ids=(1, 2, 3)), tmp_path / "logs", "r")


def test_a_result_is_taken_in_for_its_own_pair_and_patches_only(experiment: Experiment) -> None:
    pair, other, _ = experiment.pairs
    place = experiment.paths.pair(pair, "coop")
    told = judge(experiment, pair, ApartEngine())
    assert is_evaluated(place, pair, "coop", "auto")
    judged, files = experiment.evaluations()[pair.label], experiment.files()
    evaluate(
        "r", backend="local", features=[1, 2], force=True,
        dataset_dir=experiment.dataset, logs_dir=experiment.paths.logs_dir,
    )  # fmt: skip
    assert experiment.evaluations()[pair.label] == judged
    assert experiment.files() == files

    def refused(why: str, of: Pair = pair, changes: Event | None = None, **options: Any) -> None:
        event = told | {"pair": f"{options.get('setting', 'coop')} {of.label}"} | (changes or {})
        judge(experiment, of, ApartEngine([event, {"kind": "done"}]), **options)
        record = experiment.evaluations()[of.label]
        assert (record["status"], record["infrastructure"]) == ("error", True)
        assert why in record["error"]

    whole = base64.b64decode(told["files"])
    for broken in (whole[:-40], b"", b"no result"):
        refused("cannot be unpacked", changes={"files": base64.b64encode(broken).decode()})
    refused("other patches or tests", canary=False)
    refused("other patches or tests", test_timeout_seconds=601)
    refused("other patches or tests", other)
    # Of a pair that nobody has asked for.
    refused("without an outcome", changes={"pair": f"team {pair.label}"})
    experiment.hand_in(pair, {"agent1": golden(3)})
    refused("other patches or tests")
    experiment.hand_in(pair, {})
    judge(experiment, pair, ApartEngine([told, {"kind": "done"}]))
    assert experiment.evaluations()[pair.label] == judged
    assert experiment.files() == files


def test_a_result_writes_nothing_but_its_own_files(tmp_path: Path, experiment: Experiment) -> None:
    pair = experiment.pairs[0]
    result = tmp_path / "result"
    write_json(result / "result.json", {"status": "forged"})
    write_json(result / "eval.json", {"status": "forged"})
    (result / "agent1.patch").write_text("forged")
    (result / "merged.patch").write_text("merged")
    event = {
        "kind": "evaluated", "pair": f"coop {pair.label}", "files": base64.b64encode(pack_folder(result)).decode(),
        "record": {"status": "error", "setting": "coop", "error": "no luck"},
        "references": {"schema": ReferencesFile.SCHEMA, "references": []},
    }  # fmt: skip
    judge(experiment, pair, ApartEngine([event, {"kind": "done"}]))
    place = experiment.paths.pair(pair, "coop")
    assert experiment.evaluations()[pair.label]["error"] == "no luck"
    assert is_finished(place)
    assert place.agent("agent1").patch.read_text() == golden(1)

    outside = tmp_path / "outside"
    (result / "tests").mkdir()
    (result / "tests/agent1-f1.txt").symlink_to(outside)
    event["files"] = base64.b64encode(pack_folder(result)).decode()
    judge(experiment, pair, ApartEngine([event, {"kind": "done"}]))
    assert "cannot be unpacked" in experiment.evaluations()[pair.label]["error"]


def test_an_order_brings_all_that_judging_needs(
    tmp_path: Path, experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = experiment.pairs[0]
    experiment.paths.pair(pair, "coop").agent("agent1").log.write_text("what the agent did")
    engine = ApartEngine()
    told = judge(experiment, pair, engine)
    known = ReferenceStore().known([pair])
    assert [one["feature_id"] for one in told["references"]["references"]] == [1, 2]
    for reference in known:
        ReferenceStore().save(replace_fields(reference, flaky_tests=["marked"]))
    (order,) = engine.orders
    assert order.references == ()
    engine = ApartEngine([told, {"kind": "done"}])
    for other in experiment.pairs:
        judge(experiment, other, engine)
    assert [one.flaky_tests for one in engine.orders[0].references] == [["marked"]] * 2

    packed = pack_orders(engine.orders[:1])
    # What orders have in common goes along once.
    assert len(
        pack_orders([replace(engine.orders[0], job=f"ab.{number}") for number in range(9)])
    ) < 1.2 * len(packed)
    (tmp_path / ORDERS).write_bytes(packed)
    received = read_order(tmp_path, engine.orders[0].job)
    assert received == engine.orders[0]
    with unpack_order(received) as here:
        ((config, there),) = here.work
        place = config.paths.pair(there, "coop")
        assert experiment.paths.logs_dir not in config.paths.root.parents
        assert experiment.dataset not in there.task.path.parents
        assert pack_folder(there.task.path) == pack_folder(pair.task.path)
        patches = read_patches(place, there, "coop")
        assert patches == {"agent1": golden(1).encode(), "agent2": golden(2).encode()}
        assert not place.agent("agent1").log.exists(), "it is for people here"
        root = config.paths.root
    assert not root.exists()


def test_a_task_travels_with_links_modes_and_folders(
    tmp_path: Path, experiment: Experiment
) -> None:
    task = experiment.pairs[0].task
    (task.path / "base/empty").mkdir(parents=True)
    (task.path / "base/run").write_bytes(b"\x00\xff")
    (task.path / "base/run").chmod(0o755)
    (task.path / "base/link").symlink_to("../runner.sh")
    unpack_folder(pack_folder(task.path), tmp_path / "there")
    names = sorted(path.relative_to(task.path) for path in task.path.rglob("*"))
    assert (
        sorted(path.relative_to(tmp_path / "there") for path in (tmp_path / "there").rglob("*"))
        == names
    )
    assert (tmp_path / "there/base/run").read_bytes() == b"\x00\xff"
    assert (tmp_path / "there/base/run").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "there/base/link").readlink() == Path("../runner.sh")
    assert pack_folder(task.path) == pack_folder(tmp_path / "there")
    with pytest.raises(InfraError, match="cannot be unpacked"):
        unpack_folder(b"no folder", tmp_path / "there")


def test_the_bundle_has_all_that_evaluating_in_containers_needs(tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(make_bundle())) as archive:
        assert not [
            name
            for name in archive.namelist()
            if "/demo/" in name
            or name.endswith(".pyc")
            or (name.endswith(".so") and not name.startswith("msgspec/"))
        ]
        archive.extractall(tmp_path)
    program = """if True:
        import sys
        sys.path.insert(0, sys.argv[1])
        import docker, cooperbench.runner.executors.batch_task, cooperbench.eval.evaluation_files, cooperbench.sandbox.manager
        from cooperbench.eval.backends import get_backend
        assert all(module.__file__.startswith(sys.argv[1]) for module in (docker, cooperbench))
        print(type(get_backend("docker")).__name__, docker.APIClient(version="1.41", base_url="tcp://127.0.0.1:1").base_url)
        """
    python = Path(sys.base_prefix) / "bin/python3"
    done = subprocess.run(
        [python, "-I", "-c", program, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["DockerBackend", "http://127.0.0.1:1"]
