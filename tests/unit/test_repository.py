"""Files of the repository that have to agree: versions, make targets in workflows, packaged files."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

from cooperbench import __version__
from tests.support.paths import ROOT

GITHUB = ROOT / ".github"
RELEASE_HEADING = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", re.MULTILINE)
CHANGE_KINDS = {"Added", "Changed", "Deprecated", "Fixed", "Removed", "Security"}


def read_yaml(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def make_targets() -> set[str]:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    return set(phony[1].split())


def test_changelog_and_citation_have_the_version() -> None:
    version, date = RELEASE_HEADING.findall((ROOT / "CHANGELOG.md").read_text())[0]
    citation = read_yaml("CITATION.cff")
    assert version == citation["version"] == __version__
    assert date == citation["date-released"]


def test_the_changelog_keeps_its_format() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE)[0] == "[Unreleased]"
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= CHANGE_KINDS


@pytest.mark.parametrize("path", sorted((GITHUB / "workflows").glob("*.yml")), ids=lambda p: p.name)
def test_workflows_call_make_targets_that_exist(path: Any) -> None:
    called: set[str] = set()
    for job in yaml.safe_load(path.read_text())["jobs"].values():
        for step in job["steps"]:
            command = step.get("run", "")
            if command.startswith("make "):
                called.update(command.split()[1:])
    assert called
    assert called <= make_targets()


def test_make_help_lists_targets_that_exist() -> None:
    listed = set(re.findall(r'echo "make ([a-z]+) ', (ROOT / "Makefile").read_text()))
    assert listed <= make_targets()


def test_unit_tests_run_on_every_python_that_is_supported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: "
    supported = [
        name.removeprefix(prefix) for name in project["classifiers"] if name.startswith(prefix)
    ]
    matrix = read_yaml(".github/workflows/ci.yml")["jobs"]["unit"]["strategy"]["matrix"]
    assert matrix["python-version"] == supported


def test_the_source_distribution_names_files_that_exist() -> None:
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]
    included = hatch["build"]["targets"]["sdist"]["include"]
    assert [name for name in included if not (ROOT / name).exists()] == []


def test_constraints_are_plain_pins() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[^ ;@]+", line)] == []


def test_the_lifecycle_names_functions_that_exist() -> None:
    """Each line of the diagram in CONTRIBUTING.md: the names, a description, and their module."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    diagram = text.partition("## The lifecycle of a pair")[2].split("```")[1]
    source = ROOT / "src/cooperbench"
    missing: list[str] = []
    lines = re.findall(r"^[ │├└─]*(\w\S*(?:, \w+)*)  +\S.*  +(\S+)$", diagram, re.MULTILINE)
    for names, module in lines:
        path = source / module
        files = list(path.glob("*.py")) if path.is_dir() else [path]
        code = "".join(file.read_text() for file in files)
        functions = [name.rpartition(".")[2] for name in names.split(", ")]
        missing += [name for name in functions if not re.search(rf"def {name}\b", code)]
    assert missing == []
    assert len(lines) == 19
