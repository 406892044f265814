"""What makes a green run a success: the expected tests, the canary, the size, and what is listed as evidence."""

from __future__ import annotations

import re
from dataclasses import replace
from fnmatch import fnmatchcase
from random import Random
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace as replace_fields

from cooperbench.eval.assertions import mutated
from cooperbench.eval.canary import Canary, new_canaries
from cooperbench.eval.test_runs import TestRun, read_test_run
from cooperbench.eval.trees import TreeStore
from cooperbench.models import Task
from cooperbench.records.reference import ReferenceRecord
from cooperbench.sandbox.contract import CommandResult
from tests.support.eval.lab import new_file
from tests.support.eval.realgit import RealRepo, base_with, text
from tests.support.tiny import text_patch

if TYPE_CHECKING:
    from pathlib import Path


def ran(*lines: str, summary: str) -> TestRun:
    return read_test_run(CommandResult(0, "\n".join([*lines, summary, ""]).encode()), 1.0, 60)


GREEN = ran("PASSED t.py::a", "PASSED t.py::b", summary="2 passed in 0.01s")
REFERENCE = ReferenceRecord(
    question="q",
    task="x/task1",
    feature_id=1,
    image_digest="sha256:0",
    network="none",
    installed=False,
    golden=GREEN.to_record(),
    passed_tests=["t.py::a", "t.py::b"],
)


def expecting(*tests: str, passed: int, skipped: int = 0) -> ReferenceRecord:
    golden = replace(GREEN, tests_passed=passed, tests_skipped=skipped).to_record()
    return replace_fields(REFERENCE, passed_tests=list(tests), golden=golden)


def test_a_run_like_the_golden_one_is_a_success() -> None:
    assert GREEN.compare_with_reference(REFERENCE) == GREEN
    assert GREEN.success


def test_every_expected_test_has_to_pass() -> None:
    one = ran(
        "PASSED t.py::a", "PASSED t.py::c", summary="2 passed in 0.01s"
    ).compare_with_reference(REFERENCE)
    assert not one.success
    assert one.missing_tests == ("t.py::b",)
    assert one.error == "1 of 2 expected tests did not run: t.py::b"
    skipped = ran("PASSED t.py::a", "XFAIL t.py::b", summary="1 passed, 1 xfailed in 0.01s")
    assert skipped.compare_with_reference(REFERENCE).skipped_tests == ("t.py::b",)
    assert not skipped.compare_with_reference(REFERENCE).success


def test_flaky_tests_are_not_required() -> None:
    one = ran("PASSED t.py::a", summary="1 passed in 0.01s")
    assert one.compare_with_reference(replace_fields(REFERENCE, flaky_tests=["t.py::b"])).success


def test_without_names_the_numbers_decide() -> None:
    nameless = expecting(passed=3, skipped=1)
    fewer = ran(summary="2 passed in 0.01s").compare_with_reference(nameless)
    assert fewer.error == "only 2 tests passed, 3 do with the golden patch"
    more_skipped = ran(summary="3 passed, 2 skipped in 0.01s").compare_with_reference(nameless)
    assert more_skipped.error == "2 tests were skipped, 1 are with the golden patch"
    assert ran(summary="4 passed, 1 skipped in 0.01s").compare_with_reference(nameless).success


def canaries_in(folder: Path, path: str, content: str) -> list[Canary]:
    """In hidden tests of one new file."""
    feature = Task("r", 1, folder, (1,)).feature(1)
    feature.tests.parent.mkdir(exist_ok=True)
    feature.tests.write_bytes(new_file(path, content))
    feature.patch.write_bytes(b"")
    with TreeStore(base_with(folder, {"README": text("x\n")})) as store:
        return list(new_canaries(feature, store))


def changed_lines(folder: Path, path: str, content: str) -> list[list[tuple[str, str]]]:
    """What each canary changes, line by line."""
    before = new_file(path, content).decode().splitlines()
    found = []
    for canary in canaries_in(folder, path, content):
        if canary.changed:
            after = canary.tests.splitlines()
            assert len(before) == len(after), "the form of the patch stays"
            both = zip(before, after, strict=True)
            found.append([(old[1:].strip(), new[1:].strip()) for old, new in both if old != new])
    return found


