"""Repositories with upstream's later commits, as published images have them: nothing of these can be read in a test run."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.backends.docker.images import FOR_TEST_RUNS
from cooperbench.backends.local import LocalBackend
from cooperbench.eval.patch_tester import PatchTester
from cooperbench.eval.references import References
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.sandbox.manager import SandboxManager
from tests.support.attacks.rectangle import BASE, GOLDEN, SOURCE, Judge, write_rectangle
from tests.support.docker.tasks import DOCKERFILE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cooperbench.backends.docker import DockerBackend
    from cooperbench.models import Image, Task
    from cooperbench.sandbox.contract import EvalBackend, Sandbox

FUTURE = """
cd /workspace/repo
commit() { git -c user.name=t -c user.email=t@t.invalid commit -q --allow-empty -am "$1"; }
git tag v1.0
commit present
sed -i 's/raise NotImplementedError/return checked(width) * checked(height)/' rectangle/core.py
commit future
git tag v2.0
git update-ref refs/remotes/origin/main HEAD
git reset -q --hard HEAD~1
chgrp -R 1234 .git || true
"""
STATE = """
git config --global safe.directory '*'
git log --format=%s; git describe --tags | cut -d - -f 1,2; git for-each-ref --format='%(refname)'; git status --porcelain
git cat-file --batch-all-objects --batch-check='%(objecttype)' | grep -c commit; git fsck
"""
_ATTACK = """
import subprocess
def _git(*words):
    command = ["git", "-c", "safe.directory=*", "-C", "/workspace/repo", *words]
    return subprocess.run(command, capture_output=True, text=True).stdout
for _text in CANDIDATES:
    if "return checked(width)" in _text:
        exec(_text)
"""
BY_REF = '[_git("show", f"{name}:rectangle/core.py") for name in ("origin/main", "v2.0", "ORIG_HEAD", "HEAD@{1}")]'
BY_OBJECT = '[_git("cat-file", "blob", line.split()[0]) for line in _git("cat-file", "--batch-all-objects", "--batch-check").splitlines()]'


def attack(candidates: str) -> dict[str, str]:
    return {SOURCE: BASE[SOURCE] + _ATTACK.replace("CANDIDATES", candidates)}


@pytest.fixture
def task(tmp_path: Path) -> Task:
    task = write_rectangle(tmp_path / "dataset")
    task.setup_script.write_text(task.setup_script.read_text() + FUTURE)
    return task


@contextmanager
def judging(backend: EvalBackend, task: Task) -> Iterator[Judge]:
    with SandboxManager(backend) as sandboxes:
        tester = PatchTester(sandboxes, 60)
        yield Judge(task, tester, References(tester, "auto"))


def check_verdicts(backend: EvalBackend, task: Task) -> None:
    with judging(backend, task) as judge:
        assert judge.verdict(GOLDEN) == "confirmed"
        assert judge.verdict(attack(BY_REF)) == "failed"
        assert judge.verdict(attack(BY_OBJECT)) == "failed"


def remove(docker: DockerBackend, image: Image) -> None:
    for name in {image.ref, image.agent_ref, image.evaluation_ref}:
        docker.engine.api.remove_image(name, force=True)


def state(sandbox: Sandbox) -> list[str]:
    done = sandbox.run(["bash", "-c", STATE], cwd="/workspace/repo")
    sandbox.terminate()
    assert done.returncode == 0
    return done.stdout_read().split()


KEPT = ["present", "past", "v1.0-1", "refs/heads/main", "refs/tags/v1.0", "2"]


def test_on_local(task: Task, tmp_path: Path) -> None:
    backend = LocalBackend(cache_dir=tmp_path / "cache")
    check_verdicts(backend, task)
    assert state(backend.create_sandbox(backend.prepare(task).ref)) == KEPT


def test_on_an_engine(docker: DockerBackend, task: Task) -> None:
    task.dockerfile.write_text(DOCKERFILE)
    image = docker.prepare(task)
    assert image.evaluation_ref is not None
    assert any(
        name.endswith(image.evaluation_ref)
        for name in docker.images.list_created(FOR_TEST_RUNS, {task.label})
    )
    assert len(state(docker.create_sandbox(image.ref))) > len(KEPT), (
        "the task's image stays as it is"
    )
    assert state(docker.create_sandbox(image.evaluation_ref)) == KEPT
    sandbox = docker.create_sandbox(image.evaluation_ref)
    owners = sandbox.run(["bash", "-c", "find /workspace/repo/.git -printf '%G\\n' | sort -u"])
    sandbox.terminate()
    assert owners.stdout == b"1234\n"
    assert docker.prepare(task) == image
    check_verdicts(docker, task)
    remove(docker, image)


def test_an_image_without_later_commits_is_used_as_it_is(
    docker: DockerBackend, tmp_path: Path
) -> None:
    task = write_rectangle(tmp_path)
    task.dockerfile.write_text(DOCKERFILE + "RUN echo no later commits >/why\n")
    image = docker.prepare(task)
    assert image.evaluation_ref == image.ref
    assert docker.prepare(task) == image
    names = [name for row in docker.engine.api.images() for name in row["RepoTags"] or []]
    key = str(image.agent_ref).rpartition("-")[2]
    assert len([name for name in names if name.endswith(key)]) == 1, "the one for agents"
    remove(docker, image)


def test_on_a_backend_with_only_exec(task: Task, tmp_path: Path) -> None:
    """Its repository has the later commits in each sandbox, and there they are removed."""
    local = LocalBackend(cache_dir=tmp_path / "cache")

    class OnlyExec:
        def __init__(self, image: str) -> None:
            self._sandbox = local.create_sandbox(image, options=SandboxOptions())
            assert (
                self._sandbox.run(["bash", "-c", FUTURE.replace("git tag v1.0", "")]).returncode
                == 0
            )
            self.terminate = self._sandbox.terminate

        def exec(self, *args: str) -> Any:
            return self._sandbox.exec(*args)

    class PlainBackend:
        def create_sandbox(
            self, image: str, timeout: int = 600, workdir: str = "/workspace"
        ) -> OnlyExec:
            return OnlyExec(reference)

    reference = local.prepare(task).ref
    check_verdicts(PlainBackend(), task)
    local.close()
