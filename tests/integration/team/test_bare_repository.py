"""The pair's repository on the host takes only what is sound, and whatever it is given does no harm."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cooperbench.git import GitError
from cooperbench.team.git_remote import BareRepository

if TYPE_CHECKING:
    from pathlib import Path

WHO = {
    f"GIT_{role}_{part}": "a@b.invalid"
    for role in ("AUTHOR", "COMMITTER")
    for part in ("NAME", "EMAIL")
}


class Source:
    """An agent's repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "-q", "-b", "main", ".")
        (folder / "a.txt").write_text("one\ntwo\n")
        self.base = self.commit()

    def git(self, *args: str, stdin: bytes = b"") -> bytes:
        self.folder.mkdir(exist_ok=True)
        env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.folder),
            "GIT_CONFIG_NOSYSTEM": "1",
        } | WHO
        return subprocess.run(
            ["git", "-c", "commit.gpgSign=false", *args], cwd=self.folder, input=stdin, env=env, check=True, capture_output=True
        ).stdout  # fmt: skip

    def commit(self) -> str:
        self.git("add", "-A")
        self.git("commit", "-qm", "m")
        return self.git("rev-parse", "HEAD").decode().strip()

    def pack(self, commit: str, *without: str) -> bytes:
        revisions = "".join(f"{line}\n" for line in (commit, *(f"^{known}" for known in without)))
        return self.git(
            "pack-objects", "-q", "--revs", "--thin", "--stdout", stdin=revisions.encode()
        )

    def commit_tree(self, tree: str) -> str:
        return self.git("commit-tree", "-m", "m", "-p", self.base, tree).decode().strip()

    def make_tree(self, lines: str) -> str:
        return self.git("mktree", "--missing", stdin=lines.encode()).decode().strip()


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "source")


@pytest.fixture
def repository(tmp_path: Path, source: Source) -> BareRepository:
    repository = BareRepository(tmp_path / "team.git", ["agent1", "agent2"])
    repository.base_commit = source.base
    repository.create(source.pack(source.base))
    return repository


def test_branches_move_and_are_kept_as_a_bundle(
    tmp_path: Path, source: Source, repository: BareRepository
) -> None:
    (source.folder / "a.txt").write_text("one\ntwo\nthree\n")
    tip = source.commit()
    assert repository.add("agent1", tip, source.pack(tip, source.base)) == 1
    assert repository.add("agent2", tip, b"") == 0
    assert repository.tips == {"agent1": tip, "agent2": tip}
    assert repository.write_bundle(tmp_path / "kept.bundle")
    repository.remove()
    assert not (tmp_path / "team.git").exists()
    heads = source.git("bundle", "list-heads", str(tmp_path / "kept.bundle")).decode().split()
    assert heads[1::2] == ["HEAD", "refs/heads/main", "refs/heads/agent1", "refs/heads/agent2"]
    assert heads[::2] == [source.base, source.base, tip, tip]


def test_a_commit_without_all_that_it_refers_to_is_refused(
    source: Source, repository: BareRepository
) -> None:
    missing = source.make_tree(f"100644 blob {'1' * 40}\tgone.txt\n")
    lame = source.commit_tree(missing)
    objects = "".join(f"{name}\n" for name in (lame, missing)).encode()
    with pytest.raises(GitError):
        repository.add("agent1", lame, source.git("pack-objects", "-q", "--stdout", stdin=objects))
    assert repository.tips["agent1"] == source.base


def test_what_is_no_commit_or_not_in_the_pack_is_refused(
    source: Source, repository: BareRepository
) -> None:
    tree = source.git("rev-parse", "HEAD^{tree}").decode().strip()
    for what in (tree, "2" * 40):
        with pytest.raises(GitError, match="not in the pack of the sandbox"):
            repository.add("agent1", what, b"")
    other = BareRepository(source.folder.parent / "other.git", ["agent1"])
    other.base_commit = "3" * 40
    with pytest.raises(GitError, match="is not in"):
        other.create(source.pack(source.base))
    assert not other.created
    assert not other.write_bundle(source.folder.parent / "other.bundle")


@pytest.mark.parametrize("name", [".git", ".GIT", "..", ".gi\u200ct"])
def test_paths_that_reach_into_git_are_refused(
    source: Source, repository: BareRepository, name: str
) -> None:
    blob = source.git("rev-parse", "HEAD:a.txt").decode().strip()
    tree = source.make_tree(
        f"040000 tree {source.make_tree(f'100644 blob {blob}{chr(9)}config{chr(10)}')}\t{name}\n"
    )
    commit = source.commit_tree(tree)
    with pytest.raises(GitError):
        repository.add("agent1", commit, source.pack(commit, source.base))


def test_a_tree_with_more_files_than_atoms_does_no_harm(
    tmp_path: Path, source: Source, repository: BareRepository
) -> None:
    tree = source.make_tree(
        f"100644 blob {source.git('rev-parse', 'HEAD:a.txt').decode().strip()}\tf\n"
    )
    for _ in range(60):
        tree = source.make_tree(
            "".join(f"040000 tree {tree}\td{number:02}\n" for number in range(20))
        )
    commit = source.commit_tree(tree)
    repository.add("agent1", commit, source.pack(commit, source.base))
    assert repository.pack_for(commit, [source.base])
    assert repository.write_bundle(tmp_path / "bomb.bundle")


def test_a_file_that_swells_is_refused_or_not_held_in_memory(
    source: Source, repository: BareRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cooperbench.team.git_remote._MAX_ALLOCATION", "8m")
    (source.folder / "big").write_bytes(b"\0" * 30_000_000)
    commit = source.commit()
    pack = source.pack(commit, source.base)
    assert len(pack) < 100_000
    with pytest.raises(GitError):
        repository.add("agent1", commit, pack)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(data=st.data())
def test_damaged_packs_leave_nothing_behind(
    repository: BareRepository, source: Source, data: st.DataObject
) -> None:
    (source.folder / "b.txt").write_text("b\n" * 50)
    commit = (
        source.commit()
        if source.git("status", "--porcelain")
        else source.git("rev-parse", "HEAD").decode().strip()
    )
    pack = source.pack(commit, source.base)
    cut = data.draw(st.integers(0, len(pack) - 1))
    damaged = data.draw(
        st.sampled_from(
            [
                pack[:cut] or b"x",
                pack[:cut] + bytes([pack[cut] ^ 0xFF]) + pack[cut + 1 :],
                b"PACK" * 20,
            ]
        )
    )
    with pytest.raises(GitError):
        repository.add("agent1", commit, damaged)
    assert repository.tips["agent1"] == source.base
    assert not list((source.folder.parent / "team.git/objects/pack").glob("tmp_*"))
