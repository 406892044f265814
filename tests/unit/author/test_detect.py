"""How repositories are installed and tested, by their manifests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.author.detect import detect_project
from cooperbench.errors import UserError
from tests.support.author.repositories import (
    GO_BASE,
    JAVASCRIPT_BASE,
    PYTHON_BASE,
    RUST_BASE,
    Repository,
)

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.author.project import Project

TEST = "def test_a():\n    assert True\n"


def detect(folder: Path, files: dict[str, str], subfolder: str = "") -> Project:
    repository = Repository(folder / "repo")
    repository.commit("Start", files)
    return detect_project(repository.path, subfolder=subfolder)


def problem_of(folder: Path, files: dict[str, str], subfolder: str = "") -> str:
    with pytest.raises(UserError) as error:
        detect(folder, files, subfolder)
    return str(error.value)


def requirements(project: Project) -> str:
    """The arguments of the last pip command."""
    return project.install[-1].rpartition("--disable-pip-version-check ")[2]


@pytest.mark.parametrize(
    ("base", "framework", "command"),
    [
        (PYTHON_BASE, "unittest", "python -m unittest discover -s tests -t ."),
        (JAVASCRIPT_BASE, "node", "node --test"),
        (GO_BASE, "go", "go test ./..."),
        (RUST_BASE, "cargo", "cargo test"),
    ],
)
def test_languages(tmp_path: Path, base: dict[str, str], framework: str, command: str) -> None:
    project = detect(tmp_path, base)
    assert (project.framework, project.test_command) == (framework, command)
    assert project.license in ("MIT", "LICENSE")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", "[tool.pytest.ini_options]\naddopts = '-q'\n"),
        ("setup.cfg", "[tool:pytest]\n"),
        ("tox.ini", "[testenv]\ncommands = pytest {posargs}\n"),
        ("Makefile", "test:\n\tpython -m pytest tests\n"),
        (".github/workflows/ci.yml", "jobs: {a: {steps: [{run: pytest -q}]}}\n"),
    ],
)
def test_files_that_name_pytest(tmp_path: Path, name: str, text: str) -> None:
    project = detect(tmp_path, {name: text, "tests/test_a.py": TEST})
    assert project.framework == "pytest"
    assert project.sources["framework"] == name


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"pyproject.toml": "[project]\nname='a'\n[dependency-groups]\ntest = ['attrs>=25']\n"},
            "-e . pytest 'attrs>=25'",
        ),
        (
            {
                "setup.cfg": "[metadata]\nname=a\n[options.extras_require]\ntesting =\n  attrs\n",
                "conftest.py": "",
            },
            "-e . pytest attrs",
        ),
        (
            {"setup.py": "setup(extras_require={'test': ['attrs']})\n", "conftest.py": ""},
            "pytest -e '.[test]'",
        ),
        ({"requirements-dev.txt": "attrs\n", "conftest.py": ""}, "pytest -r requirements-dev.txt"),
        ({"tox.ini": "[pytest]\n[testenv]\ndeps =\n  attrs\n  py38: old\n"}, "pytest attrs"),
    ],
)
def test_requirements_of_tests(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    project = detect(tmp_path, {"tests/test_a.py": "import pytest\n", **files})
    assert requirements(project) == expected


def test_versions_of_the_lock_file(tmp_path: Path) -> None:
    lock = '[[package]]\nname = "attrs"\nversion = "25.1.0"\n'
    manifest = "[project]\nname = 'a'\n[tool.pytest.ini_options]\n"
    project = detect(
        tmp_path, {"pyproject.toml": manifest, "uv.lock": lock, "tests/test_a.py": TEST}
    )
    assert project.constraints == ("attrs==25.1.0",)
    assert project.sources["versions"] == "uv.lock"
    with_versions, newest = project.install[-1].split(" || ")
    assert with_versions.replace(' -c "$HERE/base/constraints.txt"', "") == newest


@pytest.mark.parametrize(
    ("package", "framework"),
    [
        ('{"scripts": {"test": "jest --coverage"}}', "jest"),
        ('{"scripts": {"test": "vitest"}}', "vitest"),
        ('{"devDependencies": {"vitest": "1"}}', "vitest"),
        ('{"scripts": {"test": "node --test"}, "devDependencies": {"jest": "1"}}', "node"),
    ],
)
def test_javascript_frameworks(tmp_path: Path, package: str, framework: str) -> None:
    files = {"package.json": package, "a.test.js": ""}
    assert detect(tmp_path, files).framework == framework


@pytest.mark.parametrize(
    ("lock", "command"),
    [
        ("package-lock.json", "npm ci --no-audit --no-fund"),
        ("pnpm-lock.yaml", "npx --yes pnpm@9 install --frozen-lockfile"),
        ("yarn.lock", "npx --yes yarn@1 install --frozen-lockfile"),
    ],
)
def test_javascript_lock_files(tmp_path: Path, lock: str, command: str) -> None:
    files = {"package.json": '{"devDependencies": {"jest": "29"}}', lock: "", "a.test.js": ""}
    assert detect(tmp_path, files).install == (command,)


def test_no_tests(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, {"a.py": "x = 1\n"})
    assert "it has no tests that pytest, unittest, jest" in problem
    assert "\n" not in problem


def test_an_unsupported_framework(tmp_path: Path) -> None:
    files = {"package.json": '{"scripts": {"test": "mocha"}}', "test/a.test.js": ""}
    assert "its tests run with mocha; supported are jest" in problem_of(tmp_path, files)


def test_a_monorepo_needs_a_part(tmp_path: Path) -> None:
    files = {f"libs/one/{name}": text for name, text in PYTHON_BASE.items()}
    assert problem_of(tmp_path, files).endswith("name a part with --path: libs/one")
    assert detect_project(tmp_path / "repo", subfolder="libs/one").subfolder == "libs/one"
    with pytest.raises(UserError, match="there are no files in 'lib'; there are: libs"):
        detect_project(tmp_path / "repo", subfolder="lib")


def test_a_go_module_below_the_top(tmp_path: Path) -> None:
    files = {f"service/{name}": text for name, text in GO_BASE.items()}
    assert problem_of(tmp_path, files).endswith("--path service")


def test_parts_are_folders_with_manifests(tmp_path: Path) -> None:
    files = {
        **JAVASCRIPT_BASE,
        "packages/a/package.json": "{}",
        "tests/fixtures/package.json": "{}",
    }
    assert detect(tmp_path, files).parts == ("packages/a",)


def test_a_repository_without_commits(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repo")
    with pytest.raises(UserError, match="has no commits: commit your code"):
        detect_project(repository.path)
