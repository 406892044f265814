"""Where a pair was lost: each pair with a verdict falls into exactly one class, so the counts sum to n."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cooperbench.report.records import is_list, mapping

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cooperbench.report.records import PairData

LossClass = Literal["passed", "capability", "conflict", "integration"]
LOSS_CLASSES: tuple[LossClass, ...] = ("passed", "capability", "conflict", "integration")


@dataclass(frozen=True)
class Loss:
    """How one pair ended, and what that is read from in eval.json."""

    kind: LossClass
    """`passed`; else `capability`: a patch fails its own feature's tests alone; else `conflict`: git could not merge
    the patches plainly; else `integration`: they merge, and fail together."""
    failed_alone: tuple[str, ...]
    """Agents whose patch fails alone."""
    merge_status: str | None
    conflicting_files: tuple[str, ...]
    failed_features: tuple[int, ...]
    """Features whose tests fail on the merge."""


@dataclass(frozen=True)
class LossSplit:
    """Of a set of pairs."""

    n: int
    """Pairs with a verdict; the four classes sum to it."""
    passed: int
    capability: int
    conflict: int
    integration: int
    capability_with_conflict: int
    """Of `capability`, those whose patches conflict besides."""
    without_verdict: int
    """Not run, not evaluated, broken off: no part of n."""


def loss_of(pair: PairData) -> Loss | None:
    """None where there is no verdict."""
    verdicts = pair.verdicts
    if verdicts is None:
        return None
    failed_alone = tuple(agent.agent_id for agent in pair.agents if agent.success is False)
    merged = mapping(pair.evaluation, "merged")
    files = merged.get("conflicting_files")
    kind: LossClass
    if verdicts.overall:
        kind = "passed"
    elif verdicts.individual is False or failed_alone or pair.setting == "solo":
        kind = "capability"
    elif verdicts.merge is False:
        kind = "conflict"
    else:
        kind = "integration"
    return Loss(
        kind,
        failed_alone,
        pair.merge_status,
        tuple(file for file in files if isinstance(file, str)) if is_list(files) else (),
        tuple(
            int(feature)
            for feature, run in mapping(merged, "features").items()
            if feature.isdigit() and isinstance(run, dict) and run.get("success") is False
        ),
    )


def split_loss(losses: Iterable[Loss | None]) -> LossSplit:
    every = list(losses)
    known = [loss for loss in every if loss is not None]
    counts = {kind: sum(loss.kind == kind for loss in known) for kind in LOSS_CLASSES}
    both = sum(loss.kind == "capability" and loss.merge_status == "conflict" for loss in known)
    return LossSplit(
        len(known),
        counts["passed"],
        counts["capability"],
        counts["conflict"],
        counts["integration"],
        both,
        len(every) - len(known),
    )
