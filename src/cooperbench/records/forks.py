"""forks.json: the forks of a recorded run, and where each pair was forked."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from cooperbench.records.files import Record

CONTROL = "control"
"""Kind of the arm without an intervention."""


class ForkArm(msgspec.Struct, kw_only=True, frozen=True):
    """One arm: a run of forks with the same intervention."""

    name: str
    """Folder of the run, beside forks.json."""
    kind: str
    """`control`, `drop-message`, `edit-message`, `delay-message`, `insert-message`, `model`,
    `agent`, `oracle` or `description`."""
    text: str
    """The intervention for people."""
    slot: str | None = None
    """Agent slot that changes at the fork point; None for messages."""
    round: int
    """1 for the first; later ones repeat the same intervention."""


class ForkedPair(msgspec.Struct, kw_only=True, frozen=True):
    """One pair of the recorded run."""

    pair: str
    """Its folder in the recorded run: `coop/my_task/1/f1_f2`."""
    result_sha256: str
    """SHA-256 of its result.json."""
    exchanges: dict[str, int]
    """Number of model calls that each agent replays."""
    steps: dict[str, int]
    """Number of steps that each agent replays."""
    messages: int
    """Number of messages that are sent in the replayed part."""


class ForksRecord(Record, kw_only=True, frozen=True):
    """Forks of a recorded run, all from one fork point."""

    SCHEMA: ClassVar[str] = "cooperbench.forks/1"

    name: str
    run: str
    """The recorded run."""
    fork_point: str
    """The fork point: `agent1:12` or `message:3`."""
    pairs: list[ForkedPair]
    arms: list[ForkArm]
