"""Rules about paths: which files of a patch are protected, judging by their paths alone.

`protected_files` applies them to patches.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from cooperbench.eval.test_config import is_test_config

Reason = Literal[
    "hidden_test",
    "test_config",
    "test_file",
    "compiled_file",
    "installed_package",
    "shadows_module",
    "git_attributes",
]

TEST_FOLDER = re.compile(
    r"(?:.*?/)?(?:tests?|__tests__|__mocks__|__snapshots__|__fixtures__|testdata)(?=/)",
    re.DOTALL | re.IGNORECASE,
)
TEST_NAME = re.compile(
    r"""
    (?: .*/ )?
    (?: test_[^/]*\.pyi? | [^/]*_tests?\.py | tests?\.py    # Python
      | [^/]*_test\.go                                      # Go
      | [^/]*\.(?:test|spec)\.[cm]?[jt]sx?                  # JavaScript, TypeScript
      | [^/]*\.snap                                         # snapshots
    )
    """,
    re.DOTALL | re.IGNORECASE | re.VERBOSE,
)
CRATE_SOURCE = re.compile(r"(?:.*/)?src/", re.DOTALL)
"""Source of a Rust crate. It contains unit tests, without which the crate does not compile.

They have no more power than the code next to them.
"""
_COMPILED = re.compile(
    r"(?:.*/)?(?:__pycache__/.*|[^/]*\.(?:py[cod]|so|dylib|dll|node))", re.DOTALL | re.IGNORECASE
)
_PYTHON_FILE = re.compile(r".*\.(?:pyi?|so)", re.DOTALL)


@dataclass(frozen=True)
class ProtectedFiles:
    """Rules about the files of a patch, for some features of a task."""

    hidden: frozenset[str]
    """Paths of the hidden tests."""
    golden: frozenset[str] = frozenset()
    """Paths that golden patches change, which agents may change too.

    Files with real work and test configuration are included only if the latter changes.
    """
    base: Collection[str] = field(default=(), repr=False)
    """Paths of the base commit."""
    installed_modules: frozenset[str] = field(default=frozenset(), repr=False)
    """Names of the Python modules in the image."""

    def reason_to_drop(  # noqa: PLR0911  # one return per rule
        self, path: str
    ) -> Reason | None:
        """Return why a file is protected, judging by its path alone; None if it is not."""
        if self._blocks_hidden_test(path):
            return "hidden_test"
        if path in self.golden:
            return None
        if is_test_config(path):
            return "test_config"
        if looks_like_test(path):
            return "test_file"
        if _COMPILED.fullmatch(path):
            return "compiled_file"
        if path.startswith("vendor/") and "go.mod" in self.base:
            return "installed_package"
        if self.shadows_module(path):
            return "shadows_module"
        return None

    def _blocks_hidden_test(self, path: str) -> bool:
        """Whether it is a hidden test, a file where one needs a folder, or a file below one."""
        if path in self.hidden:
            return True
        return any(
            hidden.startswith(f"{path}/") or path.startswith(f"{hidden}/") for hidden in self.hidden
        )

    @cached_property
    def protected_paths(self) -> set[str]:
        """The hidden tests, and the files of the base that are protected by their paths."""
        return {*self.hidden, *(path for path in self.base if self.reason_to_drop(path))}

    @cached_property
    def base_modules(self) -> set[str]:
        """Folders of the base, and its Python files without their endings."""
        modules = {re.sub(r"\.pyi?$", "", path) for path in self.base}
        for path in self.base:
            modules |= _parent_folders(path)
        return modules

    def shadows_module(self, path: str) -> bool:
        """Whether it is a new Python module at an import root with the name of another module."""
        if not _PYTHON_FILE.fullmatch(path) or path in self.base:
            return False
        parts = path.split("/")
        for depth, part in enumerate(parts):
            root = "".join(f"{parent}/" for parent in parts[:depth])
            if not self._is_import_root(root):
                return False
            name = part.partition(".")[0]
            if f"{root}{name}" in self.base_modules:
                continue
            if name in sys.stdlib_module_names or name in self.installed_modules:
                return True
        return False

    def _is_import_root(self, folder: str) -> bool:
        """Whether a folder, with a slash at the end, exists in the base and is not a package."""
        if f"{folder}__init__.py" in self.base:
            return False
        return not folder or folder[:-1] in self.base_modules

    def is_test(self, path: str) -> bool:
        """Whether a file contains tests: a hidden one, or one that frameworks find by its name."""
        return path in self.hidden or bool(TEST_NAME.fullmatch(path))


def looks_like_test(path: str) -> bool:
    """Whether a path is in a test folder or has the name of a test file."""
    folder = TEST_FOLDER.match(path)
    if path.endswith(".rs"):
        return folder is not None and not CRATE_SOURCE.match(folder[0])
    return bool(folder or TEST_NAME.fullmatch(path))


def _parent_folders(path: str) -> set[str]:
    return {path[:index] for index, character in enumerate(path) if character == "/"}
