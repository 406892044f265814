"""The checks that are found in JavaScript and TypeScript tests."""

from __future__ import annotations

import pytest

from tests.support.eval.confirmation_files import parts_in, read


def in_test(body: str) -> str:
    return f"it('a', async () => {{\n  {body}\n}});\n"


@pytest.mark.parametrize("path", ["a.test.js", "a.spec.ts", "a.test.tsx"])
@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("expect(f(1)).toEqual({ a: [2] });", [("2",)]),
        ("expect(f(1)).not.toBe(3);", [("expect(f(1)).not",)]),
        ("expect(f).toHaveBeenCalledWith('x', 3);", [("x",), ("3",)]),
        ("expect(f(1)).to.equal(3);", [("3",)]),
        ("expect(f(1)).to.be.true;", [("expect(f(1)).to.be",)]),
        ("expect(f(1)).toBeNull();", [("expect(f(1))",)]),
        ("expect(f(1)).toBeLessThan(3);", [("toBeLessThan",)]),
        ("expect(f).toThrow(/too wide/);", [("too wide",)]),
        ("await expect(f(1)).rejects.toThrow(/x/);", [("expect(f(1)).rejects",)]),
        ("expect(f).toThrow(lib.Wrong);", [("lib.Wrong",)]),
        ("assert.strictEqual(f(1), true);", [("true",)]),
        ("assert.ok(f(1) > g());", [(">",)]),
        ("assert(f(1));", [("f(1)",)]),
        ("if (f(1) !== 5) throw new Error();", [("5",)]),
        ("if (a !== 1 && a !== 2) throw new Error();", []),
        ("t.is(f(1), 2);", [("2",)]),
        ("t.true(f(1));", [("true",)]),
    ],
)
def test_the_expected_value_is_found(path: str, body: str, parts: list[tuple[str, ...]]) -> None:
    found = parts_in(path, in_test(body))
    assert [part for check in found for part in check] == [
        part for check in parts for part in check
    ]


def test_rows_of_each_are_checks() -> None:
    content = (
        "it.each([\n  [2, 6],\n  [3, 9],\n])('a', (w, size) => {\n  expect(f(w)).toBe(size);\n});\n"
    )
    assert parts_in("a.test.js", content) == [("6",), ("9",)]


def test_the_new_test_throws() -> None:
    file = read("a.test.js", in_test("f();"))
    assert file.new_test is not None
    assert b"it('{first} {second}', () => {\n  throw" in file.new_test.text
