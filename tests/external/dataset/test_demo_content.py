"""The demo dataset keeps its promises: tasks build, golden patches work, pairs are of the kind they are said to be.

All of it runs with the tasks' own scripts and plain git on this machine, without a sandbox and without our evaluation.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

import cooperbench
from cooperbench.models import Pair, Task
from tests.support.requirements import require_program

Kind = Literal["clean", "conflict", "disagree", "union"]

DEMO = Path(cooperbench.__file__).parent / "dataset" / "demo"
LIBRARY = {
    "coinage_task": "coinage",
    "stencil_task": "stencil",
    "sundial_task": "sundial",
    "switchyard_task": "src",
}
KINDS: dict[tuple[str, int, int], Kind] = {
    ("coinage_task", 1, 2): "disagree",
    ("coinage_task", 1, 3): "clean",
    ("coinage_task", 1, 10): "clean",
    ("coinage_task", 2, 3): "clean",
    ("coinage_task", 2, 10): "clean",
    ("coinage_task", 3, 10): "union",
    ("stencil_task", 1, 2): "union",
    ("stencil_task", 1, 3): "clean",
    ("stencil_task", 1, 4): "clean",
    ("stencil_task", 2, 3): "disagree",
    ("stencil_task", 2, 4): "clean",
    ("stencil_task", 3, 4): "conflict",
    ("sundial_task", 1, 2): "conflict",
    ("sundial_task", 1, 3): "clean",
    ("sundial_task", 1, 4): "union",
    ("sundial_task", 2, 3): "disagree",
    ("sundial_task", 2, 4): "clean",
    ("sundial_task", 3, 4): "clean",
    ("switchyard_task", 1, 2): "union",
    ("switchyard_task", 1, 3): "clean",
    ("switchyard_task", 1, 4): "clean",
    ("switchyard_task", 2, 3): "clean",
    ("switchyard_task", 2, 4): "clean",
    ("switchyard_task", 3, 4): "disagree",
}
"""What becomes of each pair of golden patches."""

SAVED_BY_TALKING = {
    ("coinage_task", 3, 10),
    ("stencil_task", 1, 2),
    ("stencil_task", 2, 3),
    ("sundial_task", 1, 2),
    ("sundial_task", 2, 3),
}
"""Pairs whose golden patches do not merge cleanly and pass, but whose scripted agents' patches do."""


def _tasks() -> list[Task]:
    found = []
    for path in sorted(DEMO.glob("*_task/task*")):
        features = sorted(
            int(folder.name.removeprefix("feature")) for folder in path.glob("feature*")
        )
        found.append(
            Task(path.parent.name, int(path.name.removeprefix("task")), path, tuple(features))
        )
    return found


TASKS = _tasks()
PAIRS = [pair for task in TASKS for pair in task.pairs]
per_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.label)
per_pair = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.label.replace(" ", "-"))
per_feature = pytest.mark.parametrize(
    ("task", "feature_id"),
    [
        pytest.param(task, number, id=f"{task.label}-f{number}")
        for task in TASKS
        for number in task.feature_ids
    ],
)


def _key(pair: Pair) -> tuple[str, int, int]:
    first, second = pair.feature_ids
    return pair.task.repo, first, second


def _environment() -> dict[str, str]:
    """Ours without git's variables; this very Python first, since launchers in between cost more than the tests."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return clean | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
    }


def _run(
    *argv: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in argv],
        cwd=cwd,
        env=env or _environment(),
        text=True,
        capture_output=True,
        check=False,
    )


def _git(repo: Path, *arguments: str | Path) -> str:
    done = _run(
        "git", "-c", "user.name=t", "-c", "user.email=t@example.invalid", *arguments, cwd=repo
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def _checkout(task: Task, where: Path) -> Path:
    done = _run("bash", task.setup_script, where)
    assert done.returncode == 0, done.stderr
    return where


def _base_commit(task: Task) -> str:
    found = re.search(r"^BASE_COMMIT=([0-9a-f]{40})$", task.setup_script.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def _need_node(task: Task) -> None:
    if (task.path / "base" / "package.json").exists():
        require_program("node", package="nodejs")


def _run_tests(
    task: Task, repo: Path, tests: Path, feature: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return _run("bash", task.run_tests_script, repo, tests, *([feature] if feature else []))


def _tests_of(task: Task, feature_ids: tuple[int, ...], folder: Path) -> Path:
    """Several features' tests as one patch; each adds files of its own, so they go together."""
    joined = folder / "tests.patch"
    joined.write_bytes(b"".join(task.feature(number).tests.read_bytes() for number in feature_ids))
    return joined