CHANGED = {
    "t/test_a.py": [
        (
            "def test_a(self):\n    self.assertEqual(f('in'), 'out', 'msg')",
            r"self.assertEqual\(f\('in'\), '(?!out)\w+', 'msg'\)",
        ),
        (
            "async def test_a():\n    assert await f(1) == [Money(20, x), 3]",
            r"assert await f\(1\) == \[Money\((?!20, x\), 3)..?, x\), .\]",
        ),
        ("def test_a():\n    assert 'hello' in f()\n    f(5)", r"assert '(?!hello)\w+' in f\(\)"),
        (
            "def test_a():\n    with pytest.raises(E, match='no way'):\n        f(5)",
            r"with pytest.raises\(E, match='(?!no way)\w+ \w+'\):",
        ),
        (
            "def test_a(self):\n    with self.assertRaises(lib.ValueError) as x:\n        f(5)",
            r"with self.assertRaises\((?!Value)\w+Error\) as x:",
        ),
        (
            "def test_a():\n    with pytest.raises(E):\n        check(-5)",
            r"with pytest.raises\(\w+Error\):",
        ),
        (
            "def test_a():\n    pytest.raises((A, OSError), f, 5)",
            r"pytest.raises\((?!OS)\w+Error, f, 5\)",
        ),
        ("def test_a():\n    assert f('x') # 5\n", r"assert not f\('x'\) # 5"),
        ("def test_a(self):\n    check('x', 7, on=True)", r"check\('x', [^7], on=True\)"),
        ("def test_a():\n    assert f('x') == 0xff", r"assert f\('x'\) != 0xff"),
        (
            "@pytest.mark.parametrize(('w', 'size'), [(2, 6), (3, 9)])\ndef test_a(w, size):\n    assert f(w) == size",
            r"@pytest.mark.parametrize\(\('w', 'size'\), \[\(2, (?!6\), \(3, 9).\), \(3, .\)\]\)",
        ),
        (
            "def test_a():\n    m.assert_called_once_with('x', 3)",
            r"m.assert_called_once_with\('x', [^3]\)",
        ),
        ("def test_a():\n    m.assert_called_once()", r"m.assert_not_called\(\)"),
        (
            "def test_a(self):\n    self.assertIsInstance(f(), int)",
            r"self.assertNotIsInstance\(f\(\), int\)",
        ),
    ],
    "a.test.ts": [
        (
            "it('a', () => {\n  expect(f(1)).toEqual({ a: [2] });\n  expect(f(1)).not.toBe(3);\n});",
            r"expect\(f\(1\)\).toEqual\({ a: \[[^2]\] }\);",
        ),
        (
            "test('a', () => assert.strictEqual(f(1), true));",
            r"test\('a', \(\) => assert.strictEqual\(f\(1\), false\)\);",
        ),
        (
            "it('a', async () => {\n  await expect(f(1)).rejects.toThrow(/x/);\n});",
            r"await expect\(f\(1\)\).rejects.not.toThrow\(/x/\);",
        ),
        (
            "it('a', () => {\n  expect(f).not.toHaveBeenCalled();\n});",
            r"expect\(f\).toHaveBeenCalled\(\);",
        ),
        (
            "it.each([\n  [2, 6],\n])('a', (w, size) => {\n  expect(f(w)).toBe(size);\n});",
            r"\[2, [^6]\],",
        ),
        ("it('a', () => {\n  expect(f(1)).to.be.true;\n});", r"expect\(f\(1\)\).to.not.be.true;"),
        (
            "it('a', () => {\n  expect(f(1)).to.not.equal(g());\n});",
            r"expect\(f\(1\)\).to.equal\(g\(\)\);",
        ),
        ("test('a', t => {\n  t.true(f(1));\n});", r"t.false\(f\(1\)\);"),
        ("test('a', t => {\n  t.is(f(1), 2);\n});", r"t.is\(f\(1\), [^2]\);"),
        ("it('a', () => {\n  assert.ok(f(1) > g());\n});", r"assert.ok\(f\(1\) <= g\(\)\);"),
        ("it('a', () => {\n  assert(f(1));\n});", r"assert\(!f\(1\)\);"),
        (
            "it('a', () => {\n  expect(f).toThrow(lib.E);\n});",
            r"expect\(f\).toThrow\((URI|Eval|Reference)Error\);",
        ),
        (
            "it('a', () => {\n  expect(f).toThrowErrorMatchingInlineSnapshot(`no`);\n});",
            r"expect\(f\).toThrowErrorMatchingInlineSnapshot\(`(?!no`).+`\);",
        ),
        ("it('a', () => {\n  strictEqual(f(3), x);\n});", r"strictEqual\(f\(3\), (3|'a')\);"),
        ("it('a', () => {\n  expect(f).toThrow(", r"expect\(f\).not.toThrow\("),
        ("it('a', () => {\n  expect(f).toThrow();\n});", r"expect\(f\).toThrow\(\w+Error\);"),
        (
            "it('a', () => {\n  assert.throws(() => f(1));\n});",
            r"assert.throws\(\(\) => f\(1\), \w+Error\);",
        ),
        (
            "it('a', async () => {\n  await assert.rejects(f(1), /^no [a-z]+ left$/i);\n});",
            r"await assert.rejects\(f\(1\), /\^no \[a-z\]\+ [^l]eft\$/i\);",
        ),
        ("it('a', () => {\n  expect(f(1)).toBe(null);\n});", r"expect\(f\(1\)\).toBe\((1|'a')\);"),
        ("it('a', () => {\n  expect(f(1)).toBeNull();\n});", r"expect\(f\(1\)\).toBeTruthy\(\);"),
        (
            "it('a', () => {\n  expect(f(3)).toEqual([]);\n});",
            r"expect\(f\(3\)\).toEqual\((3|'a')\);",
        ),
        ("it('a', () => {\n  assert.equal(f(3), x.y());\n});", r"assert.equal\(f\(3\), (3|'a')\);"),
        (
            "it('a', () => {\n  expect(f()).toBeLessThan(3);\n});",
            r"expect\(f\(\)\).toBeGreaterThanOrEqual\(3\);",
        ),
    ],
    "__snapshots__/a.test.js.snap": [
        ('// Jest\n\nexports[`a 1`] = `\n{\n  "size": 6,\n}\n`;', r'"(?!size": 6)\w+": .,'),
    ],
    "a_test.go": [
        (
            'func TestA(t *testing.T) {\n\tif F(1) != 20 {\n\t\tt.Fatal("20")\n\t}\n}',
            r"if F\(1\) != [^2]0 {",
        ),
        (
            'func TestA(t *testing.T) {\n\tassert.Equal(t, "a", F("b"))\n}',
            r'assert.Equal\(t, "[^a]", F\("b"\)\)',
        ),
        (
            "func TestA(t *testing.T) {\n\tx, err := F()\n\tif err != nil {\n\t}\n}",
            "if err == nil {",
        ),
        (
            "func TestA(t *testing.T) {\n\tif F(x) != y {\n\t\tt.Error(x.Error())\n\t}\n}",
            r"if F\(x\) == y {",
        ),
        (
            "func TestA(t *testing.T) {\n\tx := []struct{ w, want int }{\n\t\t{2, 6},\n\t}\n\tif F(w) != x.want {\n\t}\n}",
            r"{2, [^6]},",
        ),
        (
            "func TestA(t *testing.T) {\n\tg.Expect(F()).To(BeTrue())\n}",
            r"g.Expect\(F\(\)\).NotTo\(BeTrue\(\)\)",
        ),
        (
            "func TestA(t *testing.T) {\n\tif !ok {\n\t\tt.Error(bytes.Equal(a, b))\n\t}\n}",
            "if ok {",
        ),
    ],
    "tests/a.rs": [
        (
            '#[test]\nfn a() {\n    assert_eq!(f("x"), Some(7));\n}',
            r'assert_eq!\(f\("x"\), Some\([^7]\)\);',
        ),
        (
            '#[rstest]\nfn a() {\n    assert!(f(1) > g(), "{}", 5);\n}',
            r'assert_ne!\(true, f\(1\) > g\(\), "{}", 5\);',
        ),
        ("#[test]\nfn a() {\n    assert_eq!(f(), 0u8);\n}", r"assert_ne!\(f\(\), 0u8\);"),
    ],
    "tests/suite/a.typ": [
        ('--- a ---\n#test("ab".first(), "a")', r'#test\("ab".first\(\), "[^a]"\)')
    ],
}


