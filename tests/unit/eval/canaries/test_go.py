"""The checks that are found in Go tests, and what their copies look like."""

from __future__ import annotations

import re

import pytest

from cooperbench.eval.canaries.copies import MAX_DECOYS
from tests.support.eval.confirmation_files import (
    checks_of,
    copies_of,
    has_syntax_error,
    parts_in,
    read,
    texts_by_name,
)

IMPORTS = 'package p\n\nimport (\n\t"testing"\n\t"github.com/stretchr/testify/assert"\n)\n\n'
TABLE = """package p

import "testing"

func TestName(t *testing.T) {
	tests := []struct {
		label   string
		n       int
		want    string
		wantErr bool
	}{
		{"two", 2, "abab", false},
		{label: "less", n: -1, wantErr: true},
	}
	for _, tt := range tests {
		t.Run(tt.label, func(t *testing.T) {
			got, err := Name(tt.n)
			if (err != nil) != tt.wantErr {
				t.Fatalf("Name(%d): %v", tt.n, err)
			}
			if got != tt.want {
				t.Errorf("Name(%d) = %q, want %q", tt.n, got, tt.want)
			}
		})
	}
}
"""


def in_test(body: str) -> str:
    return f"{IMPORTS}func TestA(t *testing.T) {{\n\t{body}\n}}\n"


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("if got := F(2); got != 6 {\n\t\tt.Errorf(`%d, want 6`, got)\n\t}", [("6",)]),
        ('if F() != "" {\n\t\tt.Fail()\n\t}', [("",)]),
        ("if F() != 'q' {\n\t\tt.Fail()\n\t}", [("q",)]),
        ("if 3 != F() {\n\t\tt.Fail()\n\t}", [("3",)]),
        ("if F() != 2*time.Second {\n\t\tt.Fail()\n\t}", [("2",)]),
        ("if !reflect.DeepEqual(F(), []int{4, 5}) {\n\t\tt.Fail()\n\t}", [("4", "5")]),
        ('want := "x"\n\tif got := F(); got != want {\n\t\tt.Fatal(got, want)\n\t}', [("x",)]),
        ('if diff := cmp.Diff([]string{"a"}, F()); diff != "" {\n\t\tt.Error(diff)\n\t}', [("a",)]),
        ('if !strings.Contains(F(), "abc") {\n\t\tt.Error()\n\t}', [("abc",)]),
        ("if err != nil {\n\t\tt.Fatal(err)\n\t}", [("!=",)]),
        ("if !ok {\n\t\tt.Error()\n\t}", [("!",)]),
        ("if F() {\n\t\tpanic(1)\n\t}", [("F()",)]),
        ("if err != nil || F() != 7 {\n\t\tt.Error()\n\t}", [("7",)]),
        ('assert.Equal(t, "a", F("b"))', [("a",)]),
        ("assert.Equal(t, uint8(200), F())", [("200",)]),
        ("assert.Len(t, F(), 3)", [("3",)]),
        ('assert.EqualError(t, F(), "no way")', [("no way",)]),
        ("assert.NoError(t, F())", [("NoError",)]),
        ('assert.Contains(t, F(), "abc")', [("abc",)]),
        ("s.Equal(c, 5)", [("5",)]),
        ("g.Expect(F()).To(Equal(5))", [("5",)]),
        ("g.Expect(F()).To(BeTrue())", [("To",)]),
        ("g.Expect(F()).NotTo(HaveLen(3))", [("NotTo",)]),
        ("c.Assert(F(), qt.Equals, 5)", [("5",)]),
        ('checkName(t, "in", "out")', [("out",)]),
    ],
)
def test_the_expected_value_is_found(body: str, parts: list[tuple[str, ...]]) -> None:
    assert parts_in("a_test.go", in_test(body)) == parts


@pytest.mark.parametrize(
    "body",
    [
        "if a != 1 && a != 2 {\n\t\tt.Fatal(a)\n\t}",
        "if !a() && !b() {\n\t\tt.Fatal()\n\t}",
        "if a != 1 {\n\t\tb = 2\n\t}",
        "if a != 1 {\n\t\tif b {\n\t\t\thttp.Error(w, x, 500)\n\t\t}\n\t}",
        "f := F(5)",
    ],
)
def test_what_need_not_hold_is_left_as_it_is(body: str) -> None:
    assert parts_in("a_test.go", in_test(body)) == []


def test_keys_and_sizes_stay_as_they_are() -> None:
    """Equal keys in a map, or too many elements in an array, would not compile."""
    body = "if !reflect.DeepEqual(F(), map[string][2]int{`k`: {8, 9}}) {\n\t\tt.Fail()\n\t}"
    assert parts_in("a_test.go", in_test(body)) == [("8", "9")]


def test_rows_of_tables_are_checks() -> None:
    checks = checks_of(read("a_test.go", TABLE))["TestName"]
    assert [check.parts for check in checks] == [("false",), ("abab",), ("true",)]


def test_a_table_of_a_map_with_a_named_type() -> None:
    content = (
        "package p\n\ntype row struct {\n\tn    int\n\twant string\n}\n\n"
        "func TestA(t *testing.T) {\n"
        '\tfor name, tc := range map[string]row{"x": {1, "ab"}, "y": {n: 2, want: "cd"}} {\n'
        "\t\tif F(tc.n) != tc.want {\n\t\t\tt.Error(name)\n\t\t}\n\t}\n}\n"
    )
    assert parts_in("a_test.go", content) == [("ab",), ("cd",)]


def test_only_functions_that_go_runs_are_tests() -> None:
    content = (
        "package p\n\nfunc TestMain(m *testing.M) {\n}\n\nfunc TestHelper(x int) {\n}\n\n"
        "func (s *Suite) TestIt() {\n\ts.Equal(1, F())\n}\n\nfunc FuzzIt(f *testing.F) {\n}\n"
    )
    assert [test.name for test in read("a_test.go", content).tests] == ["TestIt", "FuzzIt"]


def test_new_test_matches_the_selection_pattern() -> None:
    file = read("a_test.go", in_test("if F() != 5 {\n\t\tt.Error()\n\t}"))
    assert file.new_test is not None
    assert b'func TestA{First}{Second}(t *testing.T) {\n\tt.Fatal("{second}")' in file.new_test.text


def test_copies_still_use_all_variables() -> None:
    """Go rejects variables that nothing uses."""
    body = (
        'name := "x"\n\twant, err := F(name)\n\tif err != nil {\n\t\tt.Fatal(err)\n\t}\n'
        "\tif G() != want {\n\t\tt.Errorf(`%s`, name)\n\t}\n\tif want.Size != 30 {\n\t\tt.Error()\n\t}"
    )
    new = copies_of(read("a_test.go", in_test(body)))
    assert not has_syntax_error("a_test.go", new.content)
    for text in texts_by_name("a_test.go", new.content).values():
        for variable in ("name", "want", "err"):
            assert len(re.findall(rf"\b{variable}\b", text)) > 1


def test_neutral_checks_do_not_show_what_they_expect() -> None:
    body = "if F(1) != 617 {\n\t\tt.Error(`not 617`)\n\t}\n\tif G(1) != 83 {\n\t\tt.Error(`not 83`)\n\t}"
    new = copies_of(read("a_test.go", in_test(body)))
    texts = texts_by_name("a_test.go", new.content)
    assert sum("617" in text for text in texts.values()) == 1
    assert sum("83" in text for text in texts.values()) == 1
    assert len(new.decoys) == 2 * MAX_DECOYS
