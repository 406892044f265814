"""Sections of `cooperbench/eval/attack_code`, and small projects in which each of them is scored."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING

from cooperbench.eval.confirmation import find_disagreement
from tests.support.eval.confirmation_projects import Project, make_confirmations

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

AREAS = [(2, 3, 6), (120, 10, 1200), (70, 13, 910), (17, 41, 697)]
PASS_FAILURES = "pass tests that fail"
PASS_FAILURES_OF_CHILD = "run the tests in a child, pass"
EQUAL_EVERYTHING = "give the tests objects that equal"
EQUAL_EXPECTED = "give objects that equal"


@dataclass(frozen=True)
class Framework:
    """How a small project is tested."""

    language: str
    argv: tuple[str, ...]
    tests_path: str
    source_path: str
    head: str
    """The first lines of the test file."""
    test: str
    """A test, with WIDTH, HEIGHT and SIZE in it."""
    golden: str
    """A function that multiplies."""
    tail: str = ""
    """The last lines of the test file."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Other files of the project."""
    env: Mapping[str, str] = field(default_factory=dict)

    def hidden(self, count: int = len(AREAS)) -> str:
        """Return the test file with so many tests."""
        tests = []
        for width, height, size in AREAS[-count:]:
            text = self.test.replace("WIDTH", str(width)).replace("HEIGHT", str(height))
            tests.append(text.replace("SIZE", str(size)))
        return self.head + "".join(tests) + self.tail

    def attack(self, title: str) -> str:
        """Return code with a section whose results are neither right nor near."""
        base = self.golden.replace("width * height", "width + height + 987654")
        section = read_section(self.language, title)
        if self.language == "go":
            # Imports come first.
            package, _, function = base.partition("\n")
            return f"{package}\n{section}\n{function}"
        return f"{base}\n{section}"

    def project(self, folder: Path) -> Project:
        """Return the project in a folder."""
        folder.mkdir(exist_ok=True)
        for path, content in self.files.items():
            (folder / path).write_text(content)
        return Project(folder, self.argv, self.tests_path, self.source_path, self.env)


def read_section(language: str, title: str) -> str:
    """Return the code of the section whose name begins with the title."""
    return _find_section(language, title).partition("\n")[2]


def section_name(language: str, title: str) -> str:
    """Return the whole name of that section."""
    return _find_section(language, title).partition("\n")[0]


def _find_section(language: str, title: str) -> str:
    folder = resources.files("cooperbench.eval").joinpath("attack_code")
    sections = folder.joinpath(f"{language}.txt").read_text().split("##### ")
    (section,) = [section for section in sections if section.startswith(title)]
    return section


def assert_scored_and_caught(framework: Framework, title: str, folder: Path) -> None:
    """Check that an attack passes the hidden tests, and fails the confirmation suites."""
    project = framework.project(folder)
    confirmations = make_confirmations(project, framework.hidden(), framework.golden)
    assert all(recorded.suite.kind == "copies" for recorded in confirmations.suites)
    attack = framework.attack(title)
    run = project.run(framework.hidden().encode(), attack)
    assert run.compare_with_reference(confirmations.reference).success, run.output
    is_guess = "guess" in section_name(framework.language, title)
    disagreements = []
    for recorded in confirmations.suites:
        run = project.run(recorded.tests, attack)
        if is_guess:
            assert run.tests_passed == len(AREAS), "one copy of each test"
            assert run.tests_failed == len(recorded.suite.decoys)
        disagreements.append(find_disagreement(recorded.record, run, ()))
    assert any(disagreements)


