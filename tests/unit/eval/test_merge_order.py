"""The order in which patches are merged: one in which all merge cleanly is found, within bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.eval import merge_order
from cooperbench.eval.merge_order import find_clean_order
from cooperbench.eval.trees import TreeStore
from tests.support.eval.lab import LINES, Lab
from tests.support.eval.realgit import merge_patches

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

EDITED = (
    "".join(f"something else at place {number}\n" for number in range(1, 14))
    + LINES[LINES.index("line 14\n") :]
)
"""More than half of the file: git no longer takes it for the same file where it is renamed, too."""
ORDERED: tuple[dict[str, str | None], ...] = (
    {"a.txt": None, "b.txt": LINES},
    {"a.txt": EDITED},
    {"a.txt": LINES.replace("line 20", "the last line")},
)
"""A rename, and two edits of the file: it can be told for a rename only before the large edit is merged into it."""


def test_an_order_in_which_all_merge_is_found(tmp_path: Path) -> None:
    lab = Lab(tmp_path, {"a.txt": LINES})
    patches = [lab.patch(changes) for changes in ORDERED]
    assert merge_patches(lab.tree, patches).status == "conflict"
    with TreeStore(lab.tree) as store:
        made = [store.apply(patch).tree for patch in patches]
        order, _ = find_clean_order(store, made)
        assert order is not None
        assert store.merge_groups([[made[at] for at in order]])[0].status == "clean"


def test_where_no_order_merges_all_are_tried_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(tmp_path, {f"{number}.txt": LINES for number in range(6)})
    sides = [{f"{number}.txt": "new\n" + LINES} for number in range(6)] + [
        {"0.txt": "other\n" + LINES}
    ]
    with TreeStore(lab.tree) as store:
        made = [store.apply(lab.patch(side)).tree for side in sides]
        assert find_clean_order(store, made[:6]) == ((0, 1, 2, 3, 4, 5), True)
        assert find_clean_order(store, [*made[:2], made[-1]]) == (None, True)
        assert find_clean_order(store, made) == (None, True)
        monkeypatch.setattr(merge_order, "MAX_ORDER_MERGES", 20)
        assert find_clean_order(store, made) == (None, False)
