"""history.jsonl: every result and every verdict that a run has had, one JSON object per line.

Lines are only appended, so a result that was replaced or removed stays on record. The process that
holds the lock on the run writes it, at the start and at the end of each call; within a call, a pair
gets one result. What a killed call left is added by the next call.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec

from cooperbench.models import SETTINGS
from cooperbench.records.evaluation import Evaluation
from cooperbench.records.files import decode
from cooperbench.records.result import PairResult, ResultError
from cooperbench.storage import ExperimentPaths, open_without_links, read_bytes, utc_now

_FEATURES_FOLDER = "f*"


class HistoryEntry(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One line: a new result.json or eval.json, or the end of a call."""

    event: Literal["result", "evaluation", "end"]
    """`end`: a call has ended, and every result on disk is in the lines above."""
    time: str
    """Time at which the file was seen; the file has the time at which it was made."""
    call: int
    """Number of the call of `run` before it, from 1."""
    pair: str = ""
    """Folder of the pair in the run's folder: `coop/my_task/1/f1_f2`."""
    status: str = ""
    """`completed`, `no_reference`, `error`, or `infrastructure` for an error that is nobody's
    fault."""
    overall_success: bool | None = None
    """The verdict; only for evaluations."""
    sha256: str = ""
    """Checksum of the file."""


def read_history(paths: ExperimentPaths) -> list[HistoryEntry] | None:
    """Return all lines; None if there is no file. Lines that cannot be read are left out."""
    data = read_bytes(paths.history)
    if data is None:
        return None
    entries = []
    for line in data.splitlines():
        with suppress(msgspec.MsgspecError):
            entries.append(msgspec.json.decode(line, type=HistoryEntry))
    return entries


def update_history(paths: ExperimentPaths, call: int, *, is_end: bool) -> None:
    """Append what is new on disk since the last update.

    Args:
        paths: The folder of the run.
        call: Number of the call that made it.
        is_end: Whether the call ends now.
    """
    last_checksums: dict[tuple[str, str], str] = {}
    for entry in read_history(paths) or []:
        last_checksums[entry.event, entry.pair] = entry.sha256
    entries = [
        entry
        for entry in _entries_on_disk(paths, call)
        if last_checksums.get((entry.event, entry.pair)) != entry.sha256
    ]
    if is_end:
        entries.append(HistoryEntry(event="end", time=utc_now(), call=call))
    if entries:
        _append(paths.history, entries)


def _entries_on_disk(paths: ExperimentPaths, call: int) -> Iterator[HistoryEntry]:
    for setting in SETTINGS:
        for folder in sorted((paths.root / setting).glob(f"*/*/{_FEATURES_FOLDER}")):
            name = folder.relative_to(paths.root).as_posix()
            data = read_bytes(folder / "result.json")
            if data is not None:
                yield _result_entry(name, data, call)
            data = read_bytes(folder / "eval.json")
            if data is not None:
                yield _evaluation_entry(name, data, call)


def _result_entry(pair: str, data: bytes, call: int) -> HistoryEntry:
    status = "unreadable"
    with suppress(ValueError, TypeError, RecursionError):
        status = decode(data, PairResult).status
        if status == "error" and decode(data, ResultError).infrastructure:
            status = "infrastructure"
    return HistoryEntry(
        event="result",
        time=utc_now(),
        call=call,
        pair=pair,
        status=status,
        sha256=sha256(data).hexdigest(),
    )


def _evaluation_entry(pair: str, data: bytes, call: int) -> HistoryEntry:
    status, overall_success = "unreadable", None
    with suppress(ValueError, TypeError, RecursionError):
        evaluation = decode(data, Evaluation)
        status, overall_success = evaluation.status, evaluation.overall_success
    return HistoryEntry(
        event="evaluation",
        time=utc_now(),
        call=call,
        pair=pair,
        status=status,
        overall_success=overall_success,
        sha256=sha256(data).hexdigest(),
    )


def _append(path: Path, entries: list[HistoryEntry]) -> None:
    """Append lines. A line that a killed process has not finished gets its newline first."""
    lines = [msgspec.json.encode(entry) for entry in entries]
    with open_without_links(path, "ab+") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(b"\n".join(lines) + b"\n")
        file.flush()
        os.fsync(file.fileno())
