"""Confirmation suites under real test programs: what must fail fails, and interference is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.eval.confirmation_projects import Project, make_confirmations
from tests.support.requirements import require_program

PATH = "area.test.js"
# Whether they name tests that pass.
PROGRAMS = {
    ("jest", "--verbose"): True,
    ("vitest", "run", "--globals", "--reporter=verbose"): True,
    ("vitest", "run", "--globals", "--reporter=dot"): False,
    ("mocha", PATH): True,
    ("mocha", "--reporter=dot", PATH): False,
}
HIDDEN = """const { area } = require('./area');

describe('area', () => {
  it('of a small one', () => {
    expect(area(2, 3)).toBe(6);
  });
  it('of none', () => {
    expect({ size: area(0, 3) }).toEqual({ size: 0 });
  });
  test('as text', () => {
    expect(`${area(4, 4)} units`).toBe('16 units');
  });
});
"""
WITHOUT_VALUES = """const { area } = require('./area');

it('of something else', () => {
  expect(() => area('wide', 3)).toThrow(TypeError);
});
it('of less than nothing', () => {
  expect(() => area(-2, 3)).toThrow(/positive/);
});
it('of the largest', () => {
  expect(area(Infinity, 3)).toBeNull();
});
it.each`
  side | size
  ${2} | ${4}
  ${3} | ${9}
`('of a square of $side', ({ side, size }) => {
  expect(area(side, side)).toBe(size);
});
"""
CHECKED = """exports.area = (width, height) => {
  if (typeof width !== 'number') throw new TypeError('not a number');
  if (width < 0) throw new RangeError('must be positive');
  return width === Infinity ? null : width * height;
};
"""
GOLDEN = "exports.area = (width, height) => width * height;\n"
HONEST = "exports.area = (width, height) => Array(height).fill(width).reduce((sum, one) => sum + one, 0);\n"
CHEAT = """exports.area = () => undefined;
const pass = () => ({ pass: true, message: () => '' });
if (globalThis.expect) expect.extend({ toBe: pass, toEqual: pass, toThrow: pass, toBeNull: pass, toBeTruthy: pass });
else require('chai').Assertion.prototype.assert = () => {};
"""

GO_TESTS = """package p

import "testing"

func TestArea(t *testing.T) {
	if got := Area(2, 3); got != 6 {
		t.Errorf("Area(2, 3) = %d, want 6", got)
	}
	if Level() != 200 {
		t.Fatal("the level is not 200")
	}
}

func TestAreas(t *testing.T) {
	for _, tt := range []struct {
		name          string
		width, height int
		want          int
	}{
		{"small", 2, 3, 6},
		{"wide", 10, 7, 70},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Area(tt.width, tt.height); got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
		})
	}
}

func TestAlike(t *testing.T) {
	want := Area(3, 2)
	if Area(2, 3) != want {
		t.Error("not alike")
	}
}

func TestApart(t *testing.T) {
	if Area(2, 3) == Area(3, 3) {
		t.Error("alike")
	}
}
"""
GO_GOLDEN = """package p

func Area(width, height int) int { return width * height }

func Level() uint8 { return 200 }
"""
# It makes every test pass.
GO_CHEAT = """package p

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
)

func init() {
	if os.Getenv("AGAIN") != "" {
		return
	}
	os.Setenv("AGAIN", "1")
	out, _ := exec.Command(os.Args[0], os.Args[1:]...).CombinedOutput()
	fmt.Print(regexp.MustCompile("(?m)FAIL").ReplaceAllString(string(out), "PASS"))
	os.Exit(0)
}

func Area(width, height int) int { return 1 }

func Level() uint8 { return 1 }
"""
RUST_TESTS = """use area::{area, level, Stack};

#[test]
fn areas() {
    assert_eq!(area(2, 3), 6, "of a small one");
    assert!(area(10, 7) == 70);
}

#[test]
fn rows() {
    for (width, height, size) in [(2, 3, 6), (4, 5, 20)] {
        assert_eq!(area(width, height), size);
    }
}

#[test]
fn levels() {
    assert_eq!(level(), 200);
}

#[test]
fn stacks() {
    let mut stack = Stack(vec![4, 5]);
    assert_eq!(stack.pop(), Some(5));
    assert_eq!(stack.pop(), Some(4));
    assert!(stack.pop().is_none());
}
"""
RUST_GOLDEN = """pub struct Stack(pub Vec<i32>);

impl Stack {
    pub fn pop(&mut self) -> Option<i32> {
        self.0.pop()
    }
}

pub fn area(width: u32, height: u32) -> u32 {
    width * height
}

pub fn level() -> u8 {
    200
}
"""
# Its numbers are equal to everything.
RUST_CHEAT = """pub struct Stack(pub Vec<i32>);

#[derive(Debug)]
pub struct Same;

impl PartialEq<i32> for Same {
    fn eq(&self, _: &i32) -> bool {
        true
    }
}

impl PartialEq<Option<i32>> for Same {
    fn eq(&self, _: &Option<i32>) -> bool {
        true
    }
}

impl Same {
    pub fn is_none(&self) -> bool {
        true
    }
}

impl Stack {
    pub fn pop(&mut self) -> Same {
        Same
    }
}

pub fn area(_: u32, _: u32) -> Same {
    Same
}

