"""A test that must fail, put beside the hidden ones: if the run is green all the same, the tests do not decide.

It has a name that nobody can guess, and is written in the language and for the framework of the file that it is added
to.
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


def _python(content: str, name: str) -> str | None:
    """A class that both unittest and pytest find, before what runs the file as a program."""
    if not re.search(r"^\s*(?:async )?def test|^class ", content, re.MULTILINE):
        return None
    canary = (
        f"\nimport unittest as _{name}\n\n\nclass Test{name}(_{name}.TestCase):\n"
        f"    def test_{name}(self):\n        self.assertEqual({name!r}, 1)\n\n\n"
    )
    main = re.search(r"^if __name__ ", content, re.MULTILINE)
    place = main.start() if main else len(content)
    return f"{content[:place]}\n{canary}{content[place:]}"


def _javascript(content: str, name: str) -> str | None:
    called = re.search(r"^\s*(?:[A-Za-z_$][\w$]*\.)?(it|test)\b *[.(]", content, re.MULTILINE)
    if called is None:
        return None
    return f'{content}\n;{called[1]}("{name}", () => {{ throw new Error("{name}"); }});\n'


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
