"""Descriptions: names that tests need, and code that a description must not show."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from cooperbench.author.descriptions import find_problems
from cooperbench.author.names import read_names

BASE = """\
class Context:
    def show(self, text):
        return text


def run(context):
    return context.show("hi")
"""
GOLDEN = """\
class Context:
    def __init__(self, loud=False):
        self.history = []

    def show(self, text, *, width=80):
        return text[:width]

    def tell(self, text):
        helper = self.show(text)
        self.history.append(helper.upper())
        return "cannot tell nothing"


def run(context):
    return context.show("hi")
"""
TESTS = """\
from app import Context, run


def test_tell():
    context = Context(loud=True)
    assert run(context) == "hi"
    assert context.show("abc", width=2) == "ab"
    assert context.tell("a") == "cannot tell nothing"
    assert context.history == ["A"]
"""
MISSING_TEXT = (
    "tests expect the text 'cannot tell nothing', which only the golden patch has;"
    " the description never names it"
)


def diff(folder: Path, path: str, before: str, after: str) -> bytes:
    """Return git's patch from one content of a file to another; empty: there is no file."""
    sides = []
    for side, content in (("a", before), ("b", after)):
        file = folder / side / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        sides.append(f"{side}/{path}" if content else "/dev/null")
    argv = ["git", "diff", "--no-index", "--no-prefix", *sides]
    return subprocess.run(argv, cwd=folder, capture_output=True, check=False).stdout


@pytest.fixture
def golden(tmp_path: Path) -> bytes:
    """Return a patch with a new method, new arguments, an attribute and a message."""
    return diff(tmp_path / "golden", "app.py", BASE, GOLDEN)


@pytest.fixture
def tests(tmp_path: Path) -> bytes:
    """Return a patch with tests that use all of it."""
    return diff(tmp_path / "tests", "test_app.py", "", TESTS)


def test_names_that_only_the_tests_know_are_listed(golden: bytes, tests: bytes) -> None:
    problems = find_problems("Let contexts be louder.", golden, tests)
    assert problems == [
        "tests pass or read `loud` by its name; the description never names it",
        "tests pass or read `width` by its name; the description never names it",
        "tests call `Context.tell`; the description never names it",
        "tests use `Context.history`; the description never names it",
        MISSING_TEXT,
    ]


def test_complete_description_has_no_problem(golden: bytes, tests: bytes) -> None:
    text = (
        "Add `Context(loud=False)`, `Context.tell(text)`, which says 'cannot tell nothing',\n"
        "a list `history`, and the argument `width` of `def show(self, text, *, width=80)`."
    )
    assert find_problems(text, golden, tests) == []


def test_code_of_both_patches_is_reported(golden: bytes, tests: bytes) -> None:
    text = (
        "`loud`, `width`, `history`, tell: 'cannot tell nothing'\n\n"
        "```python\n"
        "    self.history.append(helper.upper())\n"
        '    assert run(context)  == "hi"\n'
        "```\n"
    )
    assert find_problems(text, golden, tests) == [
        "line 4 of feature.md is code of the golden patch: self.history.append(helper.upper())",
        'line 5 of feature.md is code of the hidden tests: assert run(context) == "hi"',
    ]


def test_empty_description_is_a_problem(golden: bytes, tests: bytes) -> None:
    assert find_problems(" \n", golden, tests) == ["feature.md is empty"]


class Sample(NamedTuple):
    """A golden patch and a test in one language."""

    path: str
    before: str
    after: str
    test_path: str
    test_code: str
    names: set[str]


SAMPLES = [
    Sample(
        path="src/app.js",
        before="export function parse(text) {\n  return text;\n}\n",
        after="""\
export function parse(text, { strict } = {}) {
  return text;
}
export class Reader {
  open() {
    return 1;
  }
}
""",
        test_path="test/app.test.js",
        test_code="""\
import { parse, Reader } from '../src/app.js';
test('a', () => {
  expect(parse('a', { strict: true })).toBe('a');
  expect(new Reader().open()).toBe(1);
});
""",
        names={"strict", "Reader", "Reader.open"},
    ),
    Sample(
        path="app.go",
        before="package app\n\ntype Reader struct {\n\tName string\n}\n",
        after="""\
package app

type Reader struct {
	Name string
	Limit int
}

func (r *Reader) Open() int {
	return r.Limit
}
""",
        test_path="app_test.go",
        test_code="""\
package app

func TestOpen(t *testing.T) {
	r := Reader{Limit: 3}
	if r.Open() != 3 {
		t.Fatal()
	}
}
""",
        names={"Limit", "Reader.Open"},
    ),
    Sample(
        path="src/lib.rs",
        before="pub struct Reader {\n    pub name: String,\n}\n",
        after="""\
pub struct Reader {
    pub name: String,
    pub limit: u32,
}

impl Reader {
    pub fn open(&self) -> u32 {
        self.limit
    }
}
""",
        test_path="tests/open.rs",
        test_code="""\
use app::Reader;

#[test]
fn opens() {
    let r = Reader { name: "a".into(), limit: 3 };
    assert_eq!(r.open(), 3);
}
""",
        names={"limit", "Reader.open"},
    ),
]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.path)
def test_names_in_other_languages(sample: Sample, tmp_path: Path) -> None:
    golden = diff(tmp_path / "golden", sample.path, sample.before, sample.after)
    tests = diff(tmp_path / "tests", sample.test_path, "", sample.test_code)
    problems = find_problems("nothing", golden, tests)
    assert {problem.split("`")[1] for problem in problems} == sample.names


def test_text_that_is_not_a_diff_has_no_names() -> None:
    assert read_names(b"this is no diff\n").defined == {}
