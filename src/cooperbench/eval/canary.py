"""Do the tests decide? Canaries: hidden tests of which some must fail, just as they do with the golden patch.

What this finds, and what it cannot see, is in docs/evaluation.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from random import Random, SystemRandom
from typing import TYPE_CHECKING

from cooperbench.eval.assertions import mutated
from cooperbench.eval.protected_files import applied_tests
from cooperbench.git import encode_path

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from cooperbench.eval.test_runs import TestRun
    from cooperbench.eval.trees import Change, TreeStore
    from cooperbench.models import Feature
    from cooperbench.records.reference import ReferenceRecord

_INDEX = re.compile(
    r"^(index [0-9a-f]+\.\.)([0-9a-f]+)(?=(?: [0-7]+)?\r?\n--- [^\n]*\n\+\+\+ b/([^\n\t]+))",
    re.MULTILINE,
)
_NEW_TESTS = {
    # A class that both unittest and pytest find.
    r"\.py$": (
        r"^\s*(?:async )?def test|^class ()",
        (
            "\n\nimport unittest\n\n\nclass Test{First}{Second}(unittest.TestCase):\n"
            "    def test_{first}_{second}(self):\n        self.assertEqual('{first} {second}', '{second}')\n\n\n"
        ),
    ),
    r"\.[cm]?[jt]sx?$": (
        r"^\s*(?:[A-Za-z_$][\w$]*\.)?(it|test)\b *[.(]",
        "\n{found}('{first} {second}', () => {{\n  throw new Error('{second}');\n}});\n",
    ),
    r"_test\.go$": (
        r"^func Test\w*\(\w+ \*(\w+)\.T\)",
        '\nfunc Test{First}{Second}(t *{found}.T) {{\n\tt.Fatal("{second}")\n}}\n',
    ),
    r"\.rs$": (
        r"#\[test\]|::test()",
        (
            "\n#[cfg(test)]\nmod {first}_{second} {{\n    #[test]\n"
            '    fn {second}_{first}() {{\n        panic!("{second}");\n    }}\n}}\n'
        ),
    ),
}
"""By the ending of a file: how tests look in it, and one that fails."""


@dataclass(frozen=True)
class Canary:
    """Hidden tests of which some must fail, and what they do with the golden patch.

    Some runners stop at the first failure, and some tests pass when changed: these are in neither list.
    """

    tests: str = ""
    """Their patch as Latin-1; empty where none can be made."""
    changed: tuple[str, ...] = ()
    """Names of tests that were changed; empty where a test was added."""
    failed: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    passed_count: int = 0
    failed_count: int = 0
    """It decides where those that fail are not named."""

    def tried(self, run: TestRun, reference: ReferenceRecord) -> Canary | None:
        """With what they did with the golden patch.

        None where they are of no use: no test failed that passes otherwise, and none that was added. Nor where the
        runner stopped at the first of several: code that is right about that one could do anything to the others.
        """
        failed = {test for test, outcome in run.outcomes.items() if outcome == "failed"}
        passed = {test for test, outcome in run.outcomes.items() if outcome == "passed"}
        # Not by the name of a file or module.
        names = "|".join(map(re.escape, self.changed))
        changed = re.compile(rf"(?:^|[.:/> ])(?:{names})(?:[\[/]| >|$)")
        unclear = {test for test in passed if names and changed.search(test)}
        number = run.tests_passed + run.tests_failed
        all_ran = bool(run.tests_failed) and number >= reference.golden.tests_passed
        known = {test for test in failed if names and changed.search(test)} | {
            *reference.passed_tests
        }
        stopped = run.tests_failed == 1 and len(self.changed) > 1
        is_fit = all_ran or bool(self.changed and not stopped and not failed.isdisjoint(known))
        if run.success or run.timed_out or not is_fit:
            return None
        required = passed.intersection(reference.passed_tests) - unclear
        return replace(
            self,
            failed=tuple(sorted(failed)),
            passed=tuple(sorted(required)),
            passed_count=run.tests_passed - len(passed - required),
            failed_count=0 if failed else run.tests_failed,
        )

    def common_with(self, other: Canary) -> Canary:
        """What ended alike in two runs with the golden patch."""
        return replace(
            self,
            failed=tuple({*self.failed} & {*other.failed}),
            passed=tuple({*self.passed} & {*other.passed}),
            passed_count=min(self.passed_count, other.passed_count),
            failed_count=min(self.failed_count, other.failed_count),
        )

    def agrees(self, run: TestRun, flaky_tests: Collection[str]) -> bool:
        """Do those tests fail that fail with the golden patch, and those pass that pass there?"""
        return (
            not run.success
            and not run.timed_out
            and all(run.outcomes.get(test) == "failed" for test in {*self.failed} - {*flaky_tests})
            and all(run.outcomes.get(test) == "passed" for test in {*self.passed} - {*flaky_tests})
            and run.tests_passed + len(flaky_tests) >= self.passed_count
            and run.tests_failed + len(flaky_tests) >= self.failed_count
        )


def new_canaries(feature: Feature, store: TreeStore) -> Iterator[Canary]:
    """To be tried with the golden patch in this order: changed tests, only one of them, an added one that fails."""
    random = SystemRandom()
    tests = feature.tests.read_bytes().decode("latin-1")  # so that a character is a byte
    for only_one in (False, True, True):
        canary = Canary(*mutated(tests, random, only_one=only_one))
        tree, below = applied_tests(canary.tests.encode("latin-1"), feature, store)
        if canary.changed and tree:
            yield replace(canary, tests=_with_new_ids(canary.tests, store.changes(tree, below)))
    tree, below = applied_tests(tests.encode("latin-1"), feature, store)
    files = {}
    for path, change in store.changes(tree, below).items() if tree else ():
        if form := next(
            (form for ending, form in _NEW_TESTS.items() if re.search(ending, path)), None
        ):
            content = (store.content(change.after) or b"").decode("utf-8", "surrogateescape")
            if found := re.search(form[0], content, re.MULTILINE):
                added = _with_test(content, form[1], found[1], random)
                files[path] = added.encode("utf-8", "surrogateescape")
    if files:
        yield Canary(store.patch_of(store.edit(tree, files), below).decode("latin-1"))


def _with_new_ids(tests: str, changes: Mapping[str, Change]) -> str:
    """Code under test could look whether the ids of the changed files are right."""
    ids = {
        encode_path(path).decode("latin-1"): one.after.object_id
        for path, one in changes.items()
        if one.after
    }
    return _INDEX.sub(lambda line: line[1] + ids.get(line[3], line[2])[: len(line[2])], tests)


def _with_test(content: str, form: str, found: str, random: Random) -> str:
    """Under a name that looks like the others, before what runs a file of Python as a program."""
    words = sorted(set(re.findall("[a-z]{4,9}", content))) or ["other"]
    first, second = random.choices(words, k=2)
    added = form.format(
        first=first, second=second, First=first.title(), Second=second.title(), found=found
    )
    main = re.search(r"^if __name__ ", content, re.MULTILINE)
    place = main.start() if main else len(content)
    return content[:place] + added + content[place:]
