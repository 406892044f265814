"""A test that must fail, put beside the hidden ones: if the run is green all the same, the tests do not decide.

It has a name that nobody can guess, and is written in the language and for the framework of the file that it is added
to, with the assertions that the file uses.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from string import ascii_lowercase
from typing import TYPE_CHECKING

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

    def was_seen(self, run: TestRun) -> bool:
        """Did it fail, and was that the runner's verdict, too?"""
        return run.exit_code != 0 and not run.timed_out and self.name in run.output


def add_canary(feature: Feature, store: TreeStore) -> Canary | None:
    """None where no file of the feature's tests is of a kind that a test can be added to."""
    name = "".join(secrets.choice(ascii_lowercase) for _ in range(_NAME_LETTERS)).capitalize()
    tests, onto = feature.tests.read_bytes(), store.base.tree
    applied = store.apply(tests)
    if applied.tree is None and (golden := store.apply(feature.patch.read_bytes()).tree):
        applied, onto = store.apply(tests, golden), golden
    if applied.tree is None:
        return None
    files = {}
    for path, change in store.changes(applied.tree, onto).items():
        writer = next((write for ending, write in _WRITERS.items() if re.search(ending, path)), None)
        content = store.content(change.after) if writer else None
        changed = writer(content.decode("utf-8", "surrogateescape"), name) if writer and content else None
        if changed is not None:
            files[path] = changed.encode("utf-8", "surrogateescape")
    return Canary(name, store.patch_of(store.edited(applied.tree, files), onto)) if files else None


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
