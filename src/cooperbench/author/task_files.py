"""Makes and changes the folders of tasks: the files of a new task, and features added to it.

The repository at the base commit is in base/repo.bundle, as a commit without history. So a task
needs no network for it, and no agent finds the solution there. Nothing of the repository is run.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING

from cooperbench.author.languages.python import CONSTRAINTS
from cooperbench.author.project import Project
from cooperbench.author.split import find_git_dir, resolve_commit
from cooperbench.author.task_info import (
    SCHEMA,
    FeatureInfo,
    TaskInfo,
    set_feature_info,
    write_task_info,
)
from cooperbench.dataset.image_names import base_commit
from cooperbench.errors import UserError
from cooperbench.eval.base_commit import Base, base_of_clone, make_git_dir
from cooperbench.eval.trees import TreeStore
from cooperbench.git import GitError, git, run_git
from cooperbench.models import Feature, Task
from cooperbench.storage import read_bytes, write_bytes, write_text
from cooperbench.temporary import owned_prefix, remove_tree
from cooperbench.text import names_for_error, printable

if TYPE_CHECKING:
    from jinja2 import Environment

BUNDLE = "base/repo.bundle"
MAX_FEATURES = 99
_BRANCH = "refs/heads/main"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_TASK_FOLDER = re.compile(r"task(0|[1-9][0-9]{0,17})")
_FEATURE_FOLDER = re.compile(r"feature(0|[1-9][0-9]{0,17})")
_FEATURE_FILES = ("feature.md", "feature.patch", "tests.patch")
_SCRIPTS = ("setup.sh", "runner.sh", "run_tests.sh", "Dockerfile")
_SIGNATURE = "CooperBench <author@cooperbench.invalid> 946684800 +0000"
_TEST_FILES = {
    "pytest": "@(test_*|*_test).py",
    "unittest": "@(test_*|*_test|*_tests|test|tests).py",
    "jest": "*.@(test|spec).@(js|jsx|ts|tsx|mjs|cjs|mts|cts)",
    "vitest": "*.@(test|spec).@(js|jsx|ts|tsx|mjs|cjs|mts|cts)",
    "node": "@(*.test|*.spec|*-test|*_test|test-*|test).@(js|mjs|cjs|ts|mts|cts)",
    "go": "*_test.go",
    "cargo": "*.rs",
}
"""Names of test files by framework, as patterns of bash."""
_TOOLS = {"javascript": "node", "go": "go", "rust": "cargo"}
"""Programs by language that setup.sh does not install."""


@dataclass(frozen=True)
class FeatureDraft:
    """A feature that is to be added to a task."""

    title: str
    feature_patch: bytes
    tests_patch: bytes
    description: str
    """The text of feature.md."""
    is_draft: bool
    """Whether a person has yet to accept the description."""
    source: str
    """Where it comes from, e.g. `commit 1f0c2a9`."""


@dataclass(frozen=True)
class TaskOrigin:
    """The clone and commit that a task is made from."""

    clone: Path
    commit: str
    version: str = ""
    """Version of the project there, for tools that read it from the history."""
    scope: str = "files"
    """Which tests the runner runs: `files` or `all`, see templates/runner.sh.j2."""


def create_task(
    dataset_dir: Path, name: str, project: Project, origin: TaskOrigin, task_id: int | None = None
) -> Task:
    """Make the folder `<dataset>/<name>_task/task<id>` of a task without features.

    Args:
        dataset_dir: The folder of the dataset. It is made if it does not exist.
        name: The name of the repository.
        project: How it is installed and tested.
        origin: Where it comes from.
        task_id: The number of the task; by default the next one.
    """
    repo_folder = dataset_dir / repo_name(name)
    if task_id is None:
        task_id = next_task_id(dataset_dir, name)
    folder = repo_folder / f"task{task_id}"
    if folder.exists():
        raise UserError(f"{folder} exists: remove it, or leave out the number of the task")
    git_dir = find_git_dir(origin.clone)
    commit = resolve_commit(git_dir, origin.commit)
    try:
        repo_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot write to {repo_folder}: {error.strerror}; set --dataset-dir"
        ) from error
    staging = Path(mkdtemp(prefix=".new-", dir=repo_folder))
    try:
        new_commit = _write_bundle(git_dir, commit, staging / BUNDLE)
        if project.constraints:
            write_text(staging / CONSTRAINTS, "\n".join(project.constraints) + "\n")
        write_scripts(staging, project, new_commit, origin)
        info = TaskInfo(
            schema=SCHEMA,
            language=project.language,
            framework=project.framework,
            test_command=project.test_command,
            upstream_commit=commit,
            subfolder=project.subfolder,
            upstream=_remote_url(git_dir),
            license=project.license,
            clone=str(origin.clone.resolve()),
        )
        write_task_info(staging, info)
        staging.chmod(0o755)
        staging.rename(folder)
    except BaseException:
        remove_tree(staging)
        for empty in (repo_folder, dataset_dir):
            with suppress(OSError):
                empty.rmdir()
        raise
    return Task(repo_folder.name, task_id, folder, ())


def repo_name(name: str) -> str:
    """Return the name of a repository's folder in a dataset: letters, digits, `_task` at its end.

    Raises:
        UserError: Nothing is left of the name.
    """
    plain = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_").lower()
    if not plain:
        raise UserError(f"{printable(name)!r} cannot be the name of a repository; use --name NAME")
    return plain if plain.endswith("_task") else f"{plain}_task"


def next_task_id(dataset_dir: Path, name: str) -> int:
    """Return the number of the next task of a repository."""
    return _next_number(dataset_dir / repo_name(name), _TASK_FOLDER)


def _next_number(folder: Path, pattern: re.Pattern[str]) -> int:
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    numbers = [int(match[1]) for name in names if (match := pattern.fullmatch(name))]
    return max(numbers, default=0) + 1


def _write_bundle(git_dir: Path, commit: str, path: Path) -> str:
    """Write the files of a commit as a bundle with one new commit; return that commit's id."""
    path.parent.mkdir(parents=True)
    tree = git("rev-parse", f"{commit}^{{tree}}", git_dir=git_dir).decode().strip()
    objects = base_of_clone(git_dir, commit).objects
    with TemporaryDirectory(prefix=owned_prefix("bundle")) as scratch:
        scratch_git = make_git_dir(Path(scratch) / "git")
        alternates = scratch_git / "objects" / "info" / "alternates"
        alternates.write_bytes(os.fsencode(objects) + b"\n")
        text = f"tree {tree}\nauthor {_SIGNATURE}\ncommitter {_SIGNATURE}\n\nBase commit\n"
        argv = ("hash-object", "-t", "commit", "-w", "--stdin")
        new_commit = git(*argv, git_dir=scratch_git, stdin=text.encode()).decode().strip()
        git("update-ref", _BRANCH, new_commit, git_dir=scratch_git)
        git("bundle", "create", "-q", str(path.absolute()), _BRANCH, git_dir=scratch_git)
    return new_commit


