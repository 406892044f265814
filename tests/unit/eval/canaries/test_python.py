"""The checks that are found in Python tests, and what their copies do with correct code."""

from __future__ import annotations

import io
import unittest

import pytest

from tests.support.eval.confirmation_files import copies_of, parts_in, read

AREA = '''import unittest


def area(width, height):
    """Stand for the code under test."""
    if width < 0:
        raise ValueError("must not be negative")
    return width * height


class Area(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(area(2, 3), 6, "not 6")
        self.assertEqual({"size": area(5, 7)}, {"size": 35})
        assert area(10, 7) == 70, "not 70"

    def test_text(self):
        self.assertIn("twenty", "twenty units")
        self.assertTrue(area(1, 1))
        assert f"{area(4, 5)} units" == "20 units"

    def test_error(self):
        with self.assertRaisesRegex(ValueError, "negative"):
            area(-1, 2)
        with self.assertRaises(ValueError):
            area(-2, 2)

    def test_rows(self):
        for width, height, size in [(2, 3, 6), (4, 5, 20), (1, 7, 7)]:
            with self.subTest(width=width):
                self.assertEqual(area(width, height), size)

    def test_variable(self):
        expected = [12, 21]
        assert [area(3, 4), area(3, 7)] == expected
        assert area(3, 4) != area(3, 5)
        assert area(2, 2) is not None
'''


def in_test(body: str) -> str:
    return f"def test_a(self):\n    {body}\n"


@pytest.mark.parametrize("seed", range(4))
def test_decoys_fail_and_originals_pass(seed: int) -> None:
    new = copies_of(read("tests/test_area.py", AREA), seed)
    namespace = {"__name__": "test_area"}
    exec(compile(new.content, "test_area.py", "exec"), namespace)  # our own text
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(namespace["Area"])  # type: ignore[arg-type]
    result = unittest.TextTestRunner(stream=io.StringIO()).run(suite)
    failed = {
        getattr(test, "test_case", test).id().rpartition(".")[2]
        for test, _ in [*result.failures, *result.errors]
    }
    assert result.testsRun == len(new.originals) + len(new.decoys)
    assert failed == set(new.decoys)


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("assert await f(1) == [Money(20, x), 3]", [("20", "3")]),
        ("self.assertEqual('out', f('in'), 'msg')", [("out",)]),
        ("self.assertEqual((a.b, a.c), (Money(1), 'x'))", [("x", "1")]),
        ("self.assertEqual((a, 1), (b, 2))", [("assertEqual",)]),
        ("assert 'hello' in f()", [("hello",)]),
        ("assert f('x')", [("f('x')",)]),
        ("assert f('x') is None", [("is",)]),
        ("assert f() == approx(5.1, abs=0.1)", [("5.1",)]),
        ("assert f() == 1 or f() == 2", [("f() == 1 or f() == 2",)]),
        ("assert not f() == 5", [("not f() == 5",)]),
        ("assert 'a' == Like('b')", [("==",)]),
        ("self.assertNotEqual(f(), 5)", [("assertNotEqual",)]),
        ("self.assertIn(f(), [1, 2])", [("assertIn",)]),
        ("m.assert_called_once_with('x', 3)", [("x", "3")]),
        ("m.assert_called_once()", [("assert_called_once",)]),
        ("with pytest.raises(E, match='no way'):\n        f(5)", [("no way",)]),
        ("with pytest.raises(E, match='no|not'):\n        f(5)", [("E",)]),
        ("check('x', 7, on=True)", [("7",)]),
    ],
)
def test_the_expected_value_is_found(body: str, parts: list[tuple[str, ...]]) -> None:
    assert parts_in("tests/test_a.py", in_test(body)) == parts


def test_the_new_test_comes_before_the_end_of_a_program() -> None:
    content = "import unittest\n\n\nclass A(unittest.TestCase):\n    pass\n\n\nif __name__ == '__main__':\n    unittest.main()\n"
    file = read("test_a.py", content)
    assert file.new_test is not None
    assert file.new_test.start == content.index("if __name__")
