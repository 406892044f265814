"""Splits a change of a repository into a golden patch and a patch of hidden tests.

The rules are those of evaluations: what agents may not change is a test, everything else belongs to
the feature. Release notes belong to neither: every feature adds a line at the same position, so
that all golden patches would conflict there. Nothing of the repository is run or checked out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from cooperbench.errors import UserError
from cooperbench.eval.base_commit import Base, base_of_clone
from cooperbench.eval.protected_files import drop_protected_files
from cooperbench.eval.protected_paths import ProtectedFiles
from cooperbench.eval.test_config import may_hold_test_config
from cooperbench.eval.trees import TreeStore
from cooperbench.git import git, git_dir_of
from cooperbench.text import names_for_error, printable

_SUBMODULE = "160000"
_TEST_REASONS = ("test_file", "test_config")
_RELEASE_NOTES = re.compile(
    r"""
    (?: .*/ )?
    (?: (?: CHANGES | CHANGELOG | HISTORY | NEWS | RELEASES? | RELEASE[-_]NOTES )
        (?: \.(?:md|rst|txt|adoc|org) )?
      | (?: changelog\.d | changelogs? | newsfragments | changes | \.changes? | \.changeset )
        / [^/]+ \.(?:md|rst|txt|adoc|org|ya?ml|json)
    )
    """,
    re.IGNORECASE | re.VERBOSE,
)
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


@dataclass(frozen=True)
class CommitPatches:
    """A change of a repository, split into the patches of a feature."""

    feature_patch: bytes
    tests_patch: bytes
    feature_paths: tuple[str, ...]
    test_paths: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    """Release notes, which are in neither patch."""

    @property
    def problem(self) -> str:
        """Why this is not a feature with tests, in a few words; empty if it is."""
        if not self.feature_paths and not self.test_paths:
            return "it changes nothing but release notes"
        if not self.feature_paths:
            return "it changes only tests"
        if not self.test_paths:
            return "it changes no tests"
        return ""


def split_commit(repo: Path, commit: str) -> CommitPatches:
    """Split the changes of a commit; of a merge commit, its changes to the first parent.

    Args:
        repo: A clone, bare or not.
        commit: A commit, branch or tag in it.

    Raises:
        UserError: There is no such commit or parent, or it changes what a patch cannot contain.
    """
    git_dir = find_git_dir(repo)
    commit_id = resolve_commit(git_dir, commit)
    parent = git("rev-parse", "--verify", "--quiet", f"{commit_id}^1", git_dir=git_dir, check=False)
    if not parent:
        if is_shallow(git_dir):
            raise UserError(
                f"the parent of commit {commit_id[:12]} is not in the shallow clone {repo}:"
                " fetch it with `git fetch --unshallow`"
            )
        raise UserError(f"commit {commit_id[:12]} has no parent, so it is not a change")
    return split_range(repo, parent.decode().strip(), commit_id)


def split_branch(repo: Path, branch: str, base: str) -> CommitPatches:
    """Split everything that a branch changes since it left `base`, as one feature."""
    git_dir = find_git_dir(repo)
    commit, base_commit = resolve_commit(git_dir, branch), resolve_commit(git_dir, base)
    ancestor = git("merge-base", base_commit, commit, git_dir=git_dir, check=False)
    if not ancestor:
        raise UserError(
            f"{printable(branch)} and {base_commit[:12]} have no common commit:"
            " was the history rewritten?"
        )
    return split_range(repo, ancestor.decode().strip(), commit)


def split_range(repo: Path, before: str, after: str) -> CommitPatches:
    """Split the difference between two commits of a clone."""
    git_dir = find_git_dir(repo)
    tree = git("rev-parse", "--verify", f"{after}^{{tree}}", git_dir=git_dir).decode().strip()
    with TreeStore(base_of_clone(git_dir, before)) as store:
        return split_tree(store, tree)


def split_patch(base: Base, patch: bytes) -> CommitPatches:
    """Split a patch on top of a base commit.

    Raises:
        UserError: It does not apply.
    """
    with TreeStore(base) as store:
        applied = store.apply(patch)
        if not applied.tree:
            raise UserError(applied.error)
        return split_tree(store, applied.tree)


def split_tree(store: TreeStore, tree: str) -> CommitPatches:
    """Split the difference between a store's base commit and a tree."""
    changes = store.changes(tree)
    _reject_special_files(store, tree)
    notes = [path for path in changes if is_release_notes(path)]
    protected = ProtectedFiles(hidden=frozenset(), base=store.base.paths)
    without_tests = drop_protected_files(store.patch_of(tree), protected, store)
    protected_paths = [file.path for file in without_tests.dropped if file.reason in _TEST_REASONS]
    # A file such as pyproject.toml also holds real work. It belongs to the feature.
    tests = [path for path in protected_paths if not may_hold_test_config(path)]
    not_feature = {path: changes[path].before for path in (*tests, *notes)}
    feature_tree = store.edit(tree, not_feature)
    tests_tree = store.edit(store.base.tree, {path: changes[path].after for path in tests})
    return CommitPatches(
        feature_patch=store.patch_of(feature_tree),
        tests_patch=store.patch_of(tests_tree),
        feature_paths=tuple(path for path in changes if path not in not_feature),
        test_paths=tuple(tests),
        left_out=tuple(notes),
    )