def _commit_patch(repo: Path, branch: str, patch: Path) -> None:
    _git(repo, "checkout", "-q", "-b", branch, "main")
    _git(repo, "apply", "--index", patch)
    _git(repo, "commit", "-q", "-m", branch)


def _merges(repo: Path) -> bool:
    """Merge the two branches onto a detached head; leaves the head at the merge, or at the first branch."""
    _git(repo, "checkout", "-q", "--detach", "first")
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
    if _run("git", *identity, "merge", "-q", "--no-edit", "second", cwd=repo).returncode == 0:
        return True
    _git(repo, "merge", "--abort")
    return False


def _kind(pair: Pair, first: Path, second: Path, folder: Path) -> Kind:
    """Merge two patches by plain git, then by union where that fails, and run both features' tests on the result."""
    repo = _checkout(pair.task, folder / "repo")
    _commit_patch(repo, "first", first)
    _commit_patch(repo, "second", second)
    tests = _tests_of(pair.task, pair.feature_ids, folder)
    merged = _merges(repo)
    if not merged:
        attributes = repo / ".git" / "info" / "attributes"
        attributes.parent.mkdir(exist_ok=True)
        attributes.write_text("* merge=union\n")
        assert _merges(repo)
    passed = _run_tests(pair.task, repo, tests).returncode == 0
    if merged:
        return "clean" if passed else "disagree"
    return "union" if passed else "conflict"


@per_task
def test_a_task_has_all_files_and_a_library_of_some_size(task: Task) -> None:
    paths = [
        task.dockerfile,
        task.setup_script,
        task.runner_script,
        task.run_tests_script,
        task.combined_patch,
    ]
    for feature in task.features:
        paths += [feature.description, feature.patch, feature.tests]
    assert [path for path in paths if not path.is_file() or not path.stat().st_size] == []
    assert len(task.feature_ids) >= 3
    sources = [
        path for path in (task.path / "base" / LIBRARY[task.repo]).iterdir() if path.is_file()
    ]
    assert (
        sum(len(path.read_text().splitlines()) for path in sources if path.suffix in (".py", ".js"))
        >= 300
    )


@per_task
def test_setup_makes_the_base_commit(task: Task, tmp_path: Path) -> None:
    repo = _checkout(task, tmp_path / "deep" / "repo")
    assert _git(repo, "rev-parse", "HEAD") == _base_commit(task)
    assert _git(repo, "symbolic-ref", "HEAD") == "refs/heads/main"
    assert _git(repo, "status", "--porcelain", "--ignored") == ""


def test_setup_withstands_installers_and_users(tmp_path: Path) -> None:
    task = TASKS[0]
    copied = tmp_path / "task"
    shutil.copytree(task.path, copied)
    for path in (copied / "base").rglob("*"):
        path.chmod(0o777)
    compiled = copied / "base" / "tests" / "__pycache__"
    compiled.mkdir()
    (compiled / "test_money.cpython-311.pyc").write_bytes(b"compiled")
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        "[core]\n\tautocrlf = true\n\thooksPath = /nowhere\n[commit]\n\tgpgSign = true\n"
    )
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_DIR": str(tmp_path / "wrong")}
    for number, variables in enumerate((env, {"PATH": os.environ["PATH"]})):
        repo = tmp_path / f"repo{number}"
        done = _run("bash", copied / "setup.sh", repo, env=variables)
        assert done.returncode == 0, done.stderr
        assert _git(repo, "status", "--porcelain", "--ignored") == ""


def test_setup_says_what_is_wrong(tmp_path: Path) -> None:
    copied = tmp_path / "task"
    shutil.copytree(TASKS[0].path, copied)
    (copied / "base" / "README.md").write_text("changed\n")
    changed = _run("bash", copied / "setup.sh", tmp_path / "repo")
    assert changed.returncode == 1
    assert "not the original ones" in changed.stderr
    again = _run("bash", copied / "setup.sh", tmp_path / "repo")
    assert again.returncode == 1
    assert "is not empty" in again.stderr


