"""Commits later than HEAD are removed for good, and everything that HEAD has stays as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from cooperbench.sandbox import sandbox_script
from tests.unit.sandbox.test_strip_history import ENV, git

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "upstream's implementation"


def strip_future_commits(repo: Path) -> str:
    command = [
        "bash",
        "-c",
        sandbox_script("strip_future_commits.sh"),
        "strip-future-commits",
        str(repo),
    ]
    done = subprocess.run(
        command, env={"PATH": ENV["PATH"]}, capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def commit(repo: Path, text: str, name: str = "app.py") -> None:
    (repo / name).write_text(text)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", f"a commit: {text}")


def readable(repo: Path, *git_dir: str) -> str:
    """All that can be read from a repository's objects, by refs or without them."""
    listed = git(
        repo,
        *git_dir,
        "cat-file",
        "--batch-all-objects",
        "--batch-check=%(objectname) %(objecttype)",
    )
    objects = [line.split() for line in listed.splitlines()]
    return "".join(
        git(repo, *git_dir, "cat-file", kind, name) for name, kind in objects if kind != "tree"
    )


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    """Three versions, the last with the feature."""
    upstream = tmp_path / "upstream"
    upstream.mkdir()
    git(upstream, "init", "-q", "-b", "main")
    for number, text in enumerate(("one\n", "two\n", f"{SECRET}\n")):
        commit(upstream, text)
        git(upstream, "tag", "-a", "-m", f"version {number}", f"v{number}")
    git(upstream, "branch", "old", "v0")
    return upstream


@pytest.fixture
def repo(upstream: Path, tmp_path: Path) -> Path:
    """A clone at the second version."""
    repo = tmp_path / "work" / "repo"
    git(tmp_path, "clone", "-q", str(upstream), str(repo))
    git(repo, "reset", "-q", "--hard", "v1")
    return repo


def test_whatever_held_later_commits(repo: Path, upstream: Path, tmp_path: Path) -> None:
    git(repo, "notes", "add", "-m", f"{SECRET} in a note", "v2")
    (repo / "app.py").write_text(f"{SECRET} in a stash\n")
    git(repo, "stash")
    git(repo, "worktree", "add", "-q", str(tmp_path / "later"), "v2")
    git(repo, "gc", "-q")
    for pack in (repo / ".git" / "objects" / "pack").glob("*.pack"):
        pack.with_suffix(".keep").touch()
    (tmp_path / "blob").write_text(f"{SECRET} in no commit\n")
    git(repo, "hash-object", "-w", str(tmp_path / "blob"))
    (repo / ".git" / "objects" / "info" / "alternates").write_text(f"{upstream}/.git/objects\n")
    (repo / "staged").write_text("staged\n")
    git(repo, "add", "staged")
    head, index = git(repo, "rev-parse", "HEAD"), (repo / ".git" / "index").read_bytes()
    assert all(
        f"{SECRET}{place}" in readable(repo)
        for place in ("\n", " in a note", " in a stash", " in no commit")
    )

    assert strip_future_commits(repo) == "dropped\n"

    assert SECRET not in readable(repo)
    assert git(repo, "rev-parse", "HEAD") == head
    assert git(repo, "symbolic-ref", "HEAD") == "refs/heads/main\n"
    assert git(repo, "describe", "--dirty") == "v1-dirty\n"
    assert git(repo, "log", "--format=%s").split() == ["a", "commit:", "two", "a", "commit:", "one"]
    assert git(repo, "for-each-ref", "--format=%(refname)").split() == [
        "refs/heads/main",
        "refs/remotes/origin/old",
        "refs/tags/v0",
        "refs/tags/v1",
    ]
    assert git(repo, "status", "--porcelain") == "A  staged\n"
    assert (repo / ".git" / "index").read_bytes() == index
    assert git(repo, "fsck", "--full", "--strict") == ""
    left = {path.name for path in (repo / ".git").iterdir()}
    assert not left & {"logs", "worktrees", "ORIG_HEAD", "FETCH_HEAD", "cooperbench"}
    assert strip_future_commits(repo) == "", "nothing is left to drop"


def test_a_detached_head_without_refs(repo: Path) -> None:
    git(repo, "checkout", "-q", "--detach", "v1~1")
    git(repo, "tag", "-d", "v0")
    strip_future_commits(repo)
    assert SECRET not in readable(repo)
    assert git(repo, "log", "--format=%s", "HEAD").startswith("a commit: one")
    assert git(repo, "status", "--porcelain") == ""


