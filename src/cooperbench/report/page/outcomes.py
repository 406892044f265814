"""What became of a pair, in one word: the categories by which the page counts, draws and filters."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cooperbench.report.coordination.pair import LOSS_CLASSES, loss_of
from cooperbench.report.states import STATES

if TYPE_CHECKING:
    from cooperbench.report.loading import PairData


class Outcome(NamedTuple):
    mark: str
    word: str
    meaning: str

    def to_json(self, name: str) -> dict[str, str | bool]:
        return {**self._asdict(), "judged": name in LOSS_CLASSES}


OUTCOMES = {
    "passed": Outcome("✓", *STATES["passed"]),
    "capability": Outcome(
        "✗", "failed alone", "a patch fails its own feature's tests, before anything is merged"
    ),
    "conflict": Outcome(
        "⚡",
        "conflict",
        "each patch passes alone, but they conflict in a plain git merge, and the union merge fails",
    ),
    "integration": Outcome(
        "≠", "failed together", "each patch passes alone and they merge, but the merge fails tests"
    ),
    "error": Outcome("!", *STATES["error"]),
    "no_reference": Outcome("∅", *STATES["no_reference"]),
    "broken": Outcome("!", *STATES["broken"]),
    "unevaluated": Outcome("…", *STATES["unevaluated"]),
    "running": Outcome("▸", "running", "the agents are at work"),
    "missing": Outcome("·", *STATES["missing"]),
}
"""In the order in which they are shown: the states, but `failed` in three kinds, and `running` apart from `missing`."""


def outcome_of(pair: PairData) -> str:
    """Where the pair was lost, or why there is no verdict."""
    if pair.state == "missing" and pair.paths.folder.is_dir():
        return "running"
    loss = loss_of(pair)
    return pair.state if loss is None else loss.kind
