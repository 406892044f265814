"""Finds out how a repository is installed and tested, from its manifests and CI files.

The files are read from a commit, not from the work tree. A repository is not trusted: its files
are parsed in a worker process with limits (`bounded`), and nothing of it is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cooperbench.author.languages import compiled, javascript, python
from cooperbench.author.languages.snapshot import Snapshot, find_license
from cooperbench.author.project import Project
from cooperbench.author.split import find_git_dir, resolve_commit
from cooperbench.bounded import UnreadableInput, call_bounded
from cooperbench.errors import UserError
from cooperbench.eval.base_commit import Base, base_of_clone
from cooperbench.git import encode_path, git, run_git
from cooperbench.text import names_for_error, printable

_MAX_FILE_BYTES = 4 * 1024**2
_MAX_FILES = 200
_MANIFESTS = re.compile(
    r"""
    pyproject\.toml | setup\.cfg | setup\.py | tox\.ini | \.?pytest\.ini
  | [^/]*requirements[^/]*\.txt | requirements/[^/]*\.txt
  | uv\.lock | poetry\.lock | pdm\.lock
  | package\.json | package-lock\.json | pnpm-lock\.yaml | yarn\.lock
  | go\.mod | Cargo\.toml | [Mm]akefile | GNUmakefile
    """,
    re.VERBOSE,
)
_CI_FILE = re.compile(r"\.github/workflows/[^/]+\.ya?ml|\.gitlab-ci\.yml")
_UNREAD_FILES = ("package-lock.json", "pnpm-lock.yaml", "yarn.lock")
"""Lock files of which only the names matter."""
_PART_FILES = ("pyproject.toml", "setup.py", "package.json", "go.mod", "Cargo.toml")
_NO_PART = re.compile(r"/(?:node_modules|tests?|__tests__|testdata|fixtures|examples?|docs?)/")
_READERS: dict[str, Callable[[Snapshot], Project | str]] = {
    "python": python.read_project,
    "javascript": javascript.read_project,
    "go": compiled.read_go_project,
    "rust": compiled.read_rust_project,
}
_IS_TEST: dict[str, Callable[[str], bool]] = {
    "python": python.is_test_file,
    "javascript": javascript.is_test_file,
    "go": compiled.is_go_test,
    "rust": compiled.is_rust_test,
}


@dataclass(frozen=True)
class Detection:
    """The result of reading a repository's files."""

    project: Project | None
    problem: str = ""
    """Why there is no project, in one line."""


def detect_project(repo: Path, commit: str = "HEAD", subfolder: str = "") -> Project:
    """Return how a repository at a commit is installed and tested.

    Args:
        repo: A clone, bare or not.
        commit: The commit to look at.
        subfolder: The part of a monorepo to look at; by default the whole repository.

    Raises:
        UserError: There are no tests, or tests of a kind that is not supported.
    """
    git_dir = find_git_dir(repo)
    commit_id = resolve_commit(git_dir, commit)
    snapshot = _take_snapshot(git_dir, commit_id, subfolder.strip("/"))
    try:
        detection = call_bounded(read_snapshot, snapshot)
    except UnreadableInput as error:
        raise UserError(f"the files of {repo} cannot be read: {error}") from error
    if detection.project is None:
        raise UserError(f"{repo}: {detection.problem}")
    return replace(detection.project, subfolder=snapshot.subfolder)


def find_license_of(base: Base, subfolder: str = "") -> str:
    """Return the name of a base commit's license, or that of its file; empty without one."""
    for folder in dict.fromkeys((subfolder, "")):
        snapshot = _take_snapshot(base.objects.parent, base.commit, folder)
        license_name = call_bounded(find_license, snapshot)
        if license_name:
            return license_name
    return ""


def _take_snapshot(git_dir: Path, commit: str, subfolder: str) -> Snapshot:
    all_paths = sorted(base_of_clone(git_dir, commit).paths)
    prefix = f"{subfolder}/" if subfolder else ""
    paths = [path.removeprefix(prefix) for path in all_paths if path.startswith(prefix)]
    if not paths:
        folders = {path.partition("/")[0] for path in all_paths if "/" in path}
        raise UserError(
            f"there are no files in {printable(subfolder)!r}; there are: {names_for_error(folders)}"
        )
    manifests = {path: f"{prefix}{path}" for path in paths if _MANIFESTS.fullmatch(path)}
    manifests |= {path: path for path in all_paths if _CI_FILE.fullmatch(path)}
    files = {}
    for name, path in list(manifests.items())[:_MAX_FILES]:
        content = b"" if name in _UNREAD_FILES else _read_file(git_dir, commit, path)
        if content is not None:
            files[name] = content
    using_pytest = _files_with(git_dir, commit, "pytest", prefix)
    return Snapshot(subfolder, paths, files, using_pytest)


def _read_file(git_dir: Path, commit: str, path: str) -> bytes | None:
    name = b"%s:%s" % (commit.encode(), encode_path(path))
    size = git("cat-file", "-s", name.decode("utf-8", "surrogateescape"), git_dir=git_dir)
    if int(size) > _MAX_FILE_BYTES:
        return None
    return git("cat-file", "blob", name.decode("utf-8", "surrogateescape"), git_dir=git_dir)


def _files_with(git_dir: Path, commit: str, word: str, prefix: str) -> list[str]:
    """Return the Python files that contain a word."""
    argv = ("grep", "-I", "-l", "-z", "-F", "-w", "-e", word, commit)
    output = run_git(*argv, git_dir=git_dir, bounded=True).stdout.decode("utf-8", "surrogateescape")
    names = [name.partition(":")[2] for name in output.split("\0") if name]
    return [
        name.removeprefix(prefix)
        for name in names
        if name.startswith(prefix) and name.endswith(".py")
    ]


def read_snapshot(snapshot: Snapshot) -> Detection:
    """Return the project of these files: that of the language with most test files."""
    counts = {}
    for language, is_test in _IS_TEST.items():
        counts[language] = sum(1 for path in snapshot.paths if is_test(path))
    languages = sorted(counts, key=lambda language: counts[language], reverse=True)
    if counts["rust"] == 0 and "Cargo.toml" in snapshot.files:
        languages.append("rust")  # its unit tests are in the source
        counts["rust"] = 1
    problems = []
    for language in languages:
        if counts[language] == 0:
            continue
        result = _READERS[language](snapshot)
        if isinstance(result, Project):
            parts = tuple(_find_parts(snapshot.paths))
            return Detection(replace(result, license=find_license(snapshot), parts=parts))
        problems.append(result)
    return Detection(None, problems[0] if problems else _explain_no_tests(snapshot.paths))


def _find_parts(paths: Sequence[str]) -> list[str]:
    """Return the folders below the top that have manifests of their own."""
    parts = set()
    for path in paths:
        folder, _, name = path.rpartition("/")
        if folder and name in _PART_FILES and not _NO_PART.search(f"/{folder}/"):
            parts.add(folder)
    return sorted(parts)


def _explain_no_tests(paths: Sequence[str]) -> str:
    text = "it has no tests that pytest, unittest, jest, vitest, node:test, Go or Cargo would find"
    parts = _find_parts(paths)
    if parts:
        return f"{text} at its top; name a part with --path: {names_for_error(parts)}"
    return f"{text}. Tasks need tests: add some, or name a part of the repository with --path"