def _remote_url(git_dir: Path) -> str:
    """Return the URL of the remote repository without a password; empty for a path."""
    url = git("config", "--get", "remote.origin.url", git_dir=git_dir, check=False)
    text = url.decode("utf-8", "replace").strip()
    if not re.match(r"[a-z+]+://|[\w.-]+@[\w.-]+:", text) or text.startswith("file:"):
        return ""
    return re.sub(r"(?<=://)[^/@]*@", "", text)


def write_scripts(folder: Path, project: Project, commit: str, origin: TaskOrigin) -> None:
    """Write the scripts and the Dockerfile of a task from their templates."""
    values = {
        "base_commit": commit,
        "upstream_commit": origin.commit,
        "language": project.language,
        "framework": project.framework,
        "install": project.install,
        "tools": _required_tools(project),
        "version": shlex.quote(origin.version) if origin.version else "",
        "subfolder": project.subfolder,
        "scope": origin.scope,
        "test_files": _TEST_FILES[project.framework],
        "test_options": f" {project.test_options}" if project.test_options else "",
        "base_image": project.base_image,
    }
    for name in _SCRIPTS:
        text = _templates().get_template(f"{name}.j2").render(values)
        write_text(folder / name, text)
        if name.endswith(".sh"):
            (folder / name).chmod(0o755)


def _required_tools(project: Project) -> list[str]:
    """Return the programs that setup.sh needs besides bash and git."""
    tools = [_TOOLS[project.language]] if project.language in _TOOLS else []
    if project.language == "javascript" and project.install:
        tools.append("npm")
    return tools


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("cooperbench.author"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=False,
        autoescape=False,  # noqa: S701  # no HTML
    )


def find_task(dataset_dir: Path, name: str) -> Task:
    """Return a task by its path or its name: `myrepo_task/task1`, or `myrepo` if it has one task.

    Unlike tasks of `dataset.discovery`, it may have no features yet.
    """
    path = Path(name).expanduser()
    if not _is_task(path):
        path = _find_task_folder(dataset_dir, name)
    path = path.resolve()
    numbers = []
    for folder in path.iterdir():
        match = _FEATURE_FOLDER.fullmatch(folder.name)
        if match and all((folder / file).is_file() for file in _FEATURE_FILES):
            numbers.append(int(match[1]))
    task_id = int(path.name.removeprefix("task"))
    return Task(path.parent.name, task_id, path, tuple(sorted(numbers)))


