"""author.json in a task's folder: where its features come from, and which are drafts.

Runs do not read it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from cooperbench.errors import UserError
from cooperbench.models import Feature, Task
from cooperbench.storage import read_bytes, write_bytes

FILE_NAME = "author.json"
SCHEMA = "cooperbench.author/1"


class FeatureInfo(msgspec.Struct, frozen=True):
    """The origin of one feature and the state of its description."""

    feature_id: int
    title: str
    source: str
    """Where it comes from: a commit, a branch or a file."""
    is_draft: bool
    """Whether no person has accepted its description yet."""


class TaskInfo(msgspec.Struct, frozen=True):
    """The content of author.json."""

    schema: str
    language: str
    framework: str
    test_command: str
    upstream_commit: str
    """The base commit in the repository that the task was made from."""
    subfolder: str = ""
    """The part of a monorepo that the tests belong to."""
    upstream: str = ""
    """URL of that repository."""
    license: str = ""
    """Name of the license or of its file; empty if there is none."""
    clone: str = ""
    """The clone on the author's machine. It is not shared."""
    features: list[FeatureInfo] = []


def read_task_info(task: Task) -> TaskInfo:
    """Return what is known about a task; UserError if it was not made by `cooperbench author`."""
    path = task.path / FILE_NAME
    data = read_bytes(path, follow_link=True)
    if data is None:
        raise UserError(
            f"{task.label} has no {FILE_NAME}: it was not made by `cooperbench author init`"
        )
    try:
        info = msgspec.json.decode(data, type=TaskInfo)
    except msgspec.MsgspecError as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if info.schema != SCHEMA:
        raise UserError(f"{path} has schema {info.schema!r}, not {SCHEMA!r}")
    return info


def write_task_info(folder: Path, info: TaskInfo) -> None:
    """Write author.json to the folder of a task."""
    data = msgspec.json.format(msgspec.json.encode(info), indent=2)
    write_bytes(folder / FILE_NAME, data + b"\n")


def feature_info(feature: Feature) -> FeatureInfo | None:
    """Return what is known about a feature; None if nothing is."""
    try:
        info = read_task_info(feature.task)
    except UserError:
        return None
    for entry in info.features:
        if entry.feature_id == feature.feature_id:
            return entry
    return None


def set_feature_info(task: Task, entry: FeatureInfo) -> None:
    """Add an entry about a feature, in place of an earlier one."""
    info = read_task_info(task)
    features = {recorded.feature_id: recorded for recorded in info.features}
    features[entry.feature_id] = entry
    ordered = [features[feature_id] for feature_id in sorted(features)]
    write_task_info(task.path, msgspec.structs.replace(info, features=ordered))


def set_draft(feature: Feature, *, is_draft: bool) -> None:
    """Mark the description of a feature as a draft, or as accepted by a person."""
    entry = feature_info(feature)
    if entry is None:
        entry = FeatureInfo(feature.feature_id, title="", source="", is_draft=is_draft)
    set_feature_info(feature.task, msgspec.structs.replace(entry, is_draft=is_draft))