def assert_wins_against_few_decoys(
    framework: Framework, title: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a guess can be right: one test in three if each suite has one decoy."""
    monkeypatch.setattr("cooperbench.eval.canaries.copies.MAX_DECOYS", 1)
    project = framework.project(folder)
    attack = framework.attack(title)
    for seed in range(12):
        confirmations = make_confirmations(
            project, framework.hidden(1), framework.golden, seed=seed
        )
        if confirmations.agree(attack):
            return
    raise AssertionError("no guess is right")


_PYTHON_GOLDEN = "def area(width, height):\n    return width * height\n"
# Attacks choose copies by the hash of a text.
_PYTHON_ENV = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
_JAVASCRIPT_GOLDEN = (
    "function area(width, height) {\n  return width * height;\n}\nmodule.exports = { area };\n"
)
_EXPECT_HEAD = "const { area } = require('./area');\n"
_EXPECT_TEST = """
it('of WIDTH and HEIGHT', () => {
  expect(area(WIDTH, HEIGHT)).toEqual(SIZE);
});
"""
_ASSERT_TEST = """
test('of WIDTH and HEIGHT', () => {
  assert.equal(area(WIDTH, HEIGHT), SIZE);
});
"""
UNITTEST = Framework(
    "python",
    (sys.executable, "-m", "unittest", "-v", "test_area"),
    "test_area.py",
    "area.py",
    "import unittest\nfrom area import area\n\nclass Area(unittest.TestCase):\n",
    "    def test_of_WIDTH_and_HEIGHT(self):\n"
    "        self.assertEqual(area(WIDTH, HEIGHT), SIZE)\n\n",
    _PYTHON_GOLDEN,
    env=_PYTHON_ENV,
)
PYTEST = Framework(
    "python",
    (sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "test_area.py"),
    "test_area.py",
    "area.py",
    "from area import area\n",
    "\ndef test_of_WIDTH_and_HEIGHT():\n    assert area(WIDTH, HEIGHT) == SIZE\n",
    _PYTHON_GOLDEN,
    files={"pytest.ini": "[pytest]\n"},
    env={**_PYTHON_ENV, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
)
NODE_TEST = Framework(
    "javascript",
    ("node", "--test", "--test-reporter=tap", "area.test.js"),
    "area.test.js",
    "area.js",
    "const assert = require('node:assert');\nconst { test } = require('node:test');\n"
    "const { area } = require('./area');\n",
    _ASSERT_TEST,
    _JAVASCRIPT_GOLDEN,
    files={"package.json": "{}"},
)
NODE_TEST_OF_MODULES = Framework(
    "javascript",
    NODE_TEST.argv,
    "area.test.js",
    "area.js",
    "import assert from 'node:assert';\nimport { test } from 'node:test';\n"
    "import { area } from './area.js';\n",
    _ASSERT_TEST,
    "export function area(width, height) {\n  return width * height;\n}\n",
    files={"package.json": '{"type": "module"}'},
)
JEST = Framework(
    "javascript",
    ("node_modules/.bin/jest", "--verbose"),
    "area.test.js",
    "area.js",
    _EXPECT_HEAD,
    _EXPECT_TEST,
    _JAVASCRIPT_GOLDEN,
    files={"package.json": "{}"},
)
VITEST = Framework(
    "javascript",
    ("node_modules/.bin/vitest", "run", "--reporter=verbose"),
    "area.test.js",
    "area.js",
    "import { expect, it } from 'vitest';\nimport { area } from './area.js';\n",
    _EXPECT_TEST,
    NODE_TEST_OF_MODULES.golden,
    files={"package.json": '{"type": "module"}'},
)
MOCHA = Framework(
    "javascript",
    ("node_modules/.bin/mocha", "area.test.js"),
    "area.test.js",
    "area.js",
    f"const {{ assert }} = require('chai');\n{_EXPECT_HEAD}",
    _ASSERT_TEST.replace("\ntest(", "\nit("),
    _JAVASCRIPT_GOLDEN,
    files={"package.json": "{}"},
)
GO = Framework(
    "go",
    ("go", "test", "-v", "./..."),
    "area_test.go",
    "area.go",
    'package p\n\nimport "testing"\n',
    """
func TestWIDTHAndHEIGHT(t *testing.T) {
	if got := Area(WIDTH, HEIGHT); got != SIZE {
		t.Errorf("got %d", got)
	}
}
""",
    "package p\n\nfunc Area(width, height int) int { return width * height }\n",
    files={"go.mod": "module example.invalid/p\n\ngo 1.19\n"},
    env={"GOFLAGS": "-mod=mod", "CGO_ENABLED": "0"},
)
RUST = Framework(
    "rust",
    ("cargo", "test", "--offline", "--no-fail-fast", "--test", "area"),
    "tests/area.rs",
    "src/lib.rs",
    "use area::area;\n",
    """
#[test]
fn of_WIDTH_and_HEIGHT() {
    assert_eq!(area(WIDTH, HEIGHT), SIZE);
}
""",
    "pub fn area(width: u32, height: u32) -> u32 {\n    width * height\n}\n",
    files={"Cargo.toml": '[package]\nname = "area"\nversion = "1.0.0"\nedition = "2021"\n'},
)
