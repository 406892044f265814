"""Compares the files of a run with history.jsonl, which has every result and verdict of the run.

A call that has no end in the history still runs or was killed: what it wrote is not in there yet.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from cooperbench import records
from cooperbench.models import SETTINGS, Setting
from cooperbench.records.history import History, HistoryEntry, read_history
from cooperbench.records.summary import Summary
from cooperbench.report.mismatch import Findings
from cooperbench.report.pairs import PairData, PairKey
from cooperbench.storage import ExperimentPaths, read_bytes

if TYPE_CHECKING:
    from cooperbench.records.config import RunRecord
    from cooperbench.report.loading import Run

RESULT = "result.json"
EVALUATION = "eval.json"
_CLOCK_DIFFERENCE = timedelta(minutes=5)
"""Clocks of cluster nodes may be that much behind."""
_FOLDER = re.compile(
    r"""
    (?P<setting>[a-z]+)
    / (?P<repo>[^/]+)
    / (?P<task>[0-9]{1,18})
    / (?P<features>f[0-9]{1,18}(?:_f[0-9]{1,18})*)
    """,
    re.VERBOSE,
)


class PairFolder(NamedTuple):
    """The meaning of the folder of a pair: `coop/my_task/1/f1_f2`."""

    setting: Setting
    key: PairKey


def parse_pair_folder(name: str) -> PairFolder | None:
    """Return the pair of a folder, relative to the run's folder; None if it is not one."""
    match = _FOLDER.fullmatch(name)
    if match is None or match["repo"] in (".", ".."):
        return None
    features = tuple(int(part[1:]) for part in match["features"].split("_"))
    for setting in SETTINGS:
        if setting == match["setting"]:
            return PairFolder(setting, PairKey(match["repo"], int(match["task"]), features))
    return None


@dataclass
class _PairHistory:
    """The results and verdicts that one pair has had, in order."""

    results: list[HistoryEntry] = field(default_factory=list)
    evaluations: list[HistoryEntry] = field(default_factory=list)
    """The verdicts on the last result."""
    earlier_verdicts: list[bool | None] = field(default_factory=list)
    """The last verdict on each completed result that was replaced; None without one."""
    changed_with_same_key: bool = False
    """Whether two verdicts on the same patches, tests and options differ."""

    def add(self, entry: HistoryEntry) -> None:
        """Add the next entry."""
        if entry.event == "evaluation":
            for earlier in self.evaluations:
                self.changed_with_same_key |= _is_other_verdict(earlier, entry)
            self.evaluations.append(entry)
            return
        if self.results and self.results[-1].status == "completed":
            verdicts = [verdict.overall_success for verdict in self.evaluations]
            self.earlier_verdicts.append(verdicts[-1] if verdicts else None)
        self.results.append(entry)
        self.evaluations = []


def _is_other_verdict(first: HistoryEntry, second: HistoryEntry) -> bool:
    if first.key != second.key or None in (first.overall_success, second.overall_success):
        return False
    return first.overall_success != second.overall_success


def check_history(run: Run, config: RunRecord | None, findings: Findings) -> None:
    """Find what does not fit history.jsonl."""
    paths = ExperimentPaths(run.root.parent, run.root.name)
    history = read_history(paths)
    if history is None:
        if config is not None and config.requested is not None:
            text = "history.jsonl is missing: results may have been replaced or removed"
            findings.add_run("history", text)
        else:
            findings.add_run("unchecked", "cannot be checked: replaced or removed results")
        return
    open_call = _open_call(history)
    _check_lines(history, open_call, paths, findings)
    if config is not None:
        _check_calls(history, open_call, config, paths, findings)
    _check_pairs(run, history, open_call, findings)


def _check_pairs(
    run: Run, history: History, open_call: HistoryEntry | None, findings: Findings
) -> None:
    """Compare each pair with its part of the history."""
    histories: dict[str, _PairHistory] = {}
    for entry in history.entries:
        if entry.event in ("result", "evaluation"):
            histories.setdefault(entry.pair, _PairHistory()).add(entry)
    # If lines are missing, every file could have been in them.
    is_complete = not findings.has("history")
    for pair in run.pairs:
        pair_history = histories.pop(_folder_of(run, pair), _PairHistory())
        check = _PairCheck(run, pair, pair_history, open_call, findings)
        check.run_again()
        if is_complete:
            check.check_files()
    for folder in histories:
        _report_gone(folder, findings)


def _folder_of(run: Run, pair: PairData) -> str:
    return pair.paths.folder.relative_to(run.root).as_posix()


def _report_gone(folder: str, findings: Findings) -> None:
    parsed = parse_pair_folder(folder)
    if parsed is not None:
        text = "the result in history.jsonl is gone"
        findings.add_key("gone", parsed.setting, parsed.key, text)


def _open_call(history: History) -> HistoryEntry | None:
    """Return the start of a call that has not ended; None if there is none."""
    marks = [entry for entry in history.entries if entry.event in ("start", "end")]
    return marks[-1] if marks and marks[-1].event == "start" else None


