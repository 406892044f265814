"""Tasks in their images without a container engine: prepared, run and evaluated."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cooperbench import run
from cooperbench.backends.local import LocalBackend
from cooperbench.cli import main
from cooperbench.dataset.discovery import demo_dir, load_tasks
from cooperbench.dataset.image_names import image_name
from cooperbench.errors import SandboxError
from cooperbench.sandbox.contract import SandboxOptions
from tests.external.backends.docker.test_run import verdicts
from tests.support.images.built import Layout, base_layer, task_layer
from tests.support.images.tarballs import Tarball
from tests.support.tiny import write_tiny

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.models import Task
    from cooperbench.sandbox.contract import Sandbox


def output(sandbox: Sandbox, script: str) -> str:
    return sandbox.run(["bash", "-c", script], cwd="/workspace/repo").stdout_read().strip()


def test_agents_and_tests_see_no_future(local_images: LocalBackend, image_task: Task) -> None:
    image = local_images.prepare(image_task)
    commits = "git log --all --format=%s; git cat-file --batch-all-objects --batch-check | wc -l"
    assert image.agent_ref
    seen = {}
    for ref in (image.ref, image.agent_ref):
        sandbox = local_images.create_sandbox(ref)
        seen[ref] = output(sandbox, commits).split("\n")
        assert output(sandbox, "git status --porcelain") == ""
        sandbox.terminate()
    assert seen == {image.ref: ["The past", "6"], image.agent_ref: ["Base", "6"]}


def test_the_same_verdicts_as_when_setup_prepares_it(
    image_dataset: Path, image_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = {"image": image_dataset, "setup": write_tiny(tmp_path / "dataset")}
    caches = {"image": image_cache, "setup": tmp_path / "cache"}
    for name, dataset in datasets.items():
        monkeypatch.setenv("COOPERBENCH_CACHE_DIR", str(caches[name]))
        run(
            name,
            agent="oracle",
            backend="local",
            dataset_dir=dataset,
            logs_dir=tmp_path / "logs",
            concurrency=2,
            eval_concurrency=2,
        )
    mine, reference = (verdicts(tmp_path / "logs" / name) for name in datasets)
    assert len(mine) == 6
    assert mine == reference
    result = json.loads((tmp_path / "logs/image/coop/tiny_task/7/f1_f2/result.json").read_text())
    assert result["image_digest"].startswith("sha256:")


def test_what_a_runner_installs_becomes_a_layer(
    local_images: LocalBackend, image_task: Task
) -> None:
    image = local_images.prepare(image_task)
    options = SandboxOptions(purpose="setup", snapshot_excludes=("/workspace/repo",))
    with local_images.locked_snapshot(image_task, "0123456789abcdef") as existing:
        assert existing is None
        sandbox = local_images.create_sandbox(image.ref, options=options)
        script = "echo new >/usr/lib/new; rm /usr/bin/env; rm -r /workspace/repo; mkdir /opt/own"
        assert sandbox.run(["bash", "-c", script], cwd="/").returncode == 0
        ref = local_images.take_snapshot(sandbox, image_task, "0123456789abcdef")
        sandbox.terminate()
    with local_images.locked_snapshot(image_task, "0123456789abcdef") as existing:
        assert existing == ref
    sandbox = local_images.create_sandbox(ref)
    assert output(sandbox, "cat /usr/lib/new; ls -d /usr/bin/env /opt/own") == "new\n/opt/own"
    assert output(sandbox, "git log --format=%s; git status --porcelain") == "The past"
    assert sandbox.run_last(["cat", "/usr/lib/new"], timeout_seconds=60).stdout == b"new\n"
    sandbox.terminate()


def test_a_link_in_the_way_of_what_a_layer_leaves_out(
    local_images: LocalBackend, image_task: Task, tmp_path: Path
) -> None:
    """Code in the sandbox must not make us remove files of the host."""
    (tmp_path / "repo").mkdir()
    options = SandboxOptions(purpose="setup", snapshot_excludes=("/workspace/repo",))
    sandbox = local_images.create_sandbox(local_images.prepare(image_task).ref, options=options)
    script = f"rm -r /workspace && ln -s {tmp_path} /workspace"
    assert sandbox.run(["bash", "-c", script], cwd="/").returncode == 0
    with local_images.locked_snapshot(image_task, "f" * 16):
        local_images.take_snapshot(sandbox, image_task, "f" * 16)
    assert (tmp_path / "repo").is_dir()


def test_a_layer_that_is_gone(local_images: LocalBackend) -> None:
    for ref in (
        "image/tiny_task:task7@0123456789abcdef",
        "snapshot/tiny_task:task7@0000000000000000",
    ):
        with pytest.raises(SandboxError, match="no longer in"):
            local_images.create_sandbox(ref)


def test_a_folder_of_the_host_is_mounted(
    image_cache: Path, image_task: Task, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("from the host")
    mounts = [f"{tmp_path}:/mnt/read", f"{tmp_path}:/mnt/write:rw"]
    backend = LocalBackend(cache_dir=image_cache, mounts=mounts)
    sandbox = backend.create_sandbox(backend.prepare(image_task).ref)
    script = "cat /mnt/read/file; touch /mnt/read/x || touch /mnt/write/new"
    assert output(sandbox, script) == "from the host"
    backend.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "new"]


def test_no_attack_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The patches of tests/integration/attacks, in an image with the same task."""
    source = demo_dir() / "stencil_task"
    dataset = tmp_path / "dataset"
    shutil.copytree(source, dataset / "stencil_task")
    (task,) = load_tasks(dataset)
    layout = Layout(tmp_path / "layout")
    layout.add_image(image_name(task), [base_layer(), task_layer(task)])
    monkeypatch.setenv("COOPERBENCH_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["images", "import", str(layout.folder)]) == 0
    capsys.readouterr()
    words = ["-r", "stencil_task", "-f", "1,2", "--backend", "local", "-c", "2", "--json"]
    code = main(["validate", "--attacks", *words, "--dataset-dir", str(dataset)])
    (report,) = json.loads(capsys.readouterr().out)["tasks"]
    assert (code, report["problems"]) == (0, [])
    assert report["checks"] > 2 * 3 + 30


def test_two_processes_import_the_same(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout")
    layers = [Tarball().add(f"file-{number}", b"x" * 10**6).data for number in range(5)]
    layout.add_image("team/image:1", layers)
    command = [sys.executable, "-m", "cooperbench", "images", "import", str(layout.folder)]
    env = {**os.environ, "COOPERBENCH_CACHE_DIR": str(tmp_path / "cache")}
    processes = [subprocess.Popen(command, env=env) for _ in range(4)]
    assert [process.wait() for process in processes] == [0, 0, 0, 0]
    layers_left = list((tmp_path / "cache/images/layers").iterdir())
    assert len(layers_left) == 5
