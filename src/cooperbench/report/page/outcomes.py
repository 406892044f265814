"""What became of a pair, in one word: the categories by which the page counts, draws and filters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.report.coordination.loss import loss_of

if TYPE_CHECKING:
    from cooperbench.report.loading import PairData

OUTCOMES = {
    "passed": "passed",
    "capability": "failed alone",
    "conflict": "conflict",
    "integration": "failed together",
    "error": "error of ours",
    "broken": "unreadable",
    "unevaluated": "not judged yet",
    "running": "running",
    "missing": "not run yet",
}
"""In the order in which they are shown. The first four are verdicts; the others are no part of any rate."""
MEANINGS = {
    "passed": "every patch passes alone, and their merge passes all tests",
    "capability": "a patch fails its own feature's tests, before anything is merged",
    "conflict": "each patch passes alone, but they conflict in a plain git merge, and the union merge fails",
    "integration": "each patch passes alone and they merge, but the merge fails tests",
    "error": "a sandbox, a server or a provider failed; not scored",
    "broken": "a file of the pair cannot be read; not scored",
    "unevaluated": "the agents are done, the tests have not run",
    "running": "the agents are at work",
    "missing": "there is nothing on disk yet",
}


def outcome_of(pair: PairData) -> str:
    """Where the pair was lost, or why there is no verdict."""
    if pair.state == "missing" and pair.paths.folder.is_dir():
        return "running"
    loss = loss_of(pair)
    return pair.state if loss is None else loss.kind
