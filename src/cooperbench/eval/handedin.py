"""A patch that was handed in: is it one, does it apply, and what of it may reach the tests?"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cooperbench.diff import PatchError, check_safe_paths, parse_diff, paths_of
from cooperbench.eval.hygiene import clean_patch
from cooperbench.eval.merge import PatchRepo
from cooperbench.eval.sizes import too_large

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cooperbench.eval.hygiene import DroppedFile
    from cooperbench.eval.merge import Applied, BaseTree
    from cooperbench.eval.testside import TestSide
    from cooperbench.models import MergeResult


@dataclass(frozen=True)
class HandedIn:
    """An agent's patch, after hygiene."""

    status: str
    """`applied`, `empty`, `failed` (does not apply, or is no patch) or `missing`."""
    patch: bytes | None
    """What is tested; None where there is nothing usable."""
    dropped: tuple[DroppedFile, ...] = ()
    error: str | None = None
    applied: Applied | None = None
    """As the store sees it, for merging; None where there is nothing to merge."""
    tree: str = ""
    """Identifies what the patch makes of the base; the same for two patches that make the same."""


def examine_all(
    patches: Mapping[str, bytes | None], test_side: TestSide, base: BaseTree
) -> tuple[dict[str, HandedIn], MergeResult]:
    """Each agent's patch, and all of them merged."""
    with PatchRepo(base, [patch for patch in patches.values() if patch and not _problem(patch)]) as repo:
        works = {agent_id: _examine(patch, test_side, base, repo) for agent_id, patch in patches.items()}
        return works, repo.merge_applied([work.applied for work in works.values()])


def examine(patch: bytes | None, test_side: TestSide, base: BaseTree) -> HandedIn:
    """One patch by itself."""
    with PatchRepo(base, [patch] if patch and not _problem(patch) else []) as repo:
        return _examine(patch, test_side, base, repo)


def _problem(patch: bytes) -> str:
    """Why it is no patch, or none that may be applied."""
    if reason := too_large(patch):
        return reason
    try:
        check_safe_paths(parse_diff(patch))
    except PatchError as error:
        return str(error)
    return ""


def _examine(patch: bytes | None, test_side: TestSide, base: BaseTree, repo: PatchRepo) -> HandedIn:
    """Is it a patch, does it apply, and what of it may reach the tests?"""
    if patch is None:
        return HandedIn("missing", None, error="no patch was handed in")
    if problem := _problem(patch):
        return HandedIn("failed", None, error=problem)
    applied = repo.apply(patch)
    if applied.status == "empty":
        return HandedIn("empty", b"", error="the patch is empty", applied=applied)
    if applied.tree is None:
        return HandedIn("failed", None, error=f"the patch does not apply: {applied.error}")
    tree = applied.tree

    def before(path: str) -> bytes | None:
        found = base.read([path]).get(path)
        return found.data if found else None

    clean = clean_patch(patch, test_side, before, lambda path: repo.file(tree, path))
    if clean.dropped:
        applied = repo.apply(clean.patch)
        if applied.status == "empty":
            reason = "nothing is left of the patch without test files"
            return HandedIn("empty", b"", clean.dropped, reason, applied)
        if applied.tree is None:
            reason = f"without test files it does not apply: {applied.error}"
            return HandedIn("failed", None, clean.dropped, reason)
    tree = tree_id(repo.patch_of(applied.tree or tree))
    return HandedIn("applied", clean.patch if clean.dropped else patch, clean.dropped, None, applied, tree)


def tree_id(patch: bytes) -> str:
    """Of the tree that a patch makes, where the patch is one that `PatchRepo.patch_of` wrote."""
    return hashlib.sha256(patch).hexdigest()


def touched_paths(patches: Iterable[bytes | None]) -> list[str]:
    """By all of them together; what is no patch touches nothing."""
    paths: set[str] = set()
    for patch in patches:
        with suppress(PatchError):
            paths.update(paths_of(patch or b""))
    return sorted(paths)
