"""A test that must fail, put beside the hidden ones: if the run is green all the same, the tests do not decide.

It has a name that nobody can guess, and is written in the language and for the framework of the file that it is added
to, with the assertions that the file uses. In Python and JavaScript the hidden tests themselves are made to fail, too,
each at its end: code under test that lets a test end early as a success, by an error that it raises and catches
around the test, never gets there.
"""

from __future__ import annotations

import ast
import re
import secrets
from dataclasses import dataclass
from string import ascii_lowercase
from typing import TYPE_CHECKING

from cooperbench.eval.counts import read_outcomes

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.eval.testrun import TestRun
    from cooperbench.eval.trees import TreeStore
    from cooperbench.models import Feature

_NAME_LETTERS = 16


@dataclass(frozen=True)
class Canary:
    name: str
    tests: bytes
    """The patch of the hidden tests with the canary in it."""
    broken: frozenset[str]
    """Names of the hidden tests that are made to fail."""

    def renamed(self) -> Canary:
        """The same under another name, except where its file is in the patch as a binary one."""
        old, name = self.name.encode(), _new_name()
        if old not in self.tests:
            return self
        return Canary(name, self.tests.replace(old, name.encode()), self.broken)

    def was_seen(self, run: TestRun) -> bool:
        """Did it fail, and was that the runner's verdict, too?"""
        return run.exit_code != 0 and not run.timed_out and self.name in run.output

    def failed_tests(self, run: TestRun) -> set[str]:
        """Ids of the hidden tests that failed, without its own."""
        outcomes = read_outcomes(run.output)
        return {test for test, outcome in outcomes.items() if outcome == "failed" and self.name not in test}

    def all_failed(self, run: TestRun) -> bool:
        """Did every test fail that was made to? What is named otherwise than in its file is not found."""
        failed = {test.partition("[")[0] for test in self.failed_tests(run)}
        return all(any(test.endswith(name) for test in failed) for name in self.broken)


def add_canary(feature: Feature, store: TreeStore, *, breaks_tests: bool = True) -> Canary | None:
    """With `breaks_tests` the feature's own tests are made to fail, too.

    None where no file of them is of a kind that a test can be added to.
    """
    name = _new_name()
    tests, onto = feature.tests.read_bytes(), store.base.tree
    applied = store.apply(tests)
    if applied.tree is None and (golden := store.apply(feature.patch.read_bytes()).tree):
        applied, onto = store.apply(tests, golden), golden
    if applied.tree is None:
        return None
    files = {}
    broken: set[str] = set()
    for path, change in store.changes(applied.tree, onto).items():
        writer = next((write for ending, write in _WRITERS.items() if re.search(ending, path)), None)
        content = store.content(change.after) if writer else None
        if writer is None or not content:
            continue
        text = content.decode("utf-8", "surrogateescape")
        breaker = next((one for ending, one in _BREAKERS.items() if re.search(ending, path)), None)
        text, names = breaker(text) if breaker and breaks_tests else (text, set())
        changed = writer(text, name)
        if changed is not None:
            files[path] = changed.encode("utf-8", "surrogateescape")
            broken |= names
    if not files:
        return None
    return Canary(name, store.patch_of(store.edited(applied.tree, files), onto), frozenset(broken))


def _new_name() -> str:
    """That nobody can guess."""
    return "".join(secrets.choice(ascii_lowercase) for _ in range(_NAME_LETTERS)).capitalize()


_PYTHON_CHECKS = {
    "assertEqual": "0, 1",
    "assertNotEqual": "1, 1",
    "assertTrue": "False",
    "assertFalse": "True",
    "assertIs": "0, 1",
    "assertIsNot": "None, None",
    "assertIsNone": "1",
    "assertIsNotNone": "None",
    "assertIn": "1, ()",
    "assertNotIn": "1, (1,)",
    "assertIsInstance": "1, str",
    "assertGreater": "0, 1",
    "assertLess": "1, 0",
    "assertAlmostEqual": "0, 1",
    "assertCountEqual": "[], [1]",
    "assertListEqual": "[], [1]",
    "assertDictEqual": "{}, {1: 1}",
    "assertRaises": "ValueError, int",
}
"""Calls that fail, of assertions that a test may use."""


def _python(content: str, name: str) -> str | None:
    """A class that both unittest and pytest find, before what runs the file as a program.

    Each kind of assertion in the file has to fail first: where one does not, the canary passes.
    """
    if not re.search(r"^\s*(?:async )?def test|^class ", content, re.MULTILINE):
        return None
    used = set(re.findall(r"\.(assert\w+)\(", content))
    checks = "".join(
        f"            lambda: self.{check}({given}),\n"
        for check, given in _PYTHON_CHECKS.items()
        if check in used
    )
    canary = (
        f"\nimport unittest as _{name}\n\n\nclass Test{name}(_{name}.TestCase):\n"
        f"    def test_{name}(self):\n"
        f"        for check in (\n{checks}        ):\n"
        "            try:\n                check()\n            except AssertionError:\n                continue\n"
        "            return\n"
        f"        assert {name!r} == 1\n\n\n"
    )
    main = re.search(r"^if __name__ ", content, re.MULTILINE)
    place = main.start() if main else len(content)
    return f"{content[:place]}\n{canary}{content[place:]}"


