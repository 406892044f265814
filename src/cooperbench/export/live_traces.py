"""Sends traces to a collector while a run goes on.

A thread reads the files of pairs that have changed, and sends each span once it is complete. Ids
are made from the run, so nothing has to be remembered but which spans were sent. A collector that
does not answer costs the run nothing but one line.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from cooperbench import records
from cooperbench.export.otlp import Collector, CollectorError, endpoint_of
from cooperbench.export.trace_spans import TraceSpan
from cooperbench.export.traces import pair_spans, run_attributes
from cooperbench.models import Pair, Setting, agent_slots
from cooperbench.records.config import RunRecord
from cooperbench.report.loading import Run, read_pair
from cooperbench.report.pairs import PairKey
from cooperbench.storage import ExperimentPaths
from cooperbench.text import describe_error

_INTERVAL_SECONDS = 3.0
_PAUSE_FACTOR = 10
"""A pass over the files takes at most a tenth of the time of one core."""
_TIMEOUT_SECONDS = 5.0
_STOP_TIMEOUT_SECONDS = 30.0

Signature = tuple[tuple[str, int, int], ...]
"""Name, size and time of the files of a pair."""


class TracedPair(NamedTuple):
    """A pair that a run is going to work on."""

    paths: ExperimentPaths
    setting: Setting
    pair: Pair

    @property
    def key(self) -> PairKey:
        """The pair as reports have it."""
        return PairKey(self.pair.task.repo, self.pair.task.task_id, self.pair.feature_ids)

    @property
    def attempt(self) -> int:
        """Number of the current attempt."""
        return len(self.paths.archived(self.pair, self.setting)) + 1

    @property
    def files(self) -> Iterator[Path]:
        """The files that traces are made from."""
        paths = self.paths.pair(self.pair, self.setting)
        yield paths.result
        yield paths.evaluation
        for slot in agent_slots(self.pair, self.setting):
            agent = paths.agent(slot.agent_id)
            yield agent.journal
            yield agent.trajectory

    @property
    def signature(self) -> Signature:
        """Names, sizes and times of the files that exist."""
        states = []
        for path in self.files:
            with suppress(OSError):
                status = path.stat()
                states.append((str(path), status.st_size, status.st_mtime_ns))
        return tuple(states)


@contextmanager
def sending_traces(
    url: str, pairs: Sequence[TracedPair], warn: Callable[[str], None]
) -> Iterator[None]:
    """Send traces of these pairs until the block ends; `warn` prints a line."""
    sender = LiveTraces(url, pairs, warn)
    sender.start()
    try:
        yield
    finally:
        sender.stop()


@dataclass
class _Progress:
    """How far the traces of one pair have been sent."""

    traced: TracedPair
    signature: Signature
    """The files as they were when their spans were sent, or when the run started."""
    sent: set[int] = field(default_factory=set)
    """Ids of the spans that were sent."""
    has_changed: bool = False
    """Whether the run has worked on the pair."""


class LiveTraces:
    """The thread that sends the traces of a run."""

    def __init__(self, url: str, pairs: Sequence[TracedPair], warn: Callable[[str], None]) -> None:
        self._url = url
        self._pairs = pairs
        self._warn = warn
        self._progress: list[_Progress] = []
        self._runs: dict[Path, Run] = {}
        self._has_warned = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="traces", daemon=True)

    def start(self) -> None:
        """Start the thread. Files that exist already belong to earlier calls."""
        self._progress = [_Progress(traced, traced.signature) for traced in self._pairs]
        self._thread.start()

    def stop(self) -> None:
        """Send what is left, also of pairs without a verdict, and end the thread."""
        self._stopping.set()
        self._thread.join(_STOP_TIMEOUT_SECONDS)

    def _work(self) -> None:
        pause = _INTERVAL_SECONDS
        while not self._stopping.wait(pause):
            started = time.monotonic()
            self._send_or_warn(is_last=False)
            pause = max(_INTERVAL_SECONDS, _PAUSE_FACTOR * (time.monotonic() - started))
        self._send_or_warn(is_last=True)

    def _send_or_warn(self, *, is_last: bool) -> None:
        """Send what is new. Whatever goes wrong here must not end the run."""
        try:
            for progress in self._progress:
                self._send_new(progress, is_last=is_last)
        except CollectorError as error:
            self._warn_once(f"traces cannot be sent to {endpoint_of(self._url)}: {error}")
        except Exception as error:
            self._warn_once(f"traces cannot be sent: {describe_error(error)}")

    def _warn_once(self, reason: str) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        command = "cooperbench export RUN --format otlp --otlp URL"
        self._warn(f"{reason}; the run goes on, and `{command}` can send them later")

    def _send_new(self, progress: _Progress, *, is_last: bool) -> None:
        signature = progress.traced.signature
        if signature != progress.signature:
            progress.has_changed = True
        elif not (is_last and progress.has_changed):
            return
        run = self._run_of(progress.traced)
        spans = [
            span
            for span in _read_spans(run, progress.traced)
            if span.span_id not in progress.sent and (span.is_complete or is_last)
        ]
        if spans:
            Collector(self._url, run_attributes(run), _TIMEOUT_SECONDS).send(spans)
        progress.sent.update(span.span_id for span in spans)
        progress.signature = signature

    def _run_of(self, traced: TracedPair) -> Run:
        """Return the run of a pair, without its pairs."""
        paths = traced.paths
        if paths.root not in self._runs:
            config = records.read(paths.config, RunRecord)
            self._runs[paths.root] = Run(paths.run_name, paths.root, config, ())
        return self._runs[paths.root]


def _read_spans(run: Run, traced: TracedPair) -> list[TraceSpan]:
    pair = read_pair(traced.paths, traced.setting, traced.key)
    count = len(agent_slots(traced.pair, traced.setting))
    return pair_spans(run, replace(pair, agent_count=count), traced.attempt)
