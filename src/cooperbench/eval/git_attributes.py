"""Git attributes in patches: they may not change how git writes protected files to disk.

An agent's `.gitattributes` can make git re-encode the hidden tests of its teammate, change their
line ends or expand keywords in them when the runner applies them. So changes of attributes are left
out of the evaluated tree if a protected path would get other attributes. Attributes of the base
commit keep working, and so do an agent's attributes of other files.
"""

from __future__ import annotations

from collections.abc import Iterable

from cooperbench.eval.protected_paths import ProtectedFiles
from cooperbench.eval.trees import FILE, Change, TreeStore

_NAME = ".gitattributes"
_ATTRIBUTES = (
    *("text", "eol", "crlf", "working-tree-encoding", "filter", "ident"),
    *("whitespace", "merge", "diff", "conflict-marker-size", "export-ignore", "export-subst"),
)
"""All that could change what `git apply`, `checkout`, `merge` and `archive` write to disk."""
_MAX_FILE_BYTES = 16 * 1024
_MAX_LINE_BYTES = 255


def find_attribute_files(tree: str, protected: ProtectedFiles, store: TreeStore) -> list[str]:
    """Return the `.gitattributes` that a tree changes for protected paths, sorted."""
    changes = store.changes(tree)
    changed = [path for path in changes if path.rpartition("/")[2] == _NAME]
    if not changed:
        return []
    restored = {path for path in changed if not _is_read_everywhere(changes[path], store)}
    affected = _affected_paths(_restore(restored, tree, store), protected, store)
    for path in changed:
        folder = path.removesuffix(_NAME)
        if any(protected_path.startswith(folder) for protected_path in affected):
            restored.add(path)
    if restored and _affected_paths(_restore(restored, tree, store), protected, store):
        # The files that are left rely on those that are not: a macro, or an exception from a rule.
        restored.update(changed)
    return sorted(restored)


def _is_read_everywhere(change: Change, store: TreeStore) -> bool:
    """Whether all versions of git read a file in the same way, from a tree and from disk.

    Some follow links, some stop at a null byte, and some skip long lines.
    """
    if change.after is None:
        return True
    if change.after.mode != FILE:
        return False
    content = store.content(change.after) or b""
    if len(content) > _MAX_FILE_BYTES or b"\0" in content:
        return False
    return all(len(line) <= _MAX_LINE_BYTES for line in content.split(b"\n"))


def _restore(paths: Iterable[str], tree: str, store: TreeStore) -> str:
    changes = store.changes(tree)
    return store.edit(tree, {path: changes[path].before for path in paths})


def _affected_paths(tree: str, protected: ProtectedFiles, store: TreeStore) -> list[str]:
    """Return the protected paths that have other attributes than in the base commit."""
    paths = sorted(protected.protected_paths)
    before = store.attributes(store.base.tree, paths, _ATTRIBUTES)
    after = store.attributes(tree, paths, _ATTRIBUTES)
    return [path for path in paths if before.get(path) != after.get(path)]
