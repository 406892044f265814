"""What travels to a machine of a remote evaluation and back: whole, of the right pair, or refused."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cooperbench import evaluate
from cooperbench.backends.local import LocalBackend
from cooperbench.eval.batch import Order, remote_evaluation_of
from cooperbench.eval.batch.entry import (
    BadResult,
    Entry,
    make_bundle,
    make_entry,
    pack_result,
    pack_task,
    sha256,
    take_in,
    unpack_folder,
)
from cooperbench.eval.evaluator import Evaluation, is_evaluated
from cooperbench.eval.reference import exported
from cooperbench.storage import read_json, write_json
from tests.backends.gcp.batch_cloud import Experiment
from tests.tiny import golden, write_tiny

if TYPE_CHECKING:
    import threading

    from cooperbench.eval.batch import Listener
    from cooperbench.models import Pair

TIMEOUT_SECONDS = 600


def entry_of(experiment: Experiment, pair: Pair) -> Entry:
    order = Order(experiment.paths, 1, TIMEOUT_SECONDS, "auto", work=[(pair, "coop")])
    digest = sha256(pack_task(pair.task))
    return make_entry(order, pair, "coop", digest, "local", {"COOPERBENCH_DOCKER_PULL": "never"})


def packed(experiment: Experiment, pair: Pair) -> bytes:
    """As a task sends it."""
    place = experiment.paths.pair(pair, "coop")
    record = read_json(place.evaluation)
    assert record is not None
    outputs = {
        (subject, number): path.read_bytes().decode("utf-8", "surrogateescape")
        for subject in ("agent1", "agent2", "merged")
        for number in pair.feature_ids
        if (path := place.test_output(subject, number)).is_file()
    }
    evaluation = Evaluation(record, place.merged_patch.read_bytes(), outputs)
    return pack_result(entry_of(experiment, pair).entry_id, evaluation, exported([]))


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return Experiment(write_tiny(tmp_path / "data", feature_ids=(1, 2, 3)), tmp_path / "logs", "r")


def test_a_result_is_taken_in_for_its_own_pair_and_patches_only(
    tmp_path: Path, experiment: Experiment
) -> None:
    evaluate("r", backend="local", dataset_dir=experiment.dataset, logs_dir=experiment.paths.logs_dir)
    pair, other, _ = experiment.pairs
    result = packed(experiment, pair)
    judged, files = experiment.evaluations()[pair.label], experiment.files()
    place = experiment.paths.pair(pair, "coop")
    for path in (place.evaluation, place.merged_patch, *(place.folder / "tests").iterdir()):
        path.unlink()

    entry = entry_of(experiment, pair)
    take_in(entry, pair, result, experiment.paths)
    assert experiment.evaluations()[pair.label] == judged
    assert experiment.files() == files
    assert is_evaluated(place, pair, "coop", "auto")

    place.evaluation.unlink()
    for asked, of in (
        (entry_of(experiment, other), other),
        (replace(entry, features=[1, 3]), pair),
        (replace(entry, canary=False), pair),
    ):
        with pytest.raises(BadResult, match="is of something else"):
            take_in(asked, of, result, experiment.paths)
    record = read_json(experiment.paths.pair(other, "coop").evaluation)
    assert record is not None
    for evaluation, line in (
        (Evaluation(record), "other patches or tests"),
        (Evaluation(record, b"", {("agent3", 1): ""}), "is of something else"),
    ):
        with pytest.raises(BadResult, match=line):
            take_in(entry, pair, pack_result(entry.entry_id, evaluation, exported([])), experiment.paths)
    for broken in (result[:-40], b"", b"no result"):
        with pytest.raises(BadResult, match="cannot be read"):
            take_in(entry, pair, broken, experiment.paths)
    longer = replace(entry, test_timeout_seconds=TIMEOUT_SECONDS + 1)
    verdict = pack_result(longer.entry_id, Evaluation(record | judged), exported([]))
    with pytest.raises(BadResult, match="other patches or tests"):
        take_in(longer, pair, verdict, experiment.paths)
    experiment.hand_in(pair, {"agent1": golden(3)})
    with pytest.raises(BadResult, match="other patches or tests"):
        take_in(entry, pair, result, experiment.paths)
    assert not place.evaluation.exists()


class JudgesElsewhere(LocalBackend):
    """Somebody else's, with a way of its own."""

    def evaluate_remotely(self, order: Order, listener: Listener, stop: threading.Event) -> None:
        for pair, setting in order.work:
            record = {"status": "error", "error": "judged elsewhere"}
            write_json(order.paths.pair(pair, setting).evaluation, record)
            listener.evaluated(pair, record)