@pytest.mark.parametrize(
    ("path", "content", "pattern"),
    [(path, *case) for path, cases in CHANGED.items() for case in cases],
)
def test_a_canary_expects_something_else(
    tmp_path: Path, path: str, content: str, pattern: str
) -> None:
    found = changed_lines(tmp_path, path, f"{content}\n")
    assert len(found) == 3
    for ((old, new),) in found:
        assert re.fullmatch(pattern, new), new
        assert not re.fullmatch(pattern, old)


WHATEVER_ELSE_IT_DOES = [
    # Its message has other words, too.
    (
        "def test_a():\n    f('the')\n    with pytest.raises(E, match='no way'):\n        f(5)",
        "with pytest.raises(E, match='no ?ay'):",
    ),
    ("def test_a():\n    f('the')\n    assert 'way' in f()", "assert '?ay' in f()"),
    # One of several values is right.
    ("def test_a(self):\n    self.assertIn(f(), [1, 2])", "self.assertNotIn(f(), [1, 2])"),
    ("def test_a():\n    assert f() == 1 or f() == 2", "assert not (f() == 1 or f() == 2)"),
    (
        "def test_a():\n    assert 'no' in f() or 'not' in f(), 5",
        "assert not ('no' in f() or 'not' in f()), 5",
    ),
    (
        "def test_a():\n    assert f() == 1 if g() else f() is None",
        "assert not (f() == 1 if g() else f() is None)",
    ),
    (
        "def test_a():\n    assert any(a == 1 or a == 2 for a in f())",
        "assert not any(a == 1 or a == 2 for a in f())",
    ),
    ("def test_a():\n    assert (\n        (f() == 1)\n        or f() == 2\n    )", "assert not ("),
    ("def test_a():\n    assert f(1 or 2) == g()", "assert f(1 or 2) != g()"),
    (
        "def test_a():\n    with pytest.raises(E, match='no|not'):\n        f(5)",
        "with pytest.raises([!E]*Error, match='no|not'):",
    ),
    (
        "def test_a(self):\n    self.assertRegex(f(), 'no|not')",
        "self.assertNotRegex(f(), 'no|not')",
    ),
    # Any value but one is right.
    ("def test_a():\n    assert not f() == 5", "assert f() == 5"),
    ("def test_a(self):\n    self.assertNotEqual(f(), 5)", "self.assertEqual(f(), 5)"),
    # It may be more exact than it has to be.
    (
        "def test_a():\n    assert f() == approx(5.1, abs=0.1)",
        "assert f() == approx([!5].1, abs=0.1)",
    ),
    # What it does when it is given something else nobody said.
    (
        "def put(a):\n    b.write(a)\n\ndef same(a, b):\n    assert a == b\n\ndef test_a():\n    put('c')\n    same(d, 'e')",
        "same(d, '[!e]')",
    ),
    ("def test_a():\n    assert 'a' == Like('b')", "assert 'a' != Like('b')"),
    (
        "@pytest.mark.parametrize('a,b', [\n    ('c', Like('d')),\n    ('e', None),\n])\ndef test_a(a, b):\n    assert a == b",
        "assert a != b",
    ),
    (
        "@pytest.mark.parametrize('a,mode', [\n    ('c', 'fast'),\n])\ndef test_a(a, mode):\n    assert f(a, mode) == g(a)",
        "assert f(a, mode) != g(a)",
    ),
    # It may raise any of those that are expected.
    (
        "def test_a():\n    with pytest.raises(LookupError):\n        f(5)",
        "with pytest.raises([!K][!n]*Error):",
    ),
]


