"""What holds for test files in every language: their copies parse, and strange files do no harm."""

from __future__ import annotations

import time

import pytest

from cooperbench.eval.canaries.languages import read_test_file
from tests.support.eval.confirmation_files import (
    copies_of,
    differences,
    has_syntax_error,
    read,
    texts_by_name,
)

PYTHON = """import pytest


class TestArea:
    @pytest.mark.parametrize(("width", "size"), [(2, 617), (3, 982)])
    def test_rows(self, width, size):
        assert area(width) == size

    def test_message(self):
        with pytest.raises(ValueError, match="too wide"):
            area(-1)
        assert "café" in name(2)
        self.assertEqual(name(3), "größer", "not größer")


def test_names():
    want = {"small": 1, "large": 22}
    assert sizes() == want
    assert not broken()
"""
SCRIPT = """import { area } from './area';

describe('area', () => {
  it.each([
    [2, 617],
    [3, 982],
  ])('rows', (width, size) => {
    expect(area(width)).toBe(size);
  });
  it('names', async () => {
    expect(() => area(-1)).toThrow(/too wide/);
    await expect(name(3)).resolves.toEqual({ text: 'größer' });
    expect(broken()).not.toBeDefined();
  });
});
"""
GO = """package p

import "testing"

func TestRows(t *testing.T) {
	for _, tt := range []struct{ width, size int }{{2, 617}, {3, 982}} {
		if got := Area(tt.width); got != tt.size {
			t.Errorf("%d, want %d", got, tt.size)
		}
	}
}

func TestNames(t *testing.T) {
	if Name(3) != "größer" {
		t.Fatal("not größer")
	}
	if !Broken() {
		t.Fail()
	}
}
"""
RUST = """#[test]
fn rows() {
    for (width, size) in [(2, 617), (3, 982)] {
        assert_eq!(area(width), size);
    }
}

#[test]
fn names() {
    assert_eq!(name(3), Some("größer".to_string()), "not größer");
    assert!(!broken());
}
"""
FILES = {
    "tests/test_a.py": PYTHON,
    "a.test.js": SCRIPT,
    "a.test.ts": SCRIPT,
    "a_test.go": GO,
    "tests/a.rs": RUST,
}
DEEP = 8_000
LONG = 600
HOSTILE = {
    "nested lists in Python": ("test_a.py", f"def test_a():\n    assert a == {'[' * DEEP}\n"),
    "many comparisons in Python": (
        "test_a.py",
        "def test_a():\n" + "".join(f"    v{n} = {n}\n    assert a == v{n}\n" for n in range(LONG)),
    ),
    "many tests in Python": (
        "test_a.py",
        "".join(f"def test_{n}():\n    w = {n}\n    assert a == w\n" for n in range(LONG)),
    ),
    "nested objects in JavaScript": (
        "a.test.js",
        f"it('a', () => {{ expect(a).toEqual({'[' * DEEP}) }})",
    ),
    "braces in a string": ("test_a.py", f"def test_a():\n    assert a == '{'{' * 100_000}'\n"),
    "nested values in Go": (
        "a_test.go",
        f"package p\nfunc TestA(t *testing.T) {{\n\tif a != {'(' * DEEP}1 {{\n\t\tt.Fail()\n\t}}\n}}\n",
    ),
    "many tables in Go": (
        "a_test.go",
        "package p\nfunc TestA(t *testing.T) {\n"
        + "\tfor _, w := range []int{1, 2} {\n\t\tif a != w {\n\t\t\tt.Fail()\n\t\t}\n\t}\n" * 300
        + "}\n",
    ),
    "nested macros in Rust": ("a.rs", f"#[test]\nfn a() {{\n    assert!({'vec![' * DEEP}\n}}\n"),
    "many assertions in Rust": (
        "a.rs",
        "#[test]\nfn a() {\n" + "    assert_eq!(f(), vec![1, 2]);\n" * LONG + "}\n",
    ),
    "open calls in Typst": ("a.typ", "--- a ---\n" + "#test(" * DEEP),
    "many errors in Typst": ("a.typ", "--- a ---\n" + "// Error: 1-2 no\n" * DEEP),
}


@pytest.mark.parametrize(("path", "content"), FILES.items())
def test_copies_parse_under_different_names(path: str, content: str) -> None:
    for seed in range(5):
        new = copies_of(read(path, content), seed)
        assert not has_syntax_error(path, new.content)
        names = [*new.originals, *new.decoys]
        assert len(names) == len({*names}) > 20
        if not path.endswith("s"):  # elsewhere `each` makes the names
            assert set(names) <= texts_by_name(path, new.content).keys()


@pytest.mark.parametrize("path", ["tests/test_a.py", "a_test.go", "tests/a.rs"])
def test_decoys_differ_from_originals_in_one_value(path: str) -> None:
    new = copies_of(read(path, FILES[path]))
    texts = texts_by_name(path, new.content)
    for decoy in new.decoys:
        closest = min(
            (differences(texts[original], texts[decoy]) for original in new.originals), key=len
        )
        # Twice where a message repeats the value.
        assert len(set(closest)) == 1
    lengths = [len(texts[name]) for name in new.originals]
    assert min(lengths) <= min(len(texts[name]) for name in new.decoys) + 40


@pytest.mark.parametrize(("path", "content"), FILES.items())
def test_names_do_not_tell_originals_from_decoys(path: str, content: str) -> None:
    new = copies_of(read(path, content))
    forms = [{name.rstrip("0123456789") for name in names} for names in (new.originals, new.decoys)]
    assert forms[0] == forms[1]


@pytest.mark.parametrize(("path", "content"), FILES.items())
def test_lines_may_end_like_on_windows(path: str, content: str) -> None:
    file = read(path, content.replace("\n", "\r\n"))
    plain = read(path, content)
    assert [test.name for test in file.tests] == [test.name for test in plain.tests]
    assert [len(test.checks) for test in file.tests] == [len(test.checks) for test in plain.tests]
    new = copies_of(file)
    assert not has_syntax_error(path, new.content)
    assert len(new.originals) == len(copies_of(plain).originals)


@pytest.mark.parametrize("path", [*FILES, "a.typ"])
def test_files_without_tests_are_not_read(path: str) -> None:
    for content in (b"", b"\n", b"\xff\xfe\x00", b"x" * 3_000_000):
        assert read_test_file(path, content) is None


@pytest.mark.parametrize(("path", "content"), FILES.items())
def test_tests_beside_a_syntax_error_are_found(path: str, content: str) -> None:
    names = {test.name for test in read(path, content).tests}
    broken = read_test_file(path, content.encode() + b"\n(]}\n")
    assert broken is not None
    assert names <= {test.name for test in broken.tests}


@pytest.mark.parametrize(("path", "content"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_are_read_in_time(path: str, content: str) -> None:
    started = time.process_time()
    file = read_test_file(path, content.encode())
    if file and file.tests:
        copies_of(file)
    assert time.process_time() - started < 5