@per_feature
def test_tests_fail_on_the_base_and_pass_with_the_golden_patch(
    task: Task, feature_id: int, tmp_path: Path
) -> None:
    _need_node(task)
    feature = task.feature(feature_id)
    repo = _checkout(task, tmp_path / "repo")
    assert _run_tests(task, repo, feature.tests).returncode == 1
    golden = _run_tests(task, repo, feature.tests, feature.patch)
    assert golden.returncode == 0, golden.stdout + golden.stderr
    assert _git(repo, "status", "--porcelain", "--ignored") == ""
    touched = re.findall(r"^\+\+\+ b/(\S+)", feature.patch.read_text(), re.MULTILINE)
    assert not [path for path in touched if path.startswith("test")]


@per_task
def test_combined_passes_all_tests(task: Task, tmp_path: Path) -> None:
    _need_node(task)
    repo = _checkout(task, tmp_path / "repo")
    done = _run_tests(task, repo, _tests_of(task, task.feature_ids, tmp_path), task.combined_patch)
    assert done.returncode == 0, done.stdout + done.stderr


def test_runner_names_patches_that_do_not_apply(tmp_path: Path) -> None:
    task = next(task for task in TASKS if task.repo == "stencil_task")
    repo = _checkout(task, tmp_path / "repo")
    patches = tmp_path / "patches"
    patches.mkdir()
    shutil.copy(task.feature(1).tests, patches / "tests.patch")
    shutil.copy(task.feature(1).patch, patches / "feature.patch")
    (patches / "empty.patch").write_bytes(b"")
    (patches / "bad.patch").write_text("--- a/none.py\n+++ b/none.py\n@@ -1 +1 @@\n-a\n+b\n")
    (repo / "left-over.py").write_text("x\n")
    env = _environment() | {"COOPERBENCH_REPO": str(repo), "COOPERBENCH_PATCHES": str(patches)}

    def runner(*names: str) -> subprocess.CompletedProcess[str]:
        return _run("bash", task.runner_script, *names, env=env)

    assert runner("tests.patch", "feature.patch").returncode == 0
    assert runner("tests.patch", "empty.patch").returncode == 1
    bad = runner("tests.patch", "bad.patch")
    assert bad.returncode == 3
    assert "the feature patch does not apply" in bad.stderr
    assert runner("nowhere.patch").returncode == 2
    assert runner().returncode == 2
    assert _git(repo, "status", "--porcelain", "--ignored") == ""


def test_the_runner_leaves_an_enclosing_repository_alone(tmp_path: Path) -> None:
    task = TASKS[0]
    _git(tmp_path, "init", "-q")
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "precious.txt").write_text("not committed\n")
    done = _run_tests(task, inner, task.feature(1).tests)
    assert done.returncode == 2
    assert "is not a git repository" in done.stderr
    assert (tmp_path / "precious.txt").exists()


def test_every_kind_of_pair_occurs() -> None:
    assert set(KINDS) == {_key(pair) for pair in PAIRS}
    kinds = list(KINDS.values())
    assert len(kinds) >= 15
    assert {kind for kind in kinds if kinds.count(kind) >= 2} == {
        "clean",
        "conflict",
        "disagree",
        "union",
    }
    assert 0 in {task.task_id for task in TASKS}


@per_pair
def test_a_pair_of_golden_patches_is_of_its_kind(pair: Pair, tmp_path: Path) -> None:
    _need_node(pair.task)
    first, second = pair.features
    assert _kind(pair, first.patch, second.patch, tmp_path) == KINDS[_key(pair)]


@pytest.mark.parametrize("name", ["demo", "demo-python", "python", "teams"])
def test_a_subset_names_what_there_is(name: str) -> None:
    subset = json.loads((DEMO / "subsets" / f"{name}.json").read_text())
    key = "groups" if name == "teams" else "pairs"
    known = {(task.repo, task.task_id): task.feature_ids for task in TASKS}
    for entry in subset["tasks"]:
        assert entry.keys() == {"repo", "task_id", key}
        for members in entry[key]:
            assert set(members) <= set(known[entry["repo"], entry["task_id"]])
            assert members == sorted(set(members))
            assert len(members) > 1
    assert subset["name"] == name
    counts = {"tasks": len(subset["tasks"]), key: sum(len(entry[key]) for entry in subset["tasks"])}
    assert subset["stats"] == {**counts, "repos": len({entry["repo"] for entry in subset["tasks"]})}


