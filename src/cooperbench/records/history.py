"""history.jsonl: every result and every verdict that a run has had, one JSON object per line.

Lines are only appended, so a result that was replaced or removed stays on record. The process that
holds the lock on the run writes it, at the start and at the end of each call; within a call, a pair
gets one result. What a killed call left is added by the next call.

Each line has the checksum of the line before it. This shows that a line was changed or removed, but
not to somebody who faces a whole file that was computed again: there is no secret in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
    """One line: a new result.json or eval.json, or the start or the end of a call."""

    event: Literal["start", "result", "evaluation", "end"]
    """`start`: a call of `run` or `eval` begins. `end`: it has ended, and every result on disk is
    in the lines above."""
    time: str
    """Time at which the file was seen; the file has the time at which it was made."""
    call: int
    """Number of the call of `run`, from 1; of `eval`, that of the call of `run` before it."""
    pair: str = ""
    """Folder of the pair in the run's folder: `coop/my_task/1/f1_f2`."""
    status: str = ""
    """`completed`, `no_reference`, `error`, or `infrastructure` for an error that is nobody's
    fault."""
    overall_success: bool | None = None
    """The verdict; only for evaluations, as is the next field."""
    key: str = ""
    """Checksum of everything that the verdict depends on."""
    sha256: str = ""
    """Checksum of the file; for `start`, that of config.json."""
    previous: str = ""
    """Checksum of the line before; empty for the first line."""


@dataclass(frozen=True)
class History:
    """The content of history.jsonl."""

    entries: tuple[HistoryEntry, ...]
    """The lines that can be read."""
    checksums: tuple[str, ...]
    """Checksum of the line of each entry."""
    lines: int
    """Number of lines, with those that cannot be read: a killed process may not have finished
    one."""
    broken_line: int | None
    """Number of the first line that does not follow from the line before it, from 1."""
    last_checksum: str
    """Checksum of the last line."""


_EMPTY = History((), (), 0, None, "")


def read_history(paths: ExperimentPaths) -> History | None:
    """Return the content of history.jsonl; None if there is no file."""
    data = read_bytes(paths.history)
    if data is None:
        return None
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    entries: list[HistoryEntry] = []
    checksums: list[str] = []
    broken_line = None
    last_checksum = ""
    for number, line in enumerate(lines, 1):
        checksum = sha256(line).hexdigest()
        with suppress(msgspec.MsgspecError):
            entry = msgspec.json.decode(line, type=HistoryEntry)
            if entry.previous != last_checksum and broken_line is None:
                broken_line = number
            entries.append(entry)
            checksums.append(checksum)
        last_checksum = checksum
    return History(tuple(entries), tuple(checksums), len(lines), broken_line, last_checksum)


def record_start(paths: ExperimentPaths, *, last_call: int, call: int, config: bytes) -> None:
    """Append what earlier calls have left on disk, and that a call begins.

    Args:
        paths: The folder of the run.
        last_call: Number of calls of `run` so far.
        call: Number of the call that begins.
        config: Content of config.json during the call.
    """
    history = read_history(paths) or _EMPTY
    entries = _new_entries(paths, history, last_call)
    checksum = sha256(config).hexdigest()
    entries.append(HistoryEntry(event="start", time=utc_now(), call=call, sha256=checksum))
    _append(paths.history, entries, history.last_checksum)


def record_end(paths: ExperimentPaths, call: int) -> None:
    """Append what a call has written, and that it ends."""
    history = read_history(paths) or _EMPTY
    entries = _new_entries(paths, history, call)
    entries.append(HistoryEntry(event="end", time=utc_now(), call=call))
    _append(paths.history, entries, history.last_checksum)


def _new_entries(paths: ExperimentPaths, history: History, call: int) -> list[HistoryEntry]:
    """Return an entry for each file on disk that the history does not have."""
    last_checksums: dict[tuple[str, str], str] = {}
    for entry in history.entries:
        last_checksums[entry.event, entry.pair] = entry.sha256
    return [
        entry
        for entry in _entries_on_disk(paths, call)
        if last_checksums.get((entry.event, entry.pair)) != entry.sha256
    ]


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
    status, overall_success, key = "unreadable", None, ""
    with suppress(ValueError, TypeError, RecursionError):
        evaluation = decode(data, Evaluation)
        status, overall_success = evaluation.status, evaluation.overall_success
        key = evaluation.key
    return HistoryEntry(
        event="evaluation",
        time=utc_now(),
        call=call,
        pair=pair,
        status=status,
        overall_success=overall_success,
        key=key,
        sha256=sha256(data).hexdigest(),
    )


def _append(path: Path, entries: Sequence[HistoryEntry], last_checksum: str) -> None:
    """Append lines. A line that a killed process has not finished gets its newline first."""
    lines = []
    for entry in entries:
        line = msgspec.json.encode(msgspec.structs.replace(entry, previous=last_checksum))
        last_checksum = sha256(line).hexdigest()
        lines.append(line)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_without_links(path, "ab+") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(b"\n".join(lines) + b"\n")
        file.flush()
        os.fsync(file.fileno())
