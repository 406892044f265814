"""What of an agent's patch is judged: its tree without whatever decides which tests run and how.

That comes from the dataset, never from an agent. Left out are changes of
- a path of the hidden tests, or one that stands in their way: `hidden_test`;
- test-runner configuration, see `runner_config`: `test_config`;
- everything in test folders and files named like tests: `test_file` (an agent's own tests stay in its patch);
- compiled files and caches of them: `compiled_file`; vendored packages of Go: `installed_package`;
- new Python modules at an import root with the name of a module of the standard library or of an installed package:
  `shadows_module`.
What a golden patch touches is the feature's, whatever it is called, except for hidden tests and configuration. So is
what only looks like tests: a file or a folder without tests that the rest of the code imports, or a folder of which a
golden patch touches a part (`django/test`, `pkg/test_utils.py`).

Against code under test that attacks its tests from inside the process there are the expected tests and the canary.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from functools import cached_property
from posixpath import normpath
from typing import TYPE_CHECKING, Literal, NamedTuple

from cooperbench.eval.base import LINK
from cooperbench.eval.runner_config import (
    config_differs,
    is_test_config,
    may_hold_test_config,
    without_test_config,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from cooperbench.eval.base import TreeEntry
    from cooperbench.eval.trees import Change, TreeStore
    from cooperbench.models import Feature

Reason = Literal[
    "hidden_test", "test_config", "test_file", "compiled_file", "installed_package", "shadows_module"
]

_TEST_FOLDER = re.compile(
    r"(?:.*?/)?(?:tests?|__tests__|__mocks__|__snapshots__|__fixtures__|testdata)(?=/)",
    re.DOTALL | re.IGNORECASE,
)
_TEST_NAME = re.compile(
    r"(?:.*/)?(?:test_[^/]*\.pyi?|[^/]*_tests?\.py|tests?\.py"
    r"|[^/]*_test\.go|[^/]*\.(?:test|spec)\.[cm]?[jt]sx?|[^/]*\.snap)",
    re.DOTALL | re.IGNORECASE,
)
_RUST_MODULE = re.compile(r"(?:.*/)?src/.*\.rs", re.DOTALL)
"""Test modules of a crate's own source: the crate does not compile without them, and they can do no more than it."""
_COMPILED = re.compile(
    r"(?:.*/)?(?:__pycache__/.*|[^/]*\.(?:py[cod]|so|dylib|dll|node))", re.DOTALL | re.IGNORECASE
)
_ROOTS = ("src", "lib")
_PYTHON_FILE = re.compile(r".*\.(?:pyi?|so)", re.DOTALL)


class DroppedFile(NamedTuple):
    """A path whose changes are not judged."""

    path: str
    reason: Reason


class FeaturePaths(NamedTuple):
    """What the dataset's own patches of a feature touch."""

    hidden: frozenset[str]
    golden: frozenset[str]


def _folders_above(path: str) -> set[str]:
    return {path[:place] for place, letter in enumerate(path) if letter == "/"}


