"""plan.json: what a study will do and test, written before its first run starts."""

from __future__ import annotations

import hashlib
from typing import ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from cooperbench.records.files import Record, encode

TREND, HETEROGENEITY = "trend", "heterogeneity"
"""Tests of ordered levels, and of levels without an order."""
FISHER, MEAN_OVER_PAIRS = "fisher", "mean-over-pairs"
"""Tests of an intervention in forks of one pair, and of several pairs."""


class PlannedFactor(msgspec.Struct, kw_only=True, frozen=True):
    """A factor of the study, with all its levels."""

    name: str
    """In forks: the intervention."""
    levels: list[str]
    """In forks: `control` and the intervention."""
    is_ordered: bool


class PlannedTest(msgspec.Struct, kw_only=True, frozen=True):
    """A test of one factor."""

    factor: str
    measure: str
    """A verdict, such as `overall`."""
    test: str
    """`trend` for ordered levels, `heterogeneity` for others; in forks `fisher` for one pair,
    `mean-over-pairs` for several."""


class PlannedFork(msgspec.Struct, kw_only=True, frozen=True):
    """The recorded run and the moment in it at which forks begin."""

    run: str
    """The recorded run."""
    fork_point: str
    """`agent1:12` or `message:3`."""


class PlannedRepetitions(msgspec.Struct, kw_only=True, frozen=True):
    """The sample of forks of one pair, whose repetitions are independent."""

    planned: int
    """Number of forks in each arm."""
    needed: int
    """Number of forks in each arm that show the effect with a probability of 80 %."""


class PlannedPower(msgspec.Struct, kw_only=True, frozen=True):
    """The sample size, and what it can show."""

    effect: float
    """Difference between two rates that the study should be able to show."""
    discordant: float
    """Share of pairs that are assumed to succeed at only one of two levels; for forks of one pair,
    the probability that a control fork and one with the intervention have different outcomes."""
    design_effect: float
    """Assumed variance, divided by that of independent pairs."""
    error_rate: float
    """Probability of a false finding: in a sweep for all planned tests together, in forks for each
    test."""
    pairs: int
    power: float
    """Probability that the planned pairs, or the planned forks of one pair, show the effect."""
    pairs_needed: int
    """Number of pairs that show the effect with a probability of 80 %. Repetitions do not enter."""
    repetitions: PlannedRepetitions | UnsetType = UNSET
    """Only for forks of one pair."""


class PlanAmendment(msgspec.Struct, kw_only=True, frozen=True):
    """A change of the plan after the study was started."""

    time: str
    version: str
    """Version of CooperBench."""
    results: int
    """Number of pairs that had a result by then, in all arms."""
    changes: list[str]
    """One line for each change."""
    replaced_sha256: str
    """SHA-256 of plan.json before the change."""
    tests: list[PlannedTest]
    """Tests that this change added or altered."""


class PlanRecord(Record, kw_only=True, frozen=True):
    """The plan of a study."""

    SCHEMA: ClassVar[str] = "cooperbench.plan/1"

    study: str
    kind: str
    """`sweep`, also for ablations, or `fork`."""
    time: str
    version: str
    """Version of CooperBench."""
    factors: list[PlannedFactor]
    conditions: list[str]
    """Names of the arms of the first round."""
    repeat: int
    """Number of runs of each condition."""
    pairs: list[str]
    """Folders of the pairs: `my_task/1/f1_f2`."""
    primary: str
    """The measure that decides."""
    tests: list[PlannedTest]
    """All planned tests. In a sweep, their p-values are corrected together by Holm."""
    power: PlannedPower
    amendments: list[PlanAmendment]
    """Changes since the study was started, the oldest first."""
    fork: PlannedFork | UnsetType = UNSET
    """Only for forks."""

    @property
    def sha256(self) -> str:
        """Checksum of the file, which every run of the study records."""
        return hashlib.sha256(encode(self)).hexdigest()