@pytest.mark.parametrize(("content", "pattern"), WHATEVER_ELSE_IT_DOES)
def test_code_that_is_right_fails_canaries_like_the_golden_patch(
    tmp_path: Path, content: str, pattern: str
) -> None:
    for ((_, new),) in changed_lines(tmp_path, "test_a.py", f"{content}\n"):
        assert fnmatchcase(new, re.sub(r"\[(?!!)", "[[]", pattern))


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (
            "a_test.go",
            'if !strings.Contains(a, "no") && !strings.Contains(a, "not") {\n\t\tt.Fatal(a)\n\t}',
        ),
        ("a_test.go", "if a != 1 && a != 2 {\n\t\tt.Fatal(a)\n\t}"),
        ("a_test.go", "if a == nil && b == nil {\n\t\tt.Fatal()\n\t}"),
        ("a_test.go", "if !a() && !b() {\n\t\tt.Fatal()\n\t}"),
        ("a.test.js", "if (a !== 1 && a !== 2) throw new Error();"),
    ],
)
def test_a_condition_that_allows_several_things_is_left_as_it_is(path: str, content: str) -> None:
    begin = "func TestA(t *testing.T) {" if path.endswith(".go") else "it('a', () => {"
    patch = new_file(path, f"{begin}\n\t{content}\n}}\n").decode()
    assert mutated(patch, Random(1))[0] == patch


