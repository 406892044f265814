"""The report as a file that opens from disk: overview first, then the details of each pair, compressed.

Pairs are read, packed and written one by one, so that the memory needed does not grow with their number; many pairs are
packed by several processes. The file appears whole or not at all.
"""

from __future__ import annotations

import base64
import gzip
import json
import multiprocessing
import os
import shutil
import signal
import threading
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from dataclasses import fields
from functools import cached_property
from multiprocessing.connection import wait
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from cooperbench.errors import UserError
from cooperbench.report.coordination.aggregate import coordination_of_run
from cooperbench.report.coordination.pair import coordination
from cooperbench.report.coordination.presentation import pair_rows, run_rows
from cooperbench.report.page.document import document
from cooperbench.report.page.overview import make_overview, numbered_pairs, series_of, title_of
from cooperbench.report.page.pair_detail import pair_detail
from cooperbench.report.records import PairData
from cooperbench.report.states import ENDED

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from cooperbench.report.coordination.pair import Coordination
    from cooperbench.report.loading import Run
    from cooperbench.report.records import Conversation, Trajectory

MOST_PROCESSES = 4
FEWEST_PAIRS = 48
"""With fewer, starting processes takes longer than they save."""
_COMPRESSION = 4
"""Half the time of the usual 6, for files that are a twentieth larger."""


class Packed(NamedTuple):
    """One pair as the page unpacks it, and what was found in it."""

    data: bytes
    found: Coordination | None


class _CachedPair(PairData):
    """Reads large files once. Keep it only as long as the pair is looked at: it holds whole trajectories."""

    @cached_property
    def _trajectories(self) -> dict[str, Trajectory]:
        return {agent_id: PairData.trajectory(self, agent_id) for agent_id in self.agent_ids}

    @cached_property
    def _conversation(self) -> Conversation:
        return PairData.conversation(self)

    def trajectory(self, agent_id: str) -> Trajectory:
        return self._trajectories[agent_id]

    def conversation(self) -> Conversation:
        return self._conversation


def build_page(runs: Sequence[Run], target: Path, *, split: bool = False) -> None:
    """Write the page; with `split` the details of pairs lie in a folder beside it, a file each."""
    if not any(run.pairs for run in runs):
        raise UserError(
            f"there are no pairs in {', '.join(run.name for run in runs) or 'no run'}: nothing to show"
        )
    if target.is_dir():
        raise UserError(f"{target} is a folder; say which file to write, e.g. {target / 'report.html'}")
    writer = _write_beside if split else _write_inside
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        writer(runs, target)
    except OSError as error:
        raise UserError(f"cannot write {error.filename or target}: {error.strerror}") from None


def detail_with_coordination(pair: PairData) -> tuple[dict[str, Any], Coordination | None]:
    """The details of a pair, and what is found in them where it has come to an end."""
    cached = _CachedPair(*(getattr(pair, one.name) for one in fields(PairData)))
    found = coordination(cached) if pair.state in ENDED else None
    return {**pair_detail(cached), "coordination": [] if found is None else pair_rows(found)}, found


def coordination_rows(runs: Sequence[Run], look: Callable[[PairData], Coordination]) -> list[dict[str, Any]]:
    """The table of the first page: a column for each coop series."""
    return [
        {"series": side.label, "rows": rows}
        for side in series_of(runs)
        if side.setting == "coop"
        if (rows := run_rows(coordination_of_run(side.run.of("coop"), look)))
    ]


def _write_inside(runs: Sequence[Run], target: Path) -> None:
    folded = target.with_name(f".writing-{os.getpid()}-{target.name}.details")
    written = target.with_name(f".writing-{os.getpid()}-{target.name}")
    try:
        with folded.open("wb") as details:
            overview = _each_pair(runs, lambda number, text: _append(details, number, text))
        with written.open("wb") as page, folded.open("rb") as details:
            page.write(document(title_of(runs), overview, "inside").encode())
            shutil.copyfileobj(details, page, 1 << 20)
            page.write(b"</body>\n</html>\n")
        written.replace(target)
    finally:
        for leftover in (folded, written):
            leftover.unlink(missing_ok=True)