def find_tests_in(golden: bytes, store: TreeStore) -> list[str]:
    """Return the test files that a golden patch changes; they belong to the hidden tests."""
    protected = ProtectedFiles(hidden=frozenset(), base=store.base.paths)
    dropped = drop_protected_files(golden, protected, store).dropped
    tests = [file.path for file in dropped if file.reason in _TEST_REASONS]
    return [path for path in tests if not may_hold_test_config(path)]


def is_release_notes(path: str) -> bool:
    """Whether a file lists the changes of releases, by its name."""
    return bool(_RELEASE_NOTES.fullmatch(path))


def _reject_special_files(store: TreeStore, tree: str) -> None:
    """Raise UserError for changes of submodules and of files that Git LFS stores elsewhere."""
    submodules = []
    pointers = []
    for path, change in store.changes(tree).items():
        entries = [entry for entry in change if entry is not None]
        if any(entry.mode == _SUBMODULE for entry in entries):
            submodules.append(path)
        elif (store.content(change.after) or b"").startswith(_LFS_POINTER):
            pointers.append(path)
    if submodules:
        raise UserError(
            f"it changes the submodule {names_for_error(submodules)}, which a patch cannot contain"
        )
    if pointers:
        raise UserError(
            f"it changes {names_for_error(pointers)}, which Git LFS stores outside the repository"
        )


def find_git_dir(repo: Path) -> Path:
    """Return the git directory of a clone; UserError if the folder is not one."""
    if not repo.is_dir():
        raise UserError(f"{repo} is not a folder: name a clone of your repository")
    git_dir = git_dir_of(repo)
    if git_dir is None:
        raise UserError(
            f"{repo} is not the top folder of a git repository;"
            " for a part of a repository name its top folder and --path PART"
        )
    return git_dir


def is_shallow(git_dir: Path) -> bool:
    """Whether a clone lacks a part of its history."""
    return git("rev-parse", "--is-shallow-repository", git_dir=git_dir).strip() == b"true"


def resolve_commit(git_dir: Path, name: str) -> str:
    """Return the id of a commit, branch or tag; UserError if there is none."""
    argv = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    commit = git(*argv, git_dir=git_dir, check=False)
    if commit:
        return commit.decode().strip()
    if not git("rev-list", "--all", "--max-count=1", git_dir=git_dir, check=False):
        raise UserError(f"{git_dir} has no commits: commit your code and its tests first")
    remedy = "was the history rewritten? Name a commit of `git log --all`"
    if is_shallow(git_dir):
        remedy = "the clone is shallow, fetch the rest with `git fetch --unshallow`"
    raise UserError(f"there is no commit {printable(name)!r} in {git_dir}: {remedy}")