@pytest.mark.parametrize(("name", "repos"), [("demo", 4), ("demo-python", 3)])
def test_the_demo_subsets_show_every_kind(name: str, repos: int) -> None:
    subset = json.loads((DEMO / "subsets" / f"{name}.json").read_text())
    shown = {
        KINDS[entry["repo"], one, two] for entry in subset["tasks"] for one, two in entry["pairs"]
    }
    assert shown == {"clean", "conflict", "disagree", "union"}
    assert len({entry["repo"] for entry in subset["tasks"]}) == repos


Step = dict[str, Any]


@functools.cache
def _scripts() -> dict[str, Any]:
    import yaml

    content: dict[str, Any] = yaml.safe_load((DEMO / "agents.yaml").read_text())
    repos: dict[str, Any] = content["repos"]
    return repos


def _all_steps(steps: list[Step]) -> list[Step]:
    """Steps with those of all branches."""
    flat = []
    for step in steps:
        flat.append(step)
        for branch in ("then", "else"):
            flat += _all_steps(step.get("when", {}).get(branch, []))
    return flat


def _chosen_patches(steps: list[Step], heard: list[str]) -> list[str]:
    """The patches that an agent applies if it has heard this."""
    patches = []
    for step in steps:
        if "apply" in step:
            patches.append(step["apply"])
        if "when" in step:
            said = any(re.search(step["when"]["said"], text) for text in heard)
            patches += _chosen_patches(step["when"].get("then" if said else "else", []), heard)
    return patches


def _said_before_waiting(steps: list[Step]) -> list[str]:
    waiting = next(number for number, step in enumerate(steps) if "wait" in step)
    return [step["send"] for step in steps[:waiting] if "send" in step]


@per_task
def test_scripts_have_the_right_shape_and_their_patches_apply(task: Task, tmp_path: Path) -> None:
    script = _scripts()[task.repo][task.task_id]
    assert tuple(sorted(script["coop"])) == task.feature_ids
    assert "*" in script["solo"]
    repo = _checkout(task, tmp_path / "repo")
    scripts = [*script["coop"].values(), *script["solo"].values()]
    for step in (step for steps in scripts for step in _all_steps(steps)):
        ((kind, value),) = step.items()
        assert kind in ("think", "run", "apply", "send", "wait", "when", "give_up")
        if kind == "wait":
            assert value["seconds"] <= 10
        elif kind == "when":
            re.compile(value["said"])
            assert value.keys() <= {"said", "then", "else"}
        else:
            assert isinstance(value, str)
            assert value
        if kind == "apply":
            _git(repo, "apply", "--check", DEMO / value)
    for steps in script["coop"].values():
        assert len(_said_before_waiting(steps)) == 1
    for steps in script["solo"].values():
        _git(repo, "reset", "-q", "--hard")
        _git(repo, "clean", "-qfd")
        for step in steps:
            if "apply" in step:
                _git(repo, "apply", DEMO / step["apply"])
        assert not [step for step in steps if "send" in step or "wait" in step]


@per_pair
def test_scripted_agents_choose_patches_by_what_they_hear(pair: Pair, tmp_path: Path) -> None:
    _need_node(pair.task)
    coop = _scripts()[pair.task.repo][pair.task.task_id]["coop"]
    first, second = (coop[number] for number in pair.feature_ids)
    chosen = [
        *_chosen_patches(first, _said_before_waiting(second)),
        *_chosen_patches(second, _said_before_waiting(first)),
    ]
    golden = [str(feature.patch.relative_to(DEMO)) for feature in pair.features]
    if _key(pair) not in SAVED_BY_TALKING:
        assert chosen == golden
        return
    assert chosen != golden
    assert _kind(pair, DEMO / chosen[0], DEMO / chosen[1], tmp_path) == "clean"
    repo = tmp_path / "repo"
    _git(repo, "checkout", "-q", "main")
    for feature, patch in zip(pair.features, chosen, strict=True):
        assert _run_tests(pair.task, repo, feature.tests, DEMO / patch).returncode == 0


def test_nothing_of_the_machine_that_made_it_is_in_it() -> None:
    suspicious = re.compile(r"/(?:tmp|root|home|work)/")
    files = [path for path in DEMO.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert [path for path in files if suspicious.search(path.read_text())] == []
    assert not [path for path in files if b"\r" in path.read_bytes()]