def _append(file: IO[bytes], number: int, text: bytes) -> None:
    file.write(b'<script type="text/plain" id="detail-%d">%s</script>\n' % (number, text))


def _write_beside(runs: Sequence[Run], target: Path) -> None:
    """A new folder takes the place of an old one before the page that refers to it appears."""
    folder = target.with_name(f"{target.stem}.pairs")
    fresh = target.with_name(f".writing-{os.getpid()}-{folder.name}")
    written = target.with_name(f".writing-{os.getpid()}-{target.name}")
    try:
        fresh.mkdir()
        overview = _each_pair(runs, lambda number, text: _script(fresh, number, text))
        page = document(title_of(runs), {**overview, "folder": folder.name}, "beside")
        written.write_text(page + "</body>\n</html>\n", encoding="utf-8")
        _check_ours(folder)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
        written.replace(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        with suppress(OSError):
            written.unlink()


def _check_ours(folder: Path) -> None:
    """Only a folder that an earlier report left is replaced."""
    foreign = [one.name for one in folder.iterdir() if one.suffix != ".js"] if folder.is_dir() else []
    if foreign:
        raise UserError(
            f"{folder} holds {foreign[0]}, which no report wrote; move it away or take another name"
        )


def _script(folder: Path, number: int, text: bytes) -> None:
    (folder / f"{number}.js").write_bytes(b'cooperbenchDetail(%d,"%s")\n' % (number, text))


def _each_pair(runs: Sequence[Run], write: Callable[[int, bytes], None]) -> dict[str, Any]:
    """Write the details of every pair, and return the overview with what was found in them."""
    found: dict[int, Coordination] = {}
    pairs = numbered_pairs(runs)
    with closing(pack_all(pairs, process_count(len(pairs)))) as packed:
        for number, one in enumerate(packed):
            write(number, one.data)
            if one.found is not None:
                found[id(pairs[number])] = one.found
    return make_overview(runs) | {"coordination": coordination_rows(runs, lambda pair: found[id(pair)])}


def pack_pair(pair: PairData) -> Packed:
    """JSON as the page unpacks it: gzip, then base64."""
    detail, found = detail_with_coordination(pair)
    text = json.dumps(detail, ensure_ascii=False, separators=(",", ":"))
    data = gzip.compress(text.encode("utf-8", "replace"), _COMPRESSION, mtime=0)
    return Packed(base64.b64encode(data), found)


def process_count(pairs: int) -> int:
    """0: not worth it, or not safe: a fork of a process with several threads may deadlock."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    forks = "fork" in multiprocessing.get_all_start_methods() and threading.active_count() == 1
    return min(MOST_PROCESSES, usable) if forks and usable > 1 and pairs >= FEWEST_PAIRS else 0


def pack_all(pairs: Sequence[PairData], processes: int) -> Generator[Packed]:
    """In the order of the pairs. Closed before its end, it ends the processes.

    Processes are forked, as a spawned one would import the caller's script again. What they do not do because one of
    them died is done here.
    """
    if not processes:
        yield from map(pack_pair, pairs)
        return
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(processes, context, _start_worker)
    try:
        waiting: deque[Future[Packed]] = deque()
        for place, pair in enumerate(pairs):
            # A few ahead of the one that is asked for: what is packed and not yet written takes memory.
            ahead = pairs[place + len(waiting) : place + 3 * processes]
            with suppress(BrokenProcessPool):
                waiting.extend(pool.submit(pack_pair, one) for one in ahead)
            try:
                packed = waiting.popleft().result() if waiting else pack_pair(pair)
            except BrokenProcessPool:
                packed = pack_pair(pair)
            yield packed
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Ctrl-C is for the parent. Without a parent a worker would wait for work forever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