@dataclass(frozen=True)
class TestSide:
    """What an agent's patch is held against."""

    __test__ = False

    hidden: frozenset[str]
    """Paths of the hidden tests."""
    golden: frozenset[str] = frozenset()
    """Paths that golden patches touch."""
    base: Collection[str] = field(default=(), repr=False)
    """Paths of the base commit."""
    installed_modules: frozenset[str] = field(default=frozenset(), repr=False)
    """Names of the Python modules in the image."""

    def reason_to_drop(self, path: str) -> Reason | None:
        """By the path alone."""
        if self._is_in_the_way(path):
            return "hidden_test"
        if is_test_config(path):
            return "test_config"
        if path in self.golden:
            return None
        if self.looks_like_tests(path):
            return "test_file"
        if _COMPILED.fullmatch(path):
            return "compiled_file"
        if path.startswith("vendor/") and "go.mod" in self.base:
            return "installed_package"
        return "shadows_module" if self._shadows(path) else None

    @staticmethod
    def looks_like_tests(path: str) -> bool:
        named = _TEST_FOLDER.match(path) or _TEST_NAME.fullmatch(path)
        return bool(named and not _RUST_MODULE.fullmatch(path))

    def _is_in_the_way(self, path: str) -> bool:
        """A hidden test, a file where one needs a folder, or a file below where one has to be."""
        return (
            path in self.hidden
            or not self.hidden.isdisjoint(_folders_above(path))
            or any(hidden.startswith(f"{path}/") for hidden in self.hidden)
        )

    @cached_property
    def _base_modules(self) -> set[str]:
        """Folders of the base, and its Python files without their endings."""
        folders = {folder for path in self.base for folder in _folders_above(path)}
        return folders | {re.sub(r"\.pyi?$", "", path) for path in self.base}

    def _shadows(self, path: str) -> bool:
        """A new Python module whose name, at an import root, is that of another one."""
        if not _PYTHON_FILE.fullmatch(path) or path in self.base:
            return False
        parts = path.split("/")
        for depth in range(len(parts)):
            root = "".join(f"{part}/" for part in parts[:depth])
            if f"{root}__init__.py" in self.base or (root and root[:-1] not in self._base_modules):
                return False  # inside of a package, or of a new folder, which is no import root yet
            name = parts[depth].partition(".")[0]
            if f"{root}{name}" in self._base_modules:
                continue
            if name in sys.stdlib_module_names or name in self.installed_modules:
                return True
        return False

    def library_part(self, paths: Iterable[str], tree: str, store: TreeStore) -> set[str]:
        """Which of these paths of a patch look like tests and are not."""
        units: dict[str, list[str]] = {}
        for path in paths:
            folder = _TEST_FOLDER.match(path)
            if folder or path.endswith((".py", ".pyi")):
                units.setdefault(folder[0] if folder else path, []).append(path)
        found = (inside for unit, inside in units.items() if self._is_library(unit, inside, tree, store))
        return {path for inside in found for path in inside}

    def _is_library(self, unit: str, changed: Sequence[str], tree: str, store: TreeStore) -> bool:
        """A file, or a folder that holds no tests, of which the rest of the code imports something."""
        there = [path for path in (*self.base, *self.hidden) if path.startswith(f"{unit}/")]
        is_folder = unit not in changed
        if is_folder and ("/" not in unit or any(self._is_test(path) for path in (*there, *changed))):
            return False
        if any(path.startswith(f"{unit}/") for path in self.golden):
            return True
        # Of what there was before, only who imported it before counts: an agent could add such a line.
        is_new = not there and unit not in self.base
        unit = re.sub(r"\.pyi?$", "", unit)
        return any(
            _imports(path, line, unit)
            for path, line in store.imports_of(unit.rpartition("/")[2], tree if is_new else store.base.tree)
            if not self.looks_like_tests(path) and path not in self.hidden
        )

    def _is_test(self, path: str) -> bool:
        return path in self.hidden or bool(_TEST_NAME.fullmatch(path))


def _imports(path: str, line: str, unit: str) -> bool:
    """Whether a line of the file at `path` imports something of a unit, which is a path without its ending."""
    folder = path.rpartition("/")[0]
    places: list[str] = []
    if not path.endswith((".py", ".pyi")):
        quoted = re.findall(r"""["']([^"'\s]+)["']""", line)
        places = [normpath(f"{folder}/{text}") if text.startswith(".") else text for text in quoted]
    elif found := re.match(r"\s*(?:from\s+(\.*)([\w.]*)\s+)?import\s+\(?(.*)", line):
        dots = len(found[1] or "")
        root = normpath("/".join([folder or ".", *[".."] * (dots - 1)])) if dots else "."
        for word in found[3].split(","):
            names = [part.replace(".", "/") for part in (found[2] or "", *word.split()[:1]) if part]
            places.append("/".join(names if root == "." else [root, *names]))
    # Code that does not import by relative paths names what it imports from some root on.
    parts = unit.split("/")
    roots = [
        part for part in range(len(parts)) if part == 0 or len(parts) - part > 1 or parts[part - 1] in _ROOTS
    ]
    tails = ["/".join(parts[part:]) for part in roots]
    if path.endswith(".go"):
        return any(
            re.search(rf"(?:^|/){re.escape(tail)}(?:/|$)", place) for tail in tails for place in places
        )
    return any(re.match(rf"{re.escape(tail)}(?:[/.]|$)", place) for tail in tails for place in places)