def test_a_backend_may_evaluate_by_itself(experiment: Experiment) -> None:
    name = f"{__name__}:{JudgesElsewhere.__name__}"
    evaluate("r", backend=name, dataset_dir=experiment.dataset, logs_dir=experiment.paths.logs_dir)
    assert len(experiment.evaluations()) == len(experiment.pairs)
    assert {record["error"] for record in experiment.evaluations().values()} == {"judged elsewhere"}
    assert remote_evaluation_of(LocalBackend()) is None


def test_an_entry_is_named_by_everything_that_it_holds(tmp_path: Path, experiment: Experiment) -> None:
    pair = experiment.pairs[0]
    entry = entry_of(experiment, pair)
    assert entry.entry_id == sha256(entry.description) == entry_of(experiment, pair).entry_id
    received = Entry(**json.loads(entry.description))
    assert received == entry
    assert received.patch_bytes() == {"agent1": golden(1).encode(), "agent2": golden(2).encode()}
    assert received.pair(pair.task.path) == pair

    experiment.hand_in(pair, {"agent2": None})
    without = entry_of(experiment, pair)
    assert without.patch_bytes()["agent2"] is None
    experiment.hand_in(pair, {"agent2": ""})
    empty = entry_of(experiment, pair)
    assert empty.patch_bytes()["agent2"] == b""
    experiment.hand_in(pair, {})
    (pair.task.path / "feature1/tests.patch").write_text("changed\n")
    changed = entry_of(experiment, pair)
    ids = [
        one.entry_id for one in (entry, without, empty, changed, entry_of(experiment, experiment.pairs[1]))
    ]
    assert len(set(ids)) == 5


def test_a_task_travels_with_links_modes_and_folders(tmp_path: Path, experiment: Experiment) -> None:
    task = experiment.pairs[0].task
    (task.path / "base/empty").mkdir(parents=True)
    (task.path / "base/run").write_bytes(b"\x00\xff")
    (task.path / "base/run").chmod(0o755)
    (task.path / "base/link").symlink_to("../runner.sh")
    unpack_folder(pack_task(task), tmp_path / "there")
    names = sorted(path.relative_to(task.path) for path in task.path.rglob("*"))
    assert sorted(path.relative_to(tmp_path / "there") for path in (tmp_path / "there").rglob("*")) == names
    assert (tmp_path / "there/base/run").read_bytes() == b"\x00\xff"
    assert (tmp_path / "there/base/run").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "there/base/link").readlink() == Path("../runner.sh")
    assert pack_task(task) == pack_task(replace(task, path=tmp_path / "there"))


def test_the_bundle_has_all_that_evaluating_in_containers_needs(tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(make_bundle())) as archive:
        assert not [name for name in archive.namelist() if "/demo/" in name or name.endswith((".so", ".pyc"))]
        archive.extractall(tmp_path)
    program = """if True:
        import sys
        sys.path.insert(0, sys.argv[1])
        import docker, cooperbench.eval.batch.entry, cooperbench.eval.evaluator, cooperbench.sandbox.session
        from cooperbench.eval.backends import get_backend
        assert all(module.__file__.startswith(sys.argv[1]) for module in (docker, cooperbench))
        print(type(get_backend("docker")).__name__, docker.APIClient(version="1.41", base_url="tcp://127.0.0.1:1").base_url)
        """
    python = Path(sys.base_prefix) / "bin/python3"
    done = subprocess.run([python, "-I", "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["DockerBackend", "http://127.0.0.1:1"]