def test_one_test_stays_as_it_is_or_only_one_is_changed_and_which_one_nobody_can_guess(
    tmp_path: Path,
) -> None:
    many = "".join(
        f"def test_{number}():\n    assert f({number}) == {number}\n" for number in range(8)
    )
    changed = [lines for _ in range(8) for lines in changed_lines(tmp_path, "test_a.py", many)]
    assert [len(lines) for lines in changed] == [7, 1, 1] * 8
    assert len({tuple(old for old, _ in lines) for lines in changed}) > 2


def test_what_is_added_to_a_test_is_changed(tmp_path: Path) -> None:
    """Also where the patch does not show the test's first line."""
    rows = [f"    ({number}, {number}),\n" for number in range(1, 20)]
    before, after = (
        ["ROWS = (\n", *rows, ")\n"],
        ["ROWS = (\n", *rows[:9], "    (21, True),\n", *rows[9:], ")\n"],
    )
    patch = text_patch("test_a.py", before, after)
    assert "+    (21, False)," in mutated(patch, Random(1))[0]


def test_only_tests_that_the_patch_adds_are_changed(tmp_path: Path) -> None:
    """Of the others an agent knows what they expect."""
    base = "def test_a():\n    assert f(1) == 1\n"
    feature = Task("r", 1, tmp_path, (1,)).feature(1)
    feature.tests.parent.mkdir()
    feature.patch.write_bytes(b"")
    real = RealRepo(tmp_path / "real")
    first = real.commit({"test_a.py": text(base)})
    second = real.commit({"test_a.py": text(f"{base}def test_b():\n    assert f(2) == 2\n")}, first)
    feature.tests.write_bytes(real.diff(first, second))
    with TreeStore(base_with(tmp_path, {"test_a.py": text(base)})) as store:
        canary = next(new_canaries(feature, store))
        tree = store.apply(canary.tests.encode()).tree
        assert tree
        (change,) = store.changes(tree).values()
        content = store.content(change.after) or b""
    assert content.startswith(base.encode())
    assert b"assert f(2) == 2" not in content
    assert change.after
    index = re.search(r"^index \w+\.\.(\w+)", canary.tests, re.MULTILINE)
    assert index
    assert change.after.object_id.startswith(index[1]), (
        "a stale id would tell that something was changed"
    )


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("tests/test_a.py", "def test_a():\n    pass\n"),
        ("src/a.test.ts", "import { it } from 'vitest';\nit('a', () => {});\n"),
        ("a/a_test.go", "package a\nfunc TestA(t *testing.T) {}\n"),
        ("tests/a.rs", "#[test]\nfn a() {}\n"),
    ],
)
def test_where_nothing_can_be_changed_a_test_is_added(
    tmp_path: Path, path: str, content: str
) -> None:
    (added,) = canaries_in(tmp_path, path, content)
    assert not added.changed
    assert all(f"+{line}" in added.tests for line in content.splitlines())
    assert added.tests.count("\n+") > content.count("\n") + 1


def test_the_canary_of_a_python_program_comes_before_its_end(tmp_path: Path) -> None:
    main = "import unittest\nclass A(unittest.TestCase):\n    pass\nif __name__ == '__main__':\n    unittest.main()\n"
    (canary,) = canaries_in(tmp_path, "test_a.py", main)
    assert canary.tests.index("TestCase):\n+    def") < canary.tests.index("__main__")


@pytest.mark.parametrize("path", ["tests/data.json", "tests/helper.py", "tests/a.rb"])
def test_nothing_is_added_to_what_holds_no_tests(tmp_path: Path, path: str) -> None:
    assert canaries_in(tmp_path, path, "x = 1\n") == []


def failing(*lines: str, summary: str) -> TestRun:
    return read_test_run(CommandResult(1, "\n".join([*lines, summary, ""]).encode()), 1.0, 60)


def test_a_canary_is_kept_only_if_it_fails_with_the_golden_patch() -> None:
    canary = Canary("x", ("b",))
    assert canary.tried(GREEN, REFERENCE) is None
    broken = failing("ERROR t.py", summary="1 error in 0.01s")
    assert canary.tried(broken, REFERENCE) is None, "the file does not even load"
    one = failing("FAILED t.py::b - x", "PASSED t.py::a", summary="1 failed, 1 passed in 0.01s")
    kept = canary.tried(one, REFERENCE)
    assert kept is not None
    assert (kept.failed, kept.passed) == (("t.py::b",), ("t.py::a",))


