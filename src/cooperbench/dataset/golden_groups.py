"""pairs.json in a task's folder: what was measured of its golden patches together.

`cooperbench author check` writes it. A group is solvable if its golden patches pass the tests of
all its features, merged plainly or as combined.patch has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from cooperbench.dataset.content_hash import pair_content_sha256
from cooperbench.models import Pair, Task
from cooperbench.storage import read_bytes, write_bytes

FILE_NAME = "pairs.json"
SCHEMA = "cooperbench.golden_groups/1"


class GoldenGroup(msgspec.Struct, frozen=True):
    """The golden patches of a pair, or of more features, tested together."""

    features: list[int]
    content_sha256: str
    """Checksum of the files of the dataset that were tested."""
    merge: Literal["clean", "conflict"]
    """Outcome of the plain merge."""
    failed: list[int] = msgspec.field(default_factory=list)
    """Features whose tests fail with the plain merge; empty after a conflict."""
    solved_by: Literal["merge", "combined.patch"] | None = None
    """What passes the tests of all features of the group; None: nothing does."""
    reason: str = ""
    """Why the group is not solvable, in one line."""

    @property
    def is_semantic_conflict(self) -> bool:
        """Whether the patches merge cleanly, but tests fail with the merge."""
        return bool(self.failed)


class _File(msgspec.Struct):
    """The content of pairs.json."""

    schema: str
    groups: list[GoldenGroup]


def read_golden_groups(task: Task) -> dict[tuple[int, ...], GoldenGroup]:
    """Return what is known about the groups of a task, by features; empty without a valid file."""
    data = read_bytes(task.path / FILE_NAME, follow_link=True)
    if data is None:
        return {}
    try:
        content = msgspec.json.decode(data, type=_File)
    except msgspec.MsgspecError:
        return {}
    if content.schema != SCHEMA:
        return {}
    return {tuple(group.features): group for group in content.groups}


def write_golden_groups(task: Task, groups: Sequence[GoldenGroup]) -> Path:
    """Add groups to pairs.json, in place of what was known about the same features."""
    by_features = read_golden_groups(task)
    by_features |= {tuple(group.features): group for group in groups}
    ordered = [by_features[features] for features in sorted(by_features)]
    path = task.path / FILE_NAME
    content = msgspec.json.encode(_File(SCHEMA, ordered))
    write_bytes(path, msgspec.json.format(content, indent=2) + b"\n")
    return path


def is_current(group: GoldenGroup, task: Task) -> bool:
    """Whether the files of the dataset are still those that were tested."""
    return group.content_sha256 == pair_content_sha256(Pair(task, tuple(group.features)))


def unsolvable_reason(pair: Pair) -> str | None:
    """Return why a pair cannot be won, if that was measured with its present files."""
    group = read_golden_groups(pair.task).get(pair.feature_ids)
    if group is None or group.solved_by or not is_current(group, pair.task):
        return None
    return group.reason
