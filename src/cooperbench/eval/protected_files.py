"""Files that agents may not change: everything that decides which tests run and how.

Tests and their configuration come from the dataset, never from an agent; docs/evaluation.md has
the rules. This does not stop code under test that attacks its tests from inside the process. The
comparison with the reference and the canary are for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cooperbench.eval.git_attributes import find_attribute_files
from cooperbench.eval.library_files import find_data_files, find_imported_files
from cooperbench.eval.protected_paths import ProtectedFiles, Reason
from cooperbench.eval.test_config import (
    ConfigChange,
    find_changed_configs,
    may_hold_test_config,
    restore_configs,
)
from cooperbench.eval.trees import FILE, LINK, Applied, Change, DroppedFile, TreeEntry, TreeStore
from cooperbench.git import GitError
from cooperbench.models import Feature


def drop_protected_files(
    patch: bytes | None, protected: ProtectedFiles, store: TreeStore
) -> Applied:
    """Apply a patch, and undo its changes to protected files.

    A patch that git cannot handle does not apply.
    """
    try:
        applied = store.apply(patch)
        if applied.status != "applied":
            return applied
        return _undo_protected_changes(applied.tree, protected, store)
    except GitError as error:
        reason = store.explain_patch_error(error)
        return Applied("failed", error=f"the patch does not apply: {reason}")


def _undo_protected_changes(tree: str, protected: ProtectedFiles, store: TreeStore) -> Applied:
    changes = store.changes(tree)
    dropped = []
    candidates = []
    for path, change in changes.items():
        reason = _reason_to_drop(path, change, protected)
        if reason:
            dropped.append(DroppedFile(path, reason))
        elif path not in protected.golden:
            candidates.append(path)
    configs = _changed_configs(candidates, changes, store)
    dropped += [DroppedFile(path, "test_config") for path in configs]
    dropped.sort()
    library_files = _library_files(dropped, tree, protected, store)
    dropped = [file for file in dropped if file.path not in library_files]
    if dropped:
        tree = store.edit(tree, _originals(dropped, changes, store))
    attribute_files = find_attribute_files(tree, protected, store)
    if attribute_files:
        dropped += [DroppedFile(path, "git_attributes") for path in attribute_files]
        tree = store.edit(tree, {path: changes[path].before for path in attribute_files})
    if tree == store.base.tree:
        error = "nothing is left of the patch without test files"
        return Applied("empty", tree, error, dropped=tuple(dropped))
    return Applied("applied", tree, patch=store.patch_of(tree), dropped=tuple(dropped))


def _library_files(
    dropped: list[DroppedFile], tree: str, protected: ProtectedFiles, store: TreeStore
) -> set[str]:
    """Return the files that look like tests but belong to the library."""
    test_files = [file.path for file in dropped if file.reason == "test_file"]
    if not test_files:
        return set()
    changes = store.changes(tree)
    new_files = []
    for path in test_files:
        change = changes[path]
        is_new_file = change.before is None and change.after and change.after.mode == FILE
        if is_new_file and not path.endswith(".rs"):
            new_files.append(path)
    imported = find_imported_files(test_files, tree, protected, store)
    return imported | find_data_files(new_files, tree, protected, store)


def _reason_to_drop(path: str, change: Change, protected: ProtectedFiles) -> Reason | None:
    """Return why a file is protected, judging by its path and whether it is a link."""
    reason = protected.reason_to_drop(path)
    if reason or path in protected.golden:
        return reason
    if change.after and change.after.mode == LINK:
        # It may replace a folder: of tests, of installed packages, of a Python package.
        return protected.reason_to_drop(f"{path}/__init__.py")
    return None


def _changed_configs(
    paths: Iterable[str], changes: Mapping[str, Change], store: TreeStore
) -> list[str]:
    """Return those of these files with real work whose test configuration changes."""
    configs = [
        _config_change(path, changes[path], store) for path in paths if may_hold_test_config(path)
    ]
    return [config.path for config in find_changed_configs(configs)]


def _config_change(path: str, change: Change, store: TreeStore) -> ConfigChange:
    return ConfigChange(path, store.content(change.before), store.content(change.after))


def _originals(
    dropped: Iterable[DroppedFile], changes: Mapping[str, Change], store: TreeStore
) -> dict[str, TreeEntry | bytes | None]:
    """Return what takes the place of dropped files.

    It is the file as it was before, but with changes that have nothing to do with tests.
    """
    originals: dict[str, TreeEntry | bytes | None] = {}
    configs = []
    for file in dropped:
        change = changes[file.path]
        originals[file.path] = change.before
        is_file = change.after is not None and change.after.mode == FILE
        if file.reason == "test_config" and is_file and may_hold_test_config(file.path):
            configs.append(_config_change(file.path, change, store))
    for config, restored in zip(configs, restore_configs(configs), strict=True):
        if restored is not None:
            originals[config.path] = restored
    return originals


class FeaturePaths(NamedTuple):
    """Paths of one feature; those of a patch that does not apply are missing."""

    hidden: frozenset[str]
    """Paths that the hidden tests change."""
    golden: frozenset[str]
    """Paths that the golden patch changes, see `ProtectedFiles.golden`."""


def feature_paths(feature: Feature, store: TreeStore) -> FeaturePaths:
    """Return the paths that a feature's hidden tests and its golden patch change."""
    hidden: set[str] = set()
    tree, since = applied_tests(feature.tests.read_bytes(), feature, store)
    if tree:
        hidden.update(store.changes(tree, since))
    golden: set[str] = set()
    golden_tree = store.apply(feature.patch.read_bytes()).tree
    if golden_tree:
        changes = store.changes(golden_tree)
        golden.update(path for path in changes if not may_hold_test_config(path))
        golden.update(_changed_configs(changes, changes, store))
    return FeaturePaths(frozenset(hidden), frozenset(golden))


def hidden_tests_patch(feature: Feature, store: TreeStore) -> bytes:
    """Return the patch of a feature's hidden tests in the form that confirmation suites have.

    Code under test could tell one kind of run from the other by the form of the patch.
    """
    tests = feature.tests.read_bytes()
    tree, since = applied_tests(tests, feature, store)
    return store.patch_of(tree, since) if tree else tests


def applied_tests(tests: bytes, feature: Feature, store: TreeStore) -> tuple[str, str]:
    """Return the tree with hidden tests, and the tree that they were applied to.

    That is the base commit, or the golden patch if the tests build on it. The first tree is empty
    if the tests apply to neither.
    """
    tree = store.apply(tests).tree
    if tree:
        return tree, store.base.tree
    golden = store.apply(feature.patch.read_bytes()).tree
    if not golden:
        return "", ""
    return store.apply(tests, golden).tree, golden
