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
from cooperbench.eval.batch import Order
from cooperbench.eval.batch.entry import (
    Entry,
    make_bundle,
    make_entry,
    pack_folder,
    sha256,
    take_in,
    unpack_folder,
)

from cooperbench import evaluate
from cooperbench.errors import InfraError
from cooperbench.eval.evaluator import is_evaluated, read_patches
from cooperbench.eval.reference import exported
from cooperbench.storage import is_finished, write_json
from tests.backends.gcp.batch_cloud import Experiment
from tests.tiny import golden, write_tiny

if TYPE_CHECKING:
    from cooperbench.models import Pair

TIMEOUT_SECONDS = 600


def entry_of(experiment: Experiment, pair: Pair) -> Entry:
    order = Order(experiment.paths, 1, TIMEOUT_SECONDS, "auto", work=[(pair, "coop")])
    digest = sha256(pack_folder(pair.task.path))
    return make_entry(order, pair, "coop", digest, "local", {"COOPERBENCH_DOCKER_PULL": "never"})


def packed(experiment: Experiment, pair: Pair) -> bytes:
    """As a task sends it."""
    folder = experiment.paths.pair(pair, "coop").folder
    write_json(folder / "references.json", exported([]))
    result = pack_folder(folder, ("eval.json", "merged.patch", "tests", "references.json"))
    (folder / "references.json").unlink()
    return result


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
        (replace(entry, setting="team"), pair),
        (replace(entry, canary=False), pair),
        (replace(entry, test_timeout_seconds=TIMEOUT_SECONDS + 1), pair),
    ):
        with pytest.raises(InfraError, match="other patches or tests"):
            take_in(asked, of, result, experiment.paths)
    for broken in (result[:-40], b"", b"no result"):
        with pytest.raises(InfraError, match="cannot be read"):
            take_in(entry, pair, broken, experiment.paths)
    experiment.hand_in(pair, {"agent1": golden(3)})
    with pytest.raises(InfraError, match="other patches or tests"):
        take_in(entry, pair, result, experiment.paths)
    assert not place.evaluation.exists()


def test_a_result_writes_nothing_but_its_own_files(tmp_path: Path, experiment: Experiment) -> None:
    pair = experiment.pairs[0]
    result = tmp_path / "result"
    write_json(result / "eval.json", {"status": "error", "setting": "coop", "error": "no luck"})
    write_json(result / "references.json", exported([]))
    write_json(result / "result.json", {"status": "forged"})
    (result / "agent1.patch").write_text("forged")
    take_in(entry_of(experiment, pair), pair, pack_folder(result), experiment.paths)
    place = experiment.paths.pair(pair, "coop")
    assert experiment.evaluations()[pair.label]["error"] == "no luck"
    assert is_finished(place)
    assert place.agent("agent1").patch.read_text() == golden(1)

    outside = tmp_path / "outside"
    (result / "tests").mkdir()
    (result / "tests/agent1-f1.txt").symlink_to(outside)
    with pytest.raises(InfraError, match="cannot be read"):
        take_in(entry_of(experiment, pair), pair, pack_folder(result), experiment.paths)


def test_an_entry_is_named_by_everything_that_it_holds(tmp_path: Path, experiment: Experiment) -> None:
    pair = experiment.pairs[0]
    entry = entry_of(experiment, pair)
    assert entry.entry_id == sha256(entry.description) == entry_of(experiment, pair).entry_id
    received = Entry(**json.loads(entry.description))
    assert received == entry
    there, logs = received.unpack(pack_folder(pair.task.path), tmp_path / "there")
    assert (there.task.repo, there.task.feature_ids, there.feature_ids) == (
        pair.task.repo,
        pair.task.feature_ids,
        pair.feature_ids,
    )
    patches = read_patches(logs.pair(there, "coop"), there, "coop")
    assert patches == {"agent1": golden(1).encode(), "agent2": golden(2).encode()}

    experiment.hand_in(pair, {"agent2": None})
    without = entry_of(experiment, pair)
    experiment.hand_in(pair, {"agent2": ""})
    empty = entry_of(experiment, pair)
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
    unpack_folder(pack_folder(task.path), tmp_path / "there")
    names = sorted(path.relative_to(task.path) for path in task.path.rglob("*"))
    assert sorted(path.relative_to(tmp_path / "there") for path in (tmp_path / "there").rglob("*")) == names
    assert (tmp_path / "there/base/run").read_bytes() == b"\x00\xff"
    assert (tmp_path / "there/base/run").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "there/base/link").readlink() == Path("../runner.sh")
    assert pack_folder(task.path) == pack_folder(tmp_path / "there")


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
