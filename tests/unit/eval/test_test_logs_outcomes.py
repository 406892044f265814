"""Which tests an output names, and what became of them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cooperbench.eval.test_logs import read_outcomes
from cooperbench.eval.test_runs import RUNNER_WRAPPER
from tests.support.eval import verbose_outputs as outputs

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.eval.log_parsers import Outcome

_NODE = {
    "passed": [
        "ok",
        "suite > deep # x > name (3 ms) # SKIP",
        "suite > deep # x",
        "suite > inner ok",
    ],
    "failed": ["bad one", "suite > inner throws", "suite"],
    "skipped": ["skipped", "old skipped", "todo it", "todo ok"],
}


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (outputs.PYTEST, {
            "passed": [
                "test_a.py::test_ok", "test_a.py::test_xpass", "test_a.py::TestC::test_p[a b]",
                "test_a.py::TestC::test_p[x::y]", "test_a.py::TestC::test_p[[ 12%]]",
                "test_a.py::TestC::test_base", "docs/use.md::use.md",
            ],
            "failed": [
                "test_a.py::test_bad", "test_a.py::test_setup", "test_a.py::test_teardown",
                "test_a.py::TestC::test_p[a - b]", "test_a.py::U::test_sub", "test_b.py",
            ],
            "skipped": ["test_a.py::test_skip", "test_a.py::test_xfail", "test_a.py::TestC::test_p[a PASSED]"],
        }),
        (outputs.PYTEST_XDIST, {
            "passed": ["test_a.py::test_ok", "test_a.py::C::test_base"],
            "failed": ["test_a.py::test_p[a - b]", "test_a.py::U::test_sub"],
            "skipped": ["test_a.py::test_skip"],
        }),
        (outputs.PYTEST_SUMMARY, {
            "passed": ["test_a.py::test_ok"],
            "failed": ["test_a.py::U::test_sub[a b]", "test_b.py"],
            "skipped": ["test_a.py::test_xfail", "test_a.py::test_skip"],
        }),
        (outputs.UNITTEST, {
            "passed": ["ut.T.test_doc", "ut.T.test_old", "ut.T.test_prints"],
            "failed": ["ut.S.setUpClass", "ut.T.test_doc_bad", "ut.T.test_sub", "ut.T.test_xp"],
            "skipped": ["ut.K.test_k", "ut.T.test_skip", "ut.T.test_sub_skip", "ut.T.test_xf"],
        }),
        (outputs.MOCHA, {
            "passed": ["at the top", "of a small one", "is slow", "1) numbered", "prints", "of a big one"],
            "failed": ["throws", "times out", "fails", '"before all" hook for "never runs"', "same"],
            "skipped": ["is skipped", "is pending"],
        }),
        (outputs.MOCHA_DOT, {"failed": ["throws", "times out", "same"]}),
        (outputs.UNITTEST_QUIET, {"failed": ["ut.T.test_sub", "ut.T.test_old", "ut.T.test_xp"]}),
        (outputs.GO, {
            "passed": [
                "example.com/m/a.TestA", "example.com/m/a.TestB/one", "example.com/m/b.TestA", "TestKilled"
            ],
            "failed": ["example.com/m/a.TestB", "example.com/m/a.TestB/two_words", "example.com/m/c"],
            "skipped": ["example.com/m/a.TestC"],
        }),
        (outputs.CARGO, {
            "passed": [
                "my_demo::tests::ok", "my_demo::tests::panics", "my_demo (bin)::tests::ok", "it::ok",
                "old_cargo::ok", "my_demo::src/lib.rs - add (line 1)",
            ],
            "failed": ["my_demo::tests::idx"],
            "skipped": ["my_demo::tests::later", "my_demo::tests::later_reason"],
        }),
        ("test tests::ok ... ok\n---- tests::idx stdout ----\n",
         {"passed": ["tests::ok"], "failed": ["tests::idx"]}),
        (outputs.NEXTEST, {
            "passed": ["my-demo tests::ok", "my-demo::it ok"],
            "failed": ["my-demo tests::idx", "my-demo tests::aborts"],
            "skipped": ["my-demo tests::later"],
        }),
        (outputs.JEST, {
            "passed": [
                "j/a.test.js > top", "j/a.test.js > math > ok", "j/a.test.js > math > deep > er > a",
                "j/a.test.js > other > ok", "j/sub/[id].test.js > top",
            ],
            "failed": ["j/a.test.js > math > bad", "j/a.test.js > math > deep > er > bad too", "j/b.test.js"],
            "skipped": ["j/a.test.js > math > later", "j/a.test.js > math > write it"],
        }),
        (outputs.JEST_QUIET, {"failed": ["j/a.test.js > math > bad"]}),
        (outputs.VITEST, {
            "passed": ["v/a.test.js > top", "v/a.test.js > math > deep > a > b 3ms", "v/a.test.js > retried"],
            "failed": ["v/a.test.js > math > bad", "v/b.test.js", "v/a.test.js > math > quiet [ x ]"],
            "skipped": ["v/a.test.js > math > later", "v/a.test.js > math > write it"],
        }),
        (outputs.NODE_SPEC, _NODE),
        (outputs.NODE_TAP, _NODE),
        (outputs.NODE_SPEC_WITHOUT_SUMMARY, {}),
        ("PASSED a.py::t\nFAILED a.py::t\nSKIPPED a.py::t - x\n", {"failed": ["a.py::t"]}),
        ("\x1b[32mPASSED\x1b[0m a.py::\x1b[1mt\x1b[0m\r\n", {"passed": ["a.py::t"]}),
        ("SKIPPED a.py::t - x\nPASSED a.py::t\n", {"skipped": ["a.py::t"]}),
        ("ok 1 - name\n  ✓ name\n ✓ name\ntest it ... okay\nwork (here) ... done\n", {}),
    ],
)  # fmt: skip
def test_tests_are_named(output: str, expected: dict[Outcome, list[str]]) -> None:
    found = read_outcomes(output)
    by_outcome = {
        word: sorted(test for test in found if found[test] == word) for word in found.values()
    }
    assert by_outcome == {word: sorted(tests) for word, tests in expected.items()}


@pytest.mark.parametrize(
    "output",
    [
        "PASS a.js\nPASS {}\n  ✓ a\n",
        "PASS a.js\n  {}\n    ✓ a\n",
        "# Subtest: {}\n    ok 1 - a\n" + outputs.NODE_TAP,
        "--- PASS: A (0.0s)\nok \t{}\t1.0s\n",
        "   Doc-tests {}\ntest a ... ok\n",
        "     Running a/{}-0123456789abcdef\ntest a ... ok\n",
    ],
)
def test_a_long_name_is_not_repeated_in_many_ids(output: str) -> None:
    found = read_outcomes(output.format("x" * 10_000))
    assert found
    assert max(map(len, found)) < 1000


@pytest.mark.parametrize("options", ["", "-q", "-x -q -rN", "--tb=no --no-summary -q"])
def test_pytest_always_names_its_tests(tmp_path: Path, options: str) -> None:
    (tmp_path / "test_a.py").write_text("def test_a():\n    pass\n")
    runner = tmp_path / "runner.sh"
    runner.write_text(
        f"cd {tmp_path}\n{sys.executable} -m pytest -p no:cacheprovider {options} test_a.py\n"
    )
    words = ["bash", "-c", RUNNER_WRAPPER, str(runner)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert read_outcomes(done.stdout) == {"test_a.py::test_a": "passed"}
