"""Modules with the names of tests that code loads without importing them by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.eval.protected_files import drop_protected_files
from cooperbench.eval.protected_paths import ProtectedFiles
from cooperbench.eval.trees import TreeStore
from tests.support.eval.realgit import Files, RealRepo, base_with, text

if TYPE_CHECKING:
    from pathlib import Path

BASE: Files = {
    "pkg/__init__.py": text(""),
    "pkg/core.py": text("x = 1\n"),
    "pkg/test_old.py": text("def test_old(): ...\n"),
    "tests/__init__.py": text(""),
    "tests/test_core.py": text("import pkg\n"),
    "web/src/index.js": text("exports.x = 1;\n"),
    "pyproject.toml": text("[project]\nname = 'pkg'\n"),
}
HIDDEN = frozenset({"tests/test_new.py", "pkg/test_hidden.py", "web/src/hidden.spec.js"})
TESTS = "def test_it(): ...\n"


def kept_of(folder: Path, after: Files) -> set[str]:
    base = base_with(folder, BASE)
    real = RealRepo(base.objects.parent.parent)
    patch = real.diff(base.commit, real.commit(BASE | after, base.commit))
    with TreeStore(base) as store:
        protected = ProtectedFiles(HIDDEN, base=base.paths)
        return set(store.changes(drop_protected_files(patch, protected, store).tree))


@pytest.mark.parametrize(
    ("user", "line", "module"),
    [
        ("pkg/core.py", 'importlib.import_module("pkg.test_text")', "pkg/test_text.py"),
        ("pkg/core.py", 'import_module(".test_text", package=__package__)', "pkg/test_text.py"),
        ("pkg/core.py", 'import_module("..test_text", __package__)', "pkg/test_text.py"),
        ("pkg/core.py", 'import_module(f"{__package__}.test_text")', "pkg/test_text.py"),
        ("pkg/core.py", "__import__('pkg.test_text', fromlist=['x'])", "pkg/test_text.py"),
        ("pkg/core.py", 'import_string("pkg.test_text.render")', "pkg/test_text.py"),
        ("pkg/core.py", 'runpy.run_path("pkg/test_text.py")', "pkg/test_text.py"),
        ("pkg/core.py", 'Path(__file__).with_name("test_text.py")', "pkg/test_text.py"),
        ("pkg/core.py", 'PLUGINS = ["pkg.more.test_text"]', "pkg/more/test_text.py"),
        ("pkg/core.py", 'import_module("pkg.test.client")', "pkg/test/client.py"),
        ("pyproject.toml", '[project.scripts]\nx = "pkg.test_text:main"', "pkg/test_text.py"),
        (
            "setup.cfg",
            "[options.entry_points]\nconsole_scripts =\n  x = pkg.test_text:main",
            "pkg/test_text.py",
        ),
        ("web/src/index.js", "require('./latency.spec')", "web/src/latency.spec.js"),
        ("web/src/index.js", "await import(`./latency.test.mjs`)", "web/src/latency.test.mjs"),
        ("web/src/index.js", 'path.join(__dirname, "load.test.js")', "web/src/load.test.js"),
        ("web/package.json", '{"bin": "./src/load.test.js"}', "web/src/load.test.js"),
    ],
)
def test_a_new_module_that_code_names_is_library_code(
    tmp_path: Path, user: str, line: str, module: str
) -> None:
    if user == "pkg/core.py" and "..test_text" in line:
        user = "pkg/deep/core.py"
    content = (BASE[user].data.decode() if user in BASE else "") + line + "\n"
    after = {user: text(content), module: text(TESTS if "test/" not in module else "x = 1\n")}
    assert kept_of(tmp_path, after) == set(after)


@pytest.mark.parametrize(
    "line",
    [
        'NAMES = ["text", "test_text"]\nfor name in NAMES: load(f"pkg.{name}")',
        "for module in pkgutil.iter_modules(pkg.__path__): load(module)",
        "for path in folder.glob('*.py'): importlib.import_module(path.stem)",
    ],
)
def test_module_without_tests_is_library_code(tmp_path: Path, line: str) -> None:
    loader = text(f"{line}\n")
    library = {"pkg/core.py": loader, "pkg/test_text.py": text("def upper(text): ...\n")}
    assert kept_of(tmp_path / "library", library) == set(library)
    tests = {"pkg/core.py": loader, "pkg/test_text.py": text(TESTS)}
    assert kept_of(tmp_path / "tests", tests) == {"pkg/core.py"}


@pytest.mark.parametrize(
    ("line", "path"),
    [
        # Hidden tests, and what stands in their way.
        ('import_module("pkg.test_hidden")', "pkg/test_hidden.py"),
        ('import_module("pkg.test_hidden")', "pkg/test_hidden.py/x.py"),
        ('import_module("tests.test_new")', "tests/test_new.py"),
        # Tests that were there, test folders, configuration.
        ('import_module("pkg.test_old")', "pkg/test_old.py"),
        ('import_module("tests.test_mine")', "tests/test_mine.py"),
        ('import_module("tests.helper")', "tests/helper.py"),
        ('import_module("pkg.conftest")', "pkg/conftest.py"),
        ('import_module("conftest")', "conftest.py"),
        # Modules that would replace others.
        ('import_module("json")', "test/json.py"),
        # Only mentioned.
        ("# see pkg.test_text", "pkg/test_text.py"),
        ("'''Tests are in pkg/test_text.py, of course.'''", "pkg/test_text.py"),
        ('print("test_text")', "pkg/test_text.py"),
        ('import_module("other.test_text")', "pkg/test_text.py"),
        # A script at the root.
        ("import importlib; importlib.import_module(name)", "test_by_hand.py"),
    ],
)
def test_tests_and_their_configuration_are_not_library_code(
    tmp_path: Path, line: str, path: str
) -> None:
    content = "x = 1\n" if path == "test_by_hand.py" else TESTS
    after = {"pkg/core.py": text(f"{line}\n"), path: text(content)}
    assert kept_of(tmp_path, after) == {"pkg/core.py"}


def test_a_module_that_only_tests_name_is_not_library_code(tmp_path: Path) -> None:
    after = {
        "pkg/test_a.py": text('import_module("pkg.test_b")\n' + TESTS),
        "pkg/test_b.py": text('import_module("pkg.test_a")\n' + TESTS),
    }
    assert kept_of(tmp_path, after) == set()
