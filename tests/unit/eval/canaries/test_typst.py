"""The checks that are found in Typst's own tests."""

from __future__ import annotations

import pytest

from tests.support.eval.confirmation_files import copies_of, parts_in, read, texts_by_name


def in_test(body: str) -> str:
    return f"--- string-first ---\n{body}\n"


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ('#test("ab".first(), "a")', [("a",)]),
        ('#test("a", f("b"))', [("a",)]),
        ("#test(f(), (1, -2))", [("1", "2")]),
        ('#test(f(), (a: 12.5pt, b: "x"))', [("12.5pt", "x")]),
        ("#test(f(), true)", [("true",)]),
        ("#test(f(), none)", [("none",)]),
        ('#test(f(), "")', [("",)]),
        ("#test(f(), g())", [("test",)]),
        ('#test(f("),"), "a")', [("a",)]),
        ("#assert.eq(f(), 5)", [("5",)]),
        ("#assert.ne(f(), 5)", [("assert.ne",)]),
        ("#assert(f() > 5)", [("f() > 5",)]),
        ("#{\n  test(f(), 5)\n}", [("5",)]),
        ('// Error: 2-12 string is empty\n#"".first()', [("string is empty",)]),
        ("// Hint: 2-12 try it\n#latest(f(), 5)", []),
        ("#test(f(), 5", []),
    ],
)
def test_the_expected_value_is_found(body: str, parts: list[tuple[str, ...]]) -> None:
    assert parts_in("tests/suite/a.typ", in_test(body)) == parts


def test_sections_are_tests() -> None:
    content = "#let x = 1\n--- a-b ---\n#test(1, x)\n\n--- c paged html ---\n#test(2, x)\n"
    file = read("a.typ", content)
    assert [test.name for test in file.tests] == ["a-b", "c"]
    assert [content[test.span.start : test.span.end] for test in file.tests] == [
        "--- a-b ---\n#test(1, x)",
        "--- c paged html ---\n#test(2, x)",
    ]


def test_names_of_copies_are_in_lower_case_with_hyphens() -> None:
    new = copies_of(read("a.typ", in_test('#test("ab".first(), "Ab")\n#test(f(), 617)')))
    texts = texts_by_name("a.typ", new.content)
    assert len(texts) > 4
    for name, text in texts.items():
        assert name.startswith("string-first-")
        assert name == name.lower()
        assert "{ let _ = (" in text
    assert sum("617" in text for text in texts.values()) == 1