@dataclass(frozen=True)
class JudgedPatch:
    """An agent's patch as it is judged."""

    status: Literal["applied", "empty", "failed", "missing"]
    """`failed`: it does not apply, or is no patch; `missing`: there is none."""
    patch: bytes = b""
    """From the base to `tree`."""
    tree: str = ""
    dropped: tuple[DroppedFile, ...] = ()
    error: str | None = None


def judged_patch(patch: bytes | None, side: TestSide, store: TreeStore) -> JudgedPatch:
    """Is it a patch, does it apply, and what of it is judged?"""
    if patch is None:
        return JudgedPatch("missing", error="no patch was handed in")
    applied = store.apply(patch)
    if applied.tree is None:
        return JudgedPatch("failed", error=f"the patch does not apply: {applied.error}")
    changes = store.changes(applied.tree)
    dropped = [
        DroppedFile(path, reason)
        for path, change in changes.items()
        if (reason := _reason_to_drop(path, change, side, store))
    ]
    tree = applied.tree
    tests = [file.path for file in dropped if file.reason == "test_file"]
    library = side.library_part(tests, tree, store) if tests else set()
    dropped = [file for file in dropped if file.path not in library]
    if dropped:
        tree = store.edited(tree, {file.path: _left_of(file, changes[file.path], store) for file in dropped})
    if tree == store.base.tree:
        error = "nothing is left of the patch without test files" if dropped else "the patch is empty"
        return JudgedPatch("empty", b"", tree, tuple(dropped), error)
    return JudgedPatch("applied", store.patch_of(tree), tree, tuple(dropped))


def _left_of(file: DroppedFile, change: Change, store: TreeStore) -> TreeEntry | bytes | None:
    """What was there before, with changes of its that have nothing to do with tests."""
    is_file = change.after is not None and change.after.mode == "100644" and may_hold_test_config(file.path)
    if file.reason != "test_config" or not is_file:
        return change.before
    restored = without_test_config(file.path, store.content(change.before), store.content(change.after))
    return change.before if restored is None else restored


def feature_paths(feature: Feature, store: TreeStore) -> FeaturePaths:
    """Nothing of a patch that does not apply."""
    golden = store.apply(feature.patch.read_bytes())
    tests = feature.tests.read_bytes()
    # The tests may build on what the feature adds.
    applied = store.apply(tests)
    since = store.base.tree
    if applied.tree is None and golden.tree is not None:
        applied, since = store.apply(tests, golden.tree), golden.tree
    hidden = store.changes(applied.tree, since) if applied.tree else ()
    return FeaturePaths(frozenset(hidden), frozenset(store.changes(golden.tree) if golden.tree else ()))


def side_of(paths: Iterable[FeaturePaths], store: TreeStore) -> TestSide:
    """For patches that are to implement these features."""
    paths = tuple(paths)
    return TestSide(
        frozenset(path for one in paths for path in one.hidden),
        frozenset(path for one in paths for path in one.golden),
        store.base.files.keys(),
        store.base.installed_modules,
    )


def _reason_to_drop(path: str, change: Change, side: TestSide, store: TreeStore) -> Reason | None:
    reason = side.reason_to_drop(path)
    if reason is None and change.after and change.after.mode == LINK and path not in side.golden:
        # It may stand for a folder: of tests, of installed packages, of a Python package.
        reason = side.reason_to_drop(f"{path}/__init__.py")
    if reason or not may_hold_test_config(path):
        return reason
    before, after = store.content(change.before), store.content(change.after)
    return "test_config" if config_differs(path, before, after) else None
