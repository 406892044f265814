"""Canaries under the real jest, vitest and mocha: their tests fail and pass as they should, and interference is found."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cooperbench.eval.canary import Canary, new_canaries
from cooperbench.eval.test_runs import TestRun, read_test_run
from cooperbench.eval.trees import TreeStore
from cooperbench.models import Task
from cooperbench.records.reference import ReferenceRecord
from cooperbench.sandbox.contract import CommandResult
from tests.support.docker.engines import NoEngine, cache_folder, locked, skipped_without_engine
from tests.support.eval.lab import new_file
from tests.support.eval.realgit import base_with, file_in, text

if TYPE_CHECKING:
    from collections.abc import Iterator

PATH = "area.test.js"
PACKAGES = ("jest@29.7.0", "vitest@1.6.0", "mocha@10.8.2", "chai@4.5.0")
# With how many tests of a canary they name that fail, and pass.
PROGRAMS = {
    ("jest", "--verbose"): (2, 1),
    ("vitest", "run", "--globals", "--reporter=verbose"): (2, 1),
    ("vitest", "run", "--globals", "--reporter=dot", "--bail=1"): (1, 0),
    ("mocha", PATH): (2, 1),
    ("mocha", "--reporter=dot", "--bail", PATH): (1, 0),
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


@pytest.fixture(scope="module")
def node_modules() -> Iterator[Path]:
    """In the tests' cache; from npm the first time."""
    with skipped_without_engine():
        folder = cache_folder() / "-".join(("npm", *PACKAGES))
        with locked(cache_folder() / "npm.lock"):
            if not folder.is_dir():
                half = Path(tempfile.mkdtemp(prefix="npm-", dir=cache_folder()))
                try:
                    _install(half)
                    half.rename(folder)
                finally:
                    shutil.rmtree(half, ignore_errors=True)
        yield folder / "node_modules"


def _install(folder: Path) -> None:
    if shutil.which("npm") is None:
        raise NoEngine("jest, vitest and mocha cannot be fetched: npm is not installed")
    words = [
        "npm",
        "install",
        "--silent",
        "--no-audit",
        "--no-fund",
        "--prefix",
        str(folder),
        *PACKAGES,
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoEngine(f"jest, vitest and mocha cannot be fetched: {done.stderr[-300:]}")


@dataclass(frozen=True)
class Project:
    folder: Path
    words: tuple[str, ...]

    def run(self, tests: bytes, code: str) -> TestRun:
        (self.folder / PATH).write_bytes(tests)
        (self.folder / "area.js").write_text(code)
        program, *options = self.words
        argv = [str(self.folder / "node_modules/.bin" / program), *options]
        done = subprocess.run(argv, cwd=self.folder, capture_output=True, check=False)
        return read_test_run(CommandResult(done.returncode, done.stdout, done.stderr), 1.0, 60)

    def canary_in(self, hidden: str, golden_code: str) -> tuple[ReferenceRecord, Canary, bytes]:
        """What is known of the golden patch, and the first canary that fits, with its tests."""
        (self.folder / "package.json").write_text("{}")
        golden = self.run(hidden.encode(), golden_code)
        assert golden.success, golden.output
        reference = ReferenceRecord(
            question="q",
            task="x/task1",
            feature_id=1,
            image_digest="",
            network="none",
            installed=False,
            golden=golden.to_record(),
            passed_tests=list(golden.outcomes),
        )
        feature = Task("r", 1, self.folder.parent, (1,)).feature(1)
        feature.path.mkdir()
        feature.tests.write_bytes(new_file(PATH, hidden))
        feature.patch.write_bytes(b"")
        with TreeStore(base_with(self.folder.parent, {"README": text("x\n")})) as store:
            for found in new_canaries(feature, store):
                tests = file_in(store, store.apply(found.tests.encode()).tree, PATH) or b""
                if canary := found.tried(self.run(tests, golden_code), reference):
                    return reference, canary, tests
        raise AssertionError("no canary fits")


@pytest.fixture
def folder(node_modules: Path, tmp_path: Path) -> Path:
    """Of a project that has them."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "node_modules").symlink_to(node_modules)
    return folder


@pytest.mark.parametrize(("words", "named"), PROGRAMS.items(), ids=str)
def test_canaries_decide(words: tuple[str, ...], named: tuple[int, int], folder: Path) -> None:
    project = Project(folder, words)
    hidden = HIDDEN
    if words[0] == "mocha":
        hidden = HIDDEN.replace(".toBe(", ".to.equal(").replace(".toEqual(", ".to.deep.equal(")
        hidden = f"const {{ expect }} = require('chai');\n{hidden}".replace("  test(", "  it(")
    reference, canary, tests = project.canary_in(hidden, GOLDEN)
    assert len(reference.passed_tests) == (3 if named[1] else 0)
    assert (len(canary.failed), len(canary.passed)) == named
    assert canary.agrees(project.run(tests, HONEST), ())

    assert project.run(hidden.encode(), CHEAT).compare_with_reference(reference).success, (
        "without canaries"
    )
    assert not canary.agrees(project.run(tests, CHEAT), ())


@pytest.mark.parametrize("words", list(PROGRAMS)[:2], ids=str)
def test_assertions_that_all_pass_are_found_where_there_are_no_values(
    words: tuple[str, ...], folder: Path
) -> None:
    """Negated ones fail with such code, as they would with code that is right."""
    project = Project(folder, words)
    reference, canary, tests = project.canary_in(WITHOUT_VALUES, CHECKED)
    assert len(canary.failed) >= 3
    assert project.run(WITHOUT_VALUES.encode(), CHEAT).compare_with_reference(reference).success, (
        "without canaries"
    )
    assert not canary.agrees(project.run(tests, CHEAT), ())
