"""Preparing tasks: once, whole, for evaluation and for agents."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.local import LocalBackend
from cooperbench.backends.local.cache import template_content
from cooperbench.backends.local.rootfs import Overlays
from cooperbench.backends.local.sandbox import LocalSandbox
from cooperbench.dataset.discovery import load_tasks
from cooperbench.errors import InfraError, UserError
from cooperbench.sandbox.contract import SandboxOptions
from tests.support.requirements import skip_without
from tests.support.tiny import golden, hidden_test, write_tiny

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.models import Image, Task
    from cooperbench.sandbox.contract import CommandResult, Sandbox

LARGE = """
mkdir -p bulk && for i in $(seq 700); do echo "$i" >"bulk/$i"; done
"""


def tiny_task(root: Path) -> Task:
    return load_tasks(write_tiny(root / "dataset"))[0]


def change_setup(task: Task, text: str) -> None:
    task.setup_script.write_text(text)


def in_repo(sandbox: Sandbox, script: str) -> CommandResult:
    return sandbox.run(["bash", "-c", script], cwd="/workspace/repo", timeout_seconds=60)


def git_lines(sandbox: Sandbox, *args: str) -> list[str]:
    result = sandbox.run(["git", *args], cwd="/workspace/repo")
    assert result.returncode == 0, result.stderr_read()
    return result.stdout_read().splitlines()


@pytest.fixture(scope="module")
def image(local: LocalBackend, tmp_path_factory: pytest.TempPathFactory) -> Image:
    return local.prepare(tiny_task(tmp_path_factory.mktemp("tiny")))


def test_references(local: LocalBackend, image: Image, tmp_path: Path) -> None:
    assert image.ref.startswith("local/tiny_task:task7@")
    assert image.agent_ref == image.ref + "+agent"
    assert image.digest.startswith("sha256:")
    assert local.prepare(tiny_task(tmp_path)) == image  # the same content at another place


def test_evaluation_template_has_no_later_commits(local: LocalBackend, image: Image) -> None:
    sandbox = local.create_sandbox(image.ref)
    assert git_lines(sandbox, "log", "--format=%s") == ["The past"]
    objects = git_lines(sandbox, "cat-file", "--batch-all-objects", "--batch-check=%(objecttype)")
    assert objects.count("commit") == 1
    assert sandbox.run(["stat", "-c", "%a", "/usr/local/bin/runner.sh"]).stdout == b"755\n"
    assert sandbox.run(["test", "-e", "/task"]).returncode == 1
    sandbox.terminate()


def test_the_agents_template_has_no_history(local: LocalBackend, image: Image) -> None:
    assert image.agent_ref is not None
    sandboxes = [local.create_sandbox(image.agent_ref) for _ in range(2)]
    heads = [git_lines(sandbox, "rev-parse", "HEAD") for sandbox in sandboxes]
    assert heads[0] == heads[1]
    one = sandboxes[0]
    assert git_lines(one, "status", "--porcelain", "--branch") == ["## main"]
    assert git_lines(one, "log", "--all", "--format=%an <%ae> %s") == [
        "CooperBench <base@cooperbench.invalid> Base"
    ]
    assert git_lines(one, "rev-list", "--all", "--count") == ["1"]
    objects = git_lines(one, "cat-file", "--batch-all-objects", "--batch-check=%(objecttype)")
    assert objects.count("commit") == 1
    assert (
        in_repo(
            one, "grep -ra 'secret future' . || git fsck --unreachable --no-reflogs | grep ."
        ).returncode
        == 1
    )
    assert in_repo(one, "ls .git/ORIG_HEAD .git/logs .git/FETCH_HEAD").stdout == b""
    base = (
        one.run(["git", "--git-dir=/cooperbench/base.git", "rev-parse", "main"])
        .stdout_read()
        .split()
    )
    assert base == heads[0]
    assert one.run(["touch", "/cooperbench/base.git/x"]).returncode != 0
    for sandbox in sandboxes:
        sandbox.terminate()


@pytest.mark.parametrize("patch", [None, golden(1)])
def test_the_runner_runs(local: LocalBackend, image: Image, patch: str | None) -> None:
    sandbox = local.create_sandbox(image.ref)
    sandbox.write_file("/patches/tests.patch", hidden_test(1).encode())
    sandbox.write_file("/patches/feature.patch", (patch or "").encode())
    arguments = ["tests.patch", "feature.patch"] if patch else ["tests.patch"]
    assert sandbox.run(["runner.sh", *arguments], timeout_seconds=60).returncode == (
        0 if patch else 1
    )
    sandbox.terminate()


def test_what_one_sandbox_changes_no_other_sees(local: LocalBackend, image: Image) -> None:
    first = local.create_sandbox(image.ref)
    assert (
        in_repo(
            first, "echo changed >app.txt; rm -rf tests; git mv .gitignore other; echo new >new"
        ).returncode
        == 0
    )
    second = local.create_sandbox(image.ref)
    assert git_lines(second, "status", "--porcelain") == []
    assert in_repo(second, "head -1 app.txt; ls").stdout == b"line 1\napp.txt\ntests\n"
    first.terminate()
    second.terminate()


@pytest.mark.parametrize(
    "overlays",
    [
        Overlays(root=True, read_only=True),
        Overlays(root=False, read_only=True),
        Overlays(root=False, read_only=False),
    ],
)
def test_large_templates(tmp_path: Path, overlays: Overlays) -> None:
    """Through an overlay where there is one, else as a copy: the same to see, and the template stays as it is."""
    task = tiny_task(tmp_path)
    change_setup(task, task.setup_script.read_text() + LARGE)
    backend = LocalBackend(cache_dir=tmp_path / "cache")
    image = backend.prepare(task)
    template = tmp_path / "cache" / "local" / image.ref.partition("@")[2]
    builder, bubblewrap = backend._find_bubblewrap()
    if overlays > bubblewrap.overlays:
        skip_without("overlay mounts", "a file system that supports them", optional=True)
    sandbox = LocalSandbox(
        builder,
        replace(bubblewrap, overlays=overlays),
        template_content(template, agent=False),
        lifetime_seconds=60,
        workdir="/workspace/repo",
        options=SandboxOptions(),
        on_end=lambda _: None,
    )
    script = "echo changed >bulk/1; rm bulk/2; mv bulk/3 bulk/three; mkdir new; rm -rf tests; ls bulk | wc -l"
    assert in_repo(sandbox, script).stdout == b"699\n"
    mounts = sandbox.run(["cat", "/proc/mounts"]).stdout_read()
    assert (" / overlay " in mounts, " /usr overlay " in mounts) == overlays
    sandbox.terminate()
    assert (template / "evaluation/workspace/repo/bulk/1").read_text() == "1\n"
    assert (template / "evaluation/workspace/repo/bulk/2").exists()
    assert (template / "evaluation/workspace/repo/tests").is_dir()


def test_mounts_tell_nothing_about_the_host(tmp_path: Path) -> None:
    backend = LocalBackend(cache_dir=tmp_path / "cache")
    (tmp_path / "programs").mkdir()
    image = backend.prepare(tiny_task(tmp_path))
    if not backend._find_bubblewrap()[1].overlays.root:
        skip_without("overlay mounts", "a file system that supports them", optional=True)
    sandbox = backend.create_sandbox(
        image.agent_ref or "", options=SandboxOptions(programs=tmp_path / "programs")
    )
    script = "ls -d /cooperbench/{base.git,programs,io,lib} && cat /proc/self/{mountinfo,mounts}"
    for result in (
        sandbox.run(["bash", "-c", script]),
        sandbox.run_last(["bash", "-c", script], timeout_seconds=60),
    ):
        assert result.returncode == 0
        assert tmp_path.name not in result.stdout_read()
    backend.close()


def test_what_setup_put_into_the_home_is_kept(local: LocalBackend, tmp_path: Path) -> None:
    task = tiny_task(tmp_path)
    change_setup(
        task,
        task.setup_script.read_text()
        + "\nmkdir -p ~root/.cache/x && echo kept >~root/.cache/x/file\n",
    )
    sandbox = local.create_sandbox(local.prepare(task).ref)
    assert sandbox.read_file("/root/.cache/x/file") == b"kept\n"
    sandbox.terminate()


def test_a_checkout_elsewhere_becomes_the_repository(local: LocalBackend, tmp_path: Path) -> None:
    task = tiny_task(tmp_path)
    text = task.setup_script.read_text().replace(
        "dest=${1:-/workspace/repo}", 'dest=$(dirname "$0")/clone'
    )
    change_setup(task, text)
    before = sorted(path.name for path in task.path.iterdir())
    sandbox = local.create_sandbox(local.prepare(task).ref)
    assert git_lines(sandbox, "log", "--format=%s") == ["The past"]
    sandbox.terminate()
    assert sorted(path.name for path in task.path.iterdir()) == before


@pytest.mark.parametrize(
    ("setup", "reason"),
    [
        ("echo working; echo 'cannot clone' >&2; exit 4", "exit code 4: cannot clone"),
        ("true", "no git checkout"),
        ("git init -q a; git init -q b", "several git checkouts"),
        ("git init -q repo", "has no commit at HEAD"),
    ],
)
def test_a_setup_that_fails_says_why_and_leaves_no_template(
    tmp_path: Path, setup: str, reason: str
) -> None:
    task = tiny_task(tmp_path)
    change_setup(task, setup)
    backend = LocalBackend(cache_dir=tmp_path / "cache")
    with pytest.raises(InfraError, match=reason) as failure:
        backend.prepare(task)
    assert "\n" not in str(failure.value)
    (log,) = (tmp_path / "cache" / "local").glob("*.log")
    assert str(log) in str(failure.value)
    assert [path for path in (tmp_path / "cache" / "local").iterdir() if path.is_dir()] == []
    backend.close()


def test_a_task_without_setup(cache_dir: Path, tmp_path: Path) -> None:
    backend = LocalBackend(cache_dir=cache_dir, pull="never")
    task = tiny_task(tmp_path)
    task.setup_script.unlink()
    with pytest.raises(UserError, match=r"tiny_task/task7 has no setup\.sh and its image is not"):
        backend.prepare(task)


def test_an_image_by_the_name_of_a_task(cache_dir: Path, tmp_path: Path) -> None:
    backend = LocalBackend(dataset_dir=write_tiny(tmp_path / "dataset"), cache_dir=cache_dir)
    for name in ("cooperbench/tiny_task:task7", "akhatua/cooperbench-tiny:task7"):
        sandbox = backend.create_sandbox(name)
        assert git_lines(sandbox, "log", "--format=%s") == ["The past"]
        sandbox.terminate()


PREPARE = """
    import sys
    from pathlib import Path
    from cooperbench.dataset.discovery import load_tasks
    from cooperbench.backends.local import LocalBackend
    print(LocalBackend(cache_dir=sys.argv[1]).prepare(load_tasks(Path(sys.argv[2]))[0]).ref)
