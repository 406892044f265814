"""Attacks of `validate --attacks` with other test programs: scored without confirmations only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.attacks.sections import (
    EQUAL_EVERYTHING,
    EQUAL_EXPECTED,
    GO,
    JEST,
    MOCHA,
    NODE_TEST,
    NODE_TEST_OF_MODULES,
    PASS_FAILURES,
    PASS_FAILURES_OF_CHILD,
    PYTEST,
    RUST,
    UNITTEST,
    VITEST,
    Framework,
    assert_scored_and_caught,
    assert_wins_against_few_decoys,
)
from tests.support.requirements import require_program

ATTACKS = {
    "pytest guess": (PYTEST, PASS_FAILURES),
    "pytest equal": (PYTEST, EQUAL_EVERYTHING),
    "node equal modules": (NODE_TEST_OF_MODULES, EQUAL_EXPECTED),
    "jest guess": (JEST, PASS_FAILURES),
    "jest equal": (JEST, EQUAL_EXPECTED),
    "vitest guess": (VITEST, PASS_FAILURES),
    "vitest equal": (VITEST, EQUAL_EXPECTED),
    "mocha guess": (MOCHA, PASS_FAILURES),
    "mocha equal": (MOCHA, EQUAL_EXPECTED),
    "go guess": (GO, PASS_FAILURES_OF_CHILD),
    "cargo guess": (RUST, PASS_FAILURES_OF_CHILD),
}
GUESSES = {"unittest": (UNITTEST, PASS_FAILURES), "node": (NODE_TEST, PASS_FAILURES)}


@pytest.fixture
def folder(request: pytest.FixtureRequest, framework: Framework, tmp_path: Path) -> Path:
    """Folder of a project, with the packages from npm that its tests need."""
    folder = tmp_path / "project"
    program = framework.argv[0]
    if program.startswith("node_modules/"):
        folder.mkdir()
        (folder / "node_modules").symlink_to(request.getfixturevalue("node_modules"))
    elif not Path(program).is_absolute():
        require_program(program, package="nodejs" if program == "node" else None)
    return folder


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("framework", "title"), ATTACKS.values(), ids=list(ATTACKS))
def test_attack_is_caught(framework: Framework, title: str, folder: Path) -> None:
    assert_scored_and_caught(framework, title, folder)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("framework", "title"), GUESSES.values(), ids=list(GUESSES))
def test_guess_can_be_right(
    framework: Framework, title: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If suites have one decoy for each test, a guess is right for one test in three."""
    assert_wins_against_few_decoys(framework, title, folder, monkeypatch)
