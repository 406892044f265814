"""One commit instead of a history: byte for byte, the same everywhere, nothing of upstream left, nothing run."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from cooperbench.sandbox import sandbox_script

if TYPE_CHECKING:
    from pathlib import Path

ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    **{
        f"GIT_{who}_{what}": f"x@{what.lower()}"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    },
}


def git(repo: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", *args], cwd=repo, env=ENV, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    repo = tmp_path / "work" / "repo"
    repo.mkdir(parents=True)
    git(repo, "init", "-q", "-b", "trunk")
    (repo / "crlf.txt").write_bytes(b"one\r\ntwo\r\n")
    (repo / "ident.c").write_bytes(b"/* $Id$ */\n")
    (repo / "binary").write_bytes(bytes(range(256)))
    (repo / "run.sh").write_text("#!/bin/sh\n")
    (repo / "run.sh").chmod(0o755)
    (repo / "link").symlink_to("run.sh")
    (repo / "ünï 'q\"\n.txt").write_text("odd name\n")
    (repo / ".gitattributes").write_text("*.txt text eol=lf\n*.c ident\n*.bad filter=evil\n")
    (repo / ".gitignore").write_text("ignored/\n*.log\n")
    (repo / "kept.log").write_text("tracked although ignored\n")
    git(repo, "add", "-A", "-f")
    git(repo, "commit", "-qm", "upstream one")
    git(repo, "tag", "v1")
    (repo / "future").write_text("upstream secret\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "upstream two")
    git(repo, "branch", "release")
    git(repo, "reset", "-q", "--hard", "HEAD~1")
    (repo / "crlf.txt").write_bytes(b"one\r\ntwo\r\n")
    git(repo, "remote", "add", "origin", "https://example.invalid/x.git")
    (repo / "untracked").write_text("new\n")
    (repo / "ignored").mkdir()
    (repo / "ignored" / "file").write_text("cache\n")
    return repo


def strip_history(repo: Path, base: Path) -> str:
    command = [
        "bash",
        "-c",
        sandbox_script("strip_history.sh"),
        "strip_history.sh",
        str(repo),
        str(base),
    ]
    done = subprocess.run(
        command, env={"PATH": ENV["PATH"]}, capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes(),
        )
        for path in folder.rglob("*")
        if ".git" not in path.relative_to(folder).parts and (path.is_symlink() or path.is_file())
    }


def test_one_commit_of_the_work_tree(repo: Path, tmp_path: Path) -> None:
    before = tree(repo)
    commit = strip_history(repo, tmp_path / "base.git")
    assert tree(repo) == before
    assert git(repo, "rev-parse", "HEAD").strip() == commit
    assert git(repo, "status", "--porcelain", "--branch") == "## main\n"
    assert (
        git(repo, "log", "--all", "--format=%an|%ae|%at|%s")
        == "CooperBench|base@cooperbench.invalid|946684800|Base\n"
    )
    listed = git(repo, "ls-tree", "-r", "-z", "--name-only", "HEAD").split("\0")[:-1]
    assert sorted(listed) == sorted(name for name in before if not name.startswith("ignored/"))
    for name in listed:
        blob = subprocess.run(
            ["git", "cat-file", "blob", f"HEAD:{name}"],
            cwd=repo,
            env=ENV,
            capture_output=True,
            check=True,
        )
        assert blob.stdout == before[name][1]
    assert git(tmp_path / "base.git", "rev-parse", "main").strip() == commit
    attributes = (tmp_path / "base.git" / "info" / "attributes").read_text()
    assert attributes == "* -text -ident !filter !working-tree-encoding !diff !merge\n"
    git(tmp_path / "base.git", "fsck", "--full", "--strict")


def test_nothing_of_upstream_is_left(repo: Path, tmp_path: Path) -> None:
    strip_history(repo, tmp_path / "base.git")
    for folder in (repo, tmp_path / "base.git"):
        assert git(folder, "for-each-ref", "--format=%(refname)") == "refs/heads/main\n"
        kinds = git(
            folder, "cat-file", "--batch-all-objects", "--batch-check=%(objecttype)"
        ).split()
        assert kinds.count("commit") == 1
        assert "tag" not in kinds
        assert git(folder, "remote") == ""
        assert git(folder, "fsck", "--unreachable", "--no-reflogs") == ""
    assert not (repo / ".git" / "logs").exists()
    assert list((tmp_path / "work").iterdir()) == [repo]


def test_the_same_id_whatever_the_history(repo: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["cp", "-a", str(repo), str(other)], check=True)
    git(other, "commit", "-q", "--allow-empty", "-m", "more history")
    git(other, "add", "untracked")
    assert strip_history(repo, tmp_path / "a.git") == strip_history(other, tmp_path / "b.git")
    assert (
        strip_history(repo, tmp_path / "a.git") == git(repo, "rev-parse", "HEAD").strip()
    )  # and again


def test_nothing_of_the_repository_is_run(repo: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    for name in (
        "pre-commit",
        "post-commit",
        "reference-transaction",
        "post-checkout",
        "post-index-change",
        "pre-auto-gc",
    ):
        hook = repo / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {trap}\n")
        hook.chmod(0o755)
    (repo / "x.bad").write_text("data\n")
    for key, value in {
        "core.fsmonitor": f"touch {trap}",
        "filter.evil.clean": f"touch {trap}; cat",
        "filter.evil.process": f"touch {trap}",
        "core.hooksPath": str(repo / ".git" / "hooks"),
        "commit.gpgSign": "true",
        "gpg.program": f"touch {trap}",
        "core.editor": f"touch {trap}",
    }.items():
        git(repo, "config", key, value)
    strip_history(repo, tmp_path / "base.git")
    assert not trap.exists()
    assert "evil" not in (repo / ".git" / "config").read_text()


def test_submodules_and_nested_checkouts_become_files(repo: Path, tmp_path: Path) -> None:
    module = tmp_path / "module"
    module.mkdir()
    git(module, "init", "-q")
    (module / "inner").write_text("inner\n")
    git(module, "add", "-A")
    git(module, "commit", "-qm", "module's upstream")
    git(repo, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(module), "sub")
    git(repo, "commit", "-qm", "with a submodule")
    subprocess.run(["cp", "-a", str(module), str(repo / "nested")], check=True)
    strip_history(repo, tmp_path / "base.git")
    listed = git(repo, "ls-tree", "-r", "HEAD")
    assert "160000" not in listed
    assert "sub/inner" in listed
    assert "nested/inner" in listed
    assert git(repo, "status", "--porcelain") == ""
    assert not (repo / "nested" / ".git").exists()


def test_not_a_repository(tmp_path: Path) -> None:
    command = [
        "bash",
        "-c",
        sandbox_script("strip_history.sh"),
        "strip_history.sh",
        str(tmp_path),
        str(tmp_path / "base.git"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is not a git repository" in done.stderr
