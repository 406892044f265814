"""Test files of confirmation suites, and what their tests look like."""

from __future__ import annotations

import difflib
import re
from random import Random
from typing import NamedTuple

from tree_sitter import Parser

from cooperbench.eval.canaries.copies import NewFile, copy_tests
from cooperbench.eval.canaries.languages import read_test_file
from cooperbench.eval.canaries.model import Slot, TestFile
from cooperbench.eval.canaries.syntax import load_grammar

GRAMMARS = {"py": "python", "js": "javascript", "ts": "typescript", "go": "go", "rs": "rust"}


class ReadCheck(NamedTuple):
    """A check as a reader sees it: first line, and the parts that can be changed."""

    line: str
    parts: tuple[str, ...]


def read(path: str, content: str) -> TestFile:
    """Return the tests of a file in a language that can be read."""
    file = read_test_file(path, content.encode())
    assert file is not None
    return file


def part_of(file: TestFile, slot: Slot) -> str:
    """Return the text in a slot."""
    return file.source[slot.span.start : slot.span.end].decode()


def checks_of(file: TestFile) -> dict[str, list[ReadCheck]]:
    """Return the checks of each test."""
    checks = {}
    for test in file.tests:
        checks[test.name] = [
            ReadCheck(
                file.source[check.span.start : check.span.end].decode().partition("\n")[0],
                tuple(part_of(file, slot) for slot in check.slots),
            )
            for check in test.checks
        ]
    return checks


def parts_in(path: str, content: str) -> list[tuple[str, ...]]:
    """Return what can be changed in each check of a file."""
    return [check.parts for checks in checks_of(read(path, content)).values() for check in checks]


def copies_of(file: TestFile, seed: int = 1, max_growth: float = 60) -> NewFile:
    """Return a file with copies of all of its tests."""
    return copy_tests(file, file.tests, Random(seed), max_growth=max_growth)[0]


def texts_by_name(path: str, content: bytes) -> dict[str, str]:
    """Return the text of each test of a file without its name."""
    file = read_test_file(path, content)
    assert file is not None
    texts = {}
    for test in file.tests:
        assert test.name not in texts, f"two tests are called {test.name}"
        text = file.source[test.span.start : test.span.end].decode()
        texts[test.name] = text.replace(test.name, "NAME").strip()
    return texts


def differences(first: str, second: str) -> list[tuple[str, str]]:
    """Return the words in which two texts differ."""
    before, after = (re.findall(r"\w+|\s+|[^\w\s]", text) for text in (first, second))
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return [
        ("".join(before[a:b]), "".join(after[c:d]))
        for kind, a, b, c, d in matcher.get_opcodes()
        if kind != "equal"
    ]


def has_syntax_error(path: str, content: bytes) -> bool:
    """Whether a file of a language with a grammar does not parse."""
    grammar = GRAMMARS[path.rpartition(".")[2]]
    return bool(Parser(load_grammar(grammar)[0]).parse(content).root_node.has_error)