@pytest.mark.parametrize(
    ("lines", "required"),
    [
        (("FAILED t/a.py::a - x", "PASSED t/a.py::b", "PASSED t/a.py::a[1]"), "t/a.py::b"),
        (("FAILED t/a.py::A::a - x", "PASSED t/a.py::A::ab"), "t/a.py::A::ab"),
        (("a (t.a.A.a) ... FAIL", "b (t.a.A.b) ... ok"), "t.a.A.b"),
        (
            (
                "--- FAIL: a (0.00s)",
                "--- PASS: b (0.00s)",
                "--- PASS: a/c (0.00s)",
                "FAIL\tx/a\t0.1s",
            ),
            "x/a.b",
        ),
        (
            (
                "     Running tests/a.rs (x/a-0123456789abcdef)",
                "test m::a ... FAILED",
                "test b ... ok",
            ),
            "a::b",
        ),
    ],
)
def test_only_tests_that_were_changed_are_not_required(
    lines: tuple[str, ...], required: str
) -> None:
    """Not others in a file or module of that name."""
    reference = replace_fields(
        expecting(passed=1), passed_tests=[required, "t/a.py::a[1]", "x/a.a/c"]
    )
    kept = Canary("x", ("a",)).tried(
        failing(*lines, summary="1 failed, 1 passed in 0.01s"), reference
    )
    assert kept is not None
    assert kept.passed == (required,)


def test_with_a_canary_the_same_tests_have_to_fail_and_to_pass() -> None:
    canary = Canary("x", ("b",))
    one = failing("FAILED t.py::b - x", "PASSED t.py::a", summary="1 failed, 1 passed in 0.01s")
    kept = canary.tried(one, REFERENCE)
    assert kept is not None
    assert kept.agrees(one, ())
    both = failing("FAILED t.py::b - x", "FAILED t.py::a - x", summary="2 failed in 0.01s")
    assert not kept.agrees(both, ()), "whoever suspects a canary and lets all fail is found"
    swapped = failing("FAILED t.py::a", "PASSED t.py::b", summary="1 failed, 1 passed in 0.01s")
    assert not kept.agrees(swapped, ())
    assert not kept.agrees(GREEN, ())
    assert not kept.agrees(replace(one, success=True), ())
    assert not kept.agrees(replace(one, timed_out=True), ())
    assert kept.agrees(both, ("t.py::a",))


def test_where_tests_have_no_names_as_many_have_to_fail() -> None:
    golden = failing(summary="1 failed, 1 passed in 0.01s")
    kept = Canary("x", ("b",)).tried(golden, expecting(passed=2))
    assert kept is not None
    assert kept.agrees(golden, ())
    assert not kept.agrees(failing(summary="2 passed in 0.01s"), ())


def test_a_changed_test_that_fails_first_of_all_is_enough() -> None:
    """Of a runner that stops there and names no test that passes."""
    one = failing("FAILED t.py::b - x", summary="1 failed in 0.01s")
    assert Canary("x", ("b",)).tried(one, expecting(passed=2)) is not None


def test_where_a_runner_stops_at_the_first_of_several_changed_tests_one_is_changed() -> None:
    """Code that is right about the first test could do anything to the others."""
    one = failing("FAILED t.py::b - x", summary="1 failed in 0.01s")
    assert (
        Canary("x", ("b", "c")).tried(one, expecting("t.py::a", "t.py::b", "t.py::c", passed=3))
        is None
    )
    two = failing("FAILED t.py::b - x", "FAILED t.py::c", summary="2 failed in 0.01s")
    assert Canary("x", ("b", "c")).tried(two, expecting("t.py::a", "t.py::b", "t.py::c", passed=3))


def test_of_a_changed_test_that_passes_all_the_same_nothing_is_required() -> None:
    three = expecting("t.py::a", "t.py::b", "t.py::c", passed=3)
    golden = failing(
        "FAILED t.py::b", "PASSED t.py::a", "PASSED t.py::c", summary="1 failed, 2 passed in 0.01s"
    )
    kept = Canary("x", ("b", "c")).tried(golden, three)
    assert kept is not None
    other = failing(
        "FAILED t.py::b", "PASSED t.py::a", "FAILED t.py::c", summary="2 failed, 1 passed in 0.01s"
    )
    assert kept.agrees(other, ())