@pytest.mark.parametrize("depth", [1, 2])
def test_a_shallow_clone_stays_shallow(upstream: Path, tmp_path: Path, depth: int) -> None:
    repo = tmp_path / "shallow"
    where = f"file://{upstream}"
    git(
        tmp_path,
        "clone",
        "-q",
        "--no-single-branch",
        f"--depth={depth}",
        "-b",
        "v1",
        where,
        str(repo),
    )
    boundary = git(repo, "rev-list", "--max-parents=0", "HEAD")
    assert SECRET in readable(repo)
    strip_future_commits(repo)
    assert SECRET not in readable(repo)
    assert git(repo, "rev-list", "--count", "HEAD") == f"{depth}\n"
    shallow = repo / ".git" / "shallow"
    assert (shallow.read_text() if shallow.exists() else "") == (boundary if depth == 1 else "")
    assert git(repo, "fsck", "--full") == ""


def test_a_partial_clone_stays_partial(upstream: Path, tmp_path: Path) -> None:
    git(upstream, "config", "uploadpack.allowFilter", "true")
    repo = tmp_path / "partial"
    where = f"file://{upstream}"
    git(tmp_path, "clone", "-q", "--filter=blob:none", where, str(repo))
    git(repo, "reset", "-q", "--hard", "v1")
    shutil.rmtree(upstream)
    strip_future_commits(repo)
    assert SECRET not in readable(repo)
    assert git(repo, "describe") == "v1\n"
    assert git(repo, "status", "--porcelain") == ""
    assert git(repo, "rev-list", "--objects", "--missing=allow-promisor", "HEAD").count("\n") == 5
    assert git(repo, "fsck") == ""


def test_submodules(repo: Path, upstream: Path, tmp_path: Path) -> None:
    allow = ("-c", "protocol.file.allow=always")
    git(repo, *allow, "submodule", "add", "-q", str(upstream), "inside")
    git(repo / "inside", "reset", "-q", "--hard", "v0")
    git(tmp_path, "clone", "-q", str(upstream), str(repo / "beside"))
    git(repo / "beside", "reset", "-q", "--hard", "v1")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "with submodules")
    strip_future_commits(repo)
    for folder, version in (("inside", "v0"), ("beside", "v1"), (".", "v1-1-g")):
        assert SECRET not in readable(repo / folder)
        assert git(repo / folder, "describe").startswith(version)
    assert git(repo, "status", "--porcelain") == ""


def test_a_repository_without_later_commits_is_left_as_it_is(repo: Path) -> None:
    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (repo / ".git").rglob("*") if path.is_file()}

    git(repo, "reset", "-q", "--hard", "v2")
    before = files()
    assert strip_future_commits(repo) == ""
    assert files() == before


def test_repositories_of_the_project_itself_are_none_of_ours(repo: Path, upstream: Path) -> None:
    fixture = repo / "tests" / "fixtures" / "sample.git"
    git(repo, "clone", "-q", "--bare", str(upstream), str(fixture))
    commit(repo, "a fixture\n")
    generated = repo / "generated"
    (repo / ".git" / "info" / "exclude").write_text("generated\n")
    git(repo, "clone", "-q", str(upstream), str(generated))
    git(generated, "reset", "-q", "--hard", "v0")
    strip_future_commits(repo)
    assert SECRET in readable(fixture)
    assert SECRET in readable(generated)


def test_nothing_of_the_repository_is_run_and_owners_stay(repo: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    hook = repo / ".git" / "hooks" / "reference-transaction"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {trap}\n")
    hook.chmod(0o755)
    for key in ("core.fsmonitor", "core.alternateRefsCommand", "core.pager"):
        git(repo, "config", key, f"touch {trap}")
    owner = os.getuid() or 1234
    if owner == 1234:
        subprocess.run(["chown", "-R", str(owner), str(repo)], check=True)
    strip_future_commits(repo)
    assert not trap.exists()
    assert {path.lstat().st_uid for path in repo.rglob("*")} == {owner}
    assert SECRET not in git(repo, "-c", f"safe.directory={repo}", "log", "-p", "--all")


@pytest.mark.parametrize("broken", ["nothing", "unborn", "missing"])
def test_what_cannot_be_dropped_says_why_and_changes_nothing(
    repo: Path, tmp_path: Path, broken: str
) -> None:
    place = repo
    if broken == "nothing":
        place = tmp_path / "empty"
        place.mkdir()
    elif broken == "unborn":
        git(repo, "checkout", "-q", "--orphan", "unborn")
    else:
        git(repo, "repack", "-q", "-a", "-d")
        (pack,) = (repo / ".git" / "objects" / "pack").glob("*.pack")
        objects = pack.rename(tmp_path / "pack").read_bytes()
        subprocess.run(
            ["git", "unpack-objects", "-q"], input=objects, cwd=repo, env=ENV, check=True
        )
        name = git(repo, "rev-parse", "HEAD:app.py").strip()
        (repo / ".git" / "objects" / name[:2] / name[2:]).unlink()
    refs = git(repo, "for-each-ref")
    command = [
        "bash",
        "-c",
        sandbox_script("strip_future_commits.sh"),
        "strip-future-commits",
        str(place),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "fatal: " in done.stderr or "has no commit at HEAD" in done.stderr
    assert git(repo, "for-each-ref") == refs
