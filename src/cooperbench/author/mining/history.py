"""Reads a history: the commits of its main line that look like features with tests.

Only the main line (first parents) counts, so a merged branch is one change, like a squashed one.
Most commits are rejected by the names and sizes of the files that they change, without a look at
their content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cooperbench.author.patch_size import (
    MAX_TEST_LINES,
    golden_size_problem,
    patch_size,
    tests_size_problem,
)
from cooperbench.author.split import is_release_notes, split_tree
from cooperbench.errors import UserError
from cooperbench.eval.base_commit import base_of_clone
from cooperbench.eval.protected_paths import CRATE_SOURCE, ProtectedFiles
from cooperbench.eval.trees import CODE_FILE, Change, TreeStore
from cooperbench.git import GitError, decode_path, git

MAX_LINES = 400
"""Changed lines of code in a golden patch that is worth a look."""
MIN_LINES = 2
_MAX_FILES = 40
_RECORD = b"\x01"
_REVERT = re.compile(r"(?:this )?reverts? ", re.IGNORECASE)
_MAINTENANCE_MERGE = re.compile(
    r"""
    merge \s (?: from \s | (?:remote-tracking\s)? branch(?:es)? \s )?
    [`'"]? (?: [\w.-]+/ )?
    (?: main | master | trunk | develop | dev | stable | next
      | (?: release | maintenance ) [-/\w.]*
      | v? \d+ (?: \. (?:\d+|x) )* (?: [-.] (?:maintenance|stable|branch|x) )?
    )
    [`'"]? (?= \s | $ )
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""Brings the fixes of one long-lived branch to another: many changes, and none of them new."""
_NO_FEATURE = {
    _REVERT: "it reverts a commit",
    _MAINTENANCE_MERGE: "it merges a branch of a release",
}
"""What subjects of commits say that are no features, and why."""
_ANY = ProtectedFiles(hidden=frozenset())
_LEFT_OUT = re.compile(
    r"""
    (?: AUTHORS | CONTRIBUTORS | THANKS ) (?: \.\w+ )?
  | \.github/.* | \.circleci/.* | \.(?:travis|gitlab-ci|pre-commit-config)\.ya?ml
  | azure-pipelines\.ya?ml | appveyor\.ya?ml
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""Lists of people, to which every change adds a line, and what only a server reads."""


@dataclass(frozen=True)
class Commit:
    """A commit of the main line."""

    commit_id: str
    parent: str
    """Its first parent; empty for the first commit of the history."""
    subject: str
    position: int
    """Its distance from the newest commit."""
    files: Mapping[str, int | None]
    """Changed lines by path; None for a binary file."""


@dataclass(frozen=True)
class Candidate:
    """A commit that changes both code and tests."""

    commit: Commit
    changes: Mapping[str, Change]
    """Its changes without release notes."""
    feature_paths: tuple[str, ...]
    test_paths: tuple[str, ...]


def read_main_line(git_dir: Path, tip: str, number: int) -> list[Commit]:
    """Return the newest commits of the main line that ends at `tip`, the newest first."""
    argv = ("log", f"--max-count={number}", "--first-parent", "--diff-merges=first-parent")
    form = ("--no-renames", "--numstat", "-z", "--format=%x01%H%x00%P%x00%s%x00", tip)
    output = git(*argv, *form, git_dir=git_dir)
    records = output.split(_RECORD)[1:]
    return [_read_commit(record, position) for position, record in enumerate(records)]


def _read_commit(record: bytes, position: int) -> Commit:
    commit_id, parents, subject, *entries = record.split(b"\0")
    files: dict[str, int | None] = {}
    for entry in entries:
        fields = entry.strip(b"\n").split(b"\t", 2)
        if len(fields) == 3:
            added, removed, path = fields
            is_binary = added == b"-"
            files[decode_path(path)] = None if is_binary else int(added) + int(removed)
    return Commit(
        commit_id=commit_id.decode(),
        parent=parents.decode().partition(" ")[0],
        subject=subject.decode("utf-8", "replace"),
        position=position,
        files=files,
    )


def quick_problem(commit: Commit, subfolder: str = "") -> str:
    """Return why a commit is not a feature, by the names and sizes of files; else nothing."""
    if not commit.parent:
        return "it has no parent"
    for pattern, problem in _NO_FEATURE.items():
        if pattern.match(commit.subject):
            return problem
    prefix = f"{subfolder}/" if subfolder else ""
    code = 0
    tests = 0
    has_rust = False
    for path, lines in commit.files.items():
        if is_left_out(path) or not CODE_FILE.search(path) or not path.startswith(prefix):
            continue
        if _ANY.reason_to_drop(path):
            tests += lines or 0
        else:
            code += lines or 0
            has_rust = has_rust or bool(path.endswith(".rs") and CRATE_SOURCE.match(path))
    return _size_problem(commit, code, tests, has_rust=has_rust)


def _size_problem(commit: Commit, code: int, tests: int, *, has_rust: bool) -> str:
    problems = {
        "it changes no code": not code and not tests,
        "it changes only tests": not code,
        "it changes no tests": not tests and not has_rust,
        f"it changes fewer than {MIN_LINES} lines of code": code < MIN_LINES,
        f"it changes more than {MAX_LINES} lines of code": code > MAX_LINES,
        f"it changes more than {MAX_TEST_LINES} lines of tests": tests > MAX_TEST_LINES,
        f"it changes more than {_MAX_FILES} files": len(commit.files) > _MAX_FILES,
    }
    return next((problem for problem, applies in problems.items() if applies), "")


def is_left_out(path: str) -> bool:
    """Whether changes of a file belong to no feature: release notes, lists of people, CI."""
    return is_release_notes(path) or bool(_LEFT_OUT.fullmatch(path))


def read_candidate(git_dir: Path, commit: Commit) -> Candidate | str:
    """Split a commit; return why it is not a feature if it is not."""
    try:
        with TreeStore(base_of_clone(git_dir, commit.parent)) as store:
            tree = git("rev-parse", f"{commit.commit_id}^{{tree}}", git_dir=git_dir).decode()
            changes = store.changes(tree.strip())
            left_out = {path: changes[path].before for path in changes if is_left_out(path)}
            kept_tree = store.edit(tree.strip(), left_out)
            patches = split_tree(store, kept_tree)
    except (UserError, GitError) as error:
        return str(error)
    problem = patches.problem
    if not problem and not any(CODE_FILE.search(path) for path in patches.feature_paths):
        problem = "it changes no code besides tests"
    if not problem and not any(CODE_FILE.search(path) for path in patches.test_paths):
        problem = "it changes only data of tests"
    problem = problem or golden_size_problem(patch_size(patches.feature_patch))
    problem = problem or tests_size_problem(patch_size(patches.tests_patch))
    if problem:
        return problem
    kept = {path: change for path, change in changes.items() if path not in left_out}
    return Candidate(commit, kept, patches.feature_paths, patches.test_paths)