"""


def test_threads_and_processes_prepare_a_task_once(tmp_path: Path) -> None:
    task = tiny_task(tmp_path)
    change_setup(
        task, "sleep 0.3\n" + task.setup_script.read_text() + '\ndate +%s.%N >"$dest/when"\n'
    )
    backend = LocalBackend(cache_dir=tmp_path / "cache")
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(PREPARE),
        str(tmp_path / "cache"),
        str(tmp_path / "dataset"),
    ]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    with ThreadPoolExecutor(3) as threads:
        images = list(threads.map(lambda _: backend.prepare(task), range(3)))
    printed = {process.communicate()[0].strip() for process in others}
    assert printed == {image.ref for image in images}
    folders = [path for path in (tmp_path / "cache" / "local").iterdir() if path.is_dir()]
    assert len(folders) == 1


def test_a_killed_preparation_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    task = tiny_task(tmp_path)
    original = task.setup_script.read_text()
    change_setup(task, original + "\nif [ ! -e /task/fast ]; then sleep 900; fi\n")
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(PREPARE),
        str(tmp_path / "cache"),
        str(tmp_path / "dataset"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    waiting = tmp_path / "cache" / "local"
    while not list(waiting.glob("*.staging-*/evaluation/workspace/repo/.git/ORIG_HEAD")):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    (task.path / "fast").touch()
    backend = LocalBackend(cache_dir=tmp_path / "cache")
    sandbox = backend.create_sandbox(backend.prepare(task).ref)
    assert git_lines(sandbox, "log", "--format=%s") == ["The past"]
    backend.close()
    assert len([path for path in waiting.iterdir() if path.is_dir()]) == 1