def _is_task(path: Path) -> bool:
    return bool(_TASK_FOLDER.fullmatch(path.name)) and (path / "setup.sh").is_file()


def _find_task_folder(dataset_dir: Path, name: str) -> Path:
    tasks = {}
    for path in sorted(dataset_dir.glob("*/task*")):
        if _is_task(path):
            tasks[f"{path.parent.name}/{path.name}"] = path
    repo, _, task = name.strip("/").partition("/")
    matching = []
    for label, path in tasks.items():
        is_repo = path.parent.name in (repo, f"{repo}_task")
        if is_repo and (not task or path.name in (task, f"task{task}")):
            matching.append(label)
    if len(matching) == 1:
        return tasks[matching[0]]
    problem = f"there is no task {printable(name)!r} in {dataset_dir}"
    if matching:
        problem = f"{printable(name)!r} has several tasks"
    available = names_for_error(matching or tasks, name) or "none; make one with author init"
    raise UserError(f"{problem}; there are: {available}")


def add_feature(task: Task, draft: FeatureDraft) -> Feature:
    """Add a feature to a task, with the next number.

    Raises:
        UserError: A patch is empty or does not apply to the base commit, or the task already has
            this feature.
    """
    _check_draft(task, draft)
    feature_id = _next_number(task.path, _FEATURE_FOLDER)
    if feature_id > MAX_FEATURES:
        raise UserError(f"{task.label} has {MAX_FEATURES} features, which is the maximum")
    staging = Path(mkdtemp(prefix=".new-", dir=task.path))
    try:
        write_feature_files(staging, draft)
        staging.chmod(0o755)
        staging.rename(task.path / f"feature{feature_id}")
    except BaseException:
        remove_tree(staging)
        raise
    set_feature_info(task, FeatureInfo(feature_id, draft.title, draft.source, draft.is_draft))
    changed = Task(task.repo, task.task_id, task.path, (*task.feature_ids, feature_id))
    write_combined_patch(changed)
    return changed.feature(feature_id)


def write_feature_files(folder: Path, draft: FeatureDraft) -> None:
    """Write the files of a feature to its folder."""
    write_text(folder / "feature.md", draft.description)
    write_bytes(folder / "feature.patch", draft.feature_patch)
    write_bytes(folder / "tests.patch", draft.tests_patch)


def _check_draft(task: Task, draft: FeatureDraft) -> None:
    if not draft.feature_patch.strip():
        raise UserError("the feature patch is empty: a feature changes more than tests")
    if not draft.tests_patch.strip():
        raise UserError("the tests patch is empty: without tests nobody can tell if it works")
    for feature in task.features:
        if read_bytes(feature.patch, follow_link=True) == draft.feature_patch:
            raise UserError(f"{task.label} has this feature already: feature{feature.feature_id}")
    with open_base(task) as base, TreeStore(base) as store:
        golden = store.apply(draft.feature_patch)
        if not golden.tree:
            raise UserError(f"the feature patch does not fit the base commit: {golden.error}")
        tests = store.apply(draft.tests_patch)
        if not tests.tree and not store.apply(draft.tests_patch, golden.tree).tree:
            raise UserError(f"the tests patch does not fit the base commit: {tests.error}")


@contextmanager
def open_base(task: Task) -> Iterator[Base]:
    """Yield the base commit of a task, read from its bundle, until the `with` block ends."""
    commit = base_commit(task)
    bundle = task.path / BUNDLE
    if commit is None or not bundle.is_file():
        raise UserError(f"{task.label} has no {BUNDLE}: it was not made by `cooperbench author`")
    with TemporaryDirectory(prefix=owned_prefix("bundle")) as scratch:
        git_dir = make_git_dir(Path(scratch) / "git")
        result = run_git("bundle", "unbundle", str(bundle.absolute()), git_dir=git_dir)
        if result.returncode != 0:
            error = GitError("bundle unbundle", result.returncode, result.stderr)
            raise UserError(f"{bundle} cannot be read: {error.reason}")
        yield Base(git_dir / "objects", commit)


def write_combined_patch(task: Task) -> bool:
    """Write combined.patch, the merge of all golden patches, unless they conflict.

    After a conflict a resolution that a person has written stays. One that this function wrote
    before the last feature was added is removed.

    Returns:
        Whether the golden patches merge.
    """
    with open_base(task) as base, TreeStore(base) as store:
        applied = [store.apply(feature.patch.read_bytes()) for feature in task.features]
        merge = store.merge(applied)
        if merge.status in ("clean", "identical"):
            write_bytes(task.combined_patch, merge.patch)
            return True
        earlier = store.merge(applied[:-1])
        if read_bytes(task.combined_patch) == earlier.patch:
            task.combined_patch.unlink(missing_ok=True)
    return False
