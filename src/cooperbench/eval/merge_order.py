"""Search for an order in which patches merge without a conflict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cooperbench.eval.trees import TreeStore

MAX_ORDER_MERGES = 400
"""Maximum number of merges of two trees in a search: enough for every order of four trees."""


class OrderSearch(NamedTuple):
    """Result of a search."""

    order: tuple[int, ...] | None
    """Indices of the trees in an order in which they merge cleanly; None if there is none."""
    is_complete: bool
    """Whether the search tried all orders or found one."""


def find_clean_order(store: TreeStore, trees: Sequence[str]) -> OrderSearch:
    """Find an order in which trees merge without a conflict, by depth-first search."""
    merges = 0
    seen: set[tuple[str, frozenset[int]]] = set()
    first_steps = [((index,), tree) for index, tree in enumerate(trees)]
    stack: list[tuple[tuple[int, ...], str]] = list(reversed(first_steps))
    while stack:
        order, merged = stack.pop()
        remaining = [index for index in range(len(trees)) if index not in order]
        if not remaining:
            return OrderSearch(order, is_complete=True)
        state = (merged, frozenset(order))
        if state in seen:
            continue
        seen.add(state)
        merges += len(remaining)
        if merges > MAX_ORDER_MERGES:
            return OrderSearch(None, is_complete=False)
        results = store.merge_pairs([(merged, trees[index]) for index in remaining])
        longer_orders = []
        for index, result in zip(remaining, results, strict=True):
            if result.tree:
                longer_orders.append(((*order, index), result.tree))
        stack += reversed(longer_orders)
    return OrderSearch(None, is_complete=True)