_JAVASCRIPT_CHECKS = {
    r"\bexpect\(": "expect(0).toBe(1)",
    r"\.toEqual\(": "expect(0).toEqual(1)",
    r"\.toStrictEqual\(": "expect(0).toStrictEqual(1)",
    r"\.toThrow": "expect(() => {}).toThrow()",
    r"\bassert\(": "assert(false)",
    r"\bassert\.ok\(": "assert.ok(false)",
    r"\bassert\.equal\(": "assert.equal(0, 1)",
    r"\bassert\.strictEqual\(": "assert.strictEqual(0, 1)",
    r"\bassert\.deepEqual\(": "assert.deepEqual([0], [1])",
    r"\bassert\.deepStrictEqual\(": "assert.deepStrictEqual([0], [1])",
    r"\bassert\.throws\(": "assert.throws(() => {})",
}
"""The same, by what uses them."""


def _javascript(content: str, name: str) -> str | None:
    called = re.search(r"^\s*(?:[A-Za-z_$][\w$]*\.)?(it|test)\b *[.(]", content, re.MULTILINE)
    if called is None:
        return None
    used = (f"() => {call}" for pattern, call in _JAVASCRIPT_CHECKS.items() if re.search(pattern, content))
    return (
        f'{content}\n;{called[1]}("{name}", () => {{\n'
        f"  for (const check of [{', '.join(used)}]) {{\n"
        "    let failed = false;\n    try { check(); } catch { failed = true; }\n"
        "    if (!failed) return;\n  }\n"
        f'  throw new Error("{name}");\n}});\n'
    )


def _go(content: str, name: str) -> str | None:
    testing = re.search(r"^func Test\w*\(\w+ \*(\w+)\.T\)", content, re.MULTILINE)
    if testing is None:
        return None
    return f'{content}\nfunc Test{name}(t *{testing[1]}.T) {{ t.Fatal("{name}") }}\n'


def _rust(content: str, name: str) -> str | None:
    if "#[test]" not in content and "::test" not in content:
        return None
    return (
        f"{content}\n#[cfg(test)]\n#[allow(non_snake_case)]\nmod module_{name} {{\n"
        f'    #[test]\n    fn {name}() {{\n        panic!("{name}");\n    }}\n}}\n'
    )


_WRITERS: dict[str, Callable[[str, str], str | None]] = {
    r"\.py$": _python,
    r"\.[cm]?[jt]sx?$": _javascript,
    r"_test\.go$": _go,
    r"\.rs$": _rust,
}


def _break_python(content: str) -> tuple[str, set[str]]:
    """With an assertion that fails at the end of every test; and the names of these."""
    try:
        module = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):
        return content, set()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    outer = [
        *module.body,
        *(one for part in module.body if isinstance(part, ast.ClassDef) for one in part.body),
    ]
    tests = [one for one in outer if isinstance(one, functions) and one.name.startswith("test")]
    lines = content.split("\n")
    names = set()
    for test in sorted(tests, key=lambda one: one.lineno, reverse=True):
        first, last = test.body[0], test.body[-1]
        indent = lines[first.lineno - 1][: first.col_offset]
        if indent.strip() or last.end_lineno is None:
            continue  # all on one line
        lines.insert(last.end_lineno, f"{indent}assert 0 == 1")
        names.add(test.name)
    return "\n".join(lines), names


_JAVASCRIPT_TEST = re.compile(
    r"(?P<indent>[ \t]*)(?:[A-Za-z_$][\w$]*\.)?(?:it|test)\((?P<quote>['\"`])(?P<name>.+?)(?P=quote),"
    r".*(?:=>|\bfunction\b.*\)) *\{\s*"
)


def _break_javascript(content: str) -> tuple[str, set[str]]:
    """The same where a test's function ends with a brace below its beginning, as it is commonly written."""
    lines: list[str] = []
    names: set[str] = set()
    inside = None
    for line in content.split("\n"):
        if inside is not None and line.startswith(f"{inside['indent']}}}"):
            lines.append(f"{inside['indent']}  if (0 !== Number(true)) throw new Error('0 == 1');")
            names.add(inside["name"])
            inside = None
        inside = _JAVASCRIPT_TEST.fullmatch(line) or inside
        lines.append(line)
    return "\n".join(lines), names


_BREAKERS: dict[str, Callable[[str], tuple[str, set[str]]]] = {
    r"\.py$": _break_python,
    r"\.[cm]?[jt]sx?$": _break_javascript,
}
