"""Patches of a few bytes that become very large files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.eval.trees import MAX_CHANGED_BYTES, MAX_PATCH_BYTES, Applied, TreeStore
from tests.support.eval.lab import Lab, creation

if TYPE_CHECKING:
    from pathlib import Path


def test_a_patch_that_unpacks_to_too_much_fails(tmp_path: Path) -> None:
    """As text, as one huge file in a few bytes, and as many copies of what is there."""
    half = MAX_CHANGED_BYTES // 2 + 1
    lab = Lab(tmp_path, {"half": b"\0" * half})
    zeros = lab.real.path / "zeros"
    zeros.write_bytes(b"\0" * (4 * MAX_CHANGED_BYTES))
    object_id = lab.real.git("hash-object", "-w", "zeros").decode().strip()
    lab.real.git("read-tree", lab.commit)
    lab.real.git("update-index", "--add", "--cacheinfo", f"100644,{object_id},bomb")
    bomb = lab.real.git("diff", "--cached", "--binary", lab.commit)
    assert len(bomb) < 4_000_000
    copies = b"".join(
        b"diff --git a/half b/copy%d\nsimilarity index 100%%\ncopy from half\ncopy to copy%d\n"
        % (one, one)
        for one in range(2)
    )
    with TreeStore(lab.tree) as store:
        for patch in (b"x" * (MAX_PATCH_BYTES + 1), bomb, copies):
            applied = store.apply(patch)
            assert (applied.status, applied.tree) == ("failed", "")
            assert applied.error
            assert store.apply(creation("good")).status == "applied", "others do not suffer"
        ours, theirs = (
            store.edit(lab.tree.tree, {name: b"\1" * half}) for name in ("ours", "theirs")
        )
        merged = store.merge([Applied("applied", ours), Applied("applied", theirs)])
        assert (merged.status, merged.strategy, merged.patch) == ("clean", "none", b"")
        assert "more than" in merged.detail
