"""Git as the harness runs it: the same everywhere, and deaf to hostile repositories."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from cooperbench.errors import InfraError, UserError
from cooperbench.git import (
    GitError,
    decode_path,
    encode_path,
    git,
    git_dir_of,
    git_version,
)

if TYPE_CHECKING:
    from pathlib import Path


def anybodys_git(cwd: Path, *args: str) -> bytes:
    """Git as anybody would run it."""
    identity = (
        "-c",
        "user.name=x",
        "-c",
        "user.email=x@localhost",
        "-c",
        "init.defaultBranch=main",
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(cwd.parent), "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", *identity, *args]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, check=False
    ).stdout


def new_repo(path: Path) -> Path:
    path.mkdir(parents=True)
    anybodys_git(path, "init", "-q")
    (path / "file.txt").write_text("one\n")
    anybodys_git(path, "add", "file.txt")
    anybodys_git(path, "commit", "-q", "-m", "first")
    return path


HOOKS = (
    *(
        "pre-commit",
        "prepare-commit-msg",
        "commit-msg",
        "post-commit",
        "post-checkout",
        "post-index-change",
    ),
    *("pre-merge-commit", "post-merge", "reference-transaction"),
)


class HostileRepo:
    """A repository in which everything that can name a program names one that leaves a mark."""

    def __init__(self, path: Path) -> None:
        self.path = new_repo(path / "repo")
        self.marks = path / "marks"
        self.marks.mkdir()
        for hook in HOOKS:
            script = self.path / ".git" / "hooks" / hook
            script.parent.mkdir(exist_ok=True)
            script.write_text(f"#!/bin/sh\n{self._mark(hook)}\n")
            script.chmod(0o755)
        for name, command in {
            "core.fsmonitor": self._script("fsmonitor"),
            "core.sshCommand": self._script("ssh"),
            "core.pager": self._mark("pager"),
            "core.editor": self._script("editor"),
            "commit.gpgSign": "true",
            "gpg.program": self._script("gpg"),
            "filter.evil.clean": f"{self._mark('clean')}; cat",
            "filter.evil.smudge": f"{self._mark('smudge')}; cat",
            "filter.evil.required": "true",
            "filter.a=b.clean": f"{self._mark('clean-with-equals')}; cat",
            "merge.evil.driver": f"{self._mark('merge')}; true",
            "diff.evil.textconv": self._script("textconv"),
            "diff.evil.command": self._script("extdiff"),
            "diff.external": self._script("external"),
            "protocol.ext.allow": "always",
            "remote.origin.url": f"ext::{self._script('fetch')}",
            "remote.origin.promisor": "true",
            "extensions.partialClone": "origin",
        }.items():
            self.raw("config", name, command)
        self.raw("config", "core.repositoryFormatVersion", "1")
        attributes = "*.txt filter=evil merge=evil diff=evil\n*.md filter=a=b\n"
        (self.path / ".git" / "info").mkdir(exist_ok=True)
        (self.path / ".git" / "info" / "attributes").write_text(attributes)

    def _mark(self, name: str) -> str:
        return f"touch '{self.marks / name}'"

    def _script(self, name: str) -> str:
        script = self.marks.parent / f"{name}.sh"
        script.write_text(f"#!/bin/sh\n{self._mark(name)}\n")
        script.chmod(0o755)
        return str(script)

    def raw(self, *args: str) -> None:
        anybodys_git(self.path, *args)

    @property
    def what_ran(self) -> set[str]:
        return {mark.name for mark in self.marks.iterdir()}


MISSING = "1234567812345678123456781234567812345678"
READING = (
    ("rev-parse", "--verify", "main^{commit}"),
    ("rev-parse", "--git-path", "objects"),
    ("cat-file", "-p", MISSING),
    ("cat-file", "blob", "main:file.txt"),
    ("diff-tree", "-r", "-p", "main"),
    ("update-ref", "refs/heads/other", "main"),
    ("grep", "-e", "one", "main"),
    ("fetch", "origin"),
)


def test_nothing_of_a_hostile_clone_runs(tmp_path: Path) -> None:
    hostile = HostileRepo(tmp_path)
    git_dir = git_dir_of(hostile.path)
    for action in READING:
        git(*action, git_dir=git_dir, check=False)
        assert hostile.what_ran == set(), action
    assert git("cat-file", "blob", "main:file.txt", git_dir=git_dir) == b"one\n"
    assert git("cat-file", "-p", MISSING, git_dir=git_dir, check=False) == b""


def test_the_hostile_repository_is_hostile(tmp_path: Path) -> None:
    """Or the test above would prove nothing."""
    hostile = HostileRepo(tmp_path)
    for action in READING:
        hostile.raw(*action)
    (hostile.path / "file.txt").write_text("two\n")
    (hostile.path / "notes.md").write_text("notes\n")
    hostile.raw("add", "-A")
    hostile.raw("commit", "-m", "x")
    hostile.raw("-c", "commit.gpgSign=false", "commit", "-qam", "x")
    expected = {
        "pre-commit",
        "reference-transaction",
        "fsmonitor",
        "clean",
        "clean-with-equals",
        "gpg",
        "fetch",
    }
    assert hostile.what_ran >= expected


def test_the_environment_and_the_users_config_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = new_repo(tmp_path / "repo") / ".git"
    tree = git("rev-parse", "main^{tree}", git_dir=repo).decode().strip()
    expected = git("diff-tree", "-p", "--root", "main", git_dir=repo)
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[diff]\n\tnoprefix = true\n[core]\n\tabbrev = 40\n")
    for name, value in {
        "HOME": str(home),
        "GIT_DIR": "/nonexistent",
        "GIT_INDEX_FILE": "/nonexistent",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "diff.noprefix",
        "GIT_CONFIG_VALUE_0": "true",
        "GIT_EXTERNAL_DIFF": "false",
    }.items():
        monkeypatch.setenv(name, value)
    assert git("diff-tree", "-p", "--root", "main", git_dir=repo) == expected
    assert b"diff --git a/file.txt b/file.txt" in expected
    assert git("rev-parse", "main^{tree}", git_dir=repo).decode().strip() == tree


def test_a_failure_says_which_command_and_why(tmp_path: Path) -> None:
    git_dir = new_repo(tmp_path / "repo") / ".git"
    with pytest.raises(GitError) as caught:
        git("rev-parse", "--verify", "nothing", git_dir=git_dir)
    assert isinstance(caught.value, InfraError)
    assert caught.value.returncode == 128
    assert (
        str(caught.value)
        == "`git rev-parse --verify nothing` failed (128): Needed a single revision"
    )
    assert git("rev-parse", "--verify", "-q", "nothing", git_dir=git_dir, check=False) == b""


def test_a_machine_without_git_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="install git"):
        git("version")


def test_a_call_that_does_not_end_is_ended(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(GitError, match="timed out after"):
        git("hash-object", str(fifo), timeout_seconds=0.2)


def test_git_directories_are_found_in_every_kind_of_clone(tmp_path: Path) -> None:
    repo = new_repo(tmp_path / "repo")
    anybodys_git(repo, "clone", "-q", "--bare", str(repo), str(tmp_path / "bare.git"))
    anybodys_git(repo, "worktree", "add", "-q", "--detach", str(tmp_path / "tree"))
    (tmp_path / "empty").mkdir()
    (repo / "below").mkdir()
    (tmp_path / "stale").mkdir()
    (tmp_path / "stale" / ".git").write_text("gitdir: ../gone\n")
    head = git("rev-parse", "HEAD", git_dir=repo / ".git")
    for name in ("repo", "bare.git", "tree"):
        found = git_dir_of(tmp_path / name)
        assert found is not None, name
        assert git("rev-parse", "HEAD", git_dir=found) == head
    for name in ("empty", "stale", "missing", "repo/below"):
        assert git_dir_of(tmp_path / name) is None, name


def test_version_and_paths() -> None:
    assert git_version() >= (2, 0)
    assert decode_path(b"caf\xe9") == "caf\udce9"
    assert encode_path(decode_path(b"caf\xe9\xc3\xa9")) == b"caf\xe9\xc3\xa9"