def _check_lines(
    history: History, open_call: HistoryEntry | None, paths: ExperimentPaths, findings: Findings
) -> None:
    """Find lines that were changed, inserted or removed."""
    if history.broken_line is not None:
        number = history.broken_line
        before = f"line {number - 1}" if number > 1 else "the start of the file"
        text = f"history.jsonl was changed: line {number} does not follow {before}"
        findings.add_run("history", text)
    if open_call is None:
        return
    summary = records.read(paths.summary, Summary)
    if summary is not None and summary.time > open_call.time:
        text = f"history.jsonl was cut off: summary.json is of the end of call {open_call.call}"
        findings.add_run("history", text)
        return
    text = f"cannot be checked: call {open_call.call} still runs or was killed, run it again"
    findings.add_run("unchecked", text)


def _check_calls(
    history: History,
    open_call: HistoryEntry | None,
    config: RunRecord,
    paths: ExperimentPaths,
    findings: Findings,
) -> None:
    """Find calls that the history lacks, and changes of config.json."""
    calls = len(config.invocations)
    recorded = {
        number for number, call in enumerate(config.invocations, 1) if call.pairs is not None
    }
    starts = [entry for entry in history.entries if entry.event == "start"]
    missing = sorted(recorded - {entry.call for entry in starts})
    if missing:
        numbers = ", ".join(str(number) for number in missing)
        findings.add_run("history", f"history.jsonl does not have call {numbers} of {calls}")
    if open_call is not None and open_call.call == calls + 1:
        # It was killed before it wrote config.json.
        starts = [entry for entry in starts if entry.call <= calls]
    if starts:
        _check_config(starts[-1], paths, findings)


def _check_config(last_start: HistoryEntry, paths: ExperimentPaths, findings: Findings) -> None:
    """Find changes of config.json since the last call."""
    if last_start.sha256 != sha256(read_bytes(paths.config) or b"").hexdigest():
        text = f"config.json is not the one of call {last_start.call}: its options were changed"
        findings.add_run("config", text)


@dataclass(frozen=True)
class _PairCheck:
    """Compares one pair with its history."""

    run: Run
    pair: PairData
    history: _PairHistory
    open_call: HistoryEntry | None
    findings: Findings

    def run_again(self) -> None:
        """Find results that were replaced, and verdicts that changed without a reason."""
        verdicts = self.history.earlier_verdicts
        if verdicts:
            text = f"run again although there was a result ({_verdicts_text(verdicts)})"
            self.findings.add("replaced", self.pair, text)
        elif self._replaces_result():
            self.findings.add("replaced", self.pair, "run again although there was a result")
        if self.history.changed_with_same_key:
            text = "another verdict on the same patches, tests and options"
            self.findings.add("verdict_changed", self.pair, text)

    def _replaces_result(self) -> bool:
        """Whether result.json says so."""
        result = self.pair.result
        attempts = (result.earlier_attempts if result else None) or []
        return any(attempt.status == "completed" for attempt in attempts)

    def check_files(self) -> None:
        """Find files that are not the last ones in the history, and files that are gone."""
        result, evaluation = self.pair.result, self.pair.evaluation
        if not self._result_is_gone():
            self._check_file(RESULT, self.history.results, result.ended_at if result else None)
            time = evaluation.started_at if evaluation else None
            self._check_file(EVALUATION, self.history.evaluations, time)

    def _result_is_gone(self) -> bool:
        completed = [entry for entry in self.history.results if entry.status == "completed"]
        if self.pair.paths.result.exists() or not completed:
            return False
        if self._is_archived():
            text = "run again although there was a result, without a new one so far"
            self.findings.add("replaced", self.pair, text)
        else:
            self.findings.add("gone", self.pair, "the result in history.jsonl is gone")
        return True

    def _check_file(self, name: str, entries: Sequence[HistoryEntry], time: str | None) -> None:
        if self.findings.is_explained(self.pair, name):
            return
        content = read_bytes(self.pair.paths.folder / name)
        last = entries[-1] if entries else None
        if content is None:
            if last is not None and last.status == "completed":
                self.findings.add("gone", self.pair, f"the {name} in history.jsonl is gone")
            return
        if last is not None and last.sha256 == sha256(content).hexdigest():
            return
        if self.open_call is not None and _is_later(time, self.open_call.time):
            return
        text = f"{name} is not the one in history.jsonl"
        if last is None:
            text = f"{name} is not in history.jsonl"
        self.findings.add("changed", self.pair, text)

    def _is_archived(self) -> bool:
        """Whether the last result was moved to attempts/, to run the pair again."""
        folder = _folder_of(self.run, self.pair)
        return (self.run.root / "attempts" / folder).is_dir()


def _verdicts_text(verdicts: Sequence[bool | None]) -> str:
    """Return how results that were replaced had been judged: `failed before`."""
    names = {True: "passed", False: "failed", None: "not evaluated"}
    texts = [names[verdict] for verdict in verdicts]
    return f"before: {', '.join(texts)}"


def _is_later(time: str | None, start: str) -> bool:
    """Whether a file is of a call that began at `start`. An error has no time: it is not scored."""
    if not time:
        return True
    try:
        moments = [datetime.fromisoformat(text) for text in (time, start)]
    except ValueError:
        return False
    moment, begin = (value if value.tzinfo else value.replace(tzinfo=UTC) for value in moments)
    return moment >= begin - _CLOCK_DIFFERENCE
