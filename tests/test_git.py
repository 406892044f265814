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
    run_git,
)

if TYPE_CHECKING:
    from pathlib import Path


def new_repo(path: Path) -> Path:
    path.mkdir(parents=True)
    git("init", "-q", cwd=path)
    (path / "file.txt").write_text("one\n")
    git("add", "file.txt", cwd=path)
    git("commit", "-q", "-m", "first", cwd=path)
    return path


HOOKS = (
    *("pre-commit", "prepare-commit-msg", "commit-msg", "post-commit", "post-checkout", "post-index-change"),
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
        """Git as anybody would run it."""
        identity = ("-c", "user.name=x", "-c", "user.email=x@localhost")
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.path.parent)}
        subprocess.run(
            ["git", *identity, *args], cwd=self.path, env=environment, capture_output=True, check=False
        )

    @property
    def what_ran(self) -> set[str]:
        return {mark.name for mark in self.marks.iterdir()}


ACTIONS = (
    ("status", "--short"),
    ("add", "-A"),
    ("commit", "-m", "change"),
    ("checkout", "-q", "-b", "side", "HEAD~1"),
    ("diff", "main", "side"),
    ("log", "-p", "--all"),
    ("show", "main"),
    ("merge", "--no-edit", "main"),
    ("reset", "-q", "--hard", "main"),
    ("cat-file", "-p", "1234567812345678123456781234567812345678"),
    ("fetch", "origin"),
)


def test_nothing_of_a_hostile_repository_runs(tmp_path: Path) -> None:
    hostile = HostileRepo(tmp_path)
    (hostile.path / "file.txt").write_text("two\n")
    (hostile.path / "notes.md").write_text("notes\n")
    for action in ACTIONS:
        git(*action, cwd=hostile.path, check=False)
        assert hostile.what_ran == set(), action
    assert git("cat-file", "blob", "main:file.txt", cwd=hostile.path) == b"two\n"
    assert b"+two" in git("diff", "main~1", "main", "--", "file.txt", cwd=hostile.path)


def test_a_custom_merge_driver_is_not_called(tmp_path: Path) -> None:
    hostile = HostileRepo(tmp_path)
    for branch, words in (("ours", "ours\n"), ("theirs", "theirs\n")):
        git("checkout", "-q", "-b", branch, "main", cwd=hostile.path)
        (hostile.path / "file.txt").write_text(words)
        git("commit", "-q", "-a", "-m", branch, cwd=hostile.path)
    merged = run_git("merge", "--no-edit", "ours", cwd=hostile.path)
    assert merged.returncode == 1
    assert hostile.what_ran == set()


def test_the_hostile_repository_is_hostile(tmp_path: Path) -> None:
    """Or the tests above would prove nothing."""
    hostile = HostileRepo(tmp_path)
    (hostile.path / "file.txt").write_text("two\n")
    (hostile.path / "notes.md").write_text("notes\n")
    for action in ACTIONS:
        hostile.raw(*action)
    hostile.raw("-c", "commit.gpgSign=false", "commit", "-q", "-a", "-m", "unsigned")
    (hostile.path / "file.txt").write_text("three\n")
    hostile.raw("diff")
    expected = {"pre-commit", "post-index-change", "fsmonitor", "clean", "smudge", "textconv", "gpg", "fetch"}
    assert hostile.what_ran >= expected | {"clean-with-equals", "extdiff"}


def test_the_environment_and_the_users_config_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        "[user]\n\tname = Somebody\n[core]\n\tautocrlf = true\n[diff]\n\tnoprefix = true\n"
    )
    for name, value in {
        "HOME": str(home),
        "GIT_DIR": "/nonexistent",
        "GIT_INDEX_FILE": "/nonexistent",
        "GIT_AUTHOR_NAME": "Somebody",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "diff.noprefix",
        "GIT_CONFIG_VALUE_0": "true",
        "GIT_EXTERNAL_DIFF": "false",
    }.items():
        monkeypatch.setenv(name, value)
    first, second = new_repo(tmp_path / "a"), new_repo(tmp_path / "b")
    (first / "crlf.txt").write_bytes(b"x\r\n")
    git("add", "-A", cwd=first)
    assert git("cat-file", "blob", ":crlf.txt", cwd=first) == b"x\r\n"
    assert b"diff --git a/crlf.txt b/crlf.txt" in git("diff", "--cached", cwd=first)
    assert git("rev-parse", "HEAD", cwd=first) == git("rev-parse", "HEAD", cwd=second)
    assert git("log", "-1", "--format=%an %ad", "--date=raw", cwd=first) == b"CooperBench 946684800 +0000\n"


def test_a_repository_further_up_is_not_found(tmp_path: Path) -> None:
    below = new_repo(tmp_path / "repo") / "below"
    below.mkdir()
    with pytest.raises(GitError, match="not a git repository"):
        git("rev-parse", "HEAD", cwd=below)


def test_a_failure_says_which_command_and_why(tmp_path: Path) -> None:
    with pytest.raises(GitError) as caught:
        git("rev-parse", "--verify", "nothing", cwd=new_repo(tmp_path / "repo"))
    assert isinstance(caught.value, InfraError)
    assert caught.value.returncode == 128
    assert str(caught.value) == "`git rev-parse --verify nothing` failed (128): Needed a single revision"
    assert git("rev-parse", "--verify", "-q", "nothing", cwd=tmp_path / "repo", check=False) == b""


def test_missing_git_and_missing_folders_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GitError, match="there is no folder"):
        git("status", cwd=tmp_path / "nowhere")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="install git"):
        git("status", cwd=tmp_path)


def test_a_call_that_does_not_end_is_ended(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(GitError, match="no end after"):
        git("hash-object", str(fifo), own_repository=True, timeout_seconds=0.2)


def test_git_directories_are_found_in_every_kind_of_clone(tmp_path: Path) -> None:
    repo = new_repo(tmp_path / "repo")
    git("clone", "-q", "--bare", str(repo), str(tmp_path / "bare.git"), env={"GIT_ALLOW_PROTOCOL": "file"})
    git("worktree", "add", "-q", "--detach", str(tmp_path / "tree"), cwd=repo)
    (tmp_path / "empty").mkdir()
    (tmp_path / "stale").mkdir()
    (tmp_path / "stale" / ".git").write_text("gitdir: ../gone\n")
    head = git("rev-parse", "HEAD", cwd=repo)
    for name in ("repo", "bare.git", "tree"):
        found = git_dir_of(tmp_path / name)
        assert found is not None, name
        assert git("rev-parse", "HEAD", git_dir=found) == head
    for name in ("empty", "stale", "missing"):
        assert git_dir_of(tmp_path / name) is None, name


def test_version_and_paths() -> None:
    assert git_version() >= (2, 0)
    assert decode_path(b"caf\xe9") == "caf\udce9"
    assert encode_path(decode_path(b"caf\xe9\xc3\xa9")) == b"caf\xe9\xc3\xa9"
