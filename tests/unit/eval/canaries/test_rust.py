"""The checks that are found in Rust tests, and what their copies look like."""

from __future__ import annotations

import pytest

from tests.support.eval.confirmation_files import (
    checks_of,
    copies_of,
    has_syntax_error,
    parts_in,
    read,
    texts_by_name,
)

CASES = """\
#[rstest]
#[case(2, "x")]
#[case::named(-3, "y")]
fn sizes(#[case] width: i32, #[case] size: &str) {
    assert_eq!(f(width), size);
}
"""


def in_test(body: str) -> str:
    return f"#[test]\nfn a() {{\n    {body}\n}}\n"


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("assert_eq!(f(2), 6);", [("6",)]),
        ('assert_eq!("6", f(2), "{}", 7);', [("6",)]),
        ('assert_eq!(f(), Some("a".to_string()));', [("a",)]),
        ("assert_eq!(f(), vec![1, 2]);", [("1", "2")]),
        ("assert_eq!(f(), [7; 3]);", [("7",)]),
        ("assert_eq!(f(), Point { x: 1, y: -2 });", [("1", "2")]),
        ('assert_eq!(f(), HashMap::from([("a", 1)]));', [("a", "1")]),
        ('assert_eq!(f(), format!("{}b", 1));', [("{}b", "1")]),
        ("assert_eq!(f(), 'q');", [("q",)]),
        ("assert_eq!(f(), b'q');", [("q",)]),
        ('assert_eq!(f(), "");', [("",)]),
        ("assert_eq!(f(), true);", [("true",)]),
        ("pretty_assertions::assert_eq!(f(), 5);", [("5",)]),
        ("let want = 5;\n    assert_eq!(f(), want);", [("5",)]),
        ("assert_eq!(f(), g());", [("eq",)]),
        ("assert_eq!(f(), None);", [("eq",)]),
        ("assert_ne!(f(), 5);", [("ne",)]),
        ("assert!(f() == 5);", [("5",)]),
        ("assert!(f() < 5);", [("<",)]),
        ("assert!(f() && g() == 5);", [("5",)]),
        ("assert!(!f(1));", [("!",)]),
        ("assert!(f(1));", [("f(1)",)]),
        ("assert!(f().is_some());", [("is_some",)]),
        ('assert!(f().contains("abc"));', [("abc",)]),
        ("assert!(matches!(f(), Some(_) | None));", [("matches!(f(), Some(_) | None)",)]),
        ('check_name("in", "out");', [("out",)]),
        ("let x = f(5);", []),
    ],
)
def test_the_expected_value_is_found(body: str, parts: list[tuple[str, ...]]) -> None:
    assert parts_in("tests/a.rs", in_test(body)) == parts


def test_cases_are_checks_and_are_copied_with_the_test() -> None:
    file = read("tests/a.rs", CASES)
    assert [check.parts for check in checks_of(file)["sizes"]] == [("x",), ("y",)]
    new = copies_of(file)
    copies = len(new.originals) + len(new.decoys)
    assert new.content.count(b"#[rstest]") == copies > 4
    assert new.content.count(b"#[case") == 3 * copies, "one case in each copy, two parameters"


def test_rows_of_a_loop_are_checks_and_never_all_removed() -> None:
    """The compiler could not infer the type of an empty table."""
    body = 'for (n, want) in [(1, "a"), (2, "b")] {\n        assert!(n > 0);\n'
    body += "        assert_eq!(f(n), want);\n    }"
    file = read("tests/a.rs", in_test(body))
    assert [check.line for check in checks_of(file)["a"]] == ['(1, "a")', '(2, "b")']


@pytest.mark.parametrize(
    "attributes",
    [
        "#[test]",
        "#[tokio::test]",
        "#[rstest]",
        "#[ignore]\n// Why.\n#[async_std::test(flavor = 1)]",
    ],
)
def test_attributes_make_a_test(attributes: str) -> None:
    content = f"fn helper() {{\n    assert_eq!(f(), 5);\n}}\n\n{attributes}\nfn a() {{\n}}\n"
    (test,) = read("tests/a.rs", content).tests
    assert test.name == "a"
    assert content[test.span.start : test.span.end].startswith(attributes)


def test_tests_that_must_panic_check_only_that() -> None:
    content = (
        '#[test]\n#[should_panic(expected = "too wide")]\nfn a() {\n    assert_eq!(f(), 5);\n}\n'
    )
    assert parts_in("tests/a.rs", content) == [("too wide",)]
    assert parts_in("tests/a.rs", content.replace('(expected = "too wide")', "")) == [
        ("#[should_panic]",)
    ]


def test_numbers_do_not_exceed_their_type() -> None:
    file = read("tests/a.rs", in_test("assert_eq!(f(), 250u8);"))
    for seed in range(20):
        for text in texts_by_name("a.rs", copies_of(file, seed).content).values():
            assert int(text.partition("f(), ")[2].partition("u8")[0]) <= 255


def test_neutral_checks_compile() -> None:
    body = "assert_eq!(pop(), Some(617));\n    assert!(pop() == vec![83.5]);"
    new = copies_of(read("tests/a.rs", in_test(body)))
    assert not has_syntax_error("a.rs", new.content)
    texts = list(texts_by_name("a.rs", new.content).values())
    assert sum("617" in text for text in texts) == 1
    assert sum("83.5" in text for text in texts) == 1
    assert all(text.count("pop()") == 2 for text in texts)
    neutral = "match &(pop()) { value => if false { let _ = *value == (vec![0.0]); } }"
    assert sum(neutral in text for text in texts) == len(texts) // 2


def test_a_new_test_stands_beside_the_last_one() -> None:
    content = "mod tests {\n    #[test]\n    fn a() {\n        f();\n    }\n}\n"
    file = read("src/a.rs", content)
    assert file.new_test is not None
    assert file.new_test.start == content.index("    }\n") + 5
    assert file.new_test.text.startswith(b"\n\n    #[test]\n    fn a_{first}_{second}() {\n")


def test_tests_that_a_macro_makes_get_a_new_test_in_a_module() -> None:
    content = "proptest! {\n    #[test]\n    fn a(x in 0..5) {\n    }\n}\n"
    file = read("src/a.rs", content)
    assert not file.tests
    assert file.new_test is not None
    assert b"mod {first}_{second}" in file.new_test.text