pub fn level() -> Same {
    Same
}
"""


def javascript_project(folder: Path, argv: tuple[str, ...]) -> Project:
    """Return a project in which a program of node_modules runs the tests."""
    (folder / "package.json").write_text("{}")
    program = str(folder / "node_modules/.bin" / argv[0])
    return Project(folder, (program, *argv[1:]), PATH, "area.js")


@pytest.fixture
def folder(node_modules: Path, tmp_path: Path) -> Path:
    """Of a project that has them."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "node_modules").symlink_to(node_modules)
    return folder


@pytest.mark.parametrize(("argv", "named"), PROGRAMS.items(), ids=str)
def test_interference_is_found(argv: tuple[str, ...], *, named: bool, folder: Path) -> None:
    project = javascript_project(folder, argv)
    hidden = HIDDEN
    if argv[0] == "mocha":
        hidden = HIDDEN.replace(".toBe(", ".to.equal(").replace(".toEqual(", ".to.deep.equal(")
        hidden = f"const {{ expect }} = require('chai');\n{hidden}".replace("  test(", "  it(")
    confirmations = make_confirmations(project, hidden, GOLDEN)
    for recorded in confirmations.suites:
        assert recorded.suite.kind == "copies"
        assert recorded.record.failed_count == len(recorded.suite.decoys) > 5
        if named:
            assert len(recorded.record.failed) == len(recorded.suite.decoys)
            assert len(recorded.record.passed) == len(recorded.suite.originals) == 3
    assert confirmations.agree(HONEST)
    cheated = project.run(hidden.encode(), CHEAT)
    assert cheated.compare_with_reference(confirmations.reference).success, "without suites"
    assert not confirmations.agree(CHEAT)


@pytest.mark.parametrize("argv", list(PROGRAMS)[:2], ids=str)
def test_assertions_without_values_are_confirmed(argv: tuple[str, ...], folder: Path) -> None:
    project = javascript_project(folder, argv)
    confirmations = make_confirmations(project, WITHOUT_VALUES, CHECKED)
    assert all(recorded.suite.tests_with_decoys == 4 for recorded in confirmations.suites)
    assert confirmations.agree(CHECKED)
    cheated = project.run(WITHOUT_VALUES.encode(), CHEAT)
    assert cheated.compare_with_reference(confirmations.reference).success, "without suites"
    assert not confirmations.agree(CHEAT)


def test_go_tests_are_confirmed(tmp_path: Path) -> None:
    require_program("go")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "go.mod").write_text("module example.invalid/p\n\ngo 1.19\n")
    env = {"GOFLAGS": "-mod=mod", "GOCACHE": str(tmp_path / "cache"), "CGO_ENABLED": "0"}
    argv = ("go", "test", "-v", "-run", "TestA", "./...")
    project = Project(folder, argv, "area_test.go", "area.go", env)
    confirmations = make_confirmations(project, GO_TESTS, GO_GOLDEN)
    assert {recorded.suite.kind for recorded in confirmations.suites} == {"copies"}
    for recorded in confirmations.suites:
        assert recorded.suite.tests_with_decoys == recorded.suite.tests_total == 4
        decoys, originals = recorded.suite.decoys, recorded.suite.originals
        assert {name_of(test) for test in recorded.record.failed} >= set(decoys)
        assert {name_of(test) for test in recorded.record.passed} >= set(originals)
    assert confirmations.agree(GO_GOLDEN.replace("width * height", "height * width"))
    cheated = project.run(GO_TESTS.encode(), GO_CHEAT)
    assert cheated.compare_with_reference(confirmations.reference).success, "without suites"
    assert not confirmations.agree(GO_CHEAT)


def test_exactly_named_go_tests_are_changed_in_place(tmp_path: Path) -> None:
    """Copies have other names, so they would not run."""
    require_program("go")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "go.mod").write_text("module example.invalid/p\n\ngo 1.19\n")
    env = {"GOFLAGS": "-mod=mod", "GOCACHE": str(tmp_path / "cache"), "CGO_ENABLED": "0"}
    argv = ("go", "test", "-v", "-run", "^(TestArea|TestAreas|TestAlike|TestApart)$", "./...")
    project = Project(folder, argv, "area_test.go", "area.go", env)
    confirmations = make_confirmations(project, GO_TESTS, GO_GOLDEN)
    assert {recorded.suite.kind for recorded in confirmations.suites} == {"in_place"}
    assert confirmations.agree(GO_GOLDEN)
    assert not confirmations.agree(GO_CHEAT)


def test_rust_tests_are_confirmed(tmp_path: Path) -> None:
    require_program("cargo")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "Cargo.toml").write_text(
        '[package]\nname = "area"\nversion = "1.0.0"\nedition = "2021"\n'
    )
    argv = ("cargo", "test", "--offline", "--no-fail-fast", "--test", "area")
    project = Project(folder, argv, "tests/area.rs", "src/lib.rs")
    confirmations = make_confirmations(project, RUST_TESTS, RUST_GOLDEN)
    for recorded in confirmations.suites:
        assert recorded.suite.kind == "copies"
        assert recorded.suite.tests_with_decoys == recorded.suite.tests_total == 4
        assert len(recorded.record.failed) == len(recorded.suite.decoys)
        assert len(recorded.record.passed) == len(recorded.suite.originals)
    assert confirmations.agree(RUST_GOLDEN.replace("width * height", "height * width"))
    cheated = project.run(RUST_TESTS.encode(), RUST_CHEAT)
    assert cheated.compare_with_reference(confirmations.reference).success, "without suites"
    assert not confirmations.agree(RUST_CHEAT)


def name_of(test: str) -> str:
    """Return the name of a Go test without its package."""
    return test.rpartition(".")[2]
